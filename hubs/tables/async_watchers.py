# async:
# `watchers.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Watchers of keys: each is called once, at the first change after a read."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import Final

from ...batching import AsyncMetadataStore
from ...batching.checks import check_capability
from ...coordination.async_following import AsyncFollower
from ...coordination.async_listeners import AsyncListener
from ...ops.errors import MetadataStoreError, StoreClosedError
from ...ops.log import get_logger
from ...ops.results import GetResult, WatchEvent
from .results import Watched, Watcher

__all__ = ["AsyncWatchers"]

log = get_logger("batchkeeper.hubs")

# Seconds after which the watch of a table ends if no watcher waits.
_LINGER: Final = 60.0


class _Armed(AsyncListener[tuple[Watched, str]]):
    """A watcher that was not called yet."""

    def __init__(self, key: str, watcher: Watcher) -> None:
        super().__init__(f"key {key!r}", watcher)
        self.key = key
        self.known = False  # whether its read has ended
        self.revision: int | None = None  # what it has read; None: no value
        self.last: WatchEvent | None = None  # during its read

    def misses(self, event: WatchEvent) -> bool:
        """Say whether an event is older than the read."""
        if event.kind == "deleted" and self.revision is None:
            return True
        return (
            event.revision is not None
            and self.revision is not None
            and event.revision <= self.revision
        )

    def _calls(self, event: tuple[Watched, str]) -> Iterable[tuple[object, ...]]:
        yield event


class AsyncWatchers:
    """The watchers of a table. One watch of the store serves all of them.

    Args:
        store: the store.
        place: the path below which the table has its keys.
    """

    def __init__(self, store: AsyncMetadataStore, place: str) -> None:
        self._store = store
        self._place = place
        self._lock = threading.Lock()  # guards the following fields
        self._armed: defaultdict[str, list[_Armed]] = defaultdict(list)
        self._follower: AsyncFollower | None = None
        self._error: MetadataStoreError | None = None  # why the last follower has ended
        self._closed = False

    async def read(self, key: str, path: str, watcher: Watcher) -> GetResult | None:
        """Read a path, and call a watcher at the first change after that.

        Raises:
            InvalidSettingError: the watcher is not a function.
            MetadataStoreError: the store cannot be watched or read. The watcher is not called then.
        """
        check_capability("watches", "a watcher", self._store.capabilities, repr(self._store))
        armed = _Armed(key, watcher)
        with self._lock:
            if self._closed:
                raise StoreClosedError("the tables were closed", path=path)
            self._armed[path].append(armed)
            follower = self._follower
            if begins := follower is None:
                follower = self._follower = self._new_follower()
        try:
            if begins:
                follower.start()
            await follower.ready.wait()
            if self._error is not None:
                raise self._error.for_path(path)
            found = await self._store.get(path)
        except BaseException:
            self._disarm(path, armed)
            raise
        with self._lock:
            armed.known = True
            armed.revision = None if found is None else found.stat.revision
            event = armed.last
        if event is not None:
            self._tell(event)
        return found

    def close(self) -> None:
        """End all watchers."""
        with self._lock:
            self._closed = True
            follower, self._follower = self._follower, None
            lists = [*self._armed.values()]
            self._armed.clear()
        for armed in chain.from_iterable(lists):
            armed.close()
        if follower is not None:
            follower.close()

    def _disarm(self, path: str, armed: _Armed) -> None:
        with self._lock:
            some = self._armed.get(path, [])
            if armed in some:
                some.remove(armed)
            if not some:
                self._armed.pop(path, None)

    def _tell(self, event: WatchEvent) -> None:
        """Call the watchers of a path to which an event is news."""
        told: Watched = "removed" if event.kind == "deleted" else "changed"
        with self._lock:
            waiting = self._armed.get(event.path, [])
            for armed in waiting:
                if not armed.known:
                    armed.last = event
            now = [armed for armed in waiting if armed.known and not armed.misses(event)]
            left = [armed for armed in waiting if armed not in now]
            if left:
                self._armed[event.path] = left
            else:
                self._armed.pop(event.path, None)
        for armed in now:
            armed.tell((told, armed.key))

    def _new_follower(self) -> AsyncFollower:
        async def read() -> None:
            """After a gap, compare what the watchers have read with what is there."""
            with self._lock:
                self._error = None
                paths = [
                    path for path, some in self._armed.items() if any(armed.known for armed in some)
                ]
            for path in paths:
                found = await self._store.get(path)
                if found is None:
                    self._tell(WatchEvent("deleted", path))
                else:
                    self._tell(WatchEvent("modified", path, None, found.stat.revision))

        async def event(event: WatchEvent) -> None:
            self._tell(event)

        def ended(error: MetadataStoreError) -> None:
            log.warning("watchers have no watch", place=self._place, reason=str(error))
            with self._lock:
                self._error = error
                if self._follower is follower:
                    self._follower = None

        def idle() -> bool:
            with self._lock:
                if self._armed:
                    return False
                self._follower = None
                return True

        follower = AsyncFollower(
            self._store,
            self._place,
            read=read,
            event=event,
            ended=ended,
            idle=idle,
            linger=_LINGER,
        )
        return follower
