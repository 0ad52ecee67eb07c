"""Pauses between attempts: longer after each failure, and spread by jitter."""

from __future__ import annotations

import random
from typing import NamedTuple

__all__ = ["Backoff"]

# Enough for every bound; a larger power would not fit into a float.
_MOST_DOUBLINGS = 1_000


class Backoff(NamedTuple):
    """Exponential pauses with jitter, so that clients that failed together do not retry together.

    Attributes:
        first: seconds of the first pause, before jitter. Each pause is twice as long as the last.
        longest: the longest pause in seconds.
        least: the smallest factor that jitter applies to a pause; 0 allows no pause at all.
    """

    first: float
    longest: float
    least: float = 0.5

    def pause(self, failures: int) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            failures: the number of earlier pauses in a row; 0 for the first pause.
        """
        length = min(self.longest, self.first * 2.0 ** min(failures, _MOST_DOUBLINGS))
        return length * random.uniform(self.least, 1.0)  # noqa: S311 - no secret
