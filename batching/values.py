"""Watches whose events have values: the store sends them, or the client reads them here.

Where the store sends none, one thread for each watch takes the events that wait, reads the values
of all their paths in one bulk call, and delivers them on. The reads begin after the events have
arrived, over the same session, so that each is at least as new as its event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from threading import Event
from typing import Final

from ..ops.backoff import Backoff
from ..ops.errors import AuthenticationError, MetadataStoreError, StoreClosedError, passes
from ..ops.log import get_logger
from ..ops.results import GetResult, ValueEvent, WatchEvent
from ..stores.backend import BeginWatch, ValueWatches, Watches, WatchHandle, start_thread
from .bulk import Collector
from .engine import Engine
from .feeds import MAX_EVENTS, Feed

__all__ = ["with_values"]

log = get_logger("batchkeeper.watches")

# The events whose values are read together: at first, and as many as have brought so many bytes.
_FIRST: Final = 64
_MOST: Final = 1024
_BYTES: Final = 16 << 20
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
        source.attach(handle, lambda _: None)
        reading = _Reading(source, read, deliver, fail)
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
        read: Callable[[list[str]], list[GetResult | None]],
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
    ) -> None:
        self._source = source
        self._read = read
        self._deliver = deliver
        self._fail = fail
        self._closed = Event()
        self._most = _FIRST  # the events whose values are read together

    def run(self) -> None:
        """Deliver events until the watch, or its source, ends."""
        try:
            while not self._closed.is_set():
                first = self._source.wait(None)
                assert first is not None
                events = deque([first, *self._source.rest()])
                while events:
                    some = [events.popleft() for _ in range(min(self._most, len(events)))]
                    found = self._found(some)
                    if self._closed.is_set():
                        return
                    self._deliver(found)
                    del some, found  # Their values may be large, and the next may come late.
        except (StopIteration, StoreClosedError):
            pass  # It is closed, or its store, which ends all its feeds.
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
                if isinstance(error, AuthenticationError) and error.path in paths:
                    paths.remove(error.path)  # Scans leave such a path out, too.
                    continue
                if isinstance(error, StoreClosedError) or not passes(error):
                    raise
                if self._closed.wait(_BACKOFF.pause(attempt)):
                    return []
        size = sum(len(found.value) for found in values.values() if found is not None)
        self._most = max(1, min(_MOST, _BYTES * len(events) // (size + 1)))
        return [ValueEvent.of(event, values.get(event.path)) for event in events]

    @property
    def lag(self) -> float:
        """See :class:`stores.backend.WatchHandle`."""
        return self._source.lag

    def close(self) -> None:
        """End the watch. See :class:`stores.backend.WatchHandle`."""
        self._closed.set()
        self._source.close()
