"""Formats the results as a table for readers and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..conditions import conditions, conditions_as_json
from ..figures import Figure, Ratio, figure_as_json, ratio_as_json
from ..target import Target
from .rounds import Extent, Results
from .rows import Row

__all__ = ["as_json", "print_report"]


def as_json(target: Target, extent: Extent, results: Results) -> dict[str, Any]:
    """Return all results. Times are in seconds, rates in operations per second."""
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
    """Print the conditions, the table and further figures."""
    _say(console, *conditions(target))
    _say(
        console,
        f"measured {extent.rounds} interleaved rounds, about {extent.seconds:g} s each time, "
        f"warm-up excluded; medians, and ratios of the medians with the least and the greatest "
        f"of one round",
        "",
    )
    console.print(_table(console, results))
    _say(console, "", "microseconds of CPU for each operation")
    console.print(_costs(console, results))
    _say(console, *_details(results))


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _new_table(console: Console) -> Table:
    # Piped output has no lines around cells, so that tools can split it into columns.
    box = SIMPLE_HEAD if console.is_terminal else None
    return Table(box=box, pad_edge=False, header_style="bold")


def _table(console: Console, results: Results) -> Table:
    table = _new_table(console)
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


def _costs(console: Console, results: Results) -> Table:
    """Return the CPU time of client and server, for each row and for what it is compared with."""
    table = _new_table(console)
    table.add_column("row", no_wrap=True)
    for head in ("client", "against", "server", "against"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in results.rows:
        sides = (row.figure[0], None if row.base is None else row.base[0])
        table.add_row(
            row.name, *(_cost(results, side, n) for n in ("cpu", "server") for side in sides)
        )
    return table


def _cost(results: Results, variant: str | None, name: str) -> str:
    if variant is None or (variant, name) not in results.figures:
        return ""
    return f"{results.figure((variant, name)).median * 1e6:,.3g}"


def _spread(row: Row, ratio: Ratio | None, measured: Figure) -> list[str]:
    if ratio is None:
        return ["", *(_value(row.figure[1], value) for value in (measured.low, measured.high))]
    return [f"{value:.2f} x" for value in (ratio.median, ratio.low, ratio.high)]


def _bound(row: Row, bound: float) -> str:
    return _value(row.figure[1], bound) if row.base is None else f"{bound:g} x"


def _value(name: str, value: float) -> str:
    if name in _NUMBERS:
        return f"{value:,.3g}"
    # All other figures that are not rates are times.
    if name in _RATES:
        return f"{value:,.0f}/s"
    return f"{value:,.3g} s" if value >= 1 else f"{value * 1000:,.3g} ms"


_RATES: Final = frozenset({"rate", "made", "making", "bound", "blocks", "numbers"})
_NUMBERS: Final = frozenset({"cost"})


def _details(results: Results) -> Iterator[str]:
    for row in results.rows:
        for said, name in row.beside.items():
            figure = results.figure(name)
            low, high = (_value(name[1], value) for value in (figure.low, figure.high))
            yield f"{row.name}: {said}: {_value(name[1], figure.median)} ({low} to {high})"
    for variant, way in results.ways.items():
        yield f"{variant}: {way}, the best of the ways tried"
