"""What the engine asks of a back end, and what it may rely on.

A back end executes whole requests and blocks while it does. It knows nothing of futures, queues
or order: the engine sees to it that no path occurs twice among the writes that are under way, so
a back end may run them in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, Literal, Protocol, TypeAlias, get_args

from ..ops.errors import BadVersionError, MetadataStoreError, NotEmptyError, NotFoundError
from ..ops.operations import ABSENT, Kind
from ..ops.results import Result

__all__ = [
    "EVENTS",
    "Answer",
    "Backend",
    "Event",
    "Limits",
    "Request",
    "RequestRefusedError",
    "Tally",
    "refusal",
]


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
        singles: the most single executions at the same time that are of any use: beside the
            batches, or without any.
    """

    write_ops: int
    read_ops: int
    request_bytes: int
    op_bytes: int
    value_bytes: int
    in_flight: int
    singles: int


#: What happens to requests beside being answered. ``conflict``: one was not applied as it stood
#: because of one of its operations, and its others went again (ZooKeeper's multis, etcd's flat
#: transactions). ``split``: one was larger than the store takes, and went in parts. ``retry``: one
#: was sent again after a failure. ``settled``: a write without an answer was found out about.
#: ``reconnect``: a connection was lost and found again, or another server was turned to.
Event: TypeAlias = Literal["conflict", "split", "retry", "settled", "reconnect"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)


class Tally:
    """Counts what happened to a back end's requests. Used from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _counts; held for an addition or a copy
        self._counts: Counter[Event] = Counter()

    def add(self, event: Event, times: int = 1) -> None:
        with self._lock:
            self._counts[event] += times

    def counts(self) -> Mapping[Event, int]:
        """Return how often each event has happened since the back end was opened."""
        with self._lock:
            return {event: self._counts[event] for event in EVENTS}


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

    ``deadline`` is a value of ``time.monotonic()``. A read is retried until then, and ends by then
    or soon after; so does a write that was never sent. A write that was sent and not answered is
    sent again only where the store tells a second one from the first; its call returns when it
    can no longer take effect, which may be after the deadline: the engine has told the callers
    by then, and holds back what follows on the same paths.

    ``limits`` may become smaller as a back end learns what its server takes, and grow back where
    that proves wrong: it then returns another object, which the engine looks at after each call.

    ``close`` may be called at any time from any thread, and more than once. Calls under way end
    soon, with an error if need be; later ones raise ``StoreClosedError``.
    """

    @property
    def limits(self) -> Limits: ...
    @property
    def tally(self) -> Tally: ...

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
