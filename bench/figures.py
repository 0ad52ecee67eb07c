"""Computes figures from samples: medians with their spread, latency histograms, ratios."""

from __future__ import annotations

import math
import statistics
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..ops.errors import UnsupportedError

__all__ = [
    "PERCENTILES",
    "Figure",
    "Ratio",
    "check_extra",
    "figure_as_json",
    "histogram",
    "histogram_class",
    "percentiles",
    "ratio",
    "ratio_as_json",
]

PERCENTILES: Final = (50.0, 95.0, 99.0)

# Microseconds up to an hour, with three significant digits.
_HIGHEST: Final = 3_600_000_000
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure with a value for each round: their median, and the least and the greatest."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def low(self) -> float:
        return min(self.rounds)

    @property
    def high(self) -> float:
        return max(self.rounds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two figures that were measured in the same rounds.

    ``median`` is the ratio of the two medians. ``low`` and ``high`` are the least and the greatest
    ratio within one round, which do not depend on the machine's speed from round to round.
    """

    median: float
    low: float
    high: float


def ratio(figure: Figure, base: Figure) -> Ratio:
    """Return the ratio of two figures; infinite if the base is 0."""
    rounds = [_divide(a, b) for a, b in zip(figure.rounds, base.rounds, strict=True)]
    return Ratio(_divide(figure.median, base.median), min(rounds), max(rounds))


def _divide(a: float, b: float) -> float:
    return a / b if b else math.inf


def check_extra() -> None:
    """Check that the extra ``bench`` is installed. Benchmarks call it before they measure.

    Raises:
        UnsupportedError: a package of the extra is missing. The message says how to install it.
    """
    histogram_class()
    try:
        import psutil
    except ImportError as error:
        raise _missing("psutil", error) from error
    del psutil


def _missing(package: str, error: ImportError) -> UnsupportedError:
    return UnsupportedError(
        f"the package {package!r} cannot be imported ({error}): pip install 'batchkeeper[bench]'"
    )


def histogram_class() -> Any:
    """Return the class of HdrHistogram.

    Raises:
        UnsupportedError: its package is missing.
    """
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise _missing("hdrhistogram", error) from error
    return HdrHistogram


def histogram(*times: array[int]) -> Any:
    """Return an ``HdrHistogram`` in microseconds of latencies in nanoseconds."""
    found = histogram_class()(1, _HIGHEST, _DIGITS)
    # Recording is slow in pure Python, so equal values are recorded together. 0 cannot be recorded.
    counts: Counter[int] = Counter()
    for nanoseconds in times:
        counts.update([time // 1000 or 1 for time in nanoseconds])
    for microseconds, count in counts.items():
        found.record_value(min(microseconds, _HIGHEST), count)
    return found


def percentiles(found: Any, which: Sequence[float] = PERCENTILES) -> dict[str, float]:
    """Return percentiles and the max of a histogram in seconds; all are 0 if it is empty."""
    values: Mapping[float, int] = {}
    if found.get_total_count():
        values = found.get_percentile_to_value_dict(list(which))
    named = {f"p{percentile:g}": values.get(percentile, 0) / 1e6 for percentile in which}
    return {**named, "max": found.get_max_value() / 1e6}


def figure_as_json(figure: Figure) -> dict[str, Any]:
    return {
        "median": figure.median,
        "low": figure.low,
        "high": figure.high,
        "rounds": list(figure.rounds),
    }


def ratio_as_json(ratio: Ratio) -> dict[str, float]:
    return {"median": ratio.median, "low": ratio.low, "high": ratio.high}
