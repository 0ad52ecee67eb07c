# Made from async_watchers.py by `python tools/faces.py`: change that file, and run this command.
"""One-shot watchers of keys: each is called once, on the first change after a read.

A watcher is *reading* until its first read ends, then *waiting*, until it is called or dropped. One
watch of the store serves all watchers of a table, and is in place before they read. An event may be
older than the state that a watcher has read, so revisions decide which watchers are called:

- For an existing key, the read returns the revision of its value. A later event is news.
- For a missing key, the store provides a revision from before the read. A later creation is news.
- ZooKeeper before 3.9 reports events without revisions, and a store without scans provides none.
  Then the key is read again and compared. After a gap, this happens for every key.

Events that arrive during the first read are kept and judged after it. After a gap, that read is
repeated.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from typing import Final, Literal, NamedTuple

from ....batching import MetadataStore
from ....batching._sync.listeners import Listener
from ....batching.background import Signal
from ....batching.checks import check_capability
from ....coordination._sync.following import Follower
from ....ops.errors import (
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    UnsupportedError,
)
from ....ops.log import get_logger
from ....ops.operations import Get
from ....ops.results import GetResult, WatchEvent
from ...errors import IllegalOperationError
from ..results import EventType, Watcher

__all__ = ["Watchers", "check_watcher"]

log = get_logger("batchkeeper.hubs")


class _Baseline(NamedTuple):
    """The state that a watcher has read.

    Attributes:
        there: whether the key existed.
        revision: the revision of its value; for a missing key, a store revision from before the
            read, or ``None`` where the store provides none.
    """

    there: bool
    revision: int | None


class _Armed:
    """A watcher that is reading or waiting, guarded by the lock of its table.

    Attributes:
        baseline: the state that it has read; ``None`` while it is reading.
        events: events that arrived while it was reading.
        missed: whether events were missed while it was reading.
    """

    __slots__ = ("baseline", "events", "key", "missed", "path", "watcher")

    def __init__(self, key: str, path: str, watcher: Watcher) -> None:
        self.key = key
        self.path = path
        self.watcher = watcher
        self.baseline: _Baseline | None = None
        self.events: list[WatchEvent] = []
        self.missed = False


class _DueCall(NamedTuple):
    """A call that is due."""

    watcher: Watcher
    key: str
    event: EventType


def _age(event: WatchEvent, baseline: _Baseline) -> Literal["old", "new", "unknown"]:
    """Return whether an event is news to a watcher."""
    if event.revision is None or baseline.revision is None:
        return "unknown"
    if event.revision <= baseline.revision:
        return "old"
    if baseline.there or event.kind == "created":
        return "new"
    # The key was removed before the read, and may have been changed before that.
    return "old" if event.kind == "deleted" else "unknown"


def _type_of(event: WatchEvent) -> EventType:
    return EventType.REMOVED if event.kind == "deleted" else EventType.CHANGED


def _difference(found: GetResult | None, baseline: _Baseline) -> EventType | None:
    """Return how a key has changed since a watcher read it, if it has."""
    if found is None:
        return EventType.REMOVED if baseline.there else None
    # A store that was restored from a backup has smaller revisions than before.
    same = baseline.there and found.stat.revision == baseline.revision
    return None if same else EventType.CHANGED


class Watchers:
    """The watchers of a table.

    Args:
        store: the store.
        place: the path below which the table has its keys.
        closed: set when the tables are closed, before ``close`` is called.

    Attributes:
        linger: seconds without an armed watcher after which the watch ends.
    """

    linger: Final = 60.0

    def __init__(self, store: MetadataStore, place: str, closed: Signal) -> None:
        self._store = store
        self._place = place
        self._closed = closed
        self._process = os.getpid()
        # Calls all watchers of the table, one after the other.
        self._listener: Listener[_DueCall] = Listener(f"table at {place}", self._call)
        # Guards the following fields. Under it, only the lock of the listener is taken.
        self._lock = threading.RLock()
        self._armed: dict[str, dict[_Armed, None]] = {}  # by path, first come first
        self._used = 0.0  # when a watcher was last armed or called
        self._follower: Follower | None = None
        self._error: MetadataStoreError | None = None  # the error that ended the last follower

    def read(self, key: str, path: str, watcher: Watcher) -> GetResult | None:
        """Read a path, and call a watcher on the first change after the read.

        Raises:
            UnsupportedError: the store has no watches.
            MetadataStoreError: the store cannot be watched or read. The watcher is not armed.
        """
        check_capability("watches", "a watcher", self._store.capabilities, repr(self._store))
        self._check_process(path)
        armed = _Armed(key, path, watcher)
        try:
            follower = self._arm(armed)
            seconds = self._store.operation_timeout
            if not follower.ready.wait(seconds):
                raise OperationTimeoutError(
                    f"the watch of {self._place} was not in place within {seconds} s", path=path
                )
            while True:
                with self._lock:
                    self._check_current(follower, path)
                    armed.events, armed.missed = [], False
                found, baseline = self._read_baseline(path)
                with self._lock:
                    self._check_current(follower, path)
                    if not armed.missed:
                        armed.baseline = baseline
                        ages = [(_age(event, baseline), event) for event in armed.events]
                        news = [_type_of(event) for age, event in ages if age == "new"]
                        calls = bool(news) and self._schedule(armed, news[0])
                        break
            if calls:
                self._listener.start()
            elif not news and any(age == "unknown" for age, _ in ages):
                self._compare([armed])
        except BaseException:
            with self._lock:
                self._remove(armed)
            raise
        return found

    def disarm(self, path: str, watcher: Watcher) -> bool:
        """Drop a watcher; return whether it was armed."""
        self._check_process(path)
        with self._lock:
            for armed in self._armed.get(path, ()):
                if armed.watcher == watcher:
                    return self._remove(armed)
        return False

    def close(self) -> None:
        """Drop all watchers. Calls that wait for the watch raise ``StoreClosedError``."""
        if os.getpid() != self._process:  # The lock may be held for ever.
            return
        with self._lock:
            self._armed.clear()
            follower, self._follower = self._follower, None
            self._error = StoreClosedError("the tables were closed", path=self._place)
            self._listener.close()
        if follower is not None:
            follower.close()
            follower.ready.set()  # Its callers may be waiting.

    # The watch

    def _arm(self, armed: _Armed) -> Follower:
        """Arm a watcher, and start the watch if there is none."""
        with self._lock:
            if self._closed.is_set() or self._listener.closed:
                raise StoreClosedError("the tables were closed", path=armed.path)
            self._armed.setdefault(armed.path, {})[armed] = None
            self._used = time.monotonic()
            follower = self._follower
            begins = follower is None
            if follower is None:
                follower = self._follower = self._new_follower()
        if begins:
            follower.start()
        return follower

    def _new_follower(self) -> Follower:
        def hear(event: WatchEvent) -> None:
            self._hear(event)
            if not self._armed and time.monotonic() - self._used > self.linger and idle():
                follower.close()

        def ended(error: MetadataStoreError) -> None:
            self._end(follower, error)

        def idle() -> bool:
            with self._lock:
                if self._armed:
                    return False
                if self._follower is follower:
                    self._follower = None
                return True

        follower = Follower(
            self._store,
            self._place,
            read=self._compare_all,
            event=hear,
            ended=ended,
            idle=idle,
            linger=self.linger,
        )
        return follower

    def _end(self, follower: Follower, error: MetadataStoreError) -> None:
        """Note the end of a follower. Armed watchers stay; the next follower compares them."""
        if isinstance(error, StoreClosedError):
            self.close()
            return
        log.warning("watchers of a table have no watch", place=self._place, reason=str(error))
        with self._lock:
            if self._follower is follower:
                self._follower, self._error = None, error

    def _check_current(self, follower: Follower, path: str) -> None:
        """Raise the error that ended a follower, if it has ended.

        It ends without an error only if no watcher is armed: this one has been disarmed meanwhile.
        """
        if self._follower is not follower and self._error is not None:
            raise self._error.for_path(path)

    def _check_process(self, path: str) -> None:
        if os.getpid() != self._process:
            raise StoreClosedError(
                "the store was opened before this process was forked; open it here", path=path
            )

    # Events

    def _read_baseline(self, path: str) -> tuple[GetResult | None, _Baseline]:
        found = self._store.get(path).result()
        if found is None:
            try:
                # This also ensures that the second read does not lag.
                revision = self._store.revision()
            except UnsupportedError:
                revision = None
                self._store.sync()
            found = self._store.get(path).result()
            if found is None:
                return None, _Baseline(False, revision)
        return found, _Baseline(True, found.stat.revision)

    def _hear(self, event: WatchEvent) -> None:
        """Judge an event for the watchers of its path."""
        if event.path not in self._armed:  # Watchers armed from now on read later.
            return
        calls = False
        unknown: list[_Armed] = []
        with self._lock:
            for armed in [*self._armed.get(event.path, ())]:
                if armed.baseline is None:
                    armed.events.append(event)
                    continue
                age = _age(event, armed.baseline)
                if age == "new":
                    calls |= self._schedule(armed, _type_of(event))
                elif age == "unknown":
                    unknown.append(armed)
        if calls:
            self._listener.start()
        if unknown:
            self._compare(unknown)

    def _compare_all(self) -> None:
        """Compare the states of all waiting watchers with the store; the others read again."""
        with self._lock:
            every = [*chain.from_iterable(self._armed.values())]
            for armed in every:
                armed.missed = True
            waiting = [armed for armed in every if armed.baseline is not None]
        if waiting:
            self._compare(waiting)

    def _compare(self, waiting: Iterable[_Armed]) -> None:
        """Compare the states that watchers have read with the store."""
        if "linearizable_reads" not in self._store.capabilities:
            self._store.sync()
        paths = list(dict.fromkeys(armed.path for armed in waiting))
        outcomes = self._store.apply([Get(path) for path in paths])
        now: dict[str, GetResult | None] = {}
        for path, outcome in zip(paths, outcomes, strict=True):
            if outcome.error is not None:
                raise outcome.error
            now[path] = outcome.result if isinstance(outcome.result, GetResult) else None
        calls = False
        with self._lock:
            for armed in waiting:
                assert armed.baseline is not None
                event = _difference(now[armed.path], armed.baseline)
                if event is not None:
                    calls |= self._schedule(armed, event)
                elif not armed.baseline.there:
                    # The store may have been restored since: the revision proves nothing.
                    armed.baseline = _Baseline(False, None)
        if calls:
            self._listener.start()

    # Under the lock

    def _schedule(self, armed: _Armed, event: EventType) -> bool:
        """Schedule the call of a watcher; return whether the listener must be started."""
        return self._remove(armed) and self._listener.add(_DueCall(armed.watcher, armed.key, event))

    def _remove(self, armed: _Armed) -> bool:
        """Remove a watcher; return whether it was armed."""
        some = self._armed.get(armed.path, {})
        if armed not in some:
            return False
        del some[armed]
        if not some:
            del self._armed[armed.path]
        self._used = time.monotonic()
        return True

    def _call(self, due: _DueCall) -> object:
        """Call a watcher, unless the store is closed. The follower may not know that yet."""
        with suppress(UnsupportedError):  # A store without a session.
            if self._store.session.state == "closed":
                return None
        return due.watcher(due.key, due.event)


def check_watcher(watcher: Callable[..., object]) -> None:
    """Refuse a watcher that cannot be called.

    Raises:
        IllegalOperationError: it is not a function, or, for threads, it is a coroutine function.
    """
    refused = not callable(watcher) or inspect.iscoroutinefunction(watcher)
    if refused:
        raise IllegalOperationError(f"this must be a function that can be called: {watcher!r:.80}")
