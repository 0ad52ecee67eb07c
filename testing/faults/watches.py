"""The watches of a back end with faults: they can have gaps, be held back, and end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ...ops.errors import MetadataStoreError
from ...ops.results import WatchEvent
from ...stores.backend import Watches, WatchHandle
from .facets import Run

__all__ = ["FaultyWatches"]


class _FaultyWatch:
    """One watch. It is also the handle that closes it."""

    def __init__(
        self,
        prefix: str,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        held: bool,
        remove: Callable[[_FaultyWatch], None],
    ) -> None:
        self.prefix = prefix
        self._deliver = deliver
        self._fail = fail
        self._remove = remove
        # Guards the following fields, and keeps the events in order. Reentrant, because `deliver`
        # may call `close`.
        self._lock = threading.RLock()
        self._held: list[WatchEvent] | None = [] if held else None
        self._held_at = time.monotonic()
        self._closed = False
        self._handle: WatchHandle | None = None

    def open(self, handle: WatchHandle) -> None:
        """Set the handle of the watch below."""
        with self._lock:
            self._handle, closed = handle, self._closed
        if closed:
            handle.close()

    @property
    def lag(self) -> float:
        below: float = getattr(self._handle, "lag", 0.0)
        return below if self._held is None else max(below, time.monotonic() - self._held_at)

    def take(self, events: Sequence[WatchEvent]) -> None:
        with self._lock:
            if self._closed:
                return
            if self._held is None:
                self._deliver(events)
            else:
                self._held += events

    def hold(self) -> None:
        with self._lock:
            if self._held is None:
                self._held, self._held_at = [], time.monotonic()

    def resume(self, *, gap: bool) -> None:
        with self._lock:
            events = self._held
            self._held = None
            if gap:
                self.gap()
            elif events and not self._closed:
                self._deliver(events)

    def gap(self) -> None:
        self.take([WatchEvent("gap", self.prefix)])

    def end(self, error: MetadataStoreError) -> None:
        with self._lock:
            ended, self._closed = self._closed, True
            if not ended:
                self._fail(error)
        self._detach()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._detach()

    def _detach(self) -> None:
        # Without the lock: this waits for the end of a delivery, which may wait for the lock.
        if self._handle is not None:
            self._handle.close()
        self._remove(self)


class FaultyWatches:
    """Watches that pass on the events of ``watches``, and what a test makes happen."""

    def __init__(self, run: Run, watches: Watches) -> None:
        self._run = run
        self._watches = watches
        self._lock = threading.Lock()  # guards the following fields
        self._open: list[_FaultyWatch] = []
        self._holding = False

    def watch(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> WatchHandle:
        def begin() -> WatchHandle:
            with self._lock:
                watch = _FaultyWatch(prefix, deliver, fail, self._holding, self._remove)
                self._open.append(watch)
            try:
                watch.open(self._watches.watch(prefix, after, watch.take, watch.end, deadline))
            except BaseException:
                self._remove(watch)
                raise
            return watch

        return self._run("watch", prefix, begin, deadline)

    def _remove(self, watch: _FaultyWatch) -> None:
        with self._lock:
            if watch in self._open:
                self._open.remove(watch)

    def hold(self) -> None:
        """Hold back all events from now on."""
        with self._lock:
            self._holding = True
            watches = [*self._open]
        for watch in watches:
            watch.hold()

    def resume(self, *, gap: bool) -> None:
        """Deliver the events that were held back, or a gap in their place."""
        with self._lock:
            self._holding = False
            watches = [*self._open]
        for watch in watches:
            watch.resume(gap=gap)

    def gap(self, prefix: str | None) -> int:
        """Deliver a gap to the watches of a prefix, or to all; return their number."""
        watches = self._of(prefix)
        for watch in watches:
            watch.gap()
        return len(watches)

    def end(self, prefix: str | None, error: MetadataStoreError) -> int:
        """End the watches of a prefix, or all, with an error; return their number."""
        watches = self._of(prefix)
        for watch in watches:
            watch.end(error)
        return len(watches)

    def _of(self, prefix: str | None) -> list[_FaultyWatch]:
        with self._lock:
            return [watch for watch in self._open if prefix in (None, watch.prefix)]
