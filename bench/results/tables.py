"""The results for a terminal, and as CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import figures
from .advice import advise
from .figures import usable, values
from .runs import Measured, Run, Variant
from .statistics import Comparisons, confidence, estimate, times_default, verdict
from .wording import count, milliseconds, number, share, spread, times

#: Names are wrapped at this width at least. Where a column does not fit beside them, it goes into a
#: second table below.
_NARROWEST: Final = 16
_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column with a cell for each row: of figures, or of ``text``."""

    head: str
    cells: Sequence[str]
    text: bool = False

    @property
    def width(self) -> int:
        return max(map(len, (self.head, *self.cells)))


def print_run(console: Console, run: Run) -> None:
    """Print conditions, load, figures, warnings and advice, within the width of the console."""

    def say(*lines: str, style: str = "", indent: int = 0) -> None:
        for line in lines:
            text = Text(line, style)
            console.print(Padding(text, (0, 0, 0, indent), expand=False) if indent else text)

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(min_width=10)
    grid.add_column(overflow="fold")
    for name, text in (*conditions_of(run.conditions), *load_of(run)):
        grid.add_row(Text(name), Text(text))
    console.print(grid)
    for warning in warnings_of(run):
        say("", f"warning: {warning}", style="bold yellow")
    for title, columns in (
        ("", columns_of(run)),
        ("Latency in ms; means of the time in the queue and at the store", latency_columns(run)),
        ("Batches by the cause of their flush, and counts of all rounds", cause_columns(run)),
    ):
        if columns:
            say("", *([title] if title else []))
            print_columns(console, "variant", [variant.name for variant in run.variants], columns)
    say("", *_legend(run), *peers_of(run))
    for title, lines in _details(run):
        say("", title)
        say(*lines, indent=2)
    advice = advise(run)
    say("", "Advice", style="bold")
    say(*advice.sentences, indent=2)
    if advice.line is not None:
        # A line to paste is never wrapped.
        console.print(Text(f"\n  {advice.line}", style="bold"), soft_wrap=True)


def conditions_of(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the conditions of a run as names and texts."""
    store = f"{found.get('store') or found.get('target')}"
    if found.get("server"):
        store += f", version {found['server']}"
    if (found.get("members") or 1) > 1:
        store += f", {found['members']} members"
    yield "store", store
    busy = found.get("busy")
    yield (
        "machine",
        f"{found.get('cpus')} processors, {found.get('system')}, Python {found.get('python')}, "
        f"batchkeeper {found.get('batchkeeper')}"
        + (f"; {share(busy)} busy before the run" if busy is not None else ""),
    )
    if disk := found.get("disk"):
        fsync = milliseconds(disk.get("fsync_seconds"))
        yield "disk", f"{disk.get('file_system')}; an fsync takes {fsync} ms"


def load_of(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the load and the schedule as names and texts."""
    load, schedule = run.load, run.schedule
    parts = [f"mix {load['mix']['name']}"]
    if load["rate"] is not None:
        parts.append(f"an open loop of {number(load['rate'])} operations per second")
    else:
        parts.append(f"a closed loop of {number(load['in_flight'])} operations in flight")
    for field, noun in (("threads", "thread"), ("processes", "process")):
        if load[field] > 1:
            parts.append(count(load[field], noun))
    if load["spark"]:
        parts.append("on Spark executors")
    yield "load", ", ".join([*parts, f"seed {load['seed']}"])
    each = f"of {schedule['seconds']:g} s for each variant, after {schedule['warm_up']:g} s"
    yield "measured", f"{count(figures.finished(run), 'interleaved round')} {each} of warm-up"


def warnings_of(run: Run) -> Iterator[str]:
    """Yield what makes the figures doubtful."""
    if run.broken is not None:
        yield f"the run ended early, and shows what was measured until then: {run.broken}"
    yield from run.conditions.get("warnings") or ()
    late = [text for variant in run.variants if (text := _late(variant))]
    if late:
        yield (
            f"the asked rate of {number(run.load.get('rate'))} operations per second was not "
            f"reached by {'; '.join(late)}. Their latencies are those of a growing backlog"
        )
    for variant in run.variants:
        for measured in variant.rounds:
            if measured.broken is not None:
                yield f"left out: {variant.name}, round {measured.round + 1}: {measured.broken}"


def _late(variant: Variant) -> str | None:
    """Return what a variant reached of the asked rate, in the rounds in which it fell behind."""
    late = [m.rate for m in usable(variant) if not figures.reached(m)]
    if not late:
        return None
    rounds = count(len(usable(variant)), "round")
    return f"{variant.name} ({number(statistics.median(late))} in {len(late)} of {rounds})"


_SIGNS: Final[Mapping[str, str]] = {"the same": "=", "cannot tell": "?"}


def columns_of(run: Run) -> list[Column]:
    """Return the columns of the main table, without empty ones."""
    ratios = times_default(run)

    def ratio(name: str) -> str:
        if name not in ratios:
            return ""
        found, _ = ratios[name]
        # A ratio that is only noise gets a sign, so that nobody takes it for a finding.
        sign = "" if name == "default" else _SIGNS.get(verdict(found), "")
        return f"{sign}{times(found.median)}"

    spreads = [estimate(values(variant, figures.rate)) for variant in run.variants]
    columns = [
        _medians(run, "ops/s", figures.rate, lambda x: number(round(x))),
        Column("±", [spread(e).removeprefix("±") if e else "" for e in spreads]),
        Column("x def.", [ratio(variant.name) for variant in run.variants]),
        _medians(run, "p50 ms", figures.percentile("p50")),
        _medians(run, "p99 ms", figures.p99),
        Column("batch", [_batch(variant) for variant in run.variants]),
        _medians(run, "µs cl.", figures.client_cpu, _microseconds),
        _medians(run, "µs srv", figures.server_cpu, _microseconds),
    ]
    return [column for column in columns if any(column.cells)]


def _batch(variant: Variant) -> str:
    """Return the size of a batch, with a sign if most of them left before they were full."""
    found = estimate(values(variant, figures.operations_per_batch))
    causes = figures.causes(variant)
    paced = 2 * sum(causes.get(cause, 0) for cause in ("idle", "delay")) > sum(causes.values())
    return f"{'~' if paced else ''}{found.median:.1f}" if found else ""


def latency_columns(run: Run) -> list[Column]:
    """Return a column for each percentile, and for the times in queue and store, in ms."""
    slowest = [max(values(v, figures.percentile("max")), default=None) for v in run.variants]
    columns = [
        # The greatest of all, because one slow operation is not the less slow for its round.
        Column(name, [milliseconds(worst) for worst in slowest])
        if name == "max"
        else _medians(run, name, figures.percentile(name))
        for name in figures.PERCENTILES
    ]
    columns += [_medians(run, "queue", figures.in_queue), _medians(run, "store", figures.at_store)]
    return [column for column in columns if any(column.cells)]


def _medians(
    run: Run, head: str, figure: figures.Figure, write: Callable[[float], str] = milliseconds
) -> Column:
    found = [estimate(values(variant, figure)) for variant in run.variants]
    return Column(head, [write(one.median) if one else "" for one in found])


def _microseconds(seconds: float) -> str:
    return number(round(seconds * 1e6, 1))


def cause_columns(run: Run) -> list[Column]:
    """Return the share of each cause of flush, and what was counted, where there is any."""
    causes = [figures.causes(variant) for variant in run.variants]
    columns = [
        Column(cause, [_part_of(found, cause) for found in causes])
        for cause in figures.together(causes)
    ]
    counts: Mapping[str, Callable[[Measured], int]] = {
        "fall-backs": lambda m: m.fall_backs,
        "waits": lambda m: m.waits,
        "conflicts": lambda m: m.conflicts,
        "late": lambda m: m.not_started,
        "errors": lambda m: sum(m.errors.values()),
    }
    for head, counted in counts.items():
        totals = [figures.total(variant, counted) for variant in run.variants]
        if any(totals):
            columns.append(Column(head, [f"{n:,}" for n in totals]))
    return columns


def _part_of(causes: Mapping[str, int], cause: str) -> str:
    return share(causes.get(cause, 0) / sum(causes.values())) if causes else ""


def print_columns(
    console: Console, head: str, names: Sequence[str], columns: Sequence[Column]
) -> None:
    """Print a table, or several below each other where the columns do not fit beside the names."""
    longest = max(map(len, (head, *names)))
    for number_of_table, part in enumerate(_parts(columns, longest, console.width)):
        if number_of_table:
            console.print()
        # Piped output has no lines, so that tools can split it into columns.
        table = Table(
            box=SIMPLE_HEAD if console.is_terminal else None,
            pad_edge=False,
            padding=(0, _GAP // 2) if console.is_terminal else (0, _GAP, 0, 0),
            header_style="bold",
            collapse_padding=True,
        )
        room = console.width - sum(column.width + _GAP for column in part) - 2
        table.add_column(Text(head), overflow="fold", width=max(min(longest, room), 1))
        for column in part:
            table.add_column(
                Text(column.head),
                justify="left" if column.text else "right",
                no_wrap=not column.text,
            )
        for row, name in enumerate(names):
            table.add_row(Text(name), *(Text(column.cells[row]) for column in part))
        console.print(table)


def _parts(columns: Sequence[Column], longest: int, width: int) -> Iterator[list[Column]]:
    """Yield groups of columns that fit beside the names."""
    room = width - min(longest, _NARROWEST) - 2
    part: list[Column] = []
    for column in columns:
        used = sum(other.width + _GAP for other in part)
        if part and used + column.width + _GAP > room:
            yield part
            part = []
        part.append(column)
    if part:
        yield part


def _legend(run: Run) -> Iterator[str]:
    rounds = figures.finished(run)
    sure = (
        f"±: interval of the median ({confidence(rounds):.0%} confidence after "
        f"{count(rounds, 'round')})"
        if rounds > 1
        else "±: not known after one round"
    )
    yield (
        f"{sure}. x def.: times the default in the same rounds; =: the same, ?: the rounds cannot "
        f"tell. batch: operations per batch; ~: most left before they were full, so the pace of "
        f"the client set their size, and not max_ops. µs: CPU per operation of client and server."
    )


def peers_of(run: Run) -> Iterator[str]:
    """Yield how many times each peer the default is.

    An open loop yields nothing, because it holds the faster ones back.
    """
    if run.load.get("rate") is not None:
        return
    found = Comparisons(run)
    for variant in run.variants:
        ratio = found.ratio("default", variant.name) if variant.kind == "peer" else None
        if ratio is not None:
            unsure = " (cannot be told apart)" if found.same("default", variant.name) else ""
            yield f"the default is {times(ratio.median)} times {variant.name}{unsure}"


def _details(run: Run) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield errors by kind, and what was checked."""
    lines = [
        f"{v.name}: " + ", ".join(f"{name} {n:,}" for name, n in figures.errors(v).items())
        for v in run.variants
        if figures.errors(v)
    ]
    if lines:
        yield "Errors", lines
    checked = sum(figures.total(v, lambda m: m.answers_checked) for v in run.variants)
    read = sum(figures.total(v, lambda m: m.paths_read_back) for v in run.variants)
    unsure = sum(figures.total(v, lambda m: m.paths_unsure) for v in run.variants)
    if checked or read:
        lines = [f"{checked:,} answers, and {read:,} paths that were read back"]
        if unsure:
            lines.append(f"not {unsure:,} paths, because an operation on them had failed")
        yield "Checked", lines


def as_csv(run: Run) -> str:
    """Return a row for each variant and round, with times in seconds and a row of names first."""
    rows = [_row(variant, measured) for variant in run.variants for measured in variant.rounds]
    settings = sorted({f"setting_{name}" for variant in run.variants for name in variant.settings})
    names = [name for name in dict.fromkeys(chain(*rows)) if name not in settings]
    file = io.StringIO()
    writer = csv.DictWriter(file, [*names, *settings], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


#: Columns that are named as in :class:`Measured`.
_PLAIN: Final = ("round", "broken", "seconds", "operations", "rate", "asked_rate", "not_started")


def _row(variant: Variant, measured: Measured) -> dict[str, Any]:
    latencies = measured.latencies.get("all")
    percentiles = latencies.percentiles if latencies else {}
    return {
        "variant": variant.name,
        "kind": variant.kind,
        **{name: getattr(measured, name) for name in _PLAIN},
        **{name: percentiles.get(name) for name in figures.PERCENTILES},
        **{f"queue_{name}": measured.queue_seconds.get(name) for name in ("p50", "p99")},
        **{f"store_{name}": measured.store_seconds.get(name) for name in ("p50", "p99")},
        "batches": measured.batches,
        "operations_per_batch": figures.operations_per_batch(measured),
        **{name: getattr(measured, name) for name in ("fall_backs", "waits", "conflicts")},
        "errors": sum(measured.errors.values()),
        "client_cpu_per_operation": figures.client_cpu(measured),
        "server_cpu_per_operation": figures.server_cpu(measured),
        "client_memory": measured.client_memory,
        "server_memory": measured.server_memory,
        **{f"setting_{name}": value for name, value in variant.settings.items()},
    }
