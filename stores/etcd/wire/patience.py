"""Learns how long to wait for an answer before asking another member.

Several threads use it without a lock. Each operation reads or writes one number, so two threads
that write at the same moment lose one observation at most.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Patience"]

# Seconds. No answer is overdue sooner.
_LEAST_PATIENCE: Final = 0.5
# More doublings would not fit into a float.
_MOST_DOUBLINGS: Final = 100


class Patience:
    """Learns how long to wait for an answer before asking another member.

    This is TCP's retransmission time-out (RFC 6298): the usual time, and four times its usual
    deviation. It grows at once with a slow cluster, so a cluster under load gets few copies.

    Args:
        steady: the number of attempts at one request that have the same limit. Each later one has
            twice the time of the one before.
        most: the longest limit in seconds.
    """

    def __init__(self, steady: int = 1, most: float = math.inf) -> None:
        self._steady = steady
        self._most = most
        self._usual = 0.0
        self._deviation = 0.0

    def took(self, seconds: float) -> None:
        """Note how long an answer took."""
        difference = seconds - self._usual
        self._usual += difference / 8
        self._deviation += (abs(difference) - self._deviation) / 4

    def limit(self, attempt: int) -> float:
        """Return the seconds that an attempt may take, after this many earlier ones."""
        usual = max(_LEAST_PATIENCE, self._usual + 4 * self._deviation)
        doublings = min(max(0, attempt + 1 - self._steady), _MOST_DOUBLINGS)
        return min(self._most, usual * 2.0**doublings)
