"""Compares Python functions with their compiled twins."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from batchkeeper.ops.acceleration import PAIRS

__all__ = ["agree", "assert_keeps_no_memory", "outcome"]


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result with the types of all its parts, or the error."""
    try:
        return shown(function(*arguments))
    except Exception as error:
        return shown(error)


def shown(found: Any) -> Any:
    """Return a result in a form that equals only that of an equal result of the same type."""
    if isinstance(found, list | tuple):
        return type(found), [shown(part) for part in found]
    if isinstance(found, Exception):
        return type(found), str(found), {k: repr(v) for k, v in vars(found).items()}
    slots = getattr(type(found), "__slots__", ())
    if slots and not isinstance(found, bytes | str | int | frozenset):
        return type(found), [(name, shown(getattr(found, name, None))) for name in slots]
    return type(found), found


def agree(twin: str, *arguments: Any) -> Any:
    """Call both twins, assert that they agree, and return what they have in common."""
    python, compiled = PAIRS[twin]
    assert compiled is not None
    expected = outcome(python, *arguments)
    assert outcome(compiled, *arguments) == expected
    return expected


def assert_keeps_no_memory(rounds: Callable[[], Any], least: int = 1) -> None:
    """Assert that repeated calls leave no objects behind.

    A leak leaves at least ``least`` of them in each round.
    """
    levels = array("q")  # Not a list, which would keep a new int for each round.
    for _ in range(8):
        rounds()
        gc.collect()
        levels.append(sys.getallocatedblocks())
    # Caches fill up in the first rounds. A leak shows in every round.
    assert min(after - before for before, after in pairwise(levels[2:])) < least, levels
