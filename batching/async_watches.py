"""The watch that tasks hold; ``watches.py`` has the one for threads.

Both are written by hand, because the faces differ here in more than ``async`` and ``await``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, Self

from ..ops.errors import InvalidSettingError, MetadataStoreError, StoreClosedError
from ..ops.results import WatchEvent
from ..stores.backend import BeginWatch
from .feeds import AskedWatch, Caller, Feed, Feeds
from .settings import check_seconds

__all__ = ["AsyncWatch"]

# Events after which a task lets others have their turn. While events keep coming, it never waits.
_TURN: Final = 256


class _Waiters:
    """The tasks that wait for an event of one watch.

    It does not refer to the watch, so that a watch which nobody refers to can close itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: set[asyncio.Future[None]] = set()
        self.feed: Feed | None = None

    def wake(self) -> None:
        """Wake all waiting tasks. Any thread may call it."""
        _on_loop(self._loop, self.feed, self._wake_all)

    def _wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until the feed has changed. The caller looks again then."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


class AsyncWatch(AsyncIterator[WatchEvent]):
    """The changes of a path and of all paths below it, for ``async for``.

    :meth:`AsyncMetadataStore.watch` makes it. Await it, use it in ``async with``, or iterate over
    it: each of them begins it, and the first two return when it is in place. It behaves like
    :class:`Watch`. Cancelling a task that waits for an event loses no event.
    """

    def __init__(
        self,
        feeds: Feeds,
        begin: BeginWatch,
        asked: AskedWatch,
        seconds: float,
        loop: asyncio.AbstractEventLoop,
        check_loop: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._check_loop = check_loop  # It keeps the store as long as its watch.
        self._waiters = _Waiters(loop)
        self._caller: Caller | None = None
        if asked.callback is None:
            wake = self._waiters.wake
        else:
            self._caller = Caller(asked.callback, _dispatch_to(loop), Exception)
            wake = self._caller.wake
        self._feed = Feed(asked.prefix, asked.max_events, wake, values=asked.values)
        self._waiters.feed = self._feed
        if self._caller is not None:
            self._caller.feed = self._feed
        # Without a reference to this object: see `__del__`.
        self._start = partial(feeds.start, self._feed, begin, asked.after, seconds)
        self._starting: asyncio.Future[None] | None = None
        self._begun = False  # whether the watch is in place
        self._taken = 0

    @property
    def prefix(self) -> str:
        """The path whose changes the watch reports, with those of all paths below it."""
        return self._feed.prefix

    @property
    def closed(self) -> bool:
        """Whether no more events will come, because of a close or a failure."""
        return self._feed.closed

    @property
    def error(self) -> MetadataStoreError | None:
        """The error with which the watch has failed, or ``None``."""
        return self._feed.error

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._begin().__await__()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _begin(self) -> Self:
        """Begin the watch for a caller that receives it."""
        self._check_loop()
        if self._begun:
            return self
        if self._starting is None and self._feed.closed:
            raise self._why_closed()
        try:
            await self._in_place()
        except asyncio.CancelledError:
            # The caller does not receive the watch, so nobody else would close it.
            self.close()
            raise
        if self._caller is not None:
            # Only now, so that the callback can use the watch that its caller has received.
            self._caller.wake()
        return self

    async def _in_place(self) -> None:
        """Wait until the watch is in place. A cancelled task leaves that to the others."""
        if self._starting is None:
            self._starting = self._loop.run_in_executor(None, self._start)
            # Nothing else may retrieve the error, and asyncio would log that.
            self._starting.add_done_callback(_retrieve)
        try:
            await asyncio.shield(self._starting)
        except MetadataStoreError as error:
            raise error.for_path(self.prefix) from error.__cause__
        self._begun = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        self._taken += 1
        if self._taken == _TURN:
            self._taken = 0
            await asyncio.sleep(0)
        event = await self._next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self, timeout: float | None = None) -> WatchEvent | None:
        """Return the next event, or ``None`` if none comes within ``timeout`` seconds.

        Raises:
            StoreClosedError: the watch or its store is closed, and the last event was taken.
            MetadataStoreError: the watch has failed, and the last event was taken.
        """
        if timeout is not None and timeout != 0:
            check_seconds("timeout", timeout)
        try:
            async with asyncio.timeout(timeout):
                event = await self._next()
        except TimeoutError as error:
            if isinstance(error, MetadataStoreError):  # OperationTimeoutError is both.
                raise
            return None
        if event is None:
            raise self._why_closed()
        return event

    async def next_events(self, timeout: float | None = None) -> list[WatchEvent]:
        """Return all events that wait, or the next one; none if ``timeout`` seconds pass before.

        What one transaction has changed comes together on etcd, RocksDB and memory.

        Raises:
            StoreClosedError: the watch or its store is closed, and the last event was taken.
            MetadataStoreError: the watch has failed, and the last event was taken.
        """
        await asyncio.sleep(0)  # Others have their turn, also while events keep coming.
        first = await self.next_event(timeout)
        return [] if first is None else [first, *self._feed.rest()]

    @property
    def lag(self) -> float:
        """Seconds for which the reader has been behind the store, as far as the client knows.

        It counts from the arrival of the oldest event that waits to be taken, or that the reader
        took last and still works on: until it asks for the next. It also counts through outages.
        """
        return self._feed.lag

    async def _next(self) -> WatchEvent | None:
        """Return the next event, or ``None`` after the last one."""
        self._check_loop()
        if self._caller is not None:
            raise InvalidSettingError("this watch passes its events to its callback")
        if not self._begun and (self._starting is not None or not self._feed.closed):
            await self._in_place()
        try:
            # Nothing is awaited between taking an event and returning it. So a cancelled task
            # leaves the event to the next one.
            while (event := self._feed.take()) is None:
                await self._waiters.wait()
        except StopIteration:
            return None
        return event

    def close(self) -> Awaitable[None]:
        """End the watch. Tasks that wait for an event find the end of the iteration.

        The watch ends at once, so its own callback can call this. Awaiting the result waits until
        the store has ended it, too. Events that were not taken are dropped. A second call does
        nothing.
        """
        handle = self._feed.shut()
        closed: asyncio.Future[None] = self._loop.create_future()
        if handle is not None:
            try:
                return self._loop.run_in_executor(None, handle.close)
            except RuntimeError:  # The loop is closed, or about to be.
                handle.close()
        closed.set_result(None)
        return closed

    def __del__(self) -> None:
        # It may run anywhere, even in the back end's threads and under its locks. So the next
        # delivery closes the watch.
        feed = getattr(self, "_feed", None)
        if feed is not None and self._caller is None:
            feed.abandoned = True

    def __repr__(self) -> str:
        return f"<AsyncWatch {self.prefix!r}{' closed' if self.closed else ''}>"

    def _why_closed(self) -> StoreClosedError:
        return StoreClosedError("the watch is closed", path=self.prefix)


def _dispatch_to(loop: asyncio.AbstractEventLoop) -> Callable[[Caller], None]:
    return lambda caller: _on_loop(loop, caller.feed, caller.run_callbacks)


def _on_loop(loop: asyncio.AbstractEventLoop, feed: Feed | None, call: Callable[[], None]) -> None:
    """Run a function on the loop soon. If the loop is closed, nobody takes the feed's events."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if feed is not None:
            feed.abandoned = True


def _retrieve(starting: asyncio.Future[None]) -> None:
    if not starting.cancelled():
        starting.exception()
