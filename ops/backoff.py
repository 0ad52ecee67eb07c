"""How long to wait before another attempt: longer after each failure, and not all at once."""

from __future__ import annotations

import random
from typing import NamedTuple

__all__ = ["Backoff"]

# Enough for every bound: a power that is larger would not fit into a float.
_MOST_DOUBLINGS = 1_000


class Backoff(NamedTuple):
    """Exponential pauses with jitter, so that clients that failed together do not return together.

    Attributes:
        first: seconds of the first pause, before jitter; each is twice as long as the one before.
        longest: seconds that no pause exceeds.
        least: the smallest part of a pause that jitter leaves; 0 for anything down to no pause.
    """

    first: float
    longest: float
    least: float = 0.5

    def pause(self, failures: int) -> float:
        """Return the seconds to wait.

        Args:
            failures: those in a row before the one that is waited for now: 0 for the first pause.
        """
        length = min(self.longest, self.first * 2.0 ** min(failures, _MOST_DOUBLINGS))
        return length * random.uniform(self.least, 1.0)  # noqa: S311 - no secret
