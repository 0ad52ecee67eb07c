"""Sessions and watches of stores without a server."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeAlias

from ..ops.errors import MetadataStoreError
from ..ops.log import get_logger
from ..ops.paths import parent
from ..ops.results import WatchEvent
from ..ops.sessions import SessionEvent, SessionState
from .backend import WatchHandle, start_thread

__all__ = ["Concerned", "LocalSession", "LocalWatches"]

log = get_logger(__name__)


class LocalSession:
    """The session of a store in this process: it lasts as long as the store is open."""

    number: Final = 1
    timeout: Final = math.inf

    def __init__(self) -> None:
        self._id = os.urandom(8).hex()
        self._closed = False

    @property
    def id(self) -> str | None:
        return None if self._closed else self._id

    @property
    def state(self) -> SessionState:
        return "closed" if self._closed else "connected"

    def valid_until(self) -> float:
        return -math.inf if self._closed else math.inf

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        """Do nothing: the session has no events."""

    def close(self) -> None:
        self._closed = True


@dataclass(eq=False, repr=False)
class _LocalWatch:
    """One watch. It is also the handle that closes it."""

    _watches: LocalWatches
    prefix: str
    _deliver: Callable[[Sequence[WatchEvent]], None]
    _fail: Callable[[MetadataStoreError], None]
    # Held while events are delivered, so that `close` can wait for the end of that. Reentrant,
    # because `deliver` may call `close`.
    _delivering: threading.RLock = field(default_factory=threading.RLock)
    _closed: bool = False

    def take(self, events: Sequence[WatchEvent] | MetadataStoreError) -> None:
        with self._delivering:
            if self._closed:
                return
            if isinstance(events, MetadataStoreError):
                self.close()
                self._fail(events)
            else:
                self._deliver(events)

    def close(self) -> None:
        with self._delivering:
            if self._closed:
                return
            self._closed = True
        self._watches._remove(self)


#: The watches that a commit concerns, each with its events, or with the error that ends it.
Concerned: TypeAlias = list[tuple[_LocalWatch, "list[WatchEvent] | MetadataStoreError"]]


class LocalWatches:
    """The watches of a store whose changes are all made in this process.

    The store publishes the events of each commit, in the order of commits. One thread delivers
    them. It runs while there are watches.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the following fields
        self._watches: dict[str, list[_LocalWatch]] = {}  # by prefix
        # Commits for the thread that delivers, each with the watches that it concerns. `None` ends
        # the thread. There is no queue without watches.
        self._commits: SimpleQueue[Concerned | None] | None = None

    @property
    def needed(self) -> bool:
        """Whether there are watches, so that it is worth collecting events."""
        return self._commits is not None

    def watch(
        self,
        prefix: str,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
    ) -> WatchHandle:
        """Report the commits published from now on."""
        watch = _LocalWatch(self, prefix, deliver, fail)
        with self._lock:
            if self._commits is None:
                commits: SimpleQueue[Concerned | None] = SimpleQueue()
                start_thread(partial(_deliver, commits), "batchkeeper-watches")
                self._commits = commits
            self._watches.setdefault(prefix, []).append(watch)
        return watch

    def publish(self, events: Sequence[WatchEvent]) -> None:
        """Report the changes of one commit. It is called in the order of commits."""
        self.send(self.concerned(events))

    def concerned(self, events: Sequence[WatchEvent]) -> Concerned:
        """Return the watches of now that the events of a commit concern, for :meth:`send`."""
        concerned: dict[_LocalWatch, list[WatchEvent]] = {}
        with self._lock:
            for event in events:
                path = event.path
                while True:
                    for watch in self._watches.get(path, ()):
                        concerned.setdefault(watch, []).append(event)
                    if path == "/":
                        break
                    path = parent(path)
        return list(concerned.items())

    def send(self, concerned: Concerned) -> None:
        """Let the thread that delivers report a commit. It is called in the order of commits."""
        with self._lock:
            if self._commits is not None and concerned:
                self._commits.put(concerned)

    def fail(self, error: MetadataStoreError) -> None:
        """End all watches with an error, after the events that were sent before."""
        self.send([(watch, error) for watch in self._all()])

    def close(self) -> None:
        """Close all watches. No call of ``deliver`` begins after it has returned."""
        for watch in self._all():
            watch.close()

    def _all(self) -> list[_LocalWatch]:
        with self._lock:
            return [watch for same in self._watches.values() for watch in same]

    def _remove(self, watch: _LocalWatch) -> None:
        with self._lock:
            same = self._watches[watch.prefix]
            same.remove(watch)
            if not same:
                del self._watches[watch.prefix]
            if not self._watches and self._commits is not None:
                self._commits.put(None)
                self._commits = None


def _deliver(commits: SimpleQueue[Concerned | None]) -> None:
    while (commit := commits.get()) is not None:
        for watch, events in commit:
            try:
                watch.take(events)
            except Exception:
                log.exception("a watch failed to take its events", prefix=watch.prefix)
