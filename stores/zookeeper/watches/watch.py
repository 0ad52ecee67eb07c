"""One watch: who gets its events, and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ....ops.errors import MetadataStoreError
from ....ops.log import get_logger
from ....ops.results import WatchEvent

__all__ = ["Owner", "ZooKeeperWatch"]

log = get_logger(__name__)


class Owner(Protocol):
    """The watches of a client."""

    @property
    def lag(self) -> float:
        """See :class:`stores.backend.WatchHandle`."""

    @property
    def forked(self) -> bool:
        """Whether this is a forked child."""

    def leave(self, watch: ZooKeeperWatch) -> None:
        """Forget a watch."""


@dataclass(eq=False, repr=False)
class ZooKeeperWatch:
    """One watch, and its handle.

    Args:
        watches: those of its client.
        prefix: the path that it watches, with all paths below it.
        deliver: receives events. Never called after ``close`` has returned.
        fail: receives the error that ends the watch.

    Attributes:
        begins: the number of the first event that it may get. Set under the lock of ``watches``.
        begun: whether it is among the watches that get events. Set by their thread.
    """

    _watches: Owner
    prefix: str
    _deliver: Callable[[Sequence[WatchEvent]], None]
    _fail: Callable[[MetadataStoreError], None]
    begins: int = 0
    begun: bool = False
    # Held while events are delivered, so that `close` can wait for the end of that. Reentrant,
    # because `deliver` may call `close`.
    _delivering: threading.RLock = field(default_factory=threading.RLock)
    _closed: bool = False

    def take(self, events: Sequence[WatchEvent]) -> None:
        """Deliver events."""
        with self._delivering:
            if not self._closed:
                try:
                    self._deliver(events)
                except Exception:
                    log.exception("a watch failed to take its events", prefix=self.prefix)

    def fail(self, error: MetadataStoreError) -> None:
        """End the watch with an error."""
        with self._delivering:
            if not self._closed:
                self._fail(error)
        self.close()

    @property
    def lag(self) -> float:
        """See :class:`stores.backend.WatchHandle`."""
        return self._watches.lag

    def close(self) -> None:
        """End the watch; see ``stores.backend.WatchHandle``."""
        if self._watches.forked:
            return
        with self._delivering:
            if self._closed:
                return
            self._closed = True
        self._watches.leave(self)
