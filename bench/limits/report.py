"""The results as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..figures import Figure, Ratio
from ..report import conditions_as_json, figure_as_json, ratio_as_json
from ..target import Target
from .rounds import Extent, Results
from .rows import Row

__all__ = ["as_json", "print_report"]


def as_json(target: Target, extent: Extent, results: Results) -> dict[str, Any]:
    """Return everything that was measured. Times are in seconds, rates in operations a second."""
    return {
        **conditions_as_json(target),
        "rounds": extent.rounds,
        "seconds": extent.seconds,
        "rows": [_row(results, row) for row in results.rows],
        "variants": {
            name: {
                "operations": count,
                "way": results.ways.get(name),
                **{
                    figure: figure_as_json(results.figure((name, figure)))
                    for variant, figure in results.figures
                    if variant == name
                },
            }
            for name, count in results.counts.items()
        },
    }


def _row(results: Results, row: Row) -> dict[str, Any]:
    ratio = results.ratio(row)
    goal = row.goals[results.store]
    return {
        "name": row.name,
        "what": row.what,
        "less_is_better": row.less,
        "measured": figure_as_json(results.figure(row.figure)),
        "against": None if row.base is None else figure_as_json(results.figure(row.base)),
        "ratio": None if ratio is None else ratio_as_json(ratio),
        "target": goal.target,
        "goal": goal.goal,
        "verdict": results.verdict(row),
        "beside": {said: figure_as_json(results.figure(name)) for said, name in row.beside.items()},
    }


def print_report(console: Console, target: Target, extent: Extent, results: Results) -> None:
    """Print what was measured, how, and what came of it."""

    def say(text: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    for line in _conditions(target, extent):
        say(line)
    say()
    console.print(_table(console, results))
    for line in _details(results):
        say(line)


def _conditions(target: Target, extent: Extent) -> Iterator[str]:
    yield f"store    {target.url.text}"
    if target.disk is not None:
        yield (
            f"disk     {target.disk.file_system}; an fsync takes {target.disk.fsync * 1000:.3f} ms"
        )
    yield (
        f"measured {extent.rounds} interleaved rounds, about {extent.seconds:g} s each time, "
        f"warm-up excluded; medians, and ratios of the medians with the least and the greatest "
        f"of one round"
    )


def _table(console: Console, results: Results) -> Table:
    # Lines around cells are for people; what is piped is to be cut by columns.
    box = SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=box, pad_edge=False, header_style="bold")
    table.add_column("row", no_wrap=True)
    table.add_column("what")
    for head in ("measured", "against", "ratio", "least", "most", "target", "goal"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in results.rows:
        goal = row.goals[results.store]
        ratio = results.ratio(row)
        measured = results.figure(row.figure)
        bounds = (goal.target, goal.goal)
        table.add_row(
            row.name,
            row.what,
            _value(row.figure[1], measured.median),
            "" if row.base is None else _value(row.base[1], results.figure(row.base).median),
            *_spread(row, ratio, measured),
            *("" if b is None else _bound(row, b) for b in bounds),
            results.verdict(row),
        )
    return table


def _spread(row: Row, ratio: Ratio | None, measured: Figure) -> list[str]:
    if ratio is None:
        return ["", *(_value(row.figure[1], value) for value in (measured.low, measured.high))]
    return [f"{value:.2f} x" for value in (ratio.median, ratio.low, ratio.high)]


def _bound(row: Row, bound: float) -> str:
    return _value(row.figure[1], bound) if row.base is None else f"{bound:g} x"


def _value(name: str, value: float) -> str:
    # Everything that is no rate is a time.
    return f"{value:,.0f}/s" if name in _RATES else f"{value * 1000:,.3g} ms"


_RATES = {"rate", "ready", "bound"}


def _details(results: Results) -> Iterator[str]:
    for row in results.rows:
        for said, name in row.beside.items():
            figure = results.figure(name)
            low, high = (_value(name[1], value) for value in (figure.low, figure.high))
            yield f"{row.name}: {said}: {_value(name[1], figure.median)} ({low} to {high})"
    for variant, way in results.ways.items():
        yield f"{variant}: {way}, the best of what was tried"
