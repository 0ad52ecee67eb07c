"""A store in this process's memory, for tests and experiments, and a model for other stores.

All callers in the process that open ``memory://NAME`` share one store. It is dropped when the last
of them closes it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from functools import cached_property, partial
from typing import Final, Literal, TypeVar, assert_never
from weakref import WeakSet

from ..ops.errors import (
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
)
from ..ops.operations import ABSENT
from ..ops.paths import parent
from ..ops.results import GetResult, Range, Result, ScanResult, Stat, StatPage, WatchEvent
from ..ops.steps import PutNext, PutValue, Step, lower, steps_in
from .backend import (
    Answer,
    Backend,
    Limits,
    ReadRequest,
    Scans,
    Tally,
    WatchHandle,
    WriteRequest,
    is_plain_put,
    to_its_end,
)
from .local import LocalSession, LocalWatches
from .refusals import State, decide, partly_removed, transaction_refused
from .spans import EVERYTHING, evenly, spans
from .urls import ConnectOptions, StoreURL

__all__ = ["connect"]

_T = TypeVar("_T")

DEFAULT_MAX_VALUE_BYTES: Final = 16 * 1024 * 1024

# The store itself has no limits. These bounds keep a call from holding the lock for long.
_CALL_OPS: Final = 10_000
_CALL_BYTES: Final = 64 * 1024 * 1024
# The most operations in a transaction.
_TRANSACTION_OPS: Final = 1_000
_new = tuple.__new__  # does the work of Step(...) in half the time
# The number of values that a walk processes at a time.
_PAGE: Final = 1_000


class _Space:
    """The values of one name, shared by all that have it open."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # guards everything below
        self.values: dict[str, GetResult] = {}
        # For each path with values below it: its children's names, each with the number of values
        # at or below it. A delete thus knows when a name disappears.
        self.children: dict[str, dict[str, int]] = {}
        self.revision = 0
        # The session of each ephemeral value, and the paths of each session.
        self.owners: dict[str, LocalSession] = {}
        self.owned: dict[LocalSession, set[str]] = {}
        self.sequences: dict[str, int] = {}  # for each parent, the next suffix
        self.watches = LocalWatches()

    def write(self, request: WriteRequest, commit: _Commit) -> Answer:
        # Most writes are puts like this, and need no step.
        if is_plain_put(request) and request.expected_version is None:
            return self._put(request.path, request.value or b"", commit, ephemeral=False)
        lowered = lower(request)
        if isinstance(lowered, list):
            return self._transaction(lowered, commit)
        return self._apply(lowered, commit)

    def _apply(self, step: Step, commit: _Commit) -> Stat | MetadataStoreError | None:
        """Decide a step, carry it out if it may go, and return its answer."""
        path, condition, effect = step
        if isinstance(effect, PutNext):
            # The condition is that of the new path.
            path = self._next(path, commit)
            step = _new(Step, (path, condition, effect))
        if error := decide(step, self._state(path)):
            return error
        match effect:
            case "nothing":
                return None
            case "delete":
                self.remove(path, commit)
                return None
            case PutValue() | PutNext():
                return self._put(path, effect.value, commit, ephemeral=effect.ephemeral)
            case _:
                assert_never(effect)

    def _put(self, path: str, value: bytes, commit: _Commit, *, ephemeral: bool) -> Stat:
        found = self.values.get(path)
        created: int | None = commit.now
        version = 0
        if found is not None:
            _, version, _, created, _, ephemeral, _ = found.stat
            version += 1
        elif ephemeral:
            self._own(path, commit.session)
        stat = Stat(path, version, commit.revision, created, commit.now, ephemeral)
        self.values[path] = GetResult(value, stat)
        if found is None:
            self._count(path, +1)
        if commit.watched:
            commit.add("created" if found is None else "modified", path, version)
        return self._seen_by(commit.session, stat) if ephemeral else stat

    def _transaction(self, steps: list[Step], commit: _Commit) -> Answer:
        """Apply steps together, or none of them, and return the answer."""
        results: list[Stat | None] = []
        before: list[tuple[str, GetResult | None, LocalSession | None]] = []
        events = len(commit.events)
        for index, step in enumerate(steps):
            path = step.path
            before.append((path, self.values.get(path), self.owners.get(path)))
            answer = self._apply(step, commit)
            if isinstance(answer, MetadataStoreError):
                for path, value, owner in reversed(before):
                    self._restore(path, value, owner)
                del commit.events[events:]
                return transaction_refused(index, answer)
            results.append(answer)
        return results

    def remove(self, path: str, commit: _Commit) -> None:
        del self.values[path]
        self._disown(path)
        self._count(path, -1)
        if commit.watched:
            commit.add("deleted", path, None)

    def end(self, session: LocalSession) -> None:
        """Remove the ephemeral values of a session."""
        if paths := sorted(self.owned.get(session, ())):
            commit = _Commit(self, session)
            for path in paths:
                self.remove(path, commit)
            commit.publish()

    def _state(self, path: str) -> State:
        found, occupied = self.values.get(path), path in self.children
        if found is None:
            return State(ABSENT, occupied=occupied)
        return State(found.stat.version, found.stat.revision, occupied)

    def _next(self, path: str, commit: _Commit) -> str:
        """Return the path of a sequential put.

        A path that somebody else has put is passed over, also one that the same commit changes:
        both changes would have one revision.
        """
        above = parent(path)
        while True:
            number = self.sequences.get(above, 0)
            self.sequences[above] = number + 1
            found = f"{path}{number:010}"
            if found not in self.values and found not in commit.named:
                return found

    def _own(self, path: str, session: LocalSession) -> None:
        self.owners[path] = session
        self.owned.setdefault(session, set()).add(path)

    def _disown(self, path: str) -> None:
        session = self.owners.pop(path, None)
        if session is not None:
            paths = self.owned[session]
            paths.remove(path)
            if not paths:
                del self.owned[session]

    def _restore(self, path: str, value: GetResult | None, owner: LocalSession | None) -> None:
        change = (value is not None) - (path in self.values)
        self._disown(path)
        if value is None:
            self.values.pop(path, None)
        else:
            self.values[path] = value
        if owner is not None:
            self._own(path, owner)
        if change:
            self._count(path, change)

    def _seen_by(self, session: LocalSession, stat: Stat) -> Stat:
        """Return a stat as the opener with this session sees it."""
        if stat.ephemeral and self.owners.get(stat.path) is session:
            return stat._replace(owned=True)
        return stat

    def read(self, path: str, session: LocalSession) -> GetResult | None:
        """Return the value at a path as the opener with this session sees it."""
        found = self.values.get(path)
        if found is None or not found.stat.ephemeral:
            return found
        return found._replace(stat=self._seen_by(session, found.stat))

    def answer(self, request: ReadRequest, session: LocalSession) -> Result:
        path = request.path
        match request.kind:
            case "get":
                return self.read(path, session)
            case "exists":
                return path in self.values
            case "get_children":
                # Strings compare by code point. That is the byte order of their UTF-8.
                return sorted(self.children.get(path, ()))
            case other:
                assert_never(other)

    def _count(self, path: str, change: int) -> None:
        """Add ``change`` values to the counts of ``path`` and of everything above it."""
        while path != "/":
            above = parent(path)
            name = path[path.rindex("/") + 1 :]
            names = self.children.setdefault(above, {})
            names[name] = names.get(name, 0) + change
            if not names[name]:
                del names[name]
            if not names:
                del self.children[above]
            path = above


class _Commit:
    """The writes of one call, which share a revision and a time, under the space's lock."""

    def __init__(
        self, space: _Space, session: LocalSession, requests: Sequence[WriteRequest] = ()
    ) -> None:
        self.session = session
        self._requests = requests
        # A revision without any change does no harm.
        space.revision = self.revision = space.revision + 1
        self.now = time.time_ns() // 1_000_000
        self.events: list[WatchEvent] = []
        self._watches = space.watches
        # A watch begins under the same lock.
        self.watched = space.watches.needed

    @cached_property
    def named(self) -> set[str]:
        """The paths that the commit may change."""
        return {step.path for request in self._requests for step in steps_in(lower(request))}

    def add(
        self, kind: Literal["created", "modified", "deleted"], path: str, version: int | None
    ) -> None:
        """Note a change for the watches."""
        self.events.append(WatchEvent(kind, path, version, self.revision))

    def publish(self) -> None:
        """Report the changes to the watches."""
        if self.watched:
            self._watches.publish(self.events)


_spaces_lock = threading.Lock()  # guards _spaces, with the numbers of openers
_spaces: dict[str, tuple[_Space, int]] = {}


def _forget_spaces() -> None:
    # A child begins with empty stores, as other new processes do. In the parent's, a lock may be
    # held for ever, and sessions have no end.
    global _spaces_lock  # noqa: PLW0603
    _spaces_lock = threading.Lock()
    _spaces.clear()


os.register_at_fork(after_in_child=_forget_spaces)


class _MemoryBackend:
    history = None
    acls = None

    def __init__(self, name: str, max_value_bytes: int) -> None:
        self._name = name
        self._closed = False  # guarded by the space's lock
        with _spaces_lock:
            self._space, openers = _spaces.get(name, (_Space(), 0))
            _spaces[name] = (self._space, openers + 1)
        self.tally = Tally()
        self.session = LocalSession()
        self.watches = self
        # Guarded by the space's lock. Weak, because callers close most of them.
        self._open_watches: WeakSet[WatchHandle] = WeakSet()
        self.connected = True
        self.limits = Limits(
            write_ops=_CALL_OPS,
            read_ops=_CALL_OPS,
            request_bytes=_CALL_BYTES + max_value_bytes,
            op_bytes=0,
            value_bytes=max_value_bytes,
            # Every call takes the same lock, so a second one would only wait.
            in_flight=1,
            singles=1,
            transaction_ops=_TRANSACTION_OPS,
        )

    @property
    def scans(self) -> Scans:
        return self

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        try:
            space = self._enter(deadline)
            commit = _Commit(space, self.session, requests)
            answers = [space.write(request, commit) for request in requests]
            commit.publish()
        finally:
            self._leave()
        return answers

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        try:
            space = self._enter(deadline)
            return [space.answer(request, self.session) for request in requests]
        finally:
            self._leave()

    def watch(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> WatchHandle:
        """Report each change under ``prefix``. See :class:`Watches`."""

        def begin(space: _Space) -> WatchHandle:
            watch = space.watches.watch(prefix, deliver, fail)
            self._open_watches.add(watch)
            return watch

        return self._locked(begin, deadline)

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        """Yield the values under ``prefix``, as of the request for the first page, in pages."""
        for page in self._pages(prefix, within, timeout):
            yield [ScanResult(path, *found) for path, found in page]

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Yield the stats of the values under ``prefix``, as of the request for the first page."""
        for page in self._pages(prefix, within, timeout):
            yield StatPage.of([found.stat for _, found in page])

    def _pages(
        self, prefix: str, within: Range, timeout: float
    ) -> Generator[list[tuple[str, GetResult]], None, None]:

        def snapshot(space: _Space) -> dict[str, GetResult]:
            # Results are immutable, so a copy of the dict is a snapshot.
            values = space.values.copy()
            for path in space.owned.get(self.session, ()):
                values[path] = values[path]._replace(stat=values[path].stat._replace(owned=True))
            return values

        values = self._locked(snapshot, time.monotonic() + timeout)
        paths = _under(values, prefix, within)
        for start in range(0, len(paths), _PAGE):
            if self._closed:
                raise self._why_closed()
            yield [(path, values[path]) for path in paths[start : start + _PAGE]]

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return ranges whose numbers of values differ by one at most. See :class:`Scans`."""
        paths = self._paths_under(prefix, timeout)
        return evenly(paths, n)

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove the current values under ``path``. See :class:`Scans`."""
        paths = self._paths_under(path, timeout)
        removed = 0

        def remove(named: Sequence[str], space: _Space) -> int:
            commit = _Commit(space, self.session)
            there = [found for found in named if found in space.values]
            for found in there:
                space.remove(found, commit)
            commit.publish()
            return len(there)

        for start in range(0, len(paths), _PAGE):
            named = paths[start : start + _PAGE]
            try:
                removed += self._locked(partial(remove, named), time.monotonic() + timeout)
            except MetadataStoreError as error:
                raise partly_removed(removed, path, error) from error
        return removed

    def revision(self, timeout: float) -> int:
        """Return the revision of the last change."""
        return self._locked(lambda space: space.revision, time.monotonic() + timeout)

    def _paths_under(self, prefix: str, timeout: float) -> list[str]:
        paths = self._locked(lambda space: list(space.values), time.monotonic() + timeout)
        return _under(paths, prefix, EVERYTHING)

    def close(self) -> None:
        with self._space.lock:
            if self._closed:
                return
            self._closed = True
            # First, so that nobody relies on the session while its values go.
            self.session.close()
            self._space.end(self.session)
            watches = list(self._open_watches)
        # Outside the lock: closing a watch waits for the end of a delivery.
        for watch in watches:
            watch.close()
        with _spaces_lock:
            space, openers = _spaces.get(self._name, (None, 0))
            if space is not self._space:
                return  # In a forked child: it has stores of its own.
            if openers > 1:
                _spaces[self._name] = (space, openers - 1)
            else:
                del _spaces[self._name]

    def _locked(self, work: Callable[[_Space], _T], deadline: float) -> _T:
        """Let a function work on the space under its lock, to its end."""

        def call() -> _T:
            try:
                return work(self._enter(deadline))
            finally:
                self._leave()

        return to_its_end(call)

    def _enter(self, deadline: float) -> _Space:
        """Take the space's lock. The caller must call ``_leave``, also if Ctrl-C ends this call."""
        if not self._space.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise OperationTimeoutError(f"memory://{self._name} was busy until the deadline")
        if self._closed:
            raise self._why_closed()
        return self._space

    def _leave(self) -> None:
        """Release the space's lock, if this thread has it."""
        if self._space.lock._is_owned():  # type: ignore[attr-defined]
            self._space.lock.release()

    def _why_closed(self) -> StoreClosedError:
        return StoreClosedError(f"memory://{self._name} is closed")


def _under(paths: Collection[str], prefix: str, within: Range) -> list[str]:
    """Return the sorted paths under a prefix and within a range."""
    return sorted(
        path for low, high in spans(prefix, within) for path in paths if low <= path < high
    )


def connect(url: StoreURL, options: ConnectOptions) -> Backend:
    """Open the store ``memory://NAME``, which may be new, or open already in this process.

    The option ``max_value_bytes`` (16 MiB) limits the values that this opener puts.

    Raises:
        InvalidSettingError: the URL has no name, or a path after it, or an unknown option.
    """
    url.check_options(("max_value_bytes",))
    if len(url.hosts) != 1 or url.path not in {"", "/"}:
        raise InvalidSettingError(f"a memory URL must have the form memory://NAME: {url.text}")
    return _MemoryBackend(
        url.hosts[0], url.number("max_value_bytes", default=DEFAULT_MAX_VALUE_BYTES)
    )
