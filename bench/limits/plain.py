"""The plain clients' side of the ratios: one put after the other, without batches."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ..baseline import PlainClient, Put, measure_plain
from ..drive import Duration
from ..figures import histogram, percentiles
from ..target import Target
from .ours import THREADS
from .work import VALUE_BYTES, Figures, Item, Stopwatch, work

__all__ = ["plain_puts", "plain_puts_of_threads"]

_WARM_UP: Final = 0.1
_LONGEST: Final = 3600.0


def plain_client(there: Target) -> PlainClient:
    """Return the plain client of a target, which must have one."""
    assert there.plain is not None
    return there.plain


def plain_puts(there: Target, count: int) -> Figures:
    """Measure puts in a loop, and the median of their latencies."""
    duration = Duration(_LONGEST, _WARM_UP, operations=count)
    samples = measure_plain(plain_client(there), there.url, there.root, VALUE_BYTES, duration)
    return {"rate": samples.rate, "latency": percentiles(histogram(samples.latencies))["p50"]}


def plain_puts_of_threads(there: Target, count: int) -> Figures:
    """Measure puts of 64 threads on one client. All three clients can be shared by threads."""
    made = work(there.root, count)
    with plain_client(there).connect(there.url, there.root) as put:
        _of_threads(put, made.warm_up)
        with Stopwatch() as watch:
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
