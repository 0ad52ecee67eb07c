"""How ``batchkeeper top`` looks in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["Screen"]

# Counts that say that something is wrong, if they grow.
_ALARMING: Final = frozenset({"waits", "reconnects", "watch_drops", "session_losses"})

_TIMES: Final = (("queue", "p50"), ("queue", "p99"), ("store", "p50"), ("store", "p99"))


class Screen:
    """Shows figures, one after the other: in place in a terminal, and else below each other.

    Args:
        live: whether more than one follows.
    """

    def __init__(self, *, live: bool) -> None:
        self._console = Console(highlight=False)
        self._live: Live | None = None
        if live and self._console.is_terminal:
            self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def show(self, figures: Mapping[str, Any]) -> None:
        """Show figures in the place of those before."""
        if self._live is not None:
            self._live.update(_view(figures, self._console), refresh=True)
        else:
            self._console.print(_view(figures, self._console))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def _view(figures: Mapping[str, Any], console: Console) -> RenderableType:
    rows = _lanes(figures["lanes"])
    lanes = _table(rows)
    wide = console.options.update(width=1000)
    if console.measure(lanes, options=wide).maximum > console.width:
        lanes = _table([*zip(*rows, strict=True)])  # A figure in each line is narrower.
    return Group(_head(figures), Text(), lanes, Text(), _events(figures))


def _table(rows: Sequence[Sequence[str | Text]]) -> Table:
    """Return rows as a table. The first is the head; all columns but the first hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, title in enumerate(rows[0]):
        table.add_column(title, justify="right" if place else "left", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _head(figures: Mapping[str, Any]) -> RenderableType:
    head = Text.assemble(
        (figures["store"], "bold"), f"  pid {figures['pid']}  batchkeeper {figures['version']}\n"
    )
    session = figures["session"]
    if session is None:
        head.append("no session")
    else:
        state = session["state"]
        head.append("session ")
        head.append(state, "bold red" if state in {"suspended", "lost"} else "green")
        if session["valid_seconds"] is not None:
            head.append(f", valid for {session['valid_seconds']:.1f} s")
    head.append(f"  watches {figures['watches']}  queued {_bytes(figures['queued_bytes'])}")
    head.append(f"  every {figures['interval']:.1f} s")
    return head


def _lanes(lanes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str | Text, ...]]:
    titles = ("ops/s", "batch/s", "size", "queued", "sent", "queue p50", "p99", "store p50", "p99")
    rows: list[tuple[str | Text, ...]] = [("lane", *titles)]
    for name, lane in lanes.items():
        queued = f"{lane['queued']:,}" + (f"+{lane['waiting']:,}" if lane["waiting"] else "")
        row: tuple[str | Text, ...] = (
            name,
            f"{lane['operations_per_second']:,.0f}",
            f"{lane['batches_per_second']:,.0f}",
            "-" if lane["operations_per_batch"] is None else f"{lane['operations_per_batch']:.1f}",
            Text(queued, "bold red" if lane["waiting"] else ""),
            f"{lane['in_flight']}",
            *(_time(lane[f"{place}_seconds_{p}"]) for place, p in _TIMES),
        )
        rows.append(row)
    return rows


def _events(figures: Mapping[str, Any]) -> RenderableType:
    rates, totals = figures["per_second"], figures["totals"]
    kinds = [
        (kind, f"{rate:,.0f}", f"{rates['failures'].get(kind, 0.0):,.0f}")
        for kind, rate in rates["operations"].items()
    ]
    events = [
        (
            name.replace("_", " "),
            f"{rates[name]:,.0f}",
            Text(f"{total:,}", "bold red" if rates[name] and name in _ALARMING else ""),
        )
        for name, total in totals.items()
        if name not in {"operations", "failures"}
    ]
    # One below the other if they do not fit beside each other.
    table = Columns(
        [
            _table([("kind", "ops/s", "failed/s"), *kinds]),
            _table([("event", "per s", "in total"), *events]),
        ],
        padding=(0, 2),
    )
    errors = {name: rate for name, rate in rates["errors"].items() if rate}
    if not errors:
        return table
    said = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in errors.items())
    return Group(table, Text(f"\nerrors: {said}"))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}us"
    return f"{seconds * 1e3:.1f}ms" if seconds < 1 else f"{seconds:.1f}s"


def _bytes(size: int) -> str:
    return f"{size:,} B" if size < 10_000 else f"{size / 1024:,.0f} KiB"
