"""Drives callers in a closed loop: each thread keeps its chains' operations under way.

A thread submits one operation for each of its chains. When an operation ends, the thread submits
the next one of its chain. A hub's event loop uses a client in the same way, without a thread for
each operation.

A latency runs from the call to the moment when the thread holds the result. So it includes the time
in which the thread is busy with other results, because only then can a caller continue. While the
clock runs, latencies are kept as raw numbers. Recording one in a histogram costs a good part of an
operation, so the histograms are created afterwards.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError
from typing import Any, Final, TypeAlias

from ..batching import MetadataStore, Metrics
from .workload import Chain

__all__ = ["Duration", "Samples", "drive"]

_Open: TypeAlias = "deque[tuple[Future[Any], Chain, int]]"

#: The most seconds to wait until each chain has had an answer. The rate of a store is steady then.
_LONGEST_WARM_UP: Final = 2.0


@dataclass(frozen=True, slots=True)
class Duration:
    """The length of a measurement.

    Attributes:
        seconds: the seconds of the timed part.
        warm_up: the least seconds before the timed part. The warm-up lasts until every chain has
            had its first answer, which takes longer with a slow setting and many operations.
        operations: the number of operations of each thread after which the timed part ends early.
    """

    seconds: float
    warm_up: float
    operations: int | None = None


@dataclass(slots=True)
class Samples:
    """The samples of one measurement.

    Attributes:
        rate: operations per second of all threads together.
        reads: latencies of reads in nanoseconds.
        writes: latencies of writes in nanoseconds.
        before: the store's metrics at the end of the warm-up.
        after: the store's metrics at the end of the timed part.
    """

    rate: float
    reads: array[int]
    writes: array[int]
    before: Metrics
    after: Metrics


def drive(
    store: MetadataStore, chains: Sequence[Chain], duration: Duration, threads: int = 1
) -> Samples:
    """Let ``threads`` callers drive the chains, and return the samples.

    When the time is up, the callers cancel operations that are still queued, and wait for those
    that were sent. So afterwards the chains know the contents of the store.

    Raises:
        WrongAnswerError: an answer contradicts an acknowledged write.
        MetadataStoreError: an operation ended with an error that its chain does not expect.
    """
    snapshots: list[Metrics] = []
    barrier = Barrier(threads, action=lambda: snapshots.append(store.metrics()))
    callers = [
        _Caller(store, chains[number::threads], duration, barrier) for number in range(threads)
    ]
    # Collect the garbage of the preparation now, and not in the timed part.
    gc.collect()
    if threads == 1:
        callers[0].run()
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="hub") as pool:
            runs = [pool.submit(caller.run) for caller in callers]
        failures = [error for run in runs if (error := run.exception()) is not None]
        # Raise the first failure: it stopped the other callers with a broken barrier.
        for error in sorted(failures, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
    samples = Samples(0.0, array("q"), array("q"), *snapshots)
    for caller in callers:
        samples.rate += caller.rate
        samples.reads += caller.read_times
        samples.writes += caller.write_times
    return samples


class _Caller:
    """One thread with its chains."""

    def __init__(
        self, store: MetadataStore, chains: Sequence[Chain], duration: Duration, barrier: Barrier
    ) -> None:
        self._store = store
        self._chains = chains
        self._duration = duration
        self._barrier = barrier
        # Each lane of the store answers nearly in the order of submission. So the head of a queue
        # for each lane shows whether anything has ended. Checking all operations under way would
        # cost more than the operations.
        self._reads: _Open = deque()
        self._writes: _Open = deque()
        self.read_times: array[int] = array("q")
        self.write_times: array[int] = array("q")
        self.rate = 0.0

    def run(self) -> None:
        try:
            self._run()
        except BaseException:
            self._barrier.abort()
            raise

    def _run(self) -> None:
        for chain in self._chains:
            self._submit(chain)
        begun = time.monotonic()
        answered, least, longest = 0, self._duration.warm_up, _LONGEST_WARM_UP
        while (waited := time.monotonic() - begun) < least or (
            answered < len(self._chains) and waited < longest
        ):
            answered += self._turn()
        self._barrier.wait()
        self.read_times, self.write_times = array("q"), array("q")
        begun = time.monotonic()
        end = begun + self._duration.seconds
        left = self._duration.operations or float("inf")
        count = 0
        while count < left and time.monotonic() < end:
            count += self._turn()
        self.rate = count / (time.monotonic() - begun)
        times = self.read_times, self.write_times
        self._barrier.wait()
        self._give_up()
        self.read_times, self.write_times = times

    def _submit(self, chain: Chain) -> None:
        begun = time.perf_counter_ns()
        future = chain.submit(self._store)
        (self._reads if chain.reading else self._writes).append((future, chain, begun))

    def _turn(self) -> int:
        """Wait for an operation, continue all chains whose operations have ended; count these."""
        # Reads usually end first, so this seldom waits for the later of the two.
        oldest = (self._reads or self._writes)[0][0]
        if not oldest.done():
            oldest.exception()
        count = 0
        clock, store = time.perf_counter_ns, self._store
        reads, writes = self._reads, self._writes
        for queue, times in ((reads, self.read_times), (writes, self.write_times)):
            record = times.append
            for _ in range(len(queue)):
                future, chain, begun = queue[0]
                if not future.done():
                    break
                queue.popleft()
                now = clock()
                record(now - begun)
                chain.ended(future)
                future = chain.submit(store)
                (reads if chain.reading else writes).append((future, chain, now))
                count += 1
        return count

    def _give_up(self) -> None:
        for queue in (self._reads, self._writes):
            # Cancel from the end, because the operations at the front are sent next.
            sent = [(future, chain) for future, chain, _ in reversed(queue) if not future.cancel()]
            for future, chain in sent:
                future.exception()
                chain.ended(future)
            queue.clear()
