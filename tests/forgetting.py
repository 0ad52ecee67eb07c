"""Whether a part forgets the callbacks that it is not to call any more."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import TypeVar

from .waiting import until

__all__ = ["forgets"]

T = TypeVar("T", bound=Callable[..., object])


def forgets(callback: Callable[[], T], work: Callable[[T], object]) -> bool:
    """Make a callback, and do some work with it; say whether nobody has it after that."""
    made = callback()
    work(made)
    left = weakref.ref(made)
    del made
    until(lambda: gc.collect() >= 0 and left() is None, "the callback is still known")
    return True
