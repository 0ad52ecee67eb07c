"""Histograms of latencies, and the packages that benchmarks need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from ..ops.errors import UnsupportedError

PERCENTILES: Final = (50.0, 95.0, 99.0)

# Microseconds up to an hour, with three significant digits.
_HIGHEST: Final = 3_600_000_000
_DIGITS: Final = 3


def check_extra() -> None:
    """Check that the extra ``bench`` is installed. Benchmarks call it before they begin.

    Raises:
        UnsupportedError: a package of the extra is missing. The message says how to install it.
    """
    for module in ("hdrh.histogram", "psutil", "scipy"):
        try:
            import_module(module)
        except ImportError as error:
            raise UnsupportedError(
                f"a benchmark needs the extra 'bench' ({error}): pip install 'batchkeeper[bench]'"
            ) from error


def histogram_class() -> Any:
    """Return the class of HdrHistogram."""
    return import_module("hdrh.histogram").HdrHistogram


def scipy_stats() -> Any:
    """Return the module ``scipy.stats``, whose import takes longer than most commands."""
    return import_module("scipy.stats")


def histogram(*times: Sequence[int]) -> Any:
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
