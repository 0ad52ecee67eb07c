# Made from async_cache_watch.py by `python tools/faces.py`: change that file, and run this command.
"""The watch of a cache, and its listeners: while the watch is in place, the cache has entries.

A follower belongs to one watch. The session listener learns when the connection or the session is
lost. It runs where the callbacks of the store run, so it never waits: it drops the entries, and
makes another follower start a new watch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from ...batching import MetadataStore, SessionListener
from ...batching._sync.listeners import Listener, still_open
from ...batching.feeds import MAX_EVENTS, WatchCallback
from ...ops.errors import MetadataStoreError, StoreClosedError, passes
from ...ops.log import get_logger
from ...ops.results import WatchEvent
from ...ops.sessions import SessionEvent
from ..entries import Entries
from .following import Follower

__all__ = ["CacheListener", "CacheWatch"]

log = get_logger("batchkeeper.coordination")


class CacheListener(Listener[WatchEvent]):
    """A listener of a cache's changes. Close it to stop it.

    It is also a context manager.
    """

    def _append(self, event: WatchEvent) -> None:
        full = len(self._waiting) == self._waiting.maxlen
        super()._append(event)
        if full:
            self._waiting[0] = WatchEvent("gap", self._of)


class CacheWatch:
    """Opens and shuts the entries of a cache. Nothing happens before the first ``begin``.

    Args:
        store: the store.
        prefix: the path of the cache.
        entries: its entries.
        learn: receives each change before the listeners do.

    Attributes:
        closed: whether ``close`` was called, or the store is closed.
        pause: seconds until another attempt if the store has refused the watch.
    """

    pause: Final = 10.0

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        entries: Entries[Any, Any],
        learn: Callable[[WatchEvent], None],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._entries = entries
        self._learn = learn
        self._has_session = "ephemerals" in store.capabilities
        # Guards the following fields. Under it, only the lock of the entries is taken.
        self._lock = threading.RLock()
        self._follower: Follower | None = None  # the present one
        self._session_listener: SessionListener | None = None
        self._listeners: tuple[CacheListener, ...] = ()
        self.closed = False

    def begin(self) -> None:
        """Start the watch if there is none, without waiting."""
        if self._follower is None:
            self._follow(None)

    def add_listener(self, callback: WatchCallback) -> CacheListener:
        """Call a function with each change, and start the watch if there is none."""
        listener = CacheListener(self._prefix, callback, MAX_EVENTS)
        with self._lock:
            self._listeners = (*still_open(self._listeners), listener)
        self.begin()  # Last, so that the listener gets the first gap.
        return listener

    def clear(self) -> None:
        """Drop all entries. All listeners except the calling one get a gap."""
        self._entries.clear()
        for listener in self._listeners:
            if not listener.calling:
                listener.notify(WatchEvent("gap", self._prefix))

    def close(self) -> None:
        """End the watch and its listeners, and shut the entries."""
        with self._lock:
            self.closed = True
            follower, self._follower = self._follower, None
            session_listener, self._session_listener = self._session_listener, None
        self._entries.shut()
        for listener in self._listeners:
            listener.close()
        if session_listener is not None:
            session_listener.close()
        if follower is not None:
            follower.close()

    def forget(self) -> None:
        """End the watch in a forked process, without touching locks that threads may have held."""
        self.closed = True
        self._lock = threading.RLock()
        self._follower = self._session_listener = None
        self._listeners = ()

    def _follow(self, old: Follower | None, after: float = 0.0) -> None:
        """Start a new follower after some seconds, in place of the old one."""
        follower = self._new_follower()
        with self._lock:
            if self.closed or self._follower is not old:
                return
            self._follower = follower
            listen = self._session_listener is None and self._has_session
        if old is not None:
            self._entries.shut()
            old.close()
        try:
            if listen:
                self._listen()
        except BaseException:
            with self._lock:
                self._follower = None
            raise
        follower.start(after)

    def _new_follower(self) -> Follower:
        def read() -> None:
            # Even the first time: changes before this watch were not reported.
            self._entries.clear()
            self._notify(WatchEvent("gap", self._prefix))
            with self._lock:
                if self._follower is follower:
                    self._entries.open()

        def event(event: WatchEvent) -> None:
            self._learn(event)
            self._notify(event)

        def ended(error: MetadataStoreError) -> None:
            if isinstance(error, StoreClosedError):
                self.close()
            elif passes(error):  # It could not start. The next use tries again.
                with self._lock:
                    self._follower = None
            else:  # The cache continues without a watch, and so without entries.
                log.warning("a cache has no watch", prefix=self._prefix, reason=str(error))
                self._follow(follower, self.pause)

        def broken() -> None:
            with self._lock:
                if self._follower is follower:
                    self._entries.shut()

        follower = Follower(
            self._store, self._prefix, read=read, event=event, ended=ended, broken=broken
        )
        return follower

    def _notify(self, event: WatchEvent) -> None:
        for listener in self._listeners:
            listener.notify(event)

    def _listen(self) -> None:
        """Handle lost connections and sessions."""
        listener = self._store.add_session_listener(self._hear)
        with self._lock:
            keep = self._session_listener is None and not self.closed
            if keep:
                self._session_listener = listener
        if not keep:
            listener.close()

    def _hear(self, event: SessionEvent) -> None:
        if event in {"connection_lost", "session_lost"}:
            follower = self._follower
            if follower is not None:
                self._follow(follower)
