"""Ephemeral and sequential puts, and transactions: the variants beside plain creations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from ...batching import MetadataStore
from ...ops.operations import ABSENT, Check
from ...ops.operations import Put as PutOperation
from ...ops.results import Stat
from ..target import Target
from ..workload import WrongAnswerError
from .ours import check_count, check_stat, in_bursts, result_of, seed
from .work import EXPECTATIONS, Figures, Item, Step, Stopwatch, items, parts, steps, work

__all__ = [
    "creates",
    "ephemeral_creates",
    "fenced_puts",
    "sequential_creates",
    "transactions",
]

_BURST: Final = 1000
# The number of paths that guard the writes of the transactions.
_GUARDS: Final = 10_000

_Submit = Callable[[MetadataStore, Item], "Future[Any]"]


def creates(there: Target, count: int) -> Figures:
    """Measure creations of fresh paths, with a future for each."""
    return _created(there, count, lambda store, item: store.put(*item, ABSENT), ephemeral=False)


def ephemeral_creates(there: Target, count: int) -> Figures:
    """Measure the same, with values that end with the session."""
    return _created(
        there, count, lambda store, item: store.put(*item, ABSENT, ephemeral=True), ephemeral=True
    )


def sequential_creates(there: Target, count: int) -> Figures:
    """Measure creations below one parent, to whose paths the store appends numbers."""

    def check(burst: Sequence[Item], futures: list[Future[Any]]) -> int:
        for (path, _), future in zip(burst, futures, strict=True):
            stat = result_of(path, future)
            if type(stat) is not Stat or stat.version != 0 or not stat.path.startswith(path):
                raise WrongAnswerError(f"{path} should be the beginning of a path, not {stat!r}")
        return len(futures)

    return _measured(there, count, lambda store, item: store.put(*item, sequential=True), check)


def transactions(there: Target, count: int) -> Figures:
    """Measure the puts of ``conditional_puts``, each with a check of another path beside it."""
    return _guarded(there, count, min(count, _GUARDS))


def fenced_puts(there: Target, count: int) -> Figures:
    """Measure the same, where all check one path, the record of their owner."""
    return _guarded(there, count, 1)


def _guarded(there: Target, count: int, checked: int) -> Figures:
    guards = [path for path, _ in items(f"{there.root}/guards", checked)]
    made = work(there.root, max(1, count // len(EXPECTATIONS)))
    warm_up, timed = steps(made.warm_up, conflicts=False), steps(made.timed, conflicts=False)
    checks = itertools.cycle([Check(guard, 0) for guard in guards])
    with there.open() as store:
        seed(store, [(path, b"") for path in guards])

        def submit(burst: Sequence[Step]) -> list[Future[Any]]:
            return [
                store.transaction([check, PutOperation(path, value, expected)])
                for check, (path, value, expected, _) in zip(checks, burst, strict=False)
            ]

        def put(found: Sequence[Step]) -> None:
            check_count(in_bursts(parts(found, _BURST), submit, _check_transactions), len(found))

        put(warm_up)
        with Stopwatch(there) as watch:
            put(timed)
        return watch.figures(len(timed))


def _check_transactions(burst: Sequence[Step], futures: list[Future[Any]]) -> int:
    for step, future in zip(burst, futures, strict=True):
        checked, stat = result_of(step.path, future)
        if checked is not None:
            raise WrongAnswerError(f"a check gave {checked!r}")
        assert step.version is not None  # No step conflicts.
        check_stat(step.path, step.version, stat)
    return len(futures)


def _created(there: Target, count: int, submit: _Submit, *, ephemeral: bool) -> Figures:
    def check(burst: Sequence[Item], futures: list[Future[Any]]) -> int:
        for (path, _), future in zip(burst, futures, strict=True):
            stat = result_of(path, future)
            check_stat(path, 0, stat)
            if (stat.ephemeral, stat.owned) != (ephemeral, ephemeral):
                raise WrongAnswerError(f"{path} is not as ephemeral as it should be: {stat!r}")
        return len(futures)

    return _measured(there, count, submit, check)


def _measured(
    there: Target,
    count: int,
    submit: _Submit,
    check: Callable[[Sequence[Item], list[Future[Any]]], int],
) -> Figures:
    made = work(there.root, count)
    with there.open() as store:

        def submit_all(burst: Sequence[Item]) -> list[Future[Any]]:
            return [submit(store, item) for item in burst]

        def put(found: Sequence[Item]) -> None:
            check_count(in_bursts(parts(found, _BURST), submit_all, check), len(found))

        put(made.warm_up)
        with Stopwatch(there) as watch:
            put(made.timed)
        return watch.figures(count)
