"""What the calls of peers return, with the methods of a future; and their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ....ops.errors import BadVersionError, StoreUnavailableError, TransactionRefusedError
from ....ops.operations import Check, Put

Operations: TypeAlias = "Sequence[Check | Put]"


class PeerStat(NamedTuple):
    version: int | None


class PeerFound(NamedTuple):
    value: bytes
    stat: PeerStat


class Done:
    """The outcome of a call that has returned, with the methods of a future."""

    __slots__ = ("_error", "_result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: Exception | None = None
        try:
            self._result = call()
        except (BadVersionError, TransactionRefusedError) as error:
            self._error = error
        except Exception as error:
            raise StoreUnavailableError(f"the peer failed: {error!r}") from error

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False

    def exception(self, timeout: float | None = None) -> Exception | None:
        del timeout
        return self._error

    def result(self) -> Any:
        return self._result

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)


def refused(operations: Operations) -> TransactionRefusedError:
    path = operations[0].path
    return TransactionRefusedError("a version does not hold", path=path, error=conflict(path))


def conflict(path: str) -> BadVersionError:
    return BadVersionError("the version does not hold", path=path)
