"""Types of arguments, for argparse, which puts the argument's name before their messages."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

from ..pipeline.arguments import duration

__all__ = ["at_least", "integer", "list_of", "number", "seconds"]

_Number = TypeVar("_Number", int, float)


def integer(text: str) -> int:
    """Return an int."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not an int: {text!r}") from None


def number(text: str, kind: Callable[[str], _Number]) -> _Number:
    """Return a finite number of a kind."""
    try:
        found = kind(text)
        if math.isfinite(found):
            return found
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"not {'an int' if kind is int else 'a number'}: {text!r}")


def at_least(lowest: float, kind: Callable[[str], _Number]) -> Callable[[str], _Number]:
    """Return a type of argument: a number of at least ``lowest``."""

    def parse(text: str) -> _Number:
        found = number(text, kind)
        if found < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {text}")
        return found

    return parse


def list_of(kind: Callable[[str], _Number]) -> Callable[[str], list[_Number]]:
    """Return a type of argument: numbers with commas between them."""
    return lambda text: [number(part, kind) for part in text.split(",")]


def seconds(text: str) -> float:
    """Return the seconds of a duration: ``10``, ``10s``, ``100ms``, ``2m`` or ``1m30s``."""
    found = duration(text)
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"not a duration such as 10s or 100ms: {text!r}")
    return found
