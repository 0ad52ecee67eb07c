"""The watch that threads hold; ``async_watches.py`` has the one for tasks.

Both are written by hand, because the faces differ here in more than ``async`` and ``await``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from ..ops.errors import InvalidSettingError, MetadataStoreError, StoreClosedError
from ..ops.results import WatchEvent
from ..stores.backend import BeginWatch
from .feeds import AskedWatch, Caller, Feed, Feeds
from .futures import FutureSink
from .settings import check_seconds

__all__ = ["Watch"]


class Watch(Iterator[WatchEvent]):
    """The changes of a path and of all paths below it, as an iterator of :class:`WatchEvent`.

    :meth:`MetadataStore.watch` makes it. Iterating waits for the next event. The iteration ends
    when the watch is closed, and after the last event when the store is closed. If the watch fails,
    the iteration raises the error after the last event before it. Several threads may share a
    watch; each event goes to one of them.

    Close the watch, or use it in a ``with`` block. With a callback, the store keeps it until then.
    Without one, a watch that nobody refers to any more closes itself.
    """

    def __init__(
        self, feeds: Feeds, begin: BeginWatch, asked: AskedWatch, seconds: float, sink: FutureSink
    ) -> None:
        self._calls = asked.callback is not None
        if asked.callback is None:
            self._feed = Feed(asked.prefix, asked.max_events, values=asked.values)
            feeds.start(self._feed, begin, asked.after, seconds)
        else:
            # SystemExit as well: it would end the thread of all callbacks.
            caller = Caller(asked.callback, sink.dispatch, BaseException)
            caller.feed = self._feed = Feed(
                asked.prefix, asked.max_events, caller.wake, values=asked.values
            )
            feeds.start(self._feed, begin, asked.after, seconds)
            # Only now, so that the callback can use the watch that its caller has received.
            caller.wake()

    @property
    def prefix(self) -> str:
        """The path whose changes the watch reports, with those of all paths below it."""
        return self._feed.prefix

    @property
    def closed(self) -> bool:
        """Whether no more events will come: the watch or its store was closed, or it failed."""
        return self._feed.closed

    @property
    def error(self) -> MetadataStoreError | None:
        """The error with which the watch has failed, or ``None``."""
        return self._feed.error

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchEvent:
        self._check_iterable()
        event = self._feed.wait(None)
        assert event is not None
        return event

    def next_event(self, timeout: float | None = None) -> WatchEvent | None:
        """Return the next event, or ``None`` if none comes within ``timeout`` seconds.

        Raises:
            StoreClosedError: the watch or its store is closed, and the last event was taken.
            MetadataStoreError: the watch has failed, and the last event was taken.
        """
        self._check_iterable()
        if timeout is not None and timeout != 0:
            check_seconds("timeout", timeout)
        try:
            return self._feed.wait(timeout)
        except StopIteration:
            raise StoreClosedError("the watch is closed", path=self.prefix) from None

    def next_events(self, timeout: float | None = None) -> list[WatchEvent]:
        """Return all events that wait, or the next one; none if ``timeout`` seconds pass before.

        What one transaction has changed comes together on etcd, RocksDB and memory.

        Raises:
            StoreClosedError: the watch or its store is closed, and the last event was taken.
            MetadataStoreError: the watch has failed, and the last event was taken.
        """
        first = self.next_event(timeout)
        return [] if first is None else [first, *self._feed.rest()]

    @property
    def lag(self) -> float:
        """Seconds for which the reader has been behind the store, as far as the client knows.

        It counts from the arrival of the oldest event that waits to be taken, or that the reader
        took last and still works on: until it asks for the next. It also counts through outages.
        """
        return self._feed.lag

    def close(self) -> None:
        """End the watch. Threads that wait for an event find the end of the iteration.

        Any thread may call it, also the watch's own callback. Events that were not taken are
        dropped. A second call does nothing.
        """
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # It may run anywhere, even in the back end's threads and under its locks. So the next
        # delivery closes the watch.
        feed = getattr(self, "_feed", None)
        if feed is not None and not self._calls:
            feed.abandoned = True

    def __repr__(self) -> str:
        return f"<Watch {self.prefix!r}{' closed' if self.closed else ''}>"

    def _check_iterable(self) -> None:
        if self._calls:
            raise InvalidSettingError("this watch passes its events to its callback")
