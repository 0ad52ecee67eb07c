# async:
# `listening.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Passes the changes that a cache hears of to its listeners."""

from __future__ import annotations

import threading
from typing import Self

from ..batching.feeds import WatchCallback, check_callback
from ..ops.log import get_logger
from ..ops.results import WatchEvent

# sync:
# | from ..batching.feeds import MAX_EVENTS, Feed
# | from .background import spawn
# end

__all__ = ["AsyncCacheListener", "AsyncListeners"]

log = get_logger("batchkeeper.coordination")

# async:
_CAUGHT = Exception
# sync:
# | _CAUGHT = BaseException  # Nobody waits for the thread, and it must go on.
# end


class AsyncCacheListener:
    """A listener of a cache's changes. Close it to get no more of them.

    It is also a context manager.
    """

    def __init__(self, listeners: AsyncListeners, callback: WatchCallback) -> None:
        self._listeners = listeners
        self._callback: WatchCallback | None = callback

    def close(self) -> None:
        """End the listener. Its own callback may call this; twice does no harm."""
        self._callback = None
        self._listeners.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, event: WatchEvent) -> None:
        """Pass on an event. An exception is logged."""
        callback = self._callback
        if callback is None:
            return
        try:
            callback(event)
        except _CAUGHT:
            log.exception("a listener of a cache failed", path=event.path)


class AsyncListeners:
    # async:
    """The listeners of one cache.

    Their functions run on the loop, where they are told.
    """

    # sync:
    # | """The listeners of one cache.
    # |
    # | Their functions run on a thread of their own, which begins with the first of them. So one
    # | that blocks delays the others, but not the cache. More events than ``MAX_EVENTS`` that wait
    # | for it become a gap.
    # | """
    # end

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()  # guards the following fields
        self._listeners: tuple[AsyncCacheListener, ...] = ()
        # sync:
        # | self._feed: Feed | None = None
        # end

    def add(self, callback: WatchCallback) -> AsyncCacheListener:
        """Call a function with each event from now on."""
        check_callback(callback)
        listener = AsyncCacheListener(self, callback)
        with self._lock:
            self._listeners = (*self._listeners, listener)
            # sync:
            # | begin = self._feed is None
            # | if self._feed is None:
            # |     self._feed = Feed(self._prefix, MAX_EVENTS)
            # end
        # sync:
        # | if begin:
        # |     spawn(f"listeners of {self._prefix}", self._run, self._feed)
        # end
        return listener

    def remove(self, listener: AsyncCacheListener) -> None:
        """Forget a listener."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

    def forget(self) -> None:
        """Drop everything in a forked process, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._listeners = ()
        # sync:
        # | self._feed = None
        # end

    def tell(self, event: WatchEvent) -> None:
        """Pass an event to all listeners."""
        # async:
        for listener in self._listeners:
            listener.call(event)
        # sync:
        # | feed = self._feed
        # | if feed is not None:
        # |     feed.deliver((event,))
        # end

    def close(self) -> None:
        """End all listeners."""
        with self._lock:
            self._listeners = ()
            # sync:
            # | feed, self._feed = self._feed, None
            # end
        # sync:
        # | if feed is not None:
        # |     feed.close()
        # end

    # sync:
    # | def _run(self, feed: Feed) -> None:
    # |     while True:
    # |         try:
    # |             event = feed.wait(None)
    # |         except StopIteration:
    # |             return
    # |         assert event is not None
    # |         for listener in self._listeners:
    # |             listener.call(event)
    # end
