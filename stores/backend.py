"""What the engine asks of a back end, and what it may rely on.

A back end executes whole requests and blocks while it does. It knows nothing of futures, queues
or order: the engine sees to it that no path occurs twice among the writes that are under way, so
a back end may run them in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..ops.errors import BadVersionError, MetadataStoreError, NotEmptyError, NotFoundError
from ..ops.operations import ABSENT, Kind
from ..ops.results import Result

__all__ = ["Answer", "Backend", "Limits", "Request", "RequestRefusedError", "refusal"]


class Request(Protocol):
    """One operation as a back end sees it: already checked, and not to be changed.

    ``kind`` is one of the strings of ``ops.Kind``; ``value`` is set for a put only,
    ``expected_version`` for a put or a delete.
    """

    @property
    def kind(self) -> Kind: ...
    @property
    def path(self) -> str: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def expected_version(self) -> int | None: ...


#: What one request ends with: its result, or the error that it ends with, as a value.
Answer: TypeAlias = Result | MetadataStoreError


@dataclass(frozen=True, slots=True)
class Limits:
    """What a back end takes in one call, and what serves it best.

    Attributes:
        write_ops: the most writes in one call of ``write``.
        read_ops: the most reads in one call of ``read``.
        request_bytes: the most bytes of one call, counted as the sum of ``len(path) +
            len(value) + op_bytes`` over its operations.
        op_bytes: bytes that the encoding adds to each operation, rounded up.
        value_bytes: the largest value; a larger one is refused before it is queued.
        in_flight: how many calls of each of ``write`` and ``read`` run at the same time when the
            caller does not say.
        singles: the most single executions beside the batches that are of any use.
    """

    write_ops: int
    read_ops: int
    request_bytes: int
    op_bytes: int
    value_bytes: int
    in_flight: int
    singles: int


class RequestRefusedError(MetadataStoreError):
    """A request of several operations was refused whole: none of them was applied.

    One of them may be the culprit. The engine halves the batch and sends it again until the
    culprit stands alone, and then gives it ``error``.
    """

    def __init__(self, error: MetadataStoreError) -> None:
        super().__init__(str(error))
        self.error = error


class Backend(Protocol):
    """A store that executes requests, several at a time, from several threads.

    ``write`` and ``read`` block until the whole request has ended and return one answer for each
    operation, in the order given. An error of one operation is an answer, not an exception. They
    raise a ``MetadataStoreError`` only for the request as a whole:

    - ``RequestRefusedError``: refused whole, one operation may be to blame.
    - ``outcome == "not_applied"``: none of it was applied, nor ever will be.
    - ``outcome == "unknown"``: it was sent, and may have been applied.

    ``deadline`` is a value of ``time.monotonic()``; a call ends by then, or soon after. Reads are
    retried inside until then; a write only while it is certain that it was never sent.

    ``close`` may be called at any time from any thread, and more than once. Calls under way end
    soon, with an error if need be; later ones raise ``StoreClosedError``.
    """

    @property
    def limits(self) -> Limits: ...

    def write(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]: ...

    def read(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]: ...

    def sync(self, deadline: float) -> None:
        """Make later reads see all that anybody had written before this call."""

    def close(self) -> None: ...


def refusal(request: Request, actual: int, occupied: bool) -> MetadataStoreError | None:
    """Say why a write cannot hold, from what its path looks like; ``None`` if it can.

    This is the one place that knows which error comes first, so that all stores answer alike: the
    version of a value that is there, then values below, then absence.

    Args:
        request: a put or a delete.
        actual: the version of the value at the path, ``ABSENT`` if there is none.
        occupied: whether there are values below the path (asked for a delete only).
    """
    path, expected = request.path, request.expected_version
    holds = expected is None or expected == actual
    if request.kind == "put":
        if holds:
            return None
    elif actual == ABSENT or holds:
        if occupied:
            return NotEmptyError(f"{path!r} has values below it", path=path)
        if actual == ABSENT:
            return NotFoundError(f"nothing to delete at {path!r}", path=path)
        return None
    return BadVersionError(
        f"{path!r} {_describe(actual)}, expected {_expectation(expected)}",
        path=path,
        expected=expected,
        actual=actual,
    )


def _describe(actual: int) -> str:
    return "holds no value" if actual == ABSENT else f"is at version {actual}"


def _expectation(expected: int | None) -> str:
    return "none (ABSENT)" if expected == ABSENT else f"version {expected}"
