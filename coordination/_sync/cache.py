# Made from async_cache.py by `python tools/faces.py`: change that file, and run this command.
"""A cache of the values below a prefix, kept current by a watch.

``entries`` decides what may be cached, and ``cache_watch`` when. Callers look entries up
without a lock, and read and write the store. The watch drops the entries that other clients have
changed.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar, overload

from ...batching import MetadataStore
from ...batching.background import Signal
from ...batching.feeds import WatchCallback
from ...batching.settings import check_seconds
from ...ops.backoff import Backoff
from ...ops.errors import (
    BadVersionError,
    InvalidPathError,
    InvalidSettingError,
    MetadataStoreError,
    NotFoundError,
    StoreClosedError,
)
from ...ops.operations import ABSENT, check_value
from ...ops.paths import check_parent, parent
from ...ops.results import CacheResult, GetResult, Stat, WatchEvent
from ...ops.serdes import Serde, bytes_serde, decoded
from .. import entries as marks
from ..entries import NOT_CACHED, Entries, Entry, Key, NotCached
from .cache_watch import CacheListener, CacheWatch
from .key_locks import KeyLocks
from .kinds import check_store

__all__ = ["MetadataCache"]

T = TypeVar("T")

# The attempts of an update that loses to others each time. The pauses grow to a fifth of a second,
# so that dozens of processes can update one path.
_ATTEMPTS: Final = 40
_BACKOFF: Final = Backoff(first=0.002, longest=0.2, least=0.0)
# Seconds between two checks whether a load is over. Ctrl-C may keep its signal from being set.
_POLL: Final = 1.0

# Held during updates, by all caches: an update inside another one may go through another cache.
_key_locks: Final = KeyLocks()
# The caches of this process, for forked children.
_caches: Final[weakref.WeakSet[MetadataCache[Any]]] = weakref.WeakSet()


class MetadataCache(Generic[T]):
    """The decoded values below a prefix, in memory, kept current by a watch.

    A read is never older than any read or write through this cache that ended before it began. Once
    writes stop, the cache soon equals the store. It may lag behind other clients' writes until
    their events arrive; for reads that must not lag, use ``store.get``.

    Absent paths and lists of children are cached, too. Callers that ask for the same path at the
    same time share one read. While no watch is in place (before the first one, in an outage, after
    a lost session), every read goes to the store, and nothing is cached.

    All callers share the values that it returns. Do not modify them: use
        :meth:`read_modify_update`, whose function gets a private copy.

    Any user of the store may use its caches. Close a cache, or use it as a context manager. Closing
    its store ends it, too.

    Args:
        store: the store, with the capability ``"watches"``.
        prefix: a path, or ``/``. The cache has this path and all below it; one watch covers them.
        serde: encodes and decodes the values; ``bytes_serde`` leaves them as they are.
        max_entries: the limit of paths and lists of children.
        max_bytes: the approximate limit of their bytes, not counting the decoded values.
        max_age: seconds after which a value is read again even if it is unchanged; not needed for
            correct values.

    Raises:
        InvalidPathError: the prefix is not a valid path. Every method raises it for a path that is
            not below the prefix.
        InvalidSettingError: another argument is invalid.
        UnsupportedError: the store lacks ``"watches"``.
    """

    @overload
    def __init__(
        self: MetadataCache[bytes],
        store: MetadataStore,
        prefix: str,
        *,
        max_entries: int = 10_000,
        max_bytes: int = 64 << 20,
        max_age: float | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        serde: Serde[T],
        *,
        max_entries: int = 10_000,
        max_bytes: int = 64 << 20,
        max_age: float | None = None,
    ) -> None: ...
    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        serde: Serde[Any] = bytes_serde,
        *,
        max_entries: int = 10_000,
        max_bytes: int = 64 << 20,
        max_age: float | None = None,
    ) -> None:
        check_store(store, "a cache", "watches")
        if not isinstance(serde, Serde):
            raise InvalidSettingError(f"serde must be a Serde, not {serde!r:.80}")
        self._prefix = check_parent(prefix)
        self._below = prefix if prefix == "/" else prefix + "/"
        self._age = math.inf if max_age is None else check_seconds("max_age", max_age)
        self._store = store
        self._encode, self._decode = serde.encode, serde.decode
        self._by_revision = "expected_revisions" in store.capabilities
        # Whether a read in a new session may be older than one in the last session.
        self._lags = {"ephemerals", "linearizable_reads"} & store.capabilities == {"ephemerals"}
        self._now = time.monotonic
        self._caught_up: object = None  # the session in which reads no longer lag
        self._entries: Entries[T, Signal] = Entries(max_entries, max_bytes, Signal)
        self._find = self._entries.find
        self._watch = CacheWatch(store, prefix, self._entries, self._learn)
        _caches.add(self)

    @property
    def prefix(self) -> str:
        """The path that the cache has, with all paths below it."""
        return self._prefix

    # Reading

    def get(self, path: str) -> T | None:
        """Return the value of a path, or ``None`` if the path holds no value.

        Raises:
            ValueDecodeError: the value cannot be decoded. The error has its version.
            MetadataStoreError: the read has failed.
        """
        entry = self._find(path)
        if entry is not None and entry.ready:
            entry.used = True
            return entry.value
        return self._entry(path).decode(path, self._decode)

    def get_if_cached(self, path: str) -> T | NotCached | None:
        """Return the cached value of a path, without a request.

        Returns:
            the value; ``None`` if the path is known to hold no value; :data:`NOT_CACHED` if the
            cache does not have the path.

        Raises:
            ValueDecodeError: the value cannot be decoded. The error has its version.
        """
        entry = self._find(path)
        if entry is None or not self._is_fresh(entry):
            self._check(path)
            return NOT_CACHED
        entry.used = True
        return entry.decode(path, self._decode)

    def get_with_stat(self, path: str) -> CacheResult[T] | None:
        """Return the value of a path with its stat, or ``None`` if the path holds no value.

        Raises:
            ValueDecodeError: the value cannot be decoded. The error has its version.
            MetadataStoreError: the read has failed.
        """
        entry = self._entry(path)
        if entry.found is None:
            return None
        value: Any = entry.decode(path, self._decode)
        return CacheResult(value, entry.found.stat)

    def get_children(self, path: str) -> list[str]:
        """Return the sorted names below a path; an empty list for a missing path."""
        key = (path,)
        entry = self._find(key)
        if entry is None or not self._is_fresh(entry):
            entry = self._load(path, key, self._read_names)
        entry.used = True
        assert entry.names is not None
        return [*entry.names]

    def exists(self, path: str) -> bool:
        """Return whether a path has a value. An undecodable value counts."""
        return self._entry(path).found is not None

    def refresh(self, path: str) -> T | None:
        """Read a path from the store, bypassing the cache, and return its value."""
        self.invalidate(path)
        return self.get(path)

    # Writing

    def create(self, path: str, value: T) -> Stat:
        """Set the value of a path that has no value.

        Raises:
            BadVersionError: the path holds a value.
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        return self.put(path, value, ABSENT)

    def put(self, path: str, value: T, expected_version: int | None = None) -> Stat:
        """Set the value of a path and return its new stat. Later reads see it.

        Raises:
            BadVersionError: the path is not at ``expected_version``.
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        self._use(path)
        return self._put(path, value, expected_version, None)

    def delete(self, path: str, expected_version: int | None = None) -> None:
        """Remove the value of a path.

        Raises:
            NotFoundError: the path holds no value.
            BadVersionError: the path is not at ``expected_version``.
            NotEmptyError: values lie below the path.
            MetadataStoreError: the delete has failed; see its ``outcome``.
        """
        self._use(path)
        flight = self._entries.write(path)
        mark = marks.UNKNOWN
        try:
            self._store.delete(path, expected_version).result()
            mark = marks.ABSENT
        finally:
            self._entries.end(flight, mark)
            self._forget_children(path)

    def read_modify_update(self, path: str, fn: Callable[[T], T]) -> T:
        """Replace the value of a path by the result of a function, and return the result.

        The function gets a private copy, which it may modify and return. If another client was
            faster, it is called again with the new value, so it must have no side effects. Updates
            of one path through one store run one after the other: a slow function delays only
            those. If the function raises, nothing is written. It must not update the same path.
            If the updates of two threads would wait for each other, because the function of each
            updates the path of the other, one of the inner updates is refused.

        Raises:
            NotFoundError: the path holds no value.
            InvalidSettingError: the function has returned ``None``, or this update would wait for
                itself.
            ValueDecodeError: the value cannot be decoded.
            BadVersionError: other clients were faster 40 times, over some seconds.
            MetadataStoreError: a request has failed; see its ``outcome``. After
                ``IndeterminateError``, the value may have been replaced.
        """

        def update(found: GetResult | None) -> T:
            if found is None:
                raise NotFoundError(f"{path} holds no value to update", path=path)
            return fn(decoded(path, found, self._decode))

        return self._update(path, update)

    def read_modify_update_or_create(self, path: str, fn: Callable[[T | None], T]) -> T:
        """Do :meth:`read_modify_update`; the function gets ``None`` if the path holds no value."""

        def update(found: GetResult | None) -> T:
            return fn(None if found is None else decoded(path, found, self._decode))

        return self._update(path, update)

    # Invalidation and listeners

    def invalidate(self, path: str) -> None:
        """Drop the cached state of a path, so that the next read goes to the store."""
        self._check(path)
        self._entries.learn(path, marks.UNKNOWN)
        self._entries.learn((path,), marks.UNKNOWN)

    def invalidate_all(self) -> None:
        """Drop the whole cache. All listeners except the calling one get a gap."""
        self._check(self._prefix)
        self._watch.clear()

    def add_listener(self, callback: WatchCallback) -> CacheListener:
        """Call a function with each change of a path below the prefix, as a ``WatchEvent``.

        The cache has taken the change into account before. An event of the kind ``"gap"`` says that
        everything may have changed: when a watch is in place, the first one or the next after an
        outage; where events are missing; after :meth:`invalidate_all`.

        Each listener has a task (for threads: a thread) of its own while there is something to
        tell. So it may block, wait, and call this object: it delays nothing but its own later
        events. If more than 10,000 of them wait, the oldest become a gap. An exception in it is
        logged. Close the result to end the listener.

        Raises:
            InvalidSettingError: the callback is not a function, or for threads a coroutine
                function.
        """
        self._check(self._prefix)
        return self._watch.add_listener(callback)

    # The end

    def close(self) -> None:
        """End the cache. Later calls raise ``StoreClosedError``; the store stays open."""
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._prefix!r} entries={len(self._entries)}>"

    # Loads

    def _entry(self, path: str) -> Entry[T]:
        """Return the entry of a path, from the cache or from the store."""
        entry = self._find(path)
        if entry is None or not self._is_fresh(entry):
            return self._load(path, path, self._read_value)
        entry.used = True
        return entry

    def _is_fresh(self, entry: Entry[T]) -> bool:
        return entry.until == math.inf or self._now() < entry.until

    def _load(self, path: str, key: Key, read: Callable[[str], Entry[T]]) -> Entry[T]:
        self._use(path)
        while True:
            own = self._entries.load(key)
            try:
                load = self._entries.join(own)
                if load is own:
                    own.entry = entry = self._latest(path, read)
                    self._entries.end(own, entry.mark, entry)
                    return entry
            except MetadataStoreError as error:
                own.error = error
                raise
            finally:
                own.over = True  # First of all: Ctrl-C may end the next calls.
                self._entries.give_up(own)
                own.done.set()
            load.check_thread(path)
            while not load.over:
                load.done.wait(_POLL)
            if load.entry is not None:
                return load.entry
            if load.error is not None:
                raise load.error.for_path(path)
            # Its task was cancelled, or its thread interrupted.

    def _read_value(self, path: str) -> Entry[T]:
        return Entry(self._store.get(path).result(), until=self._until())

    def _read_names(self, path: str) -> Entry[T]:
        names = self._store.get_children(path).result()
        return Entry(None, tuple(names), self._until())

    def _until(self) -> float:
        return math.inf if self._age == math.inf else self._now() + self._age

    def _latest(self, path: str, read: Callable[[str], Entry[T]]) -> Entry[T]:
        """Read what is not older than anything that this store has read before.

        In one session, reads never go back, not even on another server. A new session may start on
        a server that lags behind, and has to catch up first.
        """
        if not self._lags:
            return read(path)
        while True:
            session = self._store.session.id
            if session != self._caught_up:
                self._store.sync()
                if self._store.session.id != session:
                    continue
                self._caught_up = session
            entry = read(path)
            if self._store.session.id == session:
                return entry

    # Writes

    def _put(
        self, path: str, value: T, expected_version: int | None, expected_revision: int | None
    ) -> Stat:
        if value is None:
            # A function that forgets to return would replace the value by the null of JSON.
            raise InvalidSettingError(f"None cannot be the value of {path}: it stands for no value")
        raw = check_value(self._encode(value))
        flight = self._entries.write(path)
        stat = None
        try:
            stat = self._store.put(
                path, raw, expected_version, expected_revision=expected_revision
            ).result()
        finally:
            # Even if this task is cancelled, or the outcome unknown: later reads of the path queue
            # behind the put in the store.
            if stat is None:
                self._entries.end(flight, marks.UNKNOWN)
            else:
                entry: Entry[T] = Entry(GetResult(raw, stat), until=self._until())
                self._entries.end(flight, stat.revision, entry)
            if stat is None or stat.version == 0:
                self._forget_children(path)
        return stat

    def _update(self, path: str, update: Callable[[GetResult | None], T]) -> T:
        self._use(path)
        key = (path, id(self._store))
        _key_locks.lock(key)
        try:
            failures = 0
            while True:
                found = self._entry(path).found
                value = update(found)
                version, revision = ABSENT, None
                if found is not None:
                    version = found.stat.version
                    # A path that was deleted and put again has its old version again.
                    revision = found.stat.revision if self._by_revision else None
                try:
                    self._put(path, value, version, revision)
                except BadVersionError:
                    failures += 1
                    if failures == _ATTEMPTS:
                        raise
                else:
                    return value
                if failures > 1:  # The first time, the entry may just have been stale.
                    time.sleep(_BACKOFF.pause(failures))
        finally:
            _key_locks.unlock(key)

    def _forget_children(self, path: str) -> None:
        """Drop the lists of children that the creation or deletion of a value changes."""
        while len(path) > len(self._prefix):
            path = parent(path)
            self._entries.learn((path,), marks.UNKNOWN)

    # The watch

    def _check(self, path: str) -> None:
        """Refuse a path that the cache does not have."""
        if self._watch.closed:
            raise StoreClosedError("the cache or its store is closed", path=path)
        if not isinstance(path, str) or not (path.startswith(self._below) or path == self._prefix):
            raise InvalidPathError(f"{path!r:.200} is not below {self._prefix}, the cache's prefix")

    def _use(self, path: str) -> None:
        """Check a path, and start the watch if there is none."""
        self._check(path)
        self._watch.begin()

    def _learn(self, event: WatchEvent) -> None:
        mark = marks.UNKNOWN if event.revision is None else event.revision
        self._entries.learn(event.path, mark)
        if event.kind != "modified":
            self._forget_children(event.path)

    def _forget(self) -> None:
        """End the cache in a forked process, without touching what threads may have held."""
        self._watch.forget()
        self._entries.forget()


def _forget_all() -> None:
    _key_locks.forget()
    for cache in list(_caches):
        cache._forget()


os.register_at_fork(after_in_child=_forget_all)
