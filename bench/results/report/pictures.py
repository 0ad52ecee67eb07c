"""The pictures of a report, drawn by Matplotlib.

Each picture is drawn twice: wide, for screens and paper, and narrow, for phones. A variant has the
same colour, sign and dash in all pictures. No picture relies on colour alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from hdrh.codec import HdrCookieException, HdrLengthException
from hdrh.histogram import HdrHistogram
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from ....ops.errors import InvalidSettingError
from .. import figures
from ..advice import advise
from ..figures import usable, values
from ..runs import Moment, Run, Variant
from ..statistics import Estimate, estimate, times_default, verdict
from ..wording import milliseconds, number, share, times
from .svg import COLOURS, INK, STYLE, inline

_WIDE: Final = 9.2
_NARROW: Final = 3.5
#: Of a bar with its gap, in inches.
_ROW: Final = 0.24
#: Of a line of a key.
_KEY: Final = 0.18
_HATCHES: Final = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "oooo")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 2)))
#: A curve has this many points for each nine.
_POINTS: Final = 12
#: The faster half is of no interest, and curves fall steeply there.
_MEDIAN: Final = math.ceil(_POINTS * math.log10(2))


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


class _Titles(dict[str, str]):
    """The texts that appear when the pointer rests on a part of a picture."""

    def of(self, part: Any, text: str) -> None:
        name = f"part{len(self)}"
        part.set_gid(name)
        self[name] = text


#: Draws a figure, in the narrow form or in the wide one.
_Draw = Callable[[Any, bool, _Titles], None]


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


def _picture(
    title: str,
    words: str,
    heights: tuple[float, float],
    draw: _Draw,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
) -> Picture:
    """Draw a picture with the heights of its wide and its narrow form."""
    name = title.lower().replace(" ", "-")
    label = f"{title}. {words} The table below has all figures."
    parts = []
    for form, width, height in zip(("wide", "narrow"), (_WIDE, _NARROW), heights, strict=True):
        # The salt makes names in the file the same each time.
        style: Any = {**STYLE, "svg.hashsalt": name, "font.size": 8.5 if form == "narrow" else 9.5}
        with rc_context(style):
            figure, titles = Figure(figsize=(width, height), layout="constrained"), _Titles()
            draw(figure, form == "narrow", titles)
            parts.append(inline(figure, f"{name}-{form}", label, titles))
    return Picture(title, words, "".join(parts), ("variant", *head), list(rows))


def _legend(figure: Any, styles: Iterable[Style], narrow: bool) -> None:
    """Put the key below the picture, where it hides nothing."""
    handles = [style.handle() for style in styles]
    figure.legend(handles=handles, loc="outside lower left", ncols=1 if narrow else 3)


def _with_key(names: int) -> tuple[float, float]:
    """Return the heights of a picture with the names of all variants below it."""
    return 4.2 + _KEY * math.ceil(names / 3), 3.6 + _KEY * names


def _trade_off(run: Run, style_of: Mapping[str, Style]) -> Picture | None:
    points = trade_offs(run)
    if not points:
        return None
    best = front(run, points)

    def draw(figure: Any, narrow: bool, titles: _Titles) -> None:
        axes = figure.subplots()
        for name, (rate, p99) in points.items():
            bars = _point(axes, style_of[name], rate.median, p99.median)
            titles.of(
                bars,
                f"{name}: {number(round(rate.median))} operations per second, p99 "
                f"{milliseconds(p99.median)} ms",
            )
            thin = {"color": bars.get_color(), "lw": 0.8, "alpha": 0.6}
            axes.plot(_ends(rate), [p99.median] * 2, **thin)
            axes.plot([rate.median] * 2, _ends(p99), **thin)
        line = [(points[name][0].median, points[name][1].median) for name in best]
        axes.plot(*zip(*line, strict=True), color=INK, lw=1, ls="--", zorder=1)
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis, 1000)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("operations per second")
        axes.set_ylabel("p99 in ms")
        _legend(figure, style_of.values(), narrow)

    return _picture(
        "Throughput against latency",
        "Right is more throughput, down is less latency. No variant is better in both than one on "
        "the dashed line (the Pareto front, without peers). Thin lines are the intervals of the "
        "medians.",
        _with_key(len(style_of)),
        draw,
        ("ops/s", "low", "high", "p99 ms", "low", "high", "front"),
        (
            (
                name,
                *_cells(rate, lambda x: number(round(x))),
                *_cells(p99, milliseconds),
                "yes" if name in best else "",
            )
            for name, (rate, p99) in points.items()
        ),
    )


def _ratios(run: Run, style_of: Mapping[str, Style]) -> Picture | None:
    found = {
        name: (ratio, same)
        for name, (ratio, same) in times_default(run).items()
        if math.isfinite(ratio.high)
    }
    if len(found) < 2:
        return None

    def draw(figure: Any, narrow: bool, titles: _Titles) -> None:
        axes = figure.subplots()
        axes.axvline(1, color=INK, lw=1, ls="--")
        for row, (name, (ratio, same)) in enumerate(found.items()):
            sign = _point(axes, style_of[name], ratio.median, row)
            if same:
                sign.set_markerfacecolor("none")
            titles.of(sign, f"{name}: {times(ratio.median)} times the default")
            axes.plot(_ends(ratio), [row, row], color=sign.get_color(), lw=1.5)
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis)
        axes.set_xlabel("times the default")
        _names(axes, list(found), narrow)

    return _picture(
        "Faster or slower than the default",
        "Ratios within the same rounds, with intervals that allow for the number of variants. A "
        "hollow sign cannot be told apart from the default.",
        _heights(len(found)),
        draw,
        ("times the default", "low", "high", "verdict"),
        (
            (name, *_cells(ratio, times), "" if name == "default" else verdict(ratio))
            for name, (ratio, _) in found.items()
        ),
    )


_NINES: Final = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999)


def _percentiles(run: Run, style_of: Mapping[str, Style]) -> Picture | None:
    curves = {v.name: found for v in run.variants if (found := curve(v))}
    if not curves:
        return None

    def draw(figure: Any, narrow: bool, titles: _Titles) -> None:
        axes = figure.subplots()
        for name, points in curves.items():
            style = style_of[name]
            (line,) = axes.plot(
                [1 / (1 - p / 100) for p, _ in points],
                [seconds for _, seconds in points],
                color=style.colour,
                ls=style.dash,
                lw=1.8 if style.matters else 0.8,
                zorder=3 if style.matters else 2,
            )
            titles.of(line, name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        last = max(points[-1][0] for points in curves.values())
        ticks = [p for p in _NINES if p <= last] or [50.0]
        axes.set_xticks([1 / (1 - p / 100) for p in ticks], [f"{p:g} %" for p in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        _plain_ticks(axes.yaxis, 1000)
        axes.set_xlabel("share of operations")
        axes.set_ylabel("latency of at most, in ms")
        _legend(figure, style_of.values(), narrow)

    names = [name for name in figures.PERCENTILES if name != "max"]
    return _picture(
        "Percentiles of the latency",
        "Each step to the right has a tenth of the operations above it. A curve that stays low has "
        "no slow operations. All rounds together.",
        _with_key(len(style_of)),
        draw,
        (*(f"{name} ms" for name in names), "max ms"),
        (
            (
                v.name,
                *(milliseconds(_at(curves[v.name], float(name[1:]))) for name in names),
                milliseconds(max(values(v, figures.percentile("max")), default=None)),
            )
            for v in run.variants
            if v.name in curves
        ),
    )


def _at(points: Sequence[tuple[float, float]], percentile: float) -> float | None:
    return next((seconds for p, seconds in points if math.isclose(p, percentile)), None)


def _over_time(run: Run, style_of: Mapping[str, Style]) -> Picture | None:
    leading = [name for name, style in style_of.items() if style.matters]
    series = {n: found for n in leading if (found := moments(figures.named(run, n)))}
    if not series:
        return None

    def draw(figure: Any, narrow: bool, _titles: _Titles) -> None:
        sizes, depths = figure.subplots(2, 1, sharex=True)
        for name, points in series.items():
            style: Any = {"color": style_of[name].colour, "ls": style_of[name].dash, "lw": 1.5}
            full = [m for m in points if m.batches]
            sizes.plot([m.at for m in full], [m.batched / m.batches for m in full], **style)
            depths.plot([m.at for m in points], [m.queued for m in points], **style)
        for axes, title in ((sizes, "operations per batch"), (depths, "operations in the queues")):
            axes.set_title(title)
            axes.set_ylim(bottom=0)
        depths.set_xlabel("seconds")
        _legend(figure, (style_of[name] for name in series), narrow)

    rows = []
    for name, points in series.items():
        batches, batched = sum(m.batches for m in points), sum(m.batched for m in points)
        queued = [m.queued for m in points]
        size = f"{batched / batches:.1f}" if batches else ""
        rows.append((name, size, number(sum(queued) / len(queued)), number(max(queued))))
    return _picture(
        "Batches and queues over time",
        "The last round. Steady lines mean that the measurement had settled; a queue that grows "
        "means that the store did not keep up.",
        (4.8, 5.2),
        draw,
        ("ops per batch", "queued on the average", "queued at most"),
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
    return _bars(
        "Why batches were sent",
        "ops, bytes: a batch was full. delay: max_delay was over. idle: nothing was in flight. "
        "Many by delay or idle: the pace at which the client submits set the size, not max_ops.",
        kinds,
        shares,
        "share of batches",
        share,
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
    return _bars(
        "CPU per operation",
        "Of the client with its load generator, and of the server."
        if len(kinds) > 1
        else "Of the client with its load generator. The server runs elsewhere, or in the client.",
        kinds,
        parts,
        "µs per operation",
        lambda x: number(round(x, 1)),
        " µs",
    )


def _bars(
    title: str,
    words: str,
    kinds: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    label: str,
    write: Callable[[float], str],
    unit: str = "",
) -> Picture:
    """Draw stacked bars, whose parts differ in colour and hatching."""
    palette = list(COLOURS)

    def draw(figure: Any, narrow: bool, titles: _Titles) -> None:
        axes = figure.subplots()
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
            for bar, name, width in zip(bars, parts, widths, strict=True):
                titles.of(bar, f"{name}: {kind} {write(width)}{unit}")
            left = [a + b for a, b in zip(left, widths, strict=True)]
        _names(axes, list(parts), narrow)
        axes.set_xlabel(label)
        if write is share:
            axes.set_xlim(0, 1)
            axes.xaxis.set_major_formatter(PercentFormatter(1))
        figure.legend(loc="outside upper left", ncols=3 if narrow else len(kinds))

    rows = [(name, *(write(part) for part in found[: len(kinds)])) for name, found in parts.items()]
    heads = [f"{kind}{unit}" for kind in kinds]
    return _picture(title, words, _heights(len(parts), len(kinds)), draw, heads, rows)


def _point(axes: Any, style: Style, x: float, y: float) -> Any:
    (sign,) = axes.plot(
        [x],
        [y],
        style.marker,
        color=style.colour,
        ms=7 if style.matters else 5,
        zorder=3 if style.matters else 2,
    )
    return sign


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


def _ends(found: Estimate) -> tuple[float, float]:
    return (found.low, found.high) if math.isfinite(found.high) else (found.median, found.median)


def _cells(found: Estimate, write: Callable[[float], str]) -> tuple[str, str, str]:
    if not math.isfinite(found.high):
        return write(found.median), "?", "?"
    return write(found.median), write(found.low), write(found.high)


def _plain_ticks(axis: Any, factor: float = 1) -> None:
    """Write the ticks of a logarithmic axis as plain numbers, enough of them to read it."""
    low, high = axis.get_view_interval()
    steps = (1, 1.5, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5) if high < 300 * low else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x * factor:g}"))
    axis.set_minor_locator(NullLocator())


# What pictures show:


@dataclass(frozen=True, slots=True)
class Style:
    """How a variant looks in all pictures."""

    name: str
    colour: str
    marker: str
    dash: Any
    matters: bool = True

    def handle(self) -> Line2D:
        """Return its sign in a key."""
        return Line2D(
            [], [], color=self.colour, marker=self.marker, ls=self.dash, lw=1.5, label=self.name
        )


def styles(run: Run) -> dict[str, Style]:
    """Return the looks of all variants; no two of the first 49 have the same.

    Those that matter come first, at most as many as there are colours: the default, single
    execution, the advised variant, the Pareto front and peers.
    """
    measured = [variant.name for variant in run.variants if usable(variant)]
    peers = [v.name for v in run.variants if v.kind == "peer"]
    wanted = ["default", "single", advise(run).variant, *front(run, trade_offs(run)), *peers]
    chosen = [name for name in dict.fromkeys([*wanted, *measured]) if name in measured]
    colours = (INK, *COLOURS)
    found = {}
    for place, name in enumerate(chosen):
        # The next seven have the same colours with the signs and dashes of their neighbours.
        again, at = divmod(place, len(colours))
        sign = (at + again) % len(colours)
        found[name] = Style(name, colours[at], _MARKERS[sign], _DASHES[sign], not again)
    return found


def trade_offs(run: Run) -> dict[str, tuple[Estimate, Estimate]]:
    """Return the rate and the 99th percentile of each variant that has both."""
    return {
        v.name: (rate, p99)
        for v in run.variants
        if (rate := estimate(values(v, figures.rate))) and (p99 := estimate(values(v, figures.p99)))
    }


def front(run: Run, points: Mapping[str, tuple[Estimate, Estimate]]) -> list[str]:
    """Return the Pareto front: those that no other one beats in rate and in latency, by rate.

    It has no peers, which are no choice for a caller of this client.
    """
    found = {
        variant.name: (points[variant.name][0].median, points[variant.name][1].median)
        for variant in figures.rivals(run)
        if variant.name in points
    }
    best: list[str] = []
    for name in sorted(found, key=lambda name: (-found[name][0], found[name][1])):
        if not best or found[name][1] < found[best[-1]][1]:
            best.append(name)
    return best[::-1]


def curve(variant: Variant) -> Sequence[tuple[float, float]]:
    """Return percentiles with their seconds, as far as there are operations for them."""
    texts = tuple(
        found.histogram
        for measured in usable(variant)
        if (found := measured.latencies.get("all")) and found.count and found.histogram
    )
    return _curve(texts) if texts else ()


@lru_cache(maxsize=256)
def _curve(texts: tuple[str, ...]) -> Sequence[tuple[float, float]]:
    merged = HdrHistogram(1, 3_600_000_000, 3)
    for text in texts:
        try:
            merged.add(HdrHistogram.decode(text))
        except (ValueError, zlib.error, HdrCookieException, HdrLengthException) as error:
            raise InvalidSettingError(f"a histogram is damaged ({error!r}): {text[:40]}") from error
    count = merged.get_total_count()
    # The last point has one operation above it.
    nines = max(1.0, math.log10(count))
    steps = [step / _POINTS for step in range(_MEDIAN, math.floor(nines * _POINTS) + 1)]
    named = [float(name[1:]) for name in figures.PERCENTILES if name != "max"]
    percentiles = sorted(
        {*(100 - 100 / 10**nine for nine in steps), *(p for p in named if 100 - p >= 99.99 / count)}
    )
    found = merged.get_percentile_to_value_dict(percentiles)
    return [(percentile, found[percentile] / 1e6) for percentile in percentiles]


def moments(variant: Variant | None) -> Sequence[Moment]:
    """Return the series of the last round that has one."""
    for measured in reversed(usable(variant) if variant else []):
        if measured.series:
            return measured.series
    return ()
