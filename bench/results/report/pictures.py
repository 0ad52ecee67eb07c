"""The pictures of a report, drawn by Matplotlib.

Each picture is drawn twice: wide, for screens and paper, and narrow, for phones. Variants that
matter have the same colour, sign and dash in all pictures; the others are pale. No picture relies
on colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from .. import figures
from ..figures import values
from ..runs import Run
from ..statistics import Comparisons, Estimate, estimate
from ..wording import count, listed, milliseconds, number, share, times
from .data import Style, curve, front, moments, styles
from .svg import COLOURS, INK, PALE, STYLE, inline

__all__ = ["Picture", "pictures"]

_WIDE: Final = 9.2
_NARROW: Final = 3.5
#: Of a bar with its gap, in inches.
_ROW: Final = 0.24
_HATCHES: Final = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "oooo")


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Attributes:
        title: the heading above it.
        words: how to read it.
        svg: both drawings.
        head: the heads of the columns of its table.
        rows: the table's rows, with the name of the variant first.
    """

    title: str
    words: str
    svg: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


_Draw = Callable[[Any, bool], dict[str, str]]


def pictures(run: Run) -> list[Picture]:
    """Draw what a run has figures for."""
    style_of = styles(run)
    drawn = (
        _trade_off(run, style_of),
        _ratios(run, style_of),
        _percentiles(run, style_of),
        _over_time(run, style_of),
        _causes(run),
        _cpu(run),
    )
    return [picture for picture in drawn if picture is not None]


def _both(name: str, label: str, wide: float, narrow: float, draw: _Draw) -> str:
    parts = []
    for size, width, height in (("wide", _WIDE, wide), ("narrow", _NARROW, narrow)):
        # The salt makes names in the file the same each time.
        style: Any = {**STYLE, "svg.hashsalt": name, "font.size": 8.5 if size == "narrow" else 9.5}
        with rc_context(style):
            figure = Figure(figsize=(width, height), layout="constrained")
            titles = draw(figure, size == "narrow")
            parts.append(inline(figure, f"{name}-{size}", label, titles))
    return "".join(parts)


def _legend(figure: Any, shown: Sequence[Style], narrow: bool, others: bool) -> None:
    """Put the key below the picture, where it hides nothing."""
    handles = [*(style.handle() for style in shown)]
    if others:
        handles.append(Style("other variants", PALE, "o", "-").handle())
    figure.legend(handles=handles, loc="outside lower left", ncols=1 if narrow else 3)


def _trade_off(run: Run, style_of: Mapping[str, Style]) -> Picture | None:
    points = {
        v.name: (rate, p99)
        for v in run.variants
        if (rate := estimate(values(v, figures.rate))) and (p99 := estimate(values(v, figures.p99)))
    }
    if not points:
        return None
    # A peer is no choice for a caller of this client.
    best = front(
        {
            variant.name: (points[variant.name][0].median, points[variant.name][1].median)
            for variant in figures.rivals(run)
            if variant.name in points
        }
    )

    def draw(figure: Any, narrow: bool) -> dict[str, str]:
        axes = figure.subplots()
        titles = {}
        for index, (name, (rate, p99)) in enumerate(points.items()):
            mine = style_of.get(name)
            colour = mine.colour if mine else PALE
            low, high = _finite(rate)
            p_low, p_high = _finite(p99)
            thin = {"color": colour, "lw": 0.8, "alpha": 0.6}
            axes.plot([low, high], [p99.median * 1000] * 2, **thin)
            axes.plot([rate.median] * 2, [p_low * 1000, p_high * 1000], **thin)
            axes.plot(
                [rate.median],
                [p99.median * 1000],
                mine.marker if mine else "o",
                color=colour,
                ms=8 if mine else 5,
                gid=f"point{index}",
                zorder=3 if mine else 2,
            )
            titles[f"point{index}"] = (
                f"{name}: {number(round(rate.median))} operations per second, p99 "
                f"{milliseconds(p99.median)} ms"
            )
        axes.plot(
            [points[name][0].median for name in best],
            [points[name][1].median * 1000 for name in best],
            color=INK,
            lw=1,
            ls="--",
            zorder=1,
        )
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))
        axes.set_xlabel("operations per second")
        axes.set_ylabel("p99 in ms")
        _legend(
            figure,
            [style_of[n] for n in points if n in style_of],
            narrow,
            len(style_of) < len(points),
        )
        return titles

    most = max(points, key=lambda name: points[name][0].median)
    least = min(points, key=lambda name: points[name][1].median)
    label = (
        f"Throughput against the 99th percentile of the latency of "
        f"{count(len(points), 'variant')}. The most throughput: {most}, "
        f"{number(round(points[most][0].median))} operations per second. "
        f"The lowest p99: {least}, {milliseconds(points[least][1].median)} ms. "
        f"On the Pareto front: {listed(best, 12)}. The table below has all figures."
    )
    return Picture(
        "Throughput against latency",
        "Right is more throughput, down is less latency. No variant is better in both than one on "
        "the dashed line (the Pareto front, without peers). Thin lines are the intervals of the "
        "medians.",
        _both("trade", label, 4.6, 4.6, draw),
        ("variant", "ops/s", "low", "high", "p99 ms", "low", "high", "front"),
        [
            (
                name,
                *_cells(rate, lambda x: number(round(x))),
                *_cells(p99, milliseconds),
                "yes" if name in best else "",
            )
            for name, (rate, p99) in points.items()
        ],
    )


def _ratios(run: Run, style_of: Mapping[str, Style]) -> Picture | None:
    rivals, everything = Comparisons(run, variants=figures.rivals(run)), Comparisons(run)
    found: dict[str, tuple[Estimate, bool]] = {}
    for variant in run.variants:
        comparisons = everything if variant.kind == "peer" else rivals
        ratio = comparisons.ratio(variant.name, "default")
        if ratio is not None and math.isfinite(ratio.high):
            found[variant.name] = ratio, comparisons.same(variant.name, "default")
    if len(found) < 2:
        return None

    def draw(figure: Any, narrow: bool) -> dict[str, str]:
        axes = figure.subplots()
        axes.axvline(1, color=INK, lw=1, ls="--")
        titles = {}
        for row, (name, (ratio, same)) in enumerate(found.items()):
            mine = style_of.get(name)
            colour = mine.colour if mine else PALE
            axes.plot([ratio.low, ratio.high], [row, row], color=colour, lw=1.5)
            axes.plot(
                [ratio.median],
                [row],
                mine.marker if mine else "o",
                color=colour,
                mfc="none" if same else colour,
                ms=6,
                gid=f"ratio{row}",
            )
            titles[f"ratio{row}"] = f"{name}: {times(ratio.median)} times the default"
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis)
        axes.set_xlabel("times the default")
        _names(axes, list(found), narrow)
        return titles

    beyond = [name for name, (ratio, same) in found.items() if not same and ratio.median > 1]
    below = [name for name, (ratio, same) in found.items() if not same and ratio.median < 1]
    label = (
        f"Throughput of {count(len(found), 'variant')} as a ratio to the default, with intervals. "
        f"Faster beyond doubt: {listed(beyond, 12) or 'none'}. "
        f"Slower beyond doubt: {count(len(below), 'variant')}. The table below has all figures."
    )
    return Picture(
        "Faster or slower than the default",
        "Ratios within the same rounds, with intervals that allow for the number of variants. A "
        "hollow sign cannot be told apart from the default.",
        _both("ratio", label, *_heights(len(found)), draw),
        ("variant", "times the default", "low", "high", "verdict"),
        [
            (
                name,
                *_cells(ratio, times),
                _verdict(name, ratio, same),
            )
            for name, (ratio, same) in found.items()
        ],
    )


def _verdict(name: str, ratio: Estimate, same: bool) -> str:
    if name == "default":
        return ""
    return "the same" if same else "faster" if ratio.median > 1 else "slower"


_NINES: Final = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999)


def _percentiles(run: Run, style_of: Mapping[str, Style]) -> Picture | None:
    curves = {v.name: found for v in run.variants if (found := curve(v))}
    if not curves:
        return None

    def draw(figure: Any, narrow: bool) -> dict[str, str]:
        axes = figure.subplots()
        titles = {}
        for index, (name, points) in enumerate(curves.items()):
            mine = style_of.get(name)
            axes.plot(
                [1 / (1 - p / 100) for p, _ in points],
                [seconds * 1000 for _, seconds in points],
                color=mine.colour if mine else PALE,
                ls=mine.dash if mine else "-",
                lw=1.8 if mine else 0.7,
                zorder=3 if mine else 2,
                gid=f"curve{index}",
            )
            titles[f"curve{index}"] = name
        axes.set_xscale("log")
        axes.set_yscale("log")
        last = max(points[-1][0] for points in curves.values())
        ticks = [p for p in _NINES if p <= last] or [50.0]
        axes.set_xticks([1 / (1 - p / 100) for p in ticks], [f"{p:g} %" for p in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        _plain_ticks(axes.yaxis)
        axes.set_xlabel("share of operations")
        axes.set_ylabel("latency of at most, in ms")
        _legend(
            figure,
            [style_of[n] for n in curves if n in style_of],
            narrow,
            len(style_of) < len(curves),
        )
        return titles

    names = [name for name in figures.PERCENTILES if name != "max"]
    label = (
        f"Percentiles of the latency of {count(len(curves), 'variant')}, over all rounds. "
        + " ".join(
            f"{name}: p99 {milliseconds(_at(curves[name], 99.0))} ms."
            for name in style_of
            if name in curves
        )
        + " The table below has all figures."
    )
    return Picture(
        "Percentiles of the latency",
        "Each step to the right has a tenth of the operations above it. A curve that stays low has "
        "no slow operations. All rounds together.",
        _both("nines", label, 4.6, 4.6, draw),
        ("variant", *(f"{name} ms" for name in names), "max ms"),
        [
            (
                v.name,
                *(milliseconds(_at(curves[v.name], float(name[1:]))) for name in names),
                milliseconds(max(values(v, figures.percentile("max")), default=None)),
            )
            for v in run.variants
            if v.name in curves
        ],
    )


def _at(points: Sequence[tuple[float, float]], percentile: float) -> float | None:
    return next((seconds for p, seconds in points if math.isclose(p, percentile)), None)


def _over_time(run: Run, style_of: Mapping[str, Style]) -> Picture | None:
    series = {n: found for n in style_of if (found := moments(figures.named(run, n)))}
    if not series:
        return None

    def draw(figure: Any, narrow: bool) -> dict[str, str]:
        sizes, depths = figure.subplots(2, 1, sharex=True)
        for name, points in series.items():
            mine = style_of[name]
            style: dict[str, Any] = {"color": mine.colour, "ls": mine.dash, "lw": 1.5}
            batches = [(m.at, m.batched / m.batches) for m in points if m.batches]
            sizes.plot([at for at, _ in batches], [size for _, size in batches], **style)
            depths.plot([m.at for m in points], [m.queued for m in points], **style)
        for axes, title in ((sizes, "operations per batch"), (depths, "operations in the queues")):
            axes.set_title(title)
            axes.set_ylim(bottom=0)
        depths.set_xlabel("seconds")
        _legend(figure, [style_of[name] for name in series], narrow, False)
        return {}

    rows = []
    for name, points in series.items():
        batches, batched = sum(m.batches for m in points), sum(m.batched for m in points)
        queued = [m.queued for m in points]
        rows.append(
            (
                name,
                f"{batched / batches:.1f}" if batches else "",
                number(sum(queued) / len(queued)),
                number(max(queued)),
            )
        )
    label = (
        "Operations per batch and operations in the queues over the time of the last round. "
        + " ".join(f"{row[0]}: {row[1]} per batch, {row[2]} queued on the average." for row in rows)
    )
    return Picture(
        "Batches and queues over time",
        "The last round. Steady lines mean that the measurement had settled; a queue that grows "
        "means that the store did not keep up.",
        _both("time", label, 4.8, 5.2, draw),
        ("variant", "ops per batch", "queued on the average", "queued at most"),
        rows,
    )


def _causes(run: Run) -> Picture | None:
    causes = {v.name: found for v in run.variants if (found := figures.causes(v))}
    if not causes:
        return None
    kinds = sorted({cause for found in causes.values() for cause in found})
    shares = {
        name: [found.get(kind, 0) / sum(found.values()) for kind in kinds]
        for name, found in causes.items()
    }
    label = (
        f"Batches by the cause of their flush, for {count(len(causes), 'variant')}. "
        + " ".join(
            f"{name}: {', '.join(f'{kind} {share(part)}' for kind, part in found if part)}."
            for name, found in ((n, zip(kinds, parts, strict=True)) for n, parts in shares.items())
        )
    )
    return Picture(
        "Why batches were sent",
        "ops, bytes: a batch was full. delay: its time was over. idle: nothing was in flight. Many "
        "by delay: operations waited for company that did not come.",
        _both(
            "cause",
            label,
            *_heights(len(shares), len(kinds)),
            _bars(shares, kinds, "share of batches", percent=True),
        ),
        ("variant", *kinds),
        [(name, *map(share, parts)) for name, parts in shares.items()],
    )


def _cpu(run: Run) -> Picture | None:
    parts: dict[str, list[float]] = {}
    for variant in run.variants:
        client = estimate(values(variant, figures.client_cpu))
        server = estimate(values(variant, figures.server_cpu))
        if client is not None:
            parts[variant.name] = [client.median * 1e6, server.median * 1e6 if server else 0.0]
    if not parts:
        return None
    kinds = ["client", "server"] if any(server for _, server in parts.values()) else ["client"]
    parts = {name: both[: len(kinds)] for name, both in parts.items()}
    least = min(parts, key=lambda name: sum(parts[name]))
    label = (
        f"CPU time per operation of {count(len(parts), 'variant')}, in microseconds. The least: "
        f"{least}, {number(round(sum(parts[least]), 1))}. The table below has all figures."
    )
    return Picture(
        "CPU per operation",
        "Of the client with its load generator, and of the server."
        if len(kinds) > 1
        else "Of the client with its load generator. The server runs elsewhere, or in the client.",
        _both(
            "cpu",
            label,
            *_heights(len(parts), len(kinds)),
            _bars(parts, kinds, "µs per operation", percent=False),
        ),
        ("variant", *(f"{kind} µs" for kind in kinds)),
        [(name, *(number(round(x, 1)) for x in both)) for name, both in parts.items()],
    )


def _bars(
    parts: Mapping[str, Sequence[float]], kinds: Sequence[str], label: str, *, percent: bool
) -> _Draw:
    """Draw stacked bars, whose parts differ in colour and hatching."""
    palette = list(COLOURS)

    def draw(figure: Any, narrow: bool) -> dict[str, str]:
        axes = figure.subplots()
        titles = {}
        left = [0.0] * len(parts)
        for index, kind in enumerate(kinds):
            widths = [found[index] for found in parts.values()]
            bars = axes.barh(
                range(len(parts)),
                widths,
                left=left,
                height=0.5 if narrow else 0.72,
                color=palette[index % len(palette)],
                hatch=_HATCHES[index % len(_HATCHES)],
                edgecolor=INK,
                linewidth=0,
                label=kind,
            )
            for row, (bar, name) in enumerate(zip(bars, parts, strict=True)):
                bar.set_gid(f"bar{index}.{row}")
                said = share(widths[row]) if percent else f"{widths[row]:.1f} µs"
                titles[f"bar{index}.{row}"] = f"{name}: {kind} {said}"
            left = [a + b for a, b in zip(left, widths, strict=True)]
        _names(axes, list(parts), narrow)
        axes.set_xlabel(label)
        if percent:
            axes.set_xlim(0, 1)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0%}"))
        figure.legend(loc="outside upper left", ncols=3 if narrow else len(kinds))
        return titles

    return draw


def _names(axes: Any, names: Sequence[str], narrow: bool) -> None:
    """Name the rows from top to bottom. On a phone, names stand above their bars."""
    axes.set_ylim(len(names) - 0.4, -0.9 if narrow else -0.6)
    axes.grid(visible=False, axis="y")
    if not narrow:
        axes.set_yticks(range(len(names)), names)
        return
    axes.set_yticks([])
    for row, name in enumerate(names):
        axes.annotate(
            name, (0, row - 0.29), xycoords=("axes fraction", "data"), fontsize=7, va="bottom"
        )


def _heights(rows: int, kinds: int = 0) -> tuple[float, float]:
    """Return the heights of a wide and of a narrow picture with a row for each variant."""
    head = 0.9 if kinds else 0.6
    return head + _ROW * rows, head + 0.2 * math.ceil(kinds / 3) + 2 * _ROW * rows


def _finite(found: Estimate) -> tuple[float, float]:
    return (found.low, found.high) if math.isfinite(found.high) else (found.median, found.median)


def _cells(found: Estimate, write: Callable[[float], str]) -> tuple[str, str, str]:
    if not math.isfinite(found.high):
        return write(found.median), "?", "?"
    return write(found.median), write(found.low), write(found.high)


def _plain_ticks(axis: Any) -> None:
    """Write the ticks of a logarithmic axis as plain numbers, enough of them to read it."""
    low, high = axis.get_view_interval()
    if low > 0 and high / low < 300:
        steps = (1, 1.5, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_locator(NullLocator())


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
