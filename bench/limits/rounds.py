"""Measures all variants that the rows need, in turn, in several rounds.

The speed of a machine changes from minute to minute, and that of a server with the data it holds.
So the two sides of a ratio are measured next to each other in every round, every second round runs
in reverse order, and a ratio compares medians over the same rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from ..figures import Figure, Ratio, ratio
from ..target import Target
from . import (
    caches,
    claims,
    contract,
    counters,
    failover,
    locks,
    ours,
    recovery,
    subscribers,
    watched,
)
from .ceilings import ceilings
from .neighbour import neighbours_puts
from .places import fresh_place
from .plain import plain_puts, plain_puts_of_threads
from .rows import ROWS, STORES, Row, Verdict, verdict
from .work import Figures

__all__ = ["Extent", "Results", "Variant", "measure", "needed", "quick", "rows_of", "variants"]

_Measure: TypeAlias = Callable[[Target, int], Figures]

# A variant is tried with more and more operations, until it takes this part of the time for one
# measurement.
_GROWTH: Final = 6
_ENOUGH: Final = 0.3


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to use a store, to be measured.

    Attributes:
        name: its name in the rows.
        ways: the ways to implement it; if there are several, the fastest is determined first.
        grows: whether it leaves more paths on the server.
        times: the factor by which it takes longer than other variants.
        least: the fewest operations of one measurement, also the number for the first try.
        fixed: whether every measurement has this number, so that none has to be tried.
    """

    name: str
    ways: Mapping[str, _Measure]
    grows: bool = True
    times: float = 1.0
    least: int = 200
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a measurement.

    Attributes:
        rounds: the number of rounds; each measures every variant once.
        seconds: the approximate duration of one measurement.
        most: the most operations of one measurement, even if it ends early.
        most_growing: the same for variants that leave paths behind, by the kind of store. ZooKeeper
            keeps all paths in Java's heap.
    """

    rounds: int = 5
    seconds: float = 0.8
    most: int = 1_000_000
    most_growing: Mapping[str, int] = field(
        default_factory=lambda: {"etcd": 150_000, "zookeeper": 40_000, "rocksdb": 500_000}
    )


def quick(rounds: int) -> Extent:
    """Return an extent that only shows that everything works. Its figures mean nothing."""
    few = 600
    return Extent(rounds, 0.02, few, dict.fromkeys(STORES, few))


def variants(store: str) -> list[Variant]:
    """Return the variants of a kind of store. Variants that are compared are neighbours."""
    raw = {name: Variant(f"raw {name}", ways) for name, ways in ceilings(store).items()}
    return [
        raw["puts"],
        _one("puts", ours.puts),
        Variant("claims in paths", {"": claims.claims_in_paths}, least=20_000),
        Variant("claims in tables", {"": claims.claims_in_tables}, least=20_000),
        Variant("mark updates", {"": subscribers.mark_updates}, False, least=1_000_000, fixed=True),
        _one("applied puts", ours.applied_puts),
        _one("puts of tasks", ours.puts_of_tasks),
        # Several for each of the thousand tasks.
        Variant("ephemeral claims", {"": claims.ephemeral_claims}, least=10_000),
        Variant("compared claims", {"": claims.compared_claims}, least=10_000),
        Variant("publishes that claim", {"": claims.publishes_that_claim}, least=10_000),
        _one("plain puts", plain_puts),
        _one("lone puts", ours.lone_puts),
        _one("plain puts of threads", plain_puts_of_threads),
        _one("puts of threads", ours.puts_of_threads),
        raw["conditional puts"],
        _one("conditional puts", ours.conditional_puts),
        _one("transactions", contract.transactions),
        _one("fenced puts", contract.fenced_puts),
        _one("conflicting puts", ours.conflicting_puts),
        *([raw["creates"]] if "creates" in raw else []),
        _one("creates", contract.creates),
        _one("ephemeral creates", contract.ephemeral_creates),
        _one("sequential creates", contract.sequential_creates),
        replace(raw["gets"], grows=False),
        Variant("gets", {"": ours.gets}, grows=False),
        Variant("neighbour's puts", {"": neighbours_puts}, times=4.0, least=100),
        Variant("watched puts", {"": watched.watched_puts}, times=2.0, least=1_000),
        Variant("watched puts alone", {"": watched.watched_puts_alone}, least=100),
        Variant("abandoned values", {"": watched.abandoned_values}, least=10_000, fixed=True),
        Variant("lone locks", {"": locks.lone_locks}, grows=False),
        Variant("lone plain locks", {"": locks.lone_plain_locks}, grows=False),
        _line("locks in line", locks.locks_in_line),
        _line("plain locks in line", locks.plain_locks_in_line),
        _line("locks in line of ten", locks.locks_in_line_of_ten),
        _line("plain locks in line of ten", locks.plain_locks_in_line_of_ten),
        Variant("cache hits", {"": caches.cache_hits}, grows=False),
        Variant("updates", {"": caches.updates}, grows=False, least=1_000),
        Variant("puts of few threads", {"": caches.puts_of_few_threads}, grows=False, least=1_000),
        Variant("numbers", {"": counters.numbers}, grows=False),
        Variant(
            "numbers of processes", {"": counters.numbers_of_processes}, least=1_000, fixed=True
        ),
        Variant("failovers", {"": failover.failovers}, least=5, fixed=True),
        _many("subscriptions read", subscribers.subscriptions_read),
        _many("ephemeral recovery", recovery.ephemeral_recovery),
        _many("compared recovery", recovery.compared_recovery),
    ]


def _one(name: str, measure: _Measure) -> Variant:
    return Variant(name, {"": measure})


def _many(name: str, measure: _Measure) -> Variant:
    return Variant(name, {"": measure}, least=10_000, fixed=True)


def _line(name: str, measure: _Measure) -> Variant:
    # The line forms, and dissolves, within the time that counts. So it needs more rounds than one.
    return Variant(name, {"": measure}, grows=False, times=4.0)


@dataclass(slots=True)
class Results:
    """The results of a measurement.

    Attributes:
        store: the kind of store.
        rows: the rows that were measured.
        figures: a value for each round, by variant and name of the figure.
        ways: the best way, for variants with several ways.
        counts: the number of operations of one measurement, by variant.
    """

    store: str
    rows: Sequence[Row]
    figures: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def figure(self, name: tuple[str, str]) -> Figure:
        """Return a figure of a variant, with the values of all rounds."""
        return Figure(tuple(self.figures[name]))

    def ratio(self, row: Row) -> Ratio | None:
        """Return a row's ratio; ``None`` if the row has a target for the figure itself."""
        if row.base is None:
            return None
        return ratio(self.figure(row.figure), self.figure(row.base))

    def verdict(self, row: Row) -> Verdict:
        """Say whether a row reaches its goal, its target or neither."""
        found = self.ratio(row)
        value = self.figure(row.figure).median if found is None else found.median
        return verdict(value, row.goals[self.store], less=row.less)


def rows_of(store: str, names: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a kind of store, or only those with the given names."""
    return [row for row in ROWS if row.fits(store) and (names is None or row.name in names)]


def needed(store: str, rows: Sequence[Row]) -> list[Variant]:
    """Return the variants that the rows compare."""
    names = {name for row in rows for name, _ in (row.figure, *([row.base] if row.base else []))}
    return [variant for variant in variants(store) if variant.name in names]


def measure(
    target: Target, rows: Sequence[Row], extent: Extent, step: Callable[[str], None]
) -> Results:
    """Measure all rows. ``step`` receives a description of each step before it begins.

    Raises:
        WrongAnswerError: an answer was wrong.
        MetadataStoreError: the store failed.
    """
    results = Results(target.name, rows)
    turns = needed(target.name, rows)
    chosen = {}
    for index, variant in enumerate(turns):
        step(f"trying: {variant.name}")
        chosen[variant.name] = _try(target, variant, extent, f"try{index:02d}", results)
    for number in range(extent.rounds):
        for index, variant in reversed([*enumerate(turns)]) if number % 2 else enumerate(turns):
            step(f"round {number + 1} of {extent.rounds}: {variant.name}")
            with fresh_place(target, f"r{number:02d}{index:02d}") as there:
                found = chosen[variant.name](there, results.counts[variant.name])
            for name, value in found.items():
                results.figures.setdefault((variant.name, name), []).append(value)
    return results


def _try(
    target: Target, variant: Variant, extent: Extent, label: str, results: Results
) -> _Measure:
    """Determine a variant's best way, and the number of operations for the wanted duration."""
    most = extent.most_growing[target.name] if variant.grows else extent.most
    rates: dict[str, float] = {}
    counts = dict.fromkeys(variant.ways, min(variant.least, most))
    if variant.fixed:
        ((way, measured),) = variant.ways.items()
        results.counts[variant.name] = counts[way]
        return measured
    numbers = itertools.count()
    for way, measured in variant.ways.items():
        while True:
            with fresh_place(target, f"{label}{next(numbers):02d}") as there:
                rates[way] = measured(there, counts[way])["rate"]
            if counts[way] == most or counts[way] / rates[way] >= extent.seconds * _ENOUGH:
                break
            counts[way] = min(counts[way] * _GROWTH, most)
    if len(rates) > 1:
        # Repeat in reverse order, so that a moment in which the machine is busy does not decide.
        for way in reversed([*variant.ways]):
            with fresh_place(target, f"{label}{next(numbers):02d}") as there:
                rates[way] = max(rates[way], variant.ways[way](there, counts[way])["rate"])
    best = max(rates, key=lambda way: rates[way])
    if len(rates) > 1:
        results.ways[variant.name] = best
    wanted = rates[best] * extent.seconds * variant.times
    results.counts[variant.name] = min(most, max(variant.least, int(wanted)))
    return variant.ways[best]
