"""The results of a table of targets: for readers, and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from batchkeeper.bench.results.tables import Column, conditions_of, print_columns

from .rows import Name, Results, Row

_HEADS: Final = (
    *("what", "measured", "against", "ratio", "least", "most"),
    *("µs client", "against", "µs server", "against"),
    *("target", "goal", "verdict"),
)
_TEXTS: Final = frozenset({"what", "verdict"})
_RATES: Final = frozenset({"rate", "made"})
_NUMBERS: Final = frozenset({"cost"})


def as_json(conditions: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Return all results: times in seconds, rates in operations or rows per second.

    Args:
        conditions: the conditions, and how much was measured.
        results: what was measured.
    """
    rows = {}
    for row in results.rows:
        ratio = results.ratio(row)
        rows[row.name] = {"ratio": ratio and ratio.median, "verdict": results.verdict(row)}
    figures = {f"{variant}: {figure}": of for (variant, figure), of in results.figures.items()}
    return {**conditions, "rows": rows, "figures": figures, "operations": results.counts}


def print_report(
    console: Console, conditions: Mapping[str, Any], measured: str, results: Results
) -> None:
    """Print the conditions, what was measured, the table and further figures."""

    def say(*lines: str) -> None:
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(*(f"{name:<9}{text}" for name, text in conditions_of(conditions)))
    say(*(f"warning: {text}" for text in conditions["warnings"]))
    say(
        f"measured {measured}; medians, and ratios of the medians with the least and the greatest "
        f"of one round (of more than 5 rounds: with an interval of 95 %); microseconds are of CPU "
        f"for each operation",
        "",
    )
    columns = zip(*(_cells(results, row) for row in results.rows), strict=True)
    made = [
        Column(head, column, text=head in _TEXTS)
        for head, column in zip(_HEADS, columns, strict=True)
        if any(column)
    ]
    print_columns(console, "row", [row.name for row in results.rows], made)
    say(*_details(results))


def _cells(results: Results, row: Row) -> Sequence[str]:
    own, ratio = results.figure(row.figure), results.ratio(row)
    found = ratio or own

    def text(value: float | None, form: str = "g") -> str:
        # In the unit of the target. After one round, the interval is not known.
        if value is None or (found.high == math.inf and value in (found.low, found.high)):
            return ""
        return _value(row.figure.figure, value) if ratio is None else f"{value:{form}} x"

    return (
        row.what,
        _value(row.figure.figure, own.median),
        _value(row.base.figure, results.figure(row.base).median) if row.base else "",
        text(ratio.median, ".2f") if ratio else "",
        *(text(end, ".2f") for end in (found.low, found.high)),
        *_costs(results, row),
        *map(text, row.goals[results.store]),
        results.verdict(row),
    )


def _costs(results: Results, row: Row) -> Sequence[str]:
    """Return the CPU time of client and server, for a row and for what it is compared with."""
    names = [
        name and Name(name.variant, figure)
        for figure in ("cpu", "server")
        for name in (row.figure, row.base)
    ]
    return [
        f"{results.figure(name).median * 1e6:,.3g}" if name in results.figures else ""
        for name in names
    ]


def _details(results: Results) -> Iterator[str]:
    for row in results.rows:
        for said, name in row.beside.items():
            found = results.figure(name)
            ends = (_value(name.figure, end) for end in (found.low, found.high))
            spread = f" ({' to '.join(ends)})" if found.high < math.inf else ""
            yield f"{row.name}: {said}: {_value(name.figure, found.median)}{spread}"


def _value(figure: str, value: float) -> str:
    if figure in _NUMBERS:
        return f"{value:,.3g}"
    if figure in _RATES:
        return f"{value:,.0f}/s"
    # All other figures are times.
    return f"{value:,.3g} s" if value >= 1 else f"{value * 1000:,.3g} ms"
