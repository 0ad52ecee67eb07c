"""What pictures show: the variants that matter, the Pareto front, curves, series."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from hdrh.codec import HdrCookieException, HdrLengthException
from hdrh.histogram import HdrHistogram
from matplotlib.lines import Line2D

from ....ops.errors import InvalidSettingError
from .. import figures
from ..advice import advise
from ..figures import usable, values
from ..runs import Moment, Run, Variant
from ..statistics import Estimate, estimate
from .svg import COLOURS, INK, PALE

__all__ = ["OTHERS", "Style", "curve", "front", "moments", "styles", "trade_offs"]

_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 2)))
#: A curve has this many points for each nine.
_POINTS: Final = 12
#: The faster half is of no interest, and curves fall steeply there.
_MEDIAN: Final = math.ceil(_POINTS * math.log10(2))


@dataclass(frozen=True, slots=True)
class Style:
    """How a variant looks in all pictures."""

    name: str
    colour: str
    marker: str
    dash: Any

    def handle(self) -> Line2D:
        """Return its sign in a key."""
        return Line2D(
            [], [], color=self.colour, marker=self.marker, ls=self.dash, lw=1.5, label=self.name
        )


#: How all others look.
OTHERS: Final = Style("other variants", PALE, "o", "-")


def styles(run: Run) -> dict[str, Style]:
    """Return the looks of the variants that matter most, at most as many as there are colours.

    These are the default, single execution, the advised variant, the Pareto front and peers.
    """
    measured = [variant.name for variant in run.variants if usable(variant)]
    peers = [v.name for v in run.variants if v.kind == "peer"]
    wanted = ["default", "single", advise(run).variant, *front(run, trade_offs(run)), *peers]
    chosen = [name for name in dict.fromkeys(wanted) if name in measured] or measured
    colours = (INK, *COLOURS)
    return {
        name: Style(name, colour, marker, dash)
        for name, colour, marker, dash in zip(chosen, colours, _MARKERS, _DASHES, strict=False)
    }


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
