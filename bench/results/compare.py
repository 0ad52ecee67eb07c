"""Two runs, with a verdict for each variant.

Rounds of different runs did not meet the same machine, so they cannot be paired. What differs
between two runs has two parts:

- **All variants together.** The machine and the client can both have changed. Peers are other
  clients, which a change of this one does not touch: where both runs have the same peers, each
  round is divided by them, which takes the machine away. Without peers, single execution takes
  their place: verdicts are then on batching, and a change that makes single execution slower, too,
  is not seen in them. A comparison without either (single execution itself) is allowed a change of
  the machine between the runs as large as its changes between rounds. By simulation, with such a
  change of 10 %, one comparison in five would call a client slower that is the same, otherwise.
- **One variant against the others.** Within a run, the rounds are paired as in ``statistics``.

The interval of a variant has both parts, the second one with Bonferroni's correction for the number
of variants. It comes from Student's distribution: an unpaired bootstrap of three to five rounds a
side can give no more than a few ratios, and its intervals are too narrow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.console import Console
from rich.text import Text

from . import figures
from .figures import Figure
from .runs import Run
from .statistics import (
    Estimate,
    Verdict,
    fit,
    left_over,
    logarithms_of,
    root_mean_square,
    student,
    verdict,
)
from .tables import Column, print_columns
from .wording import interval, listed, milliseconds, number, times

_FEWEST: Final = 2

#: What may differ without making figures incomparable: when, where exactly, and how often.
_OF_NO_WEIGHT: Final = {"store", "busy", "warnings", "disk", "target"}


@dataclass(frozen=True, slots=True)
class Line:
    """One variant in both runs.

    Attributes:
        name: the name of the variant.
        verdict: of the second run against the first one.
        before: the median of the figure in the first run.
        after: that in the second run.
        ratio: how many times as fast the second run is, with its interval.
    """

    name: str
    verdict: Verdict
    before: float
    after: float
    ratio: Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two runs.

    Attributes:
        figure: what was compared: ``ops/s`` or ``p99 ms``.
        lines: the variants that both runs have.
        differences: conditions and loads that differ.
        notes: how to read the verdicts.
    """

    figure: Literal["ops/s", "p99 ms"]
    lines: Sequence[Line]
    differences: Sequence[str]
    notes: Sequence[str]

    @property
    def exit_code(self) -> int:
        """1 if a variant is slower beyond doubt, else 0."""
        return int(any(line.verdict == "slower" for line in self.lines))


def compare(a: Run, b: Run) -> Comparison:
    """Compare a run with an earlier one, ``a``: closed loops by throughput, open loops by p99."""
    asked = a.load.get("rate"), b.load.get("rate")
    closed = asked == (None, None)
    figure = figures.rate if closed else figures.p99
    references = _references(a, b, figure)
    lines = []
    # A comparison of a backlog's latency with that of a closed loop says nothing.
    alike = asked[0] == asked[1]
    for names, divided_by in (
        ([name for name in _names(a) if name in references], []),
        ([name for name in _names(a) if name not in references], references),
    ):
        sides = [_normalised(run, names, divided_by, figure) for run in (a, b)]
        common = [name for name in names if all(name in side for side in sides)]
        sides = [{name: side[name] for name in common} for side in sides]
        sign = 1 if closed else -1
        lines += [
            _line(a, b, name, figure, _ratio(sides, name, sign, drift=not divided_by), alike)
            for name in common
        ]
    return Comparison(
        "ops/s" if closed else "p99 ms",
        lines,
        _differences(a, b),
        list(_notes(a, b, [line.name for line in lines], references, alike)),
    )


def _references(a: Run, b: Run, figure: Figure) -> list[str]:
    """Return the peers of both runs, or single execution where they have none."""
    peers = [name for name in _names(a, peers=True) if name in _names(b, peers=True)]
    for names in (peers, ["single"]):
        usable = [name for name in names if all(_steady(run, name, figure) for run in (a, b))]
        if usable:
            return usable
    return []


def _steady(run: Run, name: str, figure: Figure) -> bool:
    """Return whether a variant has the figure, and no backlog."""
    variant = figures.named(run, name)
    return (
        variant is not None
        and bool(figures.values(variant, figure))
        and all(map(figures.reached, figures.usable(variant)))
    )


def _names(run: Run, *, peers: bool = False) -> list[str]:
    return [variant.name for variant in run.variants if (variant.kind == "peer") is peers]


def _logarithms(run: Run, names: Sequence[str], figure: Figure) -> dict[str, dict[int, float]]:
    found = {v.name: logarithms_of(v, figure) for v in run.variants if v.name in names}
    return {name: values for name, values in found.items() if values}


def _normalised(
    run: Run, names: Sequence[str], peers: Sequence[str], figure: Figure
) -> dict[str, dict[int, float]]:
    """Return logarithms by variant and round, less those of the peers in the same round."""
    found = _logarithms(run, names, figure)
    if not peers:
        return found
    references = _logarithms(run, peers, figure)
    rounds = set.intersection(*(set(values) for values in references.values()))
    machine = {n: statistics.fmean(values[n] for values in references.values()) for n in rounds}
    cut = {
        name: {n: value - machine[n] for n, value in values.items() if n in machine}
        for name, values in found.items()
    }
    return {name: values for name, values in cut.items() if values}


def _line(a: Run, b: Run, name: str, figure: Figure, ratio: Estimate, alike: bool) -> Line:
    variants = [v for run in (a, b) for v in run.variants if v.name == name]
    before, after = (statistics.median(figures.values(v, figure)) for v in variants)
    return Line(name, verdict(ratio) if alike else "cannot tell", before, after, ratio)


def _ratio(
    sides: Sequence[Mapping[str, Mapping[int, float]]], name: str, sign: int, *, drift: bool
) -> Estimate:
    """Return how many times as fast the second side is.

    The variance of the difference is that of all variants together plus that of this one against
    the others.
    """
    fits = [fit(side) for side in sides]
    levels = [
        statistics.fmean(of_variants.values()) + statistics.fmean(of_rounds.values())
        for of_variants, of_rounds in fits
    ]
    shift = levels[1] - levels[0]
    mine = [of[name] - statistics.fmean(of.values()) for of, _ in fits]
    middle = sign * (shift + mine[1] - mine[0])
    counts = [len(of_rounds) for _, of_rounds in fits]
    own_counts = [len(side[name]) for side in sides]
    if min(*counts, *own_counts) < _FEWEST:
        return Estimate(math.exp(middle), 0.0, math.inf)
    freedom = sum(counts) - 2
    spread = math.sqrt(
        sum(
            statistics.variance(of.values()) * (n - 1)
            for (_, of), n in zip(fits, counts, strict=True)
        )
        / freedom
    )
    # With drift, each run counts as one more round, whose machine nobody knows.
    parts = sum(1 / n for n in counts) + (len(sides) if drift else 0)
    together = student(freedom) * spread * math.sqrt(parts)
    alone = _alone(sides, name, own_counts)
    reach = math.hypot(together, alone)
    return Estimate(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def _alone(
    sides: Sequence[Mapping[str, Mapping[int, float]]], name: str, counts: Sequence[int]
) -> float:
    """Return how far the difference of one variant against the others may be noise."""
    variants = len(sides[0])
    if variants < 2:
        return 0.0
    left, freedom = zip(*(left_over(side) for side in sides), strict=True)
    pooled = root_mean_square((found for part in left for found in part.values()), sum(freedom))
    # One variant's part of the freedom.
    own = root_mean_square((part[name] for part in left), sum(freedom) / variants)
    return (
        student(sum(freedom), variants)
        * max(pooled, own)
        * math.sqrt(sum(1 / n for n in counts) * (1 - 1 / variants))
    )


def _differences(a: Run, b: Run) -> list[str]:
    mine, other = _facts(a), _facts(b)
    return [
        f"{name}: {_plain(mine.get(name))}, then {_plain(other.get(name))}"
        for name in {**mine, **other}
        if mine.get(name) != other.get(name)
    ]


def _facts(run: Run) -> dict[str, Any]:
    """Return conditions and load by name."""
    conditions = run.conditions
    url = str(conditions.get("store") or conditions.get("target"))
    return dict(
        _flat(
            {
                **{name: of for name, of in conditions.items() if name not in _OF_NO_WEIGHT},
                **run.load,
                "seconds": run.schedule.get("seconds"),
                # A throw-away server has another port each time.
                "store": url.partition("://")[0],
                "file system": (conditions.get("disk") or {}).get("file_system"),
            }
        )
    )


def _flat(found: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}: ")
        else:
            yield f"{above}{name}", value


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)


def _notes(
    a: Run, b: Run, common: Sequence[str], references: Sequence[str], alike: bool
) -> Iterator[str]:
    for which, run in (("first", a), ("second", b)):
        if run.broken is not None:
            yield f"The {which} run ended early: {run.broken}"
    if not alike:
        yield "The runs have different rates, so nothing can be told from their latencies."
    if any(name in _names(a, peers=True) for name in references):
        yield (
            f"Runs at different times are not paired. The speed of the machine is taken away by "
            f"{listed(references)}, measured in both runs."
        )
    elif references:
        yield (
            "Runs at different times are not paired, and these share no peers. Verdicts are "
            "relative to single execution, whose own verdict allows for another speed of the "
            "machine. --peers measures other clients, too, and shows a change of everything."
        )
    else:
        yield (
            "Runs at different times are not paired. These share neither peers nor single "
            "execution, so each verdict allows for another speed of the machine."
        )
    for which, run, other in (("first", a, b), ("second", b, a)):
        missing = [name for name in _names(run) if name not in common and name not in _names(other)]
        if missing:
            yield f"Only in the {which} run: {listed(missing)}."
    unmeasured = [n for n in _names(a) if n in _names(b) and n not in common]
    if unmeasured:
        yield f"Not measured to the end in one of the runs: {listed(unmeasured)}."


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a verdict for each line, and what to keep in mind, within the width of the console."""
    for difference in comparison.differences:
        console.print(Text(f"warning: the runs differ in {difference}", style="bold yellow"))
    if comparison.differences:
        console.print()
    lines = comparison.lines
    write = _rate if comparison.figure == "ops/s" else milliseconds
    ratios = [
        f"{times(ratio.median)} ({'?' if math.isinf(ratio.high) else interval(ratio)})"
        for ratio in (line.ratio for line in lines)
    ]
    columns = [
        Column("verdict", [line.verdict for line in lines], text=True),
        Column("first", [write(line.before) for line in lines]),
        Column("second", [write(line.after) for line in lines]),
        Column("times as fast", ratios),
    ]
    if lines:
        print_columns(console, "variant", [line.name for line in lines], columns)
        console.print(Text(f"first, second: medians of {comparison.figure}"))
    else:
        console.print("The runs have no variant in common.")
    console.print()
    for note in comparison.notes:
        console.print(Text(note))


def _rate(value: float) -> str:
    return number(round(value))
