# Made from async_views.py by `python tools/faces.py`: change that file, and run this command.
"""A live view of the values below a prefix: complete when it is returned, kept current by a watch.

One task (for threads: one thread) reads the store and applies the events. Where the store keeps a
history, it reads at one revision, and the watch begins right after that. Elsewhere, the watch is in
place first, and an event that is older than what was read changes nothing. After a gap, it reads
again; until then, callers find what was known before.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import OrderedDict
from collections.abc import (
    Callable,
    Generator,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    ValuesView,
)
from contextlib import closing
from threading import RLock
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from ...ops.backoff import Backoff
from ...ops.capabilities import Capability
from ...ops.errors import (
    InvalidPathError,
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    RevisionCompactedError,
    StoreClosedError,
    ValueDecodeError,
    passes,
)
from ...ops.log import get_logger
from ...ops.paths import check_parent
from ...ops.results import CacheResult, ScanPage
from ...ops.serdes import Serde
from ..background import Signal, spawn
from ..settings import check_flag
from ..table import Entry, Table, Update, ViewSnapshot, result, stat_of
from ..watches import Watch
from .listeners import Listener, still_open

__all__ = ["View", "ViewListener"]

log = get_logger("batchkeeper.views")

T = TypeVar("T")

# The events that a view's watch holds, while the view is read.
_MAX_EVENTS: Final = 1_000_000
# The first reads in a row that a compaction may overtake.
_COMPACTIONS: Final = 5
_BACKOFF: Final = Backoff(first=0.05, longest=2.0)

# The views of this process, for forked children.
_views: Final[weakref.WeakSet[View[Any]]] = weakref.WeakSet()


class _Viewed(Protocol):
    """What a view needs of its store."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...
    def revision(self, path: str) -> int: ...
    def scan_pages(
        self, prefix: str, *, revision: int | None
    ) -> Generator[ScanPage, None, None]: ...
    def watch(self, prefix: str, *, after: int | None, max_events: int, values: bool) -> Watch: ...


class ViewListener(Listener[Update], Generic[T]):
    """A listener of a view's changes. Close it to stop it; it is also a context manager.

    While a call runs, further changes of one path become one, from the first value to the last. So
    a slow listener misses states in between, but never the last one.
    """

    def __init__(
        self,
        of: str,
        callback: Callable[[str, CacheResult[T] | None, CacheResult[T] | None], object],
        decode: Callable[[bytes], T],
    ) -> None:
        super().__init__(of, callback)
        self._decode = decode
        self._changes: OrderedDict[str, tuple[Entry | None, Entry | None]] = OrderedDict()

    def _append(self, event: Update) -> None:
        path, old, new = event
        old, _ = self._changes.pop(path, (old, None))
        if old != new:
            self._changes[path] = old, new

    def _waits(self) -> bool:
        return bool(self._changes)

    def _take(self) -> Update:
        path, (old, new) = self._changes.popitem(last=False)
        return path, old, new

    def _calls(self, event: Update) -> Iterable[tuple[object, ...]]:
        path, old, new = event
        try:
            yield path, *(e if e is None else result(path, e, self._decode) for e in (old, new))
        except ValueDecodeError:
            log.exception("a listener of a view cannot be told of a value", path=path)


class View(Mapping[str, CacheResult[T]], Generic[T]):
    """The values below a path, in memory, as a mapping that follows the store.

    :meth:`MetadataStore.view` makes it, complete. Lookups need no request: ``view[path]`` is a
    ``CacheResult`` with the decoded ``value`` and its ``stat``; ``len``, ``in`` and ``get`` work as
    for a dict. Iterating, ``items`` and ``values`` go over a :meth:`snapshot`.

    On etcd, the view has always had a state of the store: all changes up to one revision, and none
    after it. On other stores, changes of different paths may appear in another order.

    In an outage, it keeps what it has, and :attr:`lag` grows. Afterwards it goes on, or reads
    everything again. If it cannot (the login may no longer read the paths, or they take more than
    ``max_bytes``), each lookup raises that error: a view is never silently old or incomplete.

    Several callers share the values. Do not change them.
    """

    def __init__(self, store: _Viewed, prefix: str, serde: Serde[T], max_bytes: int) -> None:
        if not isinstance(serde, Serde):
            raise InvalidSettingError(f"serde must be a Serde, not {serde!r:.80}")
        if type(max_bytes) is not int or max_bytes < 1:
            raise InvalidSettingError(
                f"max_bytes must be an int of 1 or more, not {max_bytes!r:.80}"
            )
        self._prefix = check_parent(prefix)
        self._below = prefix if prefix == "/" else prefix + "/"
        self._store = store
        self._decode = serde.decode
        self._max_bytes = max_bytes
        self._history = {"history", "snapshots"} <= store.capabilities
        # Guards the following fields for writing, and a snapshot. Reentrant, because a signal
        # handler may close a view in the middle of a call. Under it, only listeners' locks are
        # taken.
        self._lock = RLock()
        self._table = Table(prefix, max_bytes)
        self._decoded: dict[str, tuple[Entry, T]] = {}  # with the entry that was decoded
        self._revision: int | None = None
        self._listeners: tuple[ViewListener[T], ...] = ()
        self._error: MetadataStoreError | None = None
        # Since when no watch is followed, by the monotonic clock, or 0.
        self._broken_at = time.monotonic()
        self._complete = False
        self._ready = Signal()  # set when it is complete for the first time, or has failed
        self._closing = Signal()
        self._watch: Watch | None = None
        _views.add(self)

    # Lookups

    @property
    def prefix(self) -> str:
        """The path whose values the view has, with those of all paths below it."""
        return self._prefix

    @property
    def revision(self) -> int | None:
        """The revision up to which the view has every change of its paths, at least (etcd)."""
        return self._revision

    @property
    def lag(self) -> float:
        """Seconds for which the view has been known to be behind the store; 0.0 if it is not.

        It counts from the arrival of an event that is not applied yet, and through outages.
        """
        self._check(self._prefix)
        watch, since = self._watch, self._broken_at
        return time.monotonic() - since if since or watch is None else watch.lag

    @property
    def error(self) -> MetadataStoreError | None:
        """The error with which the view has ended; ``None`` while it follows, or after a close."""
        return None if isinstance(self._error, StoreClosedError) else self._error

    def __getitem__(self, path: str) -> CacheResult[T]:
        entry = self._table.entries.get(path)
        if entry is None:
            self._check(path)
            raise KeyError(path)
        known = self._decoded.get(path)
        if known is not None and known[0] is entry:
            return CacheResult(known[1], stat_of(path, entry))
        found = result(path, entry, self._decode)
        if found.value is not entry[0]:
            self._decoded[path] = entry, found.value
        return found

    def __contains__(self, path: object) -> bool:
        if path in self._table.entries:
            return True
        self._check(path)
        return False

    def __len__(self) -> int:
        self._check(self._prefix)
        return len(self._table.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.snapshot())

    def items(self) -> ItemsView[str, CacheResult[T]]:
        """Return the paths of a :meth:`snapshot` with their values and stats."""
        return self.snapshot().items()

    def values(self) -> ValuesView[CacheResult[T]]:
        """Return the values of a :meth:`snapshot` with their stats."""
        return self.snapshot().values()

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def snapshot(self) -> ViewSnapshot[T]:
        """Return what the view has now: a mapping that no longer changes, with its revision."""
        self._check(self._prefix)
        with self._lock:
            return ViewSnapshot({**self._table.entries}, self._decode, self._revision)

    def children(self, path: str) -> list[str]:
        """Return the sorted names right below a path, of values and of parents of values.

        The first call makes an index, in about a microsecond for each path.

        Raises:
            InvalidPathError: the path is not below the prefix.
        """
        self._check(path)
        with self._lock:
            return self._table.children(path)

    def add_listener(
        self,
        callback: Callable[[str, CacheResult[T] | None, CacheResult[T] | None], object],
        *,
        replay: bool = False,
    ) -> ViewListener[T]:
        """Call a function with each change: the path, the old and the new value.

        A value is a ``CacheResult``, or ``None`` where the path has none. What changed in an outage
        is reported like any change. Each listener has a task (for threads: a thread) of its own
        while there is something to tell, so it may block, and look the view up, which is then at
        least as new as what it was told. An exception in it is logged.

        Args:
            callback: the function, or for tasks also a coroutine function.
            replay: whether to call it first for each path that the view has now, as a creation.
        """
        self._check(self._prefix)
        check_flag("replay", replay)
        listener = ViewListener(self._prefix, callback, self._decode)
        with self._lock:
            start = False
            if replay:
                for path, entry in self._table.entries.items():
                    start = listener.add((path, None, entry)) or start
            self._listeners = (*still_open(self._listeners), listener)
        if start:
            listener.start()
        return listener

    # The end

    def close(self) -> None:
        """End the view and its listeners. Lookups then raise ``StoreClosedError``."""
        self._end(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._error is None else " ended"
        return f"<{type(self).__name__} {self._prefix!r} of {len(self._table.entries)}{state}>"

    def _end(self, error: MetadataStoreError | None) -> None:
        """End with an error, or because of a close. The first end counts."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error or StoreClosedError("the view is closed", path=self._prefix)
            self._table, self._decoded = Table(self._prefix, self._max_bytes), {}
            listeners, self._listeners = self._listeners, ()
            watch = self._watch
        self._closing.set()
        self._ready.set()
        for listener in listeners:
            listener.close()
        if watch is not None:
            watch.close()

    def _check(self, path: object) -> None:
        """Refuse a lookup that this view cannot answer."""
        if self._error is not None:
            # A copy: one exception raised in several threads would collect all their tracebacks.
            raise self._error.for_path(self._prefix) from self._error.__cause__
        if not isinstance(path, str) or not (path.startswith(self._below) or path == self._prefix):
            raise InvalidPathError(f"{path!r:.200} is not below {self._prefix}, the view's prefix")

    def _forget(self) -> None:
        """End the view in a forked process, without touching what threads may have held."""
        self._lock = RLock()
        self._error = StoreClosedError("the view was made by the parent process", path=self._prefix)
        self._table, self._decoded = Table(self._prefix, self._max_bytes), {}

    # Following

    def begin(self, timeout: float | None) -> Self:
        """Return the view when it is complete."""
        try:
            spawn(f"view of {self._prefix}", self._run)
            if not self._ready.wait(timeout):
                raise OperationTimeoutError(
                    f"the view is not complete after {timeout:g} s", path=self._prefix
                )
            self._check(self._prefix)
        except BaseException:
            self._end(None)
            raise
        return self

    def _run(self) -> None:
        try:
            self._keep()
        finally:  # This task may be cancelled, and nobody else would say that the view is old.
            self._end(None)

    def _keep(self) -> None:
        failures = compactions = 0
        while self._error is None:
            try:
                self._follow()
                failures = compactions = 0
            except RevisionCompactedError as error:
                compactions += 1
                if compactions > _COMPACTIONS:
                    self._end(error)
            except MetadataStoreError as error:
                # Until it is complete, the caller decides what an outage means.
                if not self._complete or not passes(error):
                    if self._complete and not isinstance(error, StoreClosedError):
                        log.warning("a view has ended", prefix=self._prefix, reason=str(error))
                    self._end(error)
                    return
                log.info("a view begins again", prefix=self._prefix, reason=str(error))
            except Exception as error:
                # Whatever it is: without this task, the view would be old without a word.
                log.exception("a view failed", prefix=self._prefix)
                if not self._complete:
                    self._end(MetadataStoreError(f"the view failed: {error!r}"))
            self._closing.wait(_BACKOFF.pause(failures))
            failures += 1

    def _follow(self) -> None:
        """Read the store, and apply events until there is a gap."""
        after = None
        if self._history:
            after = self._store.revision(self._prefix)
            self._read(after)
        with self._store.watch(
            self._prefix, after=after, max_events=_MAX_EVENTS, values=True
        ) as watch:
            self._watch = watch
            if after is None:
                self._read(None)
            self._broken_at, self._complete = 0.0, True
            self._ready.set()
            try:
                self._apply(watch, after is not None)
            finally:
                self._broken_at = time.monotonic() - watch.lag

    def _apply(self, watch: Watch, in_order: bool) -> None:
        """Apply events until there is a gap. ``in_order``: those of all paths in one order."""
        while self._error is None:
            events = watch.next_events()
            if any(event.kind == "gap" for event in events):
                return
            with self._lock:
                if self._error is not None:
                    return
                if in_order:
                    self._revision = events[-1].revision
                self._tell(self._table.apply(events))
            del events  # They may be many, and the next may come late.

    def _read(self, revision: int | None) -> None:
        """Read everything, and put it in the place of what the view had."""
        table = Table(self._prefix, self._max_bytes)
        with closing(self._store.scan_pages(self._prefix, revision=revision)) as pages:
            for page in pages:
                table.fill(page)
                if self._error is not None:
                    return
        with self._lock:
            if self._error is not None:
                return
            before, self._table = self._table, table
            self._decoded = {}
            self._revision = revision
            if self._listeners:
                self._tell(before.updates_to(table))

    def _tell(self, updates: Iterable[Update]) -> None:
        for update in updates:
            self._decoded.pop(update[0], None)
            for listener in self._listeners:
                listener.notify(update)


def _forget_all() -> None:
    for view in list(_views):
        view._forget()


os.register_at_fork(after_in_child=_forget_all)
