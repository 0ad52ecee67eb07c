"""Waits for the deletion of single nodes, by watches of the server that fire once.

A read of a node's children places such a watch, unless the node is missing. It fires when the node
is deleted, but not when its value changes. The server keeps one for each node and connection, which
several waits share. So a wait costs one request, and a second one only if it is given up.

After the loss of a connection, and wherever an event may be missing, each wait gets a gap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ....ops.errors import MetadataStoreError
from ....ops.results import WatchEvent
from ..wire.jute import CHANGED, CREATED, DELETED
from .events import decode
from .placing import Placing
from .watch import ZooKeeperWatch

__all__ = ["Deletions"]

# Seconds for the removal of a watch.
_ATTEMPT: Final = 10.0


class Deletions:
    """The waits of one client. Any thread may begin or close one. kazoo's thread ends them.

    Args:
        placing: makes the requests.
        chroot: precedes all paths.
        later: calls a function on the thread of watches, unless the connection is lost by then.
        forked: says whether this is a forked child.
    """

    def __init__(
        self,
        placing: Placing,
        chroot: str,
        later: Callable[[Callable[[], None]], None],
        forked: Callable[[], bool],
    ) -> None:
        self._placing = placing
        self._chroot_bytes = len(chroot.encode())
        self._later = later
        self._forked = forked
        self._lock = threading.Lock()
        self._waits: dict[str, set[ZooKeeperWatch]] = {}  # by path; guarded by the lock

    @property
    def forked(self) -> bool:
        """Whether this is a forked child."""
        return self._forked()

    @property
    def lag(self) -> float:
        """0.0: nobody asks."""
        return 0.0

    def begin(
        self,
        path: str,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> ZooKeeperWatch:
        """Wait for a deletion; see ``stores.backend.DeletionWatches``."""
        wait = ZooKeeperWatch(self, path, deliver, fail)
        with self._lock:  # before the request, whose answer may come after the event
            self._waits.setdefault(path, set()).add(wait)
        try:
            there = self._placing.place_once(path, deadline)
        except BaseException:
            wait.close()
            raise
        if not there:
            self._drop(wait)
            wait.take([WatchEvent("deleted", path)])
        return wait

    def take(self, packets: Sequence[bytes]) -> None:
        """End the waits that these packets with events concern."""
        if not self._waits:
            return
        for kind, path, zxid, _ in decode(packets, 0, self._chroot_bytes):
            if kind == DELETED:
                self._end(path, WatchEvent("deleted", path, None, zxid if zxid > 0 else None))
            elif kind not in (CREATED, CHANGED):  # which come only from other watches
                self._end(path, WatchEvent("gap", path))

    def lose(self, path: str) -> bool:
        """End the waits for a path with a gap; return whether there were any."""
        return self._end(path, WatchEvent("gap", path))

    def lose_all(self) -> None:
        """End all waits with a gap, because the connection is lost."""
        for path in list(self._waits):
            self.lose(path)

    def close(self) -> None:
        """End all waits. Nothing is delivered afterwards."""
        with self._lock:
            waits = [wait for same in self._waits.values() for wait in same]
        for wait in waits:
            wait.close()

    def leave(self, watch: ZooKeeperWatch) -> None:
        """Forget a wait, and remove the server's watch if it was the last that needs it."""
        if self._drop(watch):
            self._later(partial(self._remove, watch.prefix))

    def _drop(self, wait: ZooKeeperWatch) -> bool:
        """Forget a wait; say whether it was the last one of its path."""
        with self._lock:
            same = self._waits.get(wait.prefix, set())
            if wait not in same:
                return False
            same.discard(wait)
            if not same:
                del self._waits[wait.prefix]
            return not same

    def _remove(self, path: str) -> None:
        while path not in self._waits:
            self._placing.remove(path, time.monotonic() + _ATTEMPT, of_children=True)
            # Waits that have begun meanwhile may have lost their watch with it, or may keep it.
            if not self.lose(path):
                return

    def _end(self, path: str, event: WatchEvent) -> bool:
        with self._lock:
            waits = self._waits.pop(path, ())
        for wait in waits:
            wait.take([event])
        return bool(waits)
