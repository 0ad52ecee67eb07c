"""The values to put, prepared before the clock runs, the same for both sides of a ratio."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from batchkeeper.bench.figures import histogram, percentiles
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import put_path, put_value
from batchkeeper.ops.operations import ABSENT
from batchkeeper.testing.servers.processes import cpu_seconds

from .rows import Figures

_T = TypeVar("_T")

VALUE_BYTES: Final = 100
#: The versions that the conditional puts of each path expect, one after the other: one creates the
#: path, and two update it.
EXPECTATIONS: Final = (ABSENT, 0, 1)

#: The paths whose puts conflict, in a run with conflicts: one in ten.
CONFLICTING: Final = slice(9, None, 10)

# No path ever has this version here.
_WRONG_VERSION: Final = 7
# The operations of the warm-up, as a part of those that are measured. They are not counted.
_WARM_UP: Final = 0.15


class Step(NamedTuple):
    """A put with its expected version, and the version that must result (``None``: a conflict)."""

    path: str
    value: bytes
    expected: int | None = None
    version: int | None = 0


def items(root: str, count: int) -> list[Step]:
    """Return unconditional puts of ``count`` fresh paths below ``root``, each another value."""
    return [Step(put_path(root, n), put_value(n, VALUE_BYTES)) for n in range(count)]


def steps(paths: Sequence[Step], *, conflicts: bool) -> list[Step]:
    """Return the conditional puts of paths: for each of ``EXPECTATIONS``, one put of every path.

    With ``conflicts``, one path in ten must already exist at version 0, and all its puts conflict:
    alternately a create of the existing path, and a put that expects a wrong version.
    """
    conflicting = range(len(paths))[CONFLICTING] if conflicts else ()
    made = []
    for version, expected in enumerate(EXPECTATIONS):
        wrong = _WRONG_VERSION if version % 2 else ABSENT
        for number, (path, value, _, _) in enumerate(paths):
            if number in conflicting:
                made.append(Step(path, value, wrong, None))
            else:
                made.append(Step(path, value, expected, version))
    return made


def parts(sequence: Sequence[_T], size: int) -> list[Sequence[_T]]:
    """Cut a sequence into parts of ``size``; the last may be shorter."""
    return [sequence[start : start + size] for start in range(0, len(sequence), size)]


def split_warm_up(
    make: Callable[[int], Sequence[_T]], count: int
) -> tuple[Sequence[_T], Sequence[_T]]:
    """Make some for the warm-up, and ``count`` to measure."""
    warm_up = max(1, int(count * _WARM_UP))
    made = make(warm_up + count)
    return made[:warm_up], made[warm_up:]


def measured(
    there: Target,
    count: int,
    run: Callable[[Any], object],
    prepare: Callable[[Sequence[Step]], Any] = lambda found: found,
    each: int = 1,
) -> Figures:
    """Measure operations on fresh paths, after a warm-up on others.

    Args:
        there: the place.
        count: the number of operations.
        run: executes what ``prepare`` returned.
        prepare: makes of unconditional puts what is executed, before the clock starts.
        each: the operations on one path.
    """
    size = max(1, count // each)
    warm_up, ready = map(prepare, split_warm_up(lambda n: items(there.root, n), size))
    return timed(there, run, warm_up, ready, size * each)


def timed(
    there: Target, run: Callable[[_T], object], warm_up: _T, ready: _T, count: int
) -> Figures:
    """Run the warm-up, and measure the rest, which has ``count`` operations."""
    run(warm_up)
    with stopwatch(there) as watch:
        run(ready)
    return watch.figures(count)


def one_by_one(there: Target, count: int, call: Callable[[Step], object]) -> Figures:
    """Measure single operations one after the other, and the ``latency`` of the median one."""
    latencies: list[int] = []
    clock = time.perf_counter_ns

    def run(found: Sequence[Step]) -> None:
        latencies.clear()
        for step in found:
            begun = clock()
            call(step)
            latencies.append(clock() - begun)

    figures = measured(there, count, run)
    return {**figures, "latency": percentile(latencies, "p50")}


def percentile(latencies: Sequence[int], name: str) -> float:
    """Return a percentile of latencies in nanoseconds, in seconds."""
    return percentiles(histogram(latencies))[name]


@dataclass(slots=True)
class Clock:
    """What a block took: seconds, and the CPU seconds of client and server, ``None`` if unknown."""

    seconds: float = 0.0
    cpu: float = 0.0
    server: float | None = None

    def figures(self, count: int) -> Figures:
        """Return ``rate``, ``cpu`` and ``server`` for ``count`` operations in the block."""
        found = {"rate": count / self.seconds, "cpu": self.cpu / count}
        return found if self.server is None else {**found, "server": self.server / count}


@contextmanager
def stopwatch(there: Target | None = None) -> Iterator[Clock]:
    """Measure the time of a block, and the CPU time that client and server spend on it.

    The client is this process. The server's CPU time is measured if the bench has started it.

    The garbage collector runs, as it does in any process. It ignores the objects prepared before
    the block, because a real caller would not hold them.
    """
    groups = () if there is None else there.groups
    clock = Clock()
    gc.collect()
    gc.freeze()
    try:
        server = cpu_seconds(groups)
        seconds, cpu = time.perf_counter(), time.process_time()
        yield clock
        clock.seconds = time.perf_counter() - seconds
        clock.cpu = time.process_time() - cpu
        if server is not None:
            clock.server = (cpu_seconds(groups) or 0.0) - server
    finally:
        gc.unfreeze()
