"""Formats the results as a table for readers and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..conditions import conditions, conditions_as_json
from ..figures import figure_as_json, ratio_as_json
from ..limits.rounds import Results
from ..limits.rows import Row
from .rounds import Extent, Found

__all__ = ["as_json", "print_report"]

_RATES: Final = frozenset({"rate", "making"})


def as_json(found: Sequence[Found], extent: Extent) -> list[dict[str, Any]]:
    """Return all results. Rates are in rows per second, memory is in bytes."""
    return [
        {
            **conditions_as_json(each.target),
            "rounds": extent.rounds,
            "rows": [_row(each.results, row) for row in each.results.rows],
            "variants": {
                name: {
                    "rows": count,
                    **{
                        figure: figure_as_json(each.results.figure((name, figure)))
                        for variant, figure in each.results.figures
                        if variant == name
                    },
                }
                for name, count in each.results.counts.items()
            },
        }
        for each in found
    ]


def _row(results: Results, row: Row) -> dict[str, Any]:
    assert row.base is not None
    ratio = results.ratio(row)
    assert ratio is not None
    return {
        "name": row.name,
        "what": row.what,
        "less_is_better": row.less,
        "measured": figure_as_json(results.figure(row.figure)),
        "against": figure_as_json(results.figure(row.base)),
        "ratio": ratio_as_json(ratio),
        "target": row.goals[results.store].target,
        "verdict": results.verdict(row),
        "beside": {said: figure_as_json(results.figure(name)) for said, name in row.beside.items()},
    }


def print_report(console: Console, found: Sequence[Found], extent: Extent) -> None:
    """Print the conditions, the table and further figures."""
    for each in found:
        _say(console, *conditions(each.target))
        _say(
            console,
            f"measured {extent.rounds} interleaved rounds of {extent.rows:,} rows of 100 bytes "
            f"(the plain client: {extent.plain_rows:,}), a fresh server each, from local[2]; "
            f"Spark's start and warm-up excluded; medians, and ratios of the medians with the "
            f"least and the greatest of one round; memory once",
            "",
        )
        console.print(_table(console, each.results))
        _say(console, *_beside(each.results), "")


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(console: Console, results: Results) -> Table:
    # Piped output has no lines around cells, so that tools can split it into columns.
    box = SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=box, pad_edge=False, header_style="bold")
    table.add_column("row", no_wrap=True)
    table.add_column("what")
    for head in ("measured", "against", "ratio", "least", "most", "target"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in results.rows:
        ratio = results.ratio(row)
        assert ratio is not None
        assert row.base is not None
        table.add_row(
            row.name,
            row.what,
            *(_value(name[1], results.figure(name).median) for name in (row.figure, row.base)),
            *(f"{value:.2f} x" for value in (ratio.median, ratio.low, ratio.high)),
            f"{row.goals[results.store].target:g} x",
            results.verdict(row),
        )
    return table


def _value(name: str, value: float) -> str:
    return f"{value:,.0f}/s" if name in _RATES else f"{value / 2**20:,.1f} MiB"


def _beside(results: Results) -> Iterator[str]:
    for row in results.rows:
        for said, name in row.beside.items():
            figure = results.figure(name)
            values = (_value(name[1], each) for each in (figure.median, figure.low, figure.high))
            median, low, high = values
            yield f"{row.name}: {said}: {median} ({low} to {high})"
