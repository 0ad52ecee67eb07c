"""Durations as people write them: ``5``, ``5s``, ``100ms``, ``2m`` or ``1m30s``."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["parse_duration"]

_UNITS: Final = {"us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(us|ms|s|m|h)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> float:
    """Return the seconds of a duration. A number without a unit is in seconds.

    Whoever takes the duration checks its bounds: numbers without a unit may be negative.

    Raises:
        ValueError: it is neither a number, nor numbers with the units us, ms, s, m and h.
    """
    try:
        return float(text)
    except ValueError:
        pass
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"not a duration such as 10s, 100ms or 1m30s: {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
