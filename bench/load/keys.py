"""Picks the keys of operations: evenly, by Zipf's law, or mostly a few hot ones."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from itertools import accumulate

from .mixes import Keys

__all__ = ["picker"]

# Drawing by weights takes long, so this many draws are made before the measurement and used again
# from the start. Four for each key, or the tail would never be drawn.
_FEWEST_DRAWS = 1 << 16
_MOST_DRAWS = 1 << 20


def picker(keys: Keys, count: int, dice: random.Random) -> Callable[[], int]:
    """Return a function that draws the number of a key, from 0 to ``count - 1``.

    Args:
        keys: the distribution.
        count: the number of keys of this caller; at least 1.
        dice: the source of randomness; the same seed gives the same draws.
    """
    draw = dice.random
    if keys.distribution == "zipf":
        weights = list(accumulate((rank + 1) ** -keys.skew for rank in range(count)))
        # The most used keys lie in different folders.
        ranks = list(range(count))
        dice.shuffle(ranks)
        draws = min(_MOST_DRAWS, max(_FEWEST_DRAWS, 4 * count))
        return _again(array("l", dice.choices(ranks, cum_weights=weights, k=draws)))
    if keys.distribution == "hot":
        hot, share = min(keys.hot_keys, count), keys.hot_share
        return lambda: int(draw() * (hot if draw() < share else count))
    return lambda: int(draw() * count)


def _again(numbers: array[int]) -> Callable[[], int]:
    at, last = -1, len(numbers) - 1

    def pick() -> int:
        nonlocal at
        at = at + 1 if at < last else 0
        return numbers[at]

    return pick
