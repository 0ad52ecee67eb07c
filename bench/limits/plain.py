"""The plain clients' side of the ratios: one put after the other, without batches."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ..baseline import PlainClient, Put
from ..figures import histogram, percentiles
from ..target import Target
from .ours import THREADS
from .work import Figures, Item, Stopwatch, work

__all__ = ["plain_puts", "plain_puts_of_threads"]


def plain_client(there: Target) -> PlainClient:
    """Return the plain client of a target, which must have one."""
    assert there.plain is not None
    return there.plain


def plain_puts(there: Target, count: int) -> Figures:
    """Measure puts in a loop, and the median of their latencies."""
    made = work(there.root, count)
    with plain_client(there).connect(there.url, there.root) as put:
        clock = time.perf_counter_ns

        def one_by_one(found: Sequence[Item]) -> array[int]:
            latencies: array[int] = array("q")
            for path, value in found:
                begun = clock()
                put(path, value)
                latencies.append(clock() - begun)
            return latencies

        one_by_one(made.warm_up)
        with Stopwatch(there) as watch:
            latencies = one_by_one(made.timed)
        return {**watch.figures(count), "latency": percentiles(histogram(latencies))["p50"]}


def plain_puts_of_threads(there: Target, count: int) -> Figures:
    """Measure puts of 64 threads on one client. All three clients can be shared by threads."""
    made = work(there.root, count)
    with plain_client(there).connect(there.url, there.root) as put:
        _of_threads(put, made.warm_up)
        with Stopwatch(there) as watch:
            _of_threads(put, made.timed)
        return watch.figures(count)


def _of_threads(put: Put, found: Sequence[Item]) -> None:
    shared = iter(found)

    def caller() -> None:
        for path, value in shared:
            put(path, value)

    with ThreadPoolExecutor(THREADS) as pool:
        callers = [pool.submit(caller) for _ in range(THREADS)]
    for ended in callers:
        ended.result()
