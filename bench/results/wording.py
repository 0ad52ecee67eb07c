"""Figures and lists in words, the same in tables, advice and reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .statistics import Estimate


def number(value: float | None) -> str:
    """Return a rate or a count, without digits that no measurement has."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def milliseconds(seconds: float | None) -> str:
    """Return a time in milliseconds with three significant digits."""
    return times(None if seconds is None else seconds * 1000)


def times(ratio: float | None) -> str:
    """Return a ratio with three significant digits."""
    if ratio is None:
        return ""
    if ratio >= 100:
        return f"{ratio:,.0f}"
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def share(value: float) -> str:
    """Return a share in percent, one below 10 % with a digit where it would be 0 otherwise."""
    return f"{value:.0%}" if value >= 0.01 or not value else f"{value:.1%}"


def spread(found: Estimate) -> str:
    """Return how far an interval reaches, as ``±7%``; ``?`` after one round."""
    return f"±{found.spread:.0%}" if math.isfinite(found.spread) else "?"


def interval(found: Estimate) -> str:
    """Return the interval of a ratio, as ``1.21 to 1.44``."""
    return f"{times(found.low)} to {times(found.high)}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names as ``A, B and 7 more``."""
    shown = list(names[:most])
    if len(names) > most:
        return f"{'; '.join(shown)} and {len(names) - most} more"
    return " and ".join([*(["; ".join(shown[:-1])] if len(shown) > 1 else []), *shown[-1:]])


def count(number: int, noun: str) -> str:
    """Return a count with its noun, as ``1 round`` or ``2 rounds``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
