"""Formats the results as tables for readers and as JSON for programs."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .figures import Batches, Figure, Ratio
from .runner import PHASES, SINGLE, Phase, Results, Schedule
from .target import Target

__all__ = [
    "as_json",
    "conditions",
    "conditions_as_json",
    "figure_as_json",
    "print_report",
    "ratio_as_json",
]

_TITLES = {"hub": "The hubs' work", "puts": "Puts of new paths"}


def as_json(target: Target, plan: Schedule, results: Results) -> dict[str, Any]:
    """Return all results. Times are in seconds, rates in operations per second."""
    return {
        **conditions_as_json(target),
        "workload": {
            "hubs": plan.workload.hubs,
            "outstanding": plan.workload.outstanding,
            "topics": plan.workload.topics,
            "value_bytes": plan.workload.value_bytes,
            "mix": dict(plan.workload.mix),
            "seed": plan.workload.seed,
            "threads": plan.threads,
        },
        "rounds": plan.rounds,
        "duration": dataclasses.asdict(plan.duration),
        "settings": [
            {
                "name": setting.name,
                "batching": dataclasses.asdict(setting.batching),
                **{phase: _phase(results, setting.name, phase) for phase in PHASES},
            }
            for setting in plan.settings
        ],
        "plain_client": _plain(target, results),
        "paths_read_back": results.paths_read_back,
    }


def conditions_as_json(target: Target) -> dict[str, Any]:
    """Return the conditions of a measurement: the version, the machine, the store and the disk."""
    disk = target.disk
    return {
        "batchkeeper": _version(),
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "target": target.name,
        "store": target.url.text,
        "members": target.members,
        "disk": disk
        and {
            "directory": str(disk.directory),
            "file_system": disk.file_system,
            "fsync_seconds": disk.fsync,
        },
    }


def _version() -> str | None:
    try:
        return version("batchkeeper")
    except PackageNotFoundError:
        return None  # The package runs from a checkout and was never installed.


def _phase(results: Results, setting: str, name: str) -> dict[str, Any]:
    phase = results.phases[setting][name]
    batches = Batches.total(phase.batches)
    return {
        "operations_per_second": figure_as_json(phase.rate),
        "times_single": ratio_as_json(results.times_single(setting, name)),
        "latency_seconds": {which: phase.latency(which) for which in phase.latencies},
        "operations_per_batch": batches.size,
        "flush_causes": dict(batches.causes),
    }


def _plain(target: Target, results: Results) -> dict[str, Any] | None:
    if target.plain is None:
        return None
    best = results.best("puts")
    times = results.times_plain(best)
    return {
        "call": target.plain.call,
        "puts_per_second": figure_as_json(Figure(tuple(results.plain))),
        "times_plain": {name: ratio_as_json(results.times_plain(name)) for name in results.phases},
        "best_setting": best,
        "best_times_plain": times.median,
        "target": target.plain.target,
        "reached": times.median >= target.plain.target,
    }


def figure_as_json(figure: Figure) -> dict[str, Any]:
    return {
        "median": figure.median,
        "low": figure.low,
        "high": figure.high,
        "rounds": list(figure.rounds),
    }


def ratio_as_json(ratio: Ratio) -> dict[str, float]:
    return {"median": ratio.median, "low": ratio.low, "high": ratio.high}


def print_report(console: Console, target: Target, plan: Schedule, results: Results) -> None:
    """Print the conditions, a table for each phase, and the verdicts."""

    def say(text: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    for line in _conditions(target, plan):
        say(line)
    for phase in PHASES:
        say()
        say(_TITLES[phase])
        console.print(_table(console, target, results, phase))
    say()
    for line in _verdict(target, results):
        say(line)


def conditions(target: Target) -> Iterator[str]:
    """Yield lines with the store and its disk."""
    yield f"store    {target.url.text}"
    if target.members is not None and target.members > 1:
        yield f"members  {target.members}, all on this machine"
    if target.disk is not None:
        disk = target.disk
        yield f"disk     {disk.file_system}; an fsync takes {disk.fsync * 1000:.3f} ms"


def _conditions(target: Target, plan: Schedule) -> Iterator[str]:
    work = plan.workload
    yield from conditions(target)
    mix = ", ".join(f"{step} {weight:g}" for step, weight in work.mix.items() if weight)
    yield (
        f"work     {work.hubs} hubs with {work.outstanding} operations under way each, "
        f"{work.topics} topics, values of {work.value_bytes} bytes, seed {work.seed}, "
        f"{_count(plan.threads, 'caller thread')}"
    )
    yield f"mix      a claim, then {mix}"
    yield (
        f"measured {_count(plan.rounds, 'interleaved round')} of {plan.duration.seconds:g} s, "
        f"warm-up excluded; medians of the rounds"
    )


def _table(console: Console, target: Target, results: Results, phase: str) -> Table:
    # Piped output has no lines around cells, so that tools can split it into columns.
    box = SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=box, pad_edge=False, header_style="bold")
    plain = target.plain if phase == "puts" else None
    table.add_column("setting", no_wrap=True)
    heads = ["ops/s", "least", "most", "x single", *(["x plain"] if plain else [])]
    for head in [*heads, "p50 ms", "p95 ms", "p99 ms", "max ms", "ops/batch"]:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("flushed by")
    for name, phases in results.phases.items():
        found = phases[phase]
        cells = [*_rate(found.rate), f"{results.times_single(name, phase).median:.2f}"]
        if plain:
            cells.append(f"{results.times_plain(name).median:.2f}")
        table.add_row(name, *cells, *_details(found))
    if plain:
        figure = Figure(tuple(results.plain))
        single = results.times_plain(SINGLE).median
        cells = [*_rate(figure), f"{1 / single:.2f}" if single else "", "1.00"]
        table.add_row(plain.call, *cells)
    return table


def _rate(figure: Figure) -> list[str]:
    return [f"{rate:,.0f}" for rate in (figure.median, figure.low, figure.high)]


def _details(found: Phase) -> list[str]:
    batches = Batches.total(found.batches)
    return [
        *(f"{seconds * 1000:.2f}" for seconds in found.latency().values()),
        f"{batches.size:.1f}",
        _causes(batches.causes),
    ]


def _causes(causes: Mapping[str, int]) -> str:
    total = sum(causes.values())
    often = sorted(causes.items(), key=lambda cause: -cause[1])
    return ", ".join(f"{name} {count / total:.0%}" for name, count in often)


def _verdict(target: Target, results: Results) -> Iterator[str]:
    hub = results.best("hub")
    yield (
        f"the hubs' work: best setting ({hub}): {results.times_single(hub, 'hub').median:.1f} "
        f"times single execution"
    )
    if target.plain is not None:
        best = results.best("puts")
        times = results.times_plain(best)
        reached = "reached" if times.median >= target.plain.target else "missed"
        yield f"puts against {target.plain.call} in a loop, in the same rounds:"
        yield (
            f"  best setting ({best}): {times.median:.1f} times (in one round {times.low:.1f} to "
            f"{times.high:.1f}); target {target.plain.target:g}: {reached}"
        )
        for name in ("default", SINGLE):
            figure = results.times_plain(name)
            label = "default setting" if name != SINGLE else "single execution, same interface"
            yield f"  {label}: {figure.median:.1f} times ({figure.low:.1f} to {figure.high:.1f})"
    yield f"read back {results.paths_read_back:,} paths: all as acknowledged"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
