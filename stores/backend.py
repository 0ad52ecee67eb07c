"""The protocol between the engine and a back end.

A back end executes whole requests and blocks while it does. It knows nothing of futures, queues or
order. The engine guarantees that no write under way changes a path of another one. Several
transactions may check the same path. So a back end may run them in any order.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, RLock, Thread, current_thread, main_thread
from typing import (
    Any,
    Final,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    runtime_checkable,
)

from ..ops.acceleration import accelerated
from ..ops.errors import MetadataStoreError, StoreUnavailableError
from ..ops.operations import Kind, Options, Part, ReadKind, WriteKind
from ..ops.results import Acl, Change, Range, Result, ScanResult, StatPage, WatchEvent
from ..ops.sessions import SessionEvent, SessionState
from ..ops.steps import PartRequest

__all__ = [
    "EVENTS",
    "Acls",
    "Answer",
    "Backend",
    "BeginWatch",
    "Deadline",
    "DeletionWatches",
    "Event",
    "History",
    "Limits",
    "PartRequest",
    "PassingBackend",
    "PlainRead",
    "PlainWrite",
    "ReadRequest",
    "Request",
    "RequestRefusedError",
    "Scans",
    "Session",
    "Tally",
    "ValueWatches",
    "WatchHandle",
    "Watches",
    "WriteRequest",
    "are_plain_puts",
    "column",
    "in_steps",
    "is_plain_put",
    "remaining",
    "send_by",
    "start_thread",
    "to_its_end",
    "without_options",
]

_T = TypeVar("_T")


class Request(Protocol):
    """One operation as a back end sees it. It is already checked and must not be changed.

    ``kind`` names a row in the table of ``ops.kinds``. Only a put has a ``value``; only a put or a
    delete has ``expected_version``. ``options`` is ``None`` for nearly all operations; a
    transaction always has them.
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
    def options(self) -> Options | None: ...


class WriteRequest(Request, Protocol):
    """A write.

    ``session`` is the number of the client's session at the call of the operation. Read it only if
    the options say ``ephemeral``: the write must take effect in that session, or end with
    ``SessionLostError``. ``None`` means the present session.
    """

    @property
    def kind(self) -> WriteKind: ...
    @property
    def session(self) -> int | None: ...


def is_plain_put(write: PartRequest) -> bool:
    """Say whether a write is a put without options. Nearly all are, so stores have a short way."""
    return write.kind == "put" and write.options is None


class ReadRequest(Request, Protocol):
    """A read."""

    @property
    def kind(self) -> ReadKind: ...


@accelerated
def column(requests: Sequence[Request | PartRequest], name: str) -> list[Any]:
    """Return one attribute of each request."""
    return [getattr(request, name) for request in requests]


@dataclass(frozen=True, slots=True)
class PlainRead:
    """A get that a wrapper makes, also of a path that callers cannot name."""

    path: str
    kind: Literal["get"] = "get"
    value: None = None
    expected_version: None = None
    options: None = None


@dataclass(frozen=True, slots=True)
class PlainWrite:
    """A write that a wrapper makes or changes."""

    kind: WriteKind
    path: str
    value: bytes | None = None
    expected_version: int | None = None
    options: Options | None = None
    session: int | None = None


def without_options(requests: Sequence[Request | PartRequest]) -> bool:
    """Say whether none of the requests has options."""
    return column(requests, "options").count(None) == len(requests)


def are_plain_puts(writes: Sequence[PartRequest]) -> bool:
    """Say whether :func:`is_plain_put` holds for all of the writes."""
    return column(writes, "kind").count("put") == len(writes) and without_options(writes)


#: The outcome of one request: its result, or its error as a value.
Answer: TypeAlias = Result | MetadataStoreError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call to a back end, and the numbers of calls that suit it best.

    Attributes:
        write_ops: the most writes in one call of ``write``.
        read_ops: the most reads in one call of ``read``.
        request_bytes: the most bytes of one call, counted as the sum of ``len(path) +
            len(value) + op_bytes`` over its operations.
        op_bytes: bytes that the encoding adds to each operation, rounded up.
        value_bytes: the largest value; a larger one is refused before it is queued.
        in_flight: the default number of ``write`` calls, and of ``read`` calls, at the same time.
        singles: the useful limit of concurrent single executions, with or without batches beside
            them.
        reads_in_flight: the default number of ``read`` calls, if it differs from ``in_flight``.
        transaction_ops: the most operations in one transaction.
        weigh: returns the number of operations as which the store counts the parts of a
            transaction; ``None`` if each counts once. Checks and puts that expect a version, and
            have no options, count once on every store.
    """

    write_ops: int
    read_ops: int
    request_bytes: int
    op_bytes: int
    value_bytes: int
    in_flight: int
    singles: int
    reads_in_flight: int | None = None
    transaction_ops: int = 0
    weigh: Callable[[Sequence[Part]], int] | None = None


#: Events of requests. ``conflict``: a request was not applied because of one of its operations, and
#: the others were sent again (ZooKeeper's multis, etcd's flat transactions). ``split``: a request
#: was larger than the store accepts, and was sent in parts. ``retry``: a request was sent again
#: after a failure. ``settled``: the outcome of a write without an answer was found out.
#: ``reconnect``: the client connected again after a loss, or to another server.
Event: TypeAlias = Literal["conflict", "split", "retry", "settled", "reconnect"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)


class Tally:
    """Counts the events of a back end's requests. Any thread may use it.

    Attributes:
        advisory: a fault of the server's version that can lose data, in a sentence, or ``None``.
    """

    advisory: str | None = None

    def __init__(self) -> None:
        #: Called, on any thread, when a server has said that there are too many requests.
        self.on_busy: Callable[[], None] = lambda: None
        self._lock = RLock()  # guards _counts; held only for an addition or a copy
        self._counts: Counter[Event] = Counter()

    def add(self, event: Event, times: int = 1) -> None:
        with self._lock:
            self._counts[event] += times

    def counts(self) -> Mapping[Event, int]:
        """Return how often each event has happened since the back end was opened."""
        with self._lock:
            return {event: self._counts[event] for event in EVENTS}


class RequestRefusedError(MetadataStoreError):
    """A request of several operations was refused as a whole; none of them was applied.

    One operation may be the cause. The engine halves the batch and sends it again until that
    operation is alone, which then ends with ``error``.
    """

    def __init__(self, error: MetadataStoreError) -> None:
        super().__init__(str(error))
        self.error = error


class Deadline(float):
    """The deadline of a call, by ``time.monotonic()``: the latest of its operations' deadlines.

    Attributes:
        earliest: the earliest of them.
    """

    __slots__ = ("earliest",)

    earliest: float

    @classmethod
    def of(cls, deadlines: Sequence[float]) -> Self:
        """Return the deadline of a call with operations that have these deadlines."""
        deadline = cls(max(deadlines))
        deadline.earliest = min(deadlines)
        return deadline


def send_by(deadline: float) -> float:
    """Return until when a write may wait to be sent, by ``time.monotonic()``.

    That is the earliest deadline of its operations. A back end that waits longer keeps the engine
    from knowing that the first of them was never sent.
    """
    return deadline.earliest if isinstance(deadline, Deadline) else deadline


def remaining(deadline: float) -> float:
    """Return the seconds until a deadline, as locks and conditions take them."""
    return min(max(0.0, deadline - time.monotonic()), TIMEOUT_MAX)


class Backend(Protocol):
    """A store that executes requests, several at a time, from several threads.

    ``write`` and ``read`` block until the whole request has ended and return one answer for each
    operation, in the order given. An error of one operation is an answer, not an exception. They
    raise a ``MetadataStoreError`` only for the request as a whole:

    - ``RequestRefusedError``: it was refused as a whole; one operation may be the cause.
    - ``outcome == "not_applied"``: none of it was applied, nor ever will be.
    - ``outcome == "unknown"``: it was sent, and may have been applied.

    ``deadline`` is a value of ``time.monotonic()``. A read, or a write that was never sent, is
    retried until then and ends by then or soon after. A write that still waits to be sent after
    ``send_by`` may end then: the engine calls again for the operations with time left. A write
    that was sent without an answer is sent again only if the store can tell the copy from the
    original. Its call then returns when it can no longer take effect. That may be after the
    deadline: the engine has then already ended the operations for their callers, and holds back
    later ones on the same paths.

    The engine calls ``write`` and ``read`` on threads of its own. It calls ``sync`` and the facets
    on their caller's thread, where Ctrl-C can strike at any point: see ``to_its_end``.

    ``limits`` may become smaller as a back end learns its server's limits, and grow back if that
    was wrong. It then returns another object; the engine checks after each call.

    ``close`` may be called at any time from any thread, and more than once. Calls under way end
    soon, with an error if need be; later calls raise ``StoreClosedError``.

    ``scans``, ``history``, ``session``, ``watches`` and ``acls`` are its optional facets, or
    ``None``. They stay the same for the life of the back end.
    """

    @property
    def limits(self) -> Limits: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def scans(self) -> Scans | None:
        """The facet that walks over paths in order, or ``None``."""

    @property
    def history(self) -> History | None:
        """The facet that yields past changes, or ``None``. Its store kind states ``"history"``."""

    @property
    def session(self) -> Session | None:
        """The session, or ``None`` if the store has none. Its kind states ``"ephemerals"``."""

    @property
    def watches(self) -> Watches | None:
        """The facet that reports changes, or ``None``. Its kind states ``"watches"``."""

    @property
    def acls(self) -> Acls | None:
        """The facet for access control lists, or ``None``. Its store kind states ``"acls"``."""

    @property
    def connected(self) -> bool:
        """Whether the client has a connection to a server now; always, if it needs none.

        At their deadline, calls end with ``OperationTimeoutError`` if this is true, and with
        ``StoreUnavailableError`` otherwise. Any thread may read it; it does not block.
        """
        ...

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]: ...

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]: ...

    def sync(self, deadline: float) -> None:
        """Make later reads see every write that any client completed before this call."""

    def close(self) -> None: ...


class Scans(Protocol):
    """The facet of a back end that walks over paths in order.

    All methods block the calling thread and bypass the engine's order. Several threads may call
    them at a time. ``timeout`` is in seconds and applies to each request to the server; one call
    may need many. Reads are retried within it. Errors are raised as for ``read``.

    The values under ``prefix`` are its own and those of all paths below it; ``/`` stands for the
    whole store. Keys that the client or the server keeps for itself are left out. So are keys that
    are not valid paths, and paths that the login may not read, with all below them, where the store
    refuses only these: a page lists those in its part of the store as ``foreign``. Ranges that
    together cover everything list each key once.
    """

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        """Yield the values under ``prefix`` and ``within`` a range, in pages, in order of paths.

        The generator holds a few pages at most. It requests nothing before the first page is taken;
        closing it frees its memory. A page with foreign keys is a ``ScanPage``, and may have
        no results.

        Args:
            prefix: as above.
            within: the range of the paths.
            revision: the revision of all pages; passed only if the store's kind states
                ``"snapshots"``. Without it, all pages show the revision of the first page, if the
                store can do that.
            timeout: seconds for each request.

        Raises:
            UnsupportedError: a revision is given, but the store keeps no old ones.
            RevisionCompactedError: the store no longer keeps the revision.
            InvalidSettingError: the revision does not exist yet.
        """
        ...

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Yield the stats of the results of :meth:`scan`, without the values.

        The back end neither requests nor keeps values, as far as the store allows, because callers
        want to save their cost on the network and in memory.
        """
        ...

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return up to ``n`` ranges, in order, that together cover every path under ``prefix``.

        They contain about the same number of values now. The first has no start, and the last no
        end.
        """
        ...

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove the values under ``path``, in batches, and return the number removed.

        The removal is not atomic: values that others put there meanwhile may be removed or stay.
        """
        ...

    def revision(self, timeout: float) -> int:
        """Return the store's revision. Later changes have greater ones; earlier changes do not."""
        ...


class Acls(Protocol):
    """The facet of a back end that has an access control list (ACL) for each path.

    It blocks the calling thread and bypasses the engine's order. Several threads may call it at a
    time. ``/`` stands for the root of the store. Errors are raised as for ``read``.
    """

    def get(self, path: str, timeout: float) -> Acl:
        """Return the list of a path.

        Raises:
            NotFoundError: the path does not exist.
        """
        ...

    def set(
        self, path: str, acl: str | Sequence[str], expected_version: int | None, timeout: float
    ) -> int:
        """Replace the list of a path, and return its new version.

        Raises:
            InvalidSettingError: it is no list.
            NotFoundError: the path does not exist.
            BadVersionError: the list is not at the expected version.
        """
        ...


class History(Protocol):
    """The facet of a back end that keeps the history of its paths.

    It blocks the calling thread and bypasses the engine's order. Several threads may call it at a
    time. Reads are retried within ``timeout``. Errors are raised as for ``read``.
    """

    def revision(self, path: str, timeout: float) -> int:
        """Return the newest revision, for a login that may read ``path``."""
        ...

    def changes(
        self, prefix: str, after: int, until: int, timeout: float
    ) -> Generator[Sequence[Change], None, None]:
        """Yield each change of the paths under ``prefix`` once, in pages, in order of revisions.

        The generator always ends after the last change, also if that lies long before ``until``. A
        second call yields the same changes. The generator requests nothing before the first page is
        taken; closing it frees its memory. A page with changes of foreign keys is a
        ``ChangePage``, and may have no other changes.

        Args:
            prefix: as for a scan.
            after: the revision after which the changes begin; 0 for the whole history.
            until: the last revision, which must exist already.
            timeout: seconds without an answer from the server.

        Raises:
            RevisionCompactedError: the store no longer keeps all changes after ``after``;
                ``oldest`` is the oldest revision that can be passed as ``after``.
            InvalidSettingError: ``until`` does not exist yet.
        """
        ...


class Session(Protocol):
    """The session of a back end, to which ephemeral values belong.

    A store has one session at a time. If the server ends it, the back end makes a new one by
    itself; nothing that belonged to the old one is made again. Any thread may read the attributes;
    none blocks.
    """

    @property
    def id(self) -> str | None:
        """The server's name of the session; ``None`` if there is none now."""

    @property
    def timeout(self) -> float:
        """Seconds of silence after which the server ends the session; infinite without a server."""
        ...

    @property
    def number(self) -> int:
        """The number of the client's session, from 1. It grows when a session is lost."""
        ...

    @property
    def state(self) -> SessionState: ...

    def valid_until(self) -> float:
        """Return a time before which the server cannot have ended the session.

        It is a value of ``time.monotonic()``: the time at which the last confirmed keep-alive was
        sent, plus the timeout. ``-math.inf`` if there is no session, ``math.inf`` if it lasts as
        long as the store is open.
        """
        ...

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        """Call a function at each event of the session, in order; begin a session if need be.

        The call does not block, because a loop may make it: what has to wait for a server runs on
        a thread of the back end. So does the function, which never blocks either.
        """
        ...


class WatchHandle(Protocol):
    """A watch of a back end.

    It may have an attribute ``lag``, a float: the seconds for which it has not been in place, or
    since it has received an event that it has not delivered yet; else 0.0.
    """

    def close(self) -> None:
        """End the watch. Any thread may call it, also from within the watch's ``deliver``.

        No call of ``deliver`` begins after it has returned; a second call does nothing.
        """
        ...


#: Begins a watch: :meth:`Watches.watch`, or what stands in for it.
BeginWatch: TypeAlias = Callable[
    [
        str,
        int | None,
        Callable[[Sequence[WatchEvent]], None],
        Callable[[MetadataStoreError], None],
        float,
    ],
    WatchHandle,
]


class Watches(Protocol):
    """The facet of a back end that reports changes as they happen."""

    def watch(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> WatchHandle:
        """Report each change of ``prefix`` itself and of all paths below it once, in order.

        The call returns when the watch is in place: every change that takes effect after that is
        reported. ``deliver`` and ``fail`` are called on a thread of the back end, one call at a
        time for each watch, and never block. Keys that the client or the server keeps for itself,
        and keys that are not valid paths, are left out.

        After an outage, the watch goes on. Where changes of that time cannot be had, an event of
        the kind ``"gap"`` stands in their place.

        Args:
            prefix: a path, or ``/`` for the whole store.
            after: report every change after this revision; passed only if the store's kind states
                ``"history"``. ``None``: from now on.
            deliver: receives the events.
            fail: receives the error that ends the watch for good, after the last event.
            deadline: by ``time.monotonic()``; until then, the call waits for a server.

        Raises:
            MetadataStoreError: the watch is not in place, as for a read.
            RevisionCompactedError: the store no longer keeps all changes after ``after``.
        """
        ...


@runtime_checkable
class DeletionWatches(Protocol):
    """What a facet of watches may offer beside ``watch``: to wait for the end of one value.

    Without it, a lock places a watch, and then reads whether the value is there.
    """

    def watch_deletion(
        self,
        path: str,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> WatchHandle:
        """Report that a path is deleted: at once if it is missing, perhaps before the return.

        Everything else is as with :meth:`Watches.watch`, but nothing needs to follow after the
        event of the deletion, or after a gap. The path must not be put again after its deletion.
        """
        ...


@runtime_checkable
class ValueWatches(Protocol):
    """What a facet of watches may offer beside ``watch``: the values with the events.

    Without it, the client reads them after the events.
    """

    def watch_values(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> WatchHandle:
        """Do :meth:`Watches.watch`; events of puts have the value of the change in ``found``."""
        ...


class PassingBackend:
    """The base class of wrappers. It passes every call on to ``backend``.

    A subclass overrides the methods that it observes or changes. Closing it closes ``backend``. It
    returns the facets of ``backend``; a wrapper that observes or changes scans or changes has to
    wrap those, too. One that changes values wraps scans, history, and watches that send values.
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
    def session(self) -> Session | None:
        return self._backend.session

    @property
    def watches(self) -> Watches | None:
        return self._backend.watches

    @property
    def acls(self) -> Acls | None:
        return self._backend.acls

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


def start_thread(run: Callable[[], None], name: str) -> Thread:
    """Start a daemon thread.

    Raises:
        StoreUnavailableError: the system has no thread left.
    """
    thread = Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailableError(f"the thread {name!r} cannot be started: {error}") from error
    return thread


# A call for another thread, and where its result goes.
_Call: TypeAlias = tuple[Callable[[], Any], "SimpleQueue[Future[Any]]"]
# The queues of the threads that wait for a call, and the seconds after which they end.
_idle: Final[list[SimpleQueue[_Call]]] = []
_IDLE_FOR: Final = 1.0
os.register_at_fork(after_in_child=_idle.clear)


def to_its_end(call: Callable[[], _T]) -> _T:
    """Make a call that Ctrl-C cannot cut in two, and return what it returns.

    Ctrl-C only reaches the main thread. So this lets another thread make the call, which goes on
    to its end if Ctrl-C ends the wait for it.
    """
    if current_thread() is not main_thread():
        return call()
    # A queue, because Ctrl-C in the wait of a future can end with another error (of its lock).
    ended: SimpleQueue[Future[_T]] = SimpleQueue()
    try:
        calls = _idle.pop()
    except IndexError:
        calls = SimpleQueue()
        try:
            start_thread(partial(_make, calls), "batchkeeper-call")
        except StoreUnavailableError:  # The system has no thread left; the interpreter is ending.
            return call()
    calls.put((call, ended))
    return ended.get().result()


def _make(calls: SimpleQueue[_Call]) -> None:
    patience: float | None = _IDLE_FOR
    while True:
        try:
            call, ended = calls.get(timeout=patience)
        except Empty:
            try:
                _idle.remove(calls)
            except ValueError:
                patience = None  # Somebody has just taken the queue, and the call will come.
                continue
            return
        patience = _IDLE_FOR
        future: Future[Any] = Future()
        try:
            future.set_result(call())
        except BaseException as error:  # The caller gets it, whatever it is.
            future.set_exception(error)
        _idle.append(calls)
        ended.put(future)
        del call, ended, future  # The traceback of its error holds this frame.


def in_steps(pages: Generator[_T, None, None]) -> Generator[_T, None, None]:
    """Yield from a generator none of whose steps Ctrl-C can cut in two.

    For those whose libraries would be left with a lock that is held.
    """
    under_way = False

    def step() -> _T | None:
        nonlocal under_way
        try:
            return next(pages, None)
        finally:
            under_way = False

    try:
        while True:
            under_way = True
            page = to_its_end(step)
            if page is None:
                return
            yield page
    finally:
        # If Ctrl-C has ended the wait for a step, the generator closes itself when that has ended,
        # because nobody refers to it any more.
        if not under_way:
            pages.close()
