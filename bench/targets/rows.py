"""The tables of targets: which figures are compared, and what they have to reach.

A *row* compares a figure of one variant with a figure of another, or with a target in its own unit.
The rows of a program are in its ``rows.toml``::

    [idle]
    what = "one put at a time on an idle store: median latency, against the plain client's"
    figure = "lone puts: latency"
    base = "plain puts: latency"
    goals = { etcd = [1.3, 1.15], zookeeper = [1.3, 1.15] }
    less = true

``figure`` and ``base`` are a variant and the name of one of its figures, ``rate`` if left out.
``goals`` has the target, and optionally the more ambitious goal, for each kind of store that has
the row.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from batchkeeper.bench.results.statistics import Estimate, estimate

#: The figures of a measurement, by name: ``rate`` in operations per second; ``cpu`` and
#: ``server``, the CPU seconds of client and server for each operation; others in seconds.
Figures: TypeAlias = dict[str, float]

#: ``goal``: it reaches the long-term goal. ``target``: it is good enough. ``missed``: neither.
Verdict: TypeAlias = Literal["goal", "target", "missed"]


class Name(NamedTuple):
    """A figure of a variant."""

    variant: str
    figure: str


class Goal(NamedTuple):
    """The target to reach, and optionally the more ambitious goal."""

    target: float
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        name: the name for ``--only`` and in the JSON.
        what: the description for readers.
        figure: the figure that is measured.
        goals: the goals by the kind of store; kinds without a goal do not have this row.
        base: the figure to divide it by; ``None`` if the figure itself has a target, in its unit.
        less: whether less is better.
        beside: more figures to show, by their descriptions.
        part: the part of the program that measures it.
    """

    name: str
    what: str
    figure: Name
    goals: Mapping[str, Goal]
    base: Name | None = None
    less: bool = False
    beside: Mapping[str, Name] = field(default_factory=dict)
    part: str = ""

    @property
    def variants(self) -> Sequence[str]:
        """The variants to measure, the base first."""
        names = ([self.base] if self.base else []) + [self.figure, *self.beside.values()]
        return list(dict.fromkeys(name.variant for name in names))


def load_rows(file: Path) -> tuple[Row, ...]:
    """Return the rows of a file."""
    return tuple(_row(name, table) for name, table in tomllib.loads(file.read_text()).items())


def _row(name: str, table: dict[str, Any]) -> Row:
    base = table.pop("base", None)
    return Row(
        name,
        figure=_name(table.pop("figure")),
        base=None if base is None else _name(base),
        goals={store: Goal(*goal) for store, goal in table.pop("goals").items()},
        beside={said: _name(text) for said, text in table.pop("beside", {}).items()},
        **table,
    )


def _name(text: str) -> Name:
    variant, _, figure = text.partition(": ")
    return Name(variant, figure or "rate")


def verdict(value: float, goal: Goal, *, less: bool) -> Verdict:
    """Say whether a value reaches its goal, its target or neither. ``less``: less is better."""

    def reached(bound: float) -> bool:
        return value <= bound if less else value >= bound

    if goal.goal is not None and reached(goal.goal):
        return "goal"
    return "target" if reached(goal.target) else "missed"


@dataclass(slots=True)
class Results:
    """The results of a measurement.

    Attributes:
        store: the kind of store.
        rows: the rows that were measured.
        figures: a value for each round, by figure.
        counts: the number of operations of one measurement, by variant.
    """

    store: str
    rows: Sequence[Row]
    figures: dict[Name, list[float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, variant: str, figures: Figures) -> None:
        """Add the figures of one round."""
        for figure, value in figures.items():
            self.figures.setdefault(Name(variant, figure), []).append(value)

    def keep_measured(self) -> None:
        """Leave out the rows with a variant that was not measured, because the run ended early."""
        measured = {name.variant for name in self.figures}
        self.rows = [row for row in self.rows if measured.issuperset(row.variants)]

    def figure(self, name: Name) -> Estimate:
        """Return the median of a figure over the rounds, and its interval."""
        return _estimated(self.figures[name])

    def ratio(self, row: Row) -> Estimate | None:
        """Return a row's ratio; ``None`` if the row has a target for the figure itself.

        It is the ratio of the medians. Its interval is that of the ratios within a round, which do
        not depend on the machine's speed from round to round.
        """
        if row.base is None:
            return None
        # A run that ended early may have measured only one of the two in its last round.
        pairs = zip(self.figures[row.figure], self.figures[row.base], strict=False)
        above, below = zip(*pairs, strict=True)
        within = _estimated(map(_divide, above, below))
        median = _divide(_estimated(above).median, _estimated(below).median)
        return Estimate(median, within.low, within.high)

    def verdict(self, row: Row) -> Verdict:
        """Say whether a row reaches its goal, its target or neither."""
        found = self.ratio(row) or self.figure(row.figure)
        return verdict(found.median, row.goals[self.store], less=row.less)


def _estimated(values: Iterable[float]) -> Estimate:
    found = estimate(list(values))
    assert found is not None  # Every variant was measured.
    return found


def _divide(a: float, b: float) -> float:
    return a / b if b else math.inf
