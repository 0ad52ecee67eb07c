"""What the engine asks of a back end, and what it may rely on.

A back end executes whole requests and blocks while it does. It knows nothing of futures, queues
or order: the engine sees to it that no path occurs twice among the writes that are under way, so
a back end may run them in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, Literal, Protocol, TypeAlias, assert_never, get_args

from ..ops.errors import (
    BadVersionError,
    IndeterminateError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
)
from ..ops.operations import ABSENT, Kind, PutOptions, ReadKind, WriteKind
from ..ops.results import Change, Range, Result, ScanResult, StatPage

__all__ = [
    "EVENTS",
    "Answer",
    "Backend",
    "Event",
    "History",
    "Limits",
    "PassingBackend",
    "ReadRequest",
    "Request",
    "RequestRefusedError",
    "Scans",
    "Tally",
    "WriteRequest",
    "partly_removed",
    "refusal",
]


class Request(Protocol):
    """One operation as a back end sees it: already checked, and not to be changed.

    ``kind`` is a row in the table of ``ops.kinds``; ``value`` and ``options`` are set for a put
    only, ``expected_version`` for a put or a delete.
    """

    @property
    def kind(self) -> Kind: ...
    @property
    def path(self) -> str: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def expected_version(self) -> int | None: ...
    @property
    def options(self) -> PutOptions | None: ...


class WriteRequest(Request, Protocol):
    """An operation that changes something."""

    @property
    def kind(self) -> WriteKind: ...


class ReadRequest(Request, Protocol):
    """An operation that changes nothing."""

    @property
    def kind(self) -> ReadKind: ...


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
        reads_in_flight: how many calls of ``read``, where another number of them serves better.
    """

    write_ops: int
    read_ops: int
    request_bytes: int
    op_bytes: int
    value_bytes: int
    in_flight: int
    singles: int
    reads_in_flight: int | None = None


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

    ``scans`` and ``history`` are its facets: what it can do beside this, ``None`` for what it
    cannot. They stay the same as long as it lives.
    """

    @property
    def limits(self) -> Limits: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def scans(self) -> Scans | None:
        """What walks over its paths in their order."""

    @property
    def history(self) -> History | None:
        """What gives the changes of the past; its kind of store states ``"history"``."""

    @property
    def connected(self) -> bool:
        """Whether the client has a connection to a server now; always, if it needs none.

        Decides how calls end at their deadline: with ``StoreUnavailableError`` without one, else
        with ``OperationTimeoutError``. May be asked from any thread, and does not wait.
        """
        ...

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]: ...

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]: ...

    def sync(self, deadline: float) -> None:
        """Make later reads see all that anybody had written before this call."""

    def close(self) -> None: ...


class Scans(Protocol):
    """The facet of a back end whose paths can be walked in their order.

    Everything here blocks the calling thread, stands outside the engine's order, and may be called
    by several threads at a time. ``timeout`` is in seconds, for each request to the server: such a
    call may take many. Reads are retried within it. Errors are raised as they are for ``read``.

    What lies under ``prefix`` is its own value, if it holds one, and those of all paths below it;
    ``/`` stands for the whole store. What the client or the server keeps for itself is left out.
    So are keys that are not valid paths; a page names those that lie in its part of the store, as
    ``foreign``, and over ranges that together cover everything each of them comes once.
    """

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        """Give what lies under ``prefix`` and ``within`` a range, in pages, in the order of paths.

        Memory is bounded by some pages. Nothing is requested before the first page is asked for;
        closing the generator frees what it holds. A page with foreign keys is a
        :class:`ScanPage`, and may hold nothing else.

        Args:
            prefix: as above.
            within: the paths to be given.
            revision: of which all pages are to be; given only if the store's kind states
                ``"snapshots"``. Without it, all pages are of one revision where the store can
                give that: as of the first page.
            timeout: seconds for each request.

        Raises:
            UnsupportedError: a revision is given, and the store keeps no old ones.
            RevisionCompactedError: the revision is not there any more.
            InvalidSettingError: it is not there yet.
        """
        ...

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Give the stats of what :meth:`scan` would give, and spare the values.

        They are neither asked for nor kept, as far as the store can do without: what they would
        cost on the line and in memory is what callers want to save.
        """
        ...

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return up to ``n`` ranges, in order, which together hold all that lies under ``prefix``.

        They hold about equally many values now. The first has no start, and the last no end.
        """
        ...

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove what lies under ``path``, in batches; return how many values that were.

        Not atomic: what others put there meanwhile may be removed or stay.
        """
        ...

    def revision(self, timeout: float) -> int:
        """Return the store's revision: that of every later change is greater, of no earlier one."""
        ...


class History(Protocol):
    """The facet of a back end that keeps the history of its paths.

    It blocks the calling thread, stands outside the engine's order, and may be called by several
    threads at a time. Reads are retried within ``timeout``. Errors are raised as they are for
    ``read``.
    """

    def changes(
        self, prefix: str, after: int, until: int, timeout: float
    ) -> Generator[Sequence[Change], None, None]:
        """Give each change of the paths under ``prefix`` once, in pages, in order of revisions.

        It ends when all are given, and for certain: also where the last one lies long before
        ``until``. Asked again, it gives the same. Nothing is requested before the first page is
        asked for; closing the generator frees what it holds. A page with changes of foreign keys
        is a :class:`ChangePage`, and may hold nothing else.

        Args:
            prefix: as for a scan.
            after: only changes of greater revisions; 0 for all that there have ever been.
            until: only changes up to this revision, which must be there already.
            timeout: seconds without any news from the server.

        Raises:
            RevisionCompactedError: changes after ``after`` are not there any more; ``oldest`` is
                the revision after which they are.
            InvalidSettingError: ``until`` is not there yet.
        """
        ...


class PassingBackend:
    """Passes everything on to ``backend``: for what stands around one, to see or change a part.

    Closing it closes ``backend``. The facets of ``backend`` are its own: a wrapper that has to see
    or change scans and changes gives facets that stand around those.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def limits(self) -> Limits:
        return self._backend.limits

    @property
    def tally(self) -> Tally:
        return self._backend.tally

    @property
    def scans(self) -> Scans | None:
        return self._backend.scans

    @property
    def history(self) -> History | None:
        return self._backend.history

    @property
    def connected(self) -> bool:
        return self._backend.connected

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        return self._backend.write(requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        return self._backend.read(requests, deadline)

    def sync(self, deadline: float) -> None:
        self._backend.sync(deadline)

    def close(self) -> None:
        self._backend.close()


def partly_removed(
    removed: int, path: str, error: MetadataStoreError, *, perhaps: bool = False
) -> MetadataStoreError:
    """Return the error of a ``delete_recursive`` that failed after it had removed something.

    Args:
        removed: the values that are certainly gone.
        path: of the tree.
        error: what it failed with.
        perhaps: whether more may be gone.
    """
    if not removed and not perhaps:
        return error.for_path(path)
    return IndeterminateError(
        f"removing {path!r} failed after at least {removed:,} values were removed: {error}",
        path=path,
    )


def refusal(request: WriteRequest, actual: int, occupied: bool) -> MetadataStoreError | None:
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
    kind = request.kind
    if kind == "put":
        if holds:
            return None
    elif kind == "delete":
        if actual == ABSENT or holds:
            if occupied:
                return NotEmptyError(f"{path!r} has values below it", path=path)
            if actual == ABSENT:
                return NotFoundError(f"nothing to delete at {path!r}", path=path)
            return None
    else:
        assert_never(kind)
    return BadVersionError(
        f"{path!r} {_describe(actual)}, expected {_expectation(expected)}",
        path=path,
        expected=expected,
        actual=actual,
    )


def _describe(actual: int) -> str:
    return "holds no value" if actual == ABSENT else f"is at version {actual}"


def _expectation(expected: int | None) -> str:
    return "no value (ABSENT)" if expected == ABSENT else f"version {expected}"
