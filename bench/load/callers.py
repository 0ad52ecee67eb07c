"""Callers: threads or tasks that keep operations under way, or start them at a rate.

A *closed loop* keeps a number of operations under way: when one ends, the caller starts the next.
An *open loop* starts operations at a rate, whatever the store does, as users do. Its latencies
count from the moment at which an operation was due: so an operation that could not even be started
in time, because the store held its caller up, counts as late.

While the clock runs, latencies are kept as raw numbers. Recording one in a histogram costs a good
part of an operation, so histograms are made afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Barrier
from typing import Any, Final, TypeAlias

from ...batching import AsyncMetadataStore
from ...ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    StoreUnavailableError,
)
from .work import Pending, Work

_Open: TypeAlias = "deque[tuple[Future[Any], Pending]]"

#: The store has gone when an operation failed for want of it, and none has succeeded for so long.
_PATIENCE: Final = 3.0
_GONE: Final = (IndeterminateError, OperationTimeoutError, StoreClosedError, StoreUnavailableError)
# The most seconds of warm-up until each operation under way was answered once.
_LONGEST_WARM_UP: Final = 2.0
# A caller that starts operations at this rate looks often enough at those that have ended.
_DENSE: Final = 10_000.0
_LONGEST_SLEEP: Final = 0.05
_SECOND: Final = 1_000_000_000


class StoreGoneError(Exception):
    """The store has gone in the middle of a measurement."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a process or a caller loads the store.

    Attributes:
        in_flight: operations under way, over all threads; for tasks, their number.
        threads: threads that share them.
        tasks: whether tasks of one event loop do instead.
        rate: operations per second for an open loop; ``None`` for a closed one.
        seconds: the length of the timed part.
        warm_up: the seconds before it.
    """

    in_flight: int = 1000
    threads: int = 1
    tasks: bool = False
    rate: float | None = None
    seconds: float = 0.5
    warm_up: float = 0.15


class _Patience:
    """Tells a store that has gone from one that has failed for a moment."""

    def __init__(self) -> None:
        self._answered = time.monotonic()

    def note(self, error: BaseException | None) -> None:
        """Note how an operation has ended.

        Raises:
            StoreGoneError: for some time, none has succeeded.
        """
        if not isinstance(error, _GONE):
            self._answered = time.monotonic()
        elif time.monotonic() - self._answered > _PATIENCE:
            raise StoreGoneError(f"the store has gone: {error}") from error


class Counted:
    """What one caller has counted in the timed part. Other threads may read it meanwhile."""

    def __init__(self) -> None:
        self.reads: array[int] = array("q")  # latencies in nanoseconds
        self.writes: array[int] = array("q")
        self.ended = 0
        self.not_started = 0
        self.seconds = 0.0


class Caller:
    """One thread: it submits operations, and looks for those that have ended.

    The futures of the store answer nearly in the order of submission within each lane, so the head
    of one queue for each lane shows whether any has ended. Asking all of them would cost more than
    the operations. Operations that wait for another on their key would hold up such a queue. They
    tell by a done-callback when they end, and so do all operations of a slow open loop.

    Args:
        store: the store, or a peer with the same methods.
        work: the operations.
        pace: how many at a time, or at what rate.
        barrier: all callers meet there when the warm-up ends, and when the timed part does. They
            end when it is broken.
        offset: where in the interval of an open loop it begins, from 0 to 1.
    """

    def __init__(
        self, store: Any, work: Work, pace: Pace, barrier: Barrier, offset: float = 0.0
    ) -> None:
        self._store = store
        self._work = work
        self._pace = pace
        self._offset = offset
        self._barrier = barrier
        self._reads: _Open = deque()
        self._writes: _Open = deque()
        # Operations that tell when they end, by their ids, and those that have ended, with the time
        # at which they did. The thread that ends an operation puts it there.
        self._told: dict[int, tuple[Future[Any], Pending]] = {}
        self._ended: SimpleQueue[tuple[Future[Any], Pending, int]] = SimpleQueue()
        # Peers keep no order, so their callers wait for the earlier operations on a key themselves.
        self._ordered = getattr(store, "keeps_order", True)
        self._slow = pace.rate is not None and pace.rate < _DENSE
        self._patience = _Patience()
        self.counted = Counted()

    def run(self) -> None:
        """Warm up, measure, and see all operations to their ends.

        Raises:
            WrongAnswerError: an answer contradicts an acknowledged write.
            StoreGoneError: the store does not answer any more. ``counted`` holds what there was.
            threading.BrokenBarrierError: another caller has failed.
        """
        try:
            if self._pace.rate is None:
                self._closed_loop()
            else:
                self._open_loop(self._pace.rate)
        except BaseException:
            self._barrier.abort()
            self._give_up()
            raise
        self._barrier.wait()
        self._give_up()

    def _closed_loop(self) -> None:
        pace = self._pace
        self._fill()
        begun = time.monotonic()
        answered = 0
        while not self._barrier.broken and (
            (waited := time.monotonic() - begun) < pace.warm_up
            or (answered < pace.in_flight and waited < _LONGEST_WARM_UP)
        ):
            answered += self._turn()
        self._meet()
        begun = time.monotonic()
        end = begun + pace.seconds
        try:
            while time.monotonic() < end and not self._barrier.broken:
                # A turn counts by itself what ends while it waits, so it comes first.
                ended = self._turn()
                self.counted.ended += ended
        finally:
            self.counted.seconds = time.monotonic() - begun

    def _turn(self) -> int:
        """Wait for an operation, and start one for each that has ended; return their number."""
        oldest = (self._reads or self._writes or (None,))[0]
        ended = 0
        if oldest is None:
            # All running ones wait for others on their keys.
            with contextlib.suppress(Empty):
                ended += self._take(*self._ended.get(timeout=0.05))
        elif not oldest[0].done():
            # Reads usually end first, so this seldom waits for the later of the two.
            with contextlib.suppress(TimeoutError):
                oldest[0].exception(0.001 if self._told else None)
        ended += self._reap()
        if not ended and not (self._reads or self._writes or self._told):
            # Starting fails, as on a full queue that raises.
            time.sleep(0.001)
        self._fill()
        return ended

    def _fill(self) -> None:
        """Start as many operations as are missing."""
        under_way = len(self._reads) + len(self._writes) + len(self._told)
        for _ in range(self._pace.in_flight - under_way):
            self._start(time.perf_counter_ns())

    def _open_loop(self, rate: float) -> None:
        pace = self._pace
        interval = int(_SECOND / rate)
        due = time.perf_counter_ns() + int(interval * self._offset)
        due = self._until(due + int(pace.warm_up * _SECOND), due, interval)
        before = time.perf_counter_ns()
        self._meet()
        # Operations due in the meantime, while the processes waited for each other, are left out.
        now = time.perf_counter_ns()
        due += now - before
        begun = time.monotonic()
        end = now + int(pace.seconds * _SECOND)
        try:
            due = self._until(end, due, interval)
        finally:
            self.counted.seconds = time.monotonic() - begun
        self.counted.not_started = max(0, -((due - end) // interval))

    def _until(self, end: int, due: int, interval: int) -> int:
        """Start what is due until the end; return when the next one is due."""
        clock = time.perf_counter_ns
        while (now := clock()) < end and not self._barrier.broken:
            if due <= now:
                self._start(due)
                due += interval
                if due > now or not self._slow:
                    self.counted.ended += self._reap()
            else:
                self.counted.ended += self._reap()
                # Another look, for reaping takes time.
                if (left := min(due, end) - clock()) > 0:
                    time.sleep(min(left / _SECOND, _LONGEST_SLEEP))
        self.counted.ended += self._reap()
        return due

    def _meet(self) -> None:
        """Meet the other callers, and begin with nothing counted."""
        before = time.perf_counter_ns()
        self._barrier.wait()
        # Operations that have ended while this thread waited do not belong to the timed part.
        self._reap()
        now = time.perf_counter_ns()
        pause = now - before
        for _, pending in (*self._reads, *self._writes, *self._told.values()):
            pending.begun += pause
        if self._pace.rate is None:
            self._fill()
        self.counted = Counted()

    def _start(self, begun: int) -> None:
        pending, call, arguments = self._work.draw(self._store)
        while not self._ordered and any(key.under_way for key in pending.keys):
            self.counted.ended += self._reap()
            time.sleep(0.0001)
        contended = False
        for key in pending.keys:
            contended = contended or key.under_way > 0
            key.under_way += 1
        pending.begun = begun
        try:
            future: Future[Any] = call(*arguments)
        except MetadataStoreError as error:
            self._work.undo(pending)
            self._release(pending)
            self._work.errors[type(error).__name__] += 1
            if isinstance(error, _GONE):  # A full queue is no answer.
                self._patience.note(error)
            return
        if contended or self._slow:
            self._told[id(pending)] = future, pending
            future.add_done_callback(self._teller(pending))
        elif pending.reading:
            self._reads.append((future, pending))
        else:
            self._writes.append((future, pending))

    def _teller(self, pending: Pending) -> Callable[[Future[Any]], None]:
        put, clock = self._ended.put, time.perf_counter_ns
        return lambda future: put((future, pending, clock()))

    def _reap(self) -> int:
        """Take all operations that have ended, and return their number."""
        count = 0
        clock = time.perf_counter_ns
        for queue in (self._reads, self._writes):
            while queue and queue[0][0].done():
                future, pending = queue.popleft()
                self._end(future, pending, clock())
                count += 1
        while not self._ended.empty():
            count += self._take(*self._ended.get_nowait())
        return count

    def _take(self, future: Future[Any], pending: Pending, now: int) -> int:
        self._told.pop(id(pending), None)
        self._end(future, pending, now)
        return 1

    def _end(self, future: Future[Any], pending: Pending, now: int) -> None:
        counted = self.counted
        (counted.reads if pending.reading else counted.writes).append(now - pending.begun)
        self._release(pending)
        error = future.exception()
        self._work.ended(pending, error, None if error is not None else future.result())
        self._patience.note(error)

    @staticmethod
    def _release(pending: Pending) -> None:
        for key in pending.keys:
            key.under_way -= 1

    def _give_up(self) -> None:
        """Cancel what was not sent, the last first, and wait for the rest."""
        under_way = [*self._reads, *self._writes, *self._told.values()]
        under_way.sort(key=lambda one: one[1].number, reverse=True)
        self._reads.clear()
        self._writes.clear()
        self._told.clear()
        sent = []
        for future, pending in under_way:
            self._release(pending)
            if future.cancel():
                self._work.undo(pending)
            else:
                sent.append((future, pending))
        for future, pending in reversed(sent):
            error = future.exception()
            self._work.ended(pending, error, None if error is not None else future.result())


class TaskCaller:
    """Tasks of one event loop: each awaits its operation before it starts the next.

    The tasks share their keys, for they submit in turn.

    Args:
        store: the store.
        work: the operations.
        pace: ``in_flight`` is the number of tasks; the rate is that of all.
        meet: called when the warm-up ends, and when the timed part does.
    """

    def __init__(
        self, store: AsyncMetadataStore, work: Work, pace: Pace, meet: Callable[[], None]
    ) -> None:
        self._store = store
        self._work = work
        self._pace = pace
        self._meet = meet
        self._patience = _Patience()
        self.counted = Counted()

    async def run(self) -> None:
        """Warm up and measure.

        Raises:
            WrongAnswerError: an answer contradicts an acknowledged write.
            StoreGoneError: the store does not answer any more.
        """
        await self._all(self._pace.warm_up)
        self._meet()
        self.counted = Counted()
        begun = time.monotonic()
        try:
            await self._all(self._pace.seconds)
        finally:
            self.counted.seconds = time.monotonic() - begun
            self._meet()

    async def _all(self, seconds: float) -> None:
        begun = time.perf_counter_ns()
        end = begun + int(seconds * _SECOND)
        tasks = self._pace.in_flight
        rate = self._pace.rate
        interval = int(_SECOND * tasks / rate) if rate else 0
        started = [
            asyncio.create_task(self._task(end, begun + interval * number // tasks, interval))
            for number in range(tasks)
        ]
        try:
            await asyncio.gather(*started)
        except BaseException:
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)
            raise

    async def _task(self, end: int, due: int, interval: int) -> None:
        clock = time.perf_counter_ns
        while (now := clock()) < end:
            if interval and due > now:
                if due >= end:
                    return
                await asyncio.sleep((due - now) / _SECOND)
            await self._operation(due if interval else clock())
            due += interval
        if interval:
            self.counted.not_started += max(0, -((due - end) // interval))

    async def _operation(self, begun: int) -> None:
        pending, call, arguments = self._work.draw(self._store)
        result = error = None
        try:
            result = await call(*arguments)
        except MetadataStoreError as raised:
            error = raised
        counted = self.counted
        counted.ended += 1
        elapsed = time.perf_counter_ns() - begun
        (counted.reads if pending.reading else counted.writes).append(elapsed)
        self._work.ended(pending, error, result)
        self._patience.note(error)
