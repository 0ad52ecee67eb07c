"""Counters: numbers of a block in hand, and four processes that take numbers at once.

As a process, ``python -m batchkeeper.bench.limits.counters URL PATH COUNT`` takes COUNT numbers of
the counter at PATH. It ends with a line of JSON: the runs of neighbours among them, in their order,
each as the first number and the number of them.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from ... import open_store
from ...coordination import Counter
from ..target import Target
from ..workload import WrongAnswerError
from .ours import check_count
from .processes import await_go, begin, line_of, other_process, say
from .work import Figures, Stopwatch

__all__ = ["BLOCK", "numbers", "numbers_of_processes"]

#: The numbers of a block, as a counter has it by default.
BLOCK: Final = 1000

_PROCESSES: Final = 4


def numbers(there: Target, count: int) -> Figures:
    """Measure ``next`` of a counter whose block has enough numbers.

    ``blocks`` is the rate with blocks of the default size.
    """
    with there.open() as store:
        counter = Counter(store, f"{there.root}/one", block=count + 1)
        small = Counter(store, f"{there.root}/small", block=BLOCK)
        for each in (counter, small):
            each.next()
        with Stopwatch(there) as watch:
            taken = _take(counter, count)
        with Stopwatch() as blocks:
            taken_in_blocks = _take(small, count)
    for found in (taken, taken_in_blocks):
        check_count(len(found), count)
        if any(later <= number for number, later in itertools.pairwise(found)):
            raise WrongAnswerError("a counter's numbers do not grow")
    return {**watch.figures(count), "blocks": blocks.figures(count)["rate"]}


def numbers_of_processes(there: Target, count: int) -> Figures:
    """Measure ``count`` blocks of numbers that four processes take at once, and compare all.

    ``numbers`` is the rate of the numbers.
    """
    each = -(-count * BLOCK // _PROCESSES)
    arguments = (there.url.text, f"{there.root}/counter", str(each))
    with ExitStack() as stack:
        processes = [
            stack.enter_context(other_process(__name__, *arguments)) for _ in range(_PROCESSES)
        ]
        begun = time.perf_counter()
        for process in processes:
            begin(process)
        said = [line_of(process) for process in processes]
        seconds = time.perf_counter() - begun
    check_runs([json.loads(line) for line in said], each)
    return {"rate": count / seconds, "numbers": each * _PROCESSES / seconds}


def check_runs(said: Sequence[Sequence[tuple[int, int]]], each: int) -> None:
    """Check the runs of several processes: each has so many numbers, growing, and all differ."""
    for runs in said:
        check_count(sum(size for _, size in runs), each)
        if list(runs) != sorted(runs):
            raise WrongAnswerError("the numbers that one process has taken do not grow")
    taken = sorted(run for runs in said for run in runs)
    for (first, size), (following, _) in itertools.pairwise(taken):
        if first + size > following:
            raise WrongAnswerError(f"the number {following} was handed out twice")


def _take(counter: Counter, count: int) -> list[int]:
    take = counter.next
    return [take() for _ in range(count)]


def _runs(found: Sequence[int]) -> Iterator[tuple[int, int]]:
    for _, run in itertools.groupby(enumerate(found), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield members[0], len(members)


def _main(argv: Sequence[str]) -> int:
    url, path, count = argv
    with open_store(url) as store:
        counter = Counter(store, path, block=BLOCK)
        if not await_go():
            return 1  # the parent has gone
        say(json.dumps(list(_runs(_take(counter, int(count))))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
