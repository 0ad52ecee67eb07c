"""Watches whose events have values: the store sends them, or the client reads them here.

Where the store sends none, one thread for each watch takes the events that wait, reads the values
of all their paths in one bulk call, and delivers them on. The reads begin after the events have
arrived, over the same session, so that each is at least as new as its event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from threading import Event
from typing import Final

from ..ops.backoff import Backoff
from ..ops.errors import MetadataStoreError, StoreClosedError, passes
from ..ops.log import get_logger
from ..ops.results import GetResult, ValueEvent, WatchEvent
from ..stores.backend import BeginWatch, ValueWatches, Watches, WatchHandle, start_thread
from .bulk import Collector
from .engine import Engine
from .feeds import MAX_EVENTS, Feed

__all__ = ["with_values"]

log = get_logger("batchkeeper.watches")

# The most events whose values are read together.
_MOST: Final = 1024
_BACKOFF: Final = Backoff(first=0.05, longest=2.0)


def with_values(engine: Engine, watches: Watches, seconds: float) -> BeginWatch:
    """Return what begins watches whose events have values.

    Args:
        engine: the engine, which reads them.
        watches: the watches of the store.
        seconds: the time that each read has.
    """
    if isinstance(watches, ValueWatches):
        return watches.watch_values

    def read(paths: list[str]) -> list[GetResult | None]:
        return Collector[GetResult | None](engine, paths, seconds, bare=True).collect()

    def begin(
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> WatchHandle:
        source = Feed(prefix, 10 * MAX_EVENTS)
        handle = watches.watch(prefix, after, source.deliver, source.fail, deadline)
        reading = _Reading(source, handle, read, deliver, fail)
        try:
            start_thread(reading.run, f"batchkeeper-values of {prefix}")
        except BaseException:
            reading.close()
            raise
        return reading

    return begin


class _Reading:
    """The reads of one watch, and the handle that ends them."""

    def __init__(
        self,
        source: Feed,
        handle: WatchHandle,
        read: Callable[[list[str]], list[GetResult | None]],
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
    ) -> None:
        self._source = source
        self._handle = handle
        self._read = read
        self._deliver = deliver
        self._fail = fail
        self._closed = Event()
        self._since = 0.0  # when the events were taken that are being read, or 0

    def run(self) -> None:
        """Deliver events until the watch, or its source, ends."""
        try:
            while not self._closed.is_set():
                first = self._source.wait(None)
                assert first is not None
                self._since = time.monotonic()
                events = [first, *self._source.rest()]
                for start in range(0, len(events), _MOST):
                    found = self._found(events[start : start + _MOST])
                    if self._closed.is_set():
                        return
                    self._deliver(found)
                self._since = 0.0
        except StopIteration:
            pass
        except StoreClosedError:
            pass  # The store ends all its feeds.
        except Exception as error:
            # Whatever it is: a thread that ended here would leave the watch silent for ever.
            if not isinstance(error, MetadataStoreError):
                log.exception("a watch with values failed", prefix=self._source.prefix)
                error = MetadataStoreError(f"the values of the watch could not be read: {error!r}")
            self.close()
            self._fail(error)

    def _found(self, events: Sequence[WatchEvent]) -> list[WatchEvent]:
        """Return events with the values that their paths have now."""
        paths = [*dict.fromkeys(e.path for e in events if e.kind in {"created", "modified"})]
        for attempt in count():
            try:
                values = dict(zip(paths, self._read(paths), strict=True))
                break
            except MetadataStoreError as error:
                if isinstance(error, StoreClosedError) or not passes(error):
                    raise
                if self._closed.wait(_BACKOFF.pause(attempt)):
                    return []
        return [ValueEvent.of(event, values.get(event.path)) for event in events]

    @property
    def lag(self) -> float:
        """The seconds since the first event arrived that is not delivered; 0.0 if there is none."""
        return max(self._source.lag, time.monotonic() - self._since if self._since else 0.0)

    def close(self) -> None:
        """End the watch. See :class:`stores.backend.WatchHandle`."""
        self._closed.set()
        self._source.shut()
        self._handle.close()
