"""Options that commands of several groups share, and types of arguments for argparse."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ..ops.durations import parse_duration

__all__ = [
    "FORMATS",
    "add_output",
    "add_timeouts",
    "at_least",
    "count",
    "duration",
    "items",
    "number",
    "seconds",
    "size",
]

#: The values of ``--output``.
FORMATS: Final = ("table", "json", "jsonl")

# etcdctl's name for what is written by default.
_OTHER_NAMES: Final = {"simple": "table"}


_Number = TypeVar("_Number", int, float)

_Value = TypeVar("_Value")

_YEAR: Final = 366 * 24 * 3600.0

_SIZES: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def duration(text: str) -> float:
    """Return the seconds of a duration; a type of argument."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def number(text: str, kind: Callable[[str], _Number]) -> _Number:
    """Return a finite number of a kind."""
    try:
        found = kind(text)
        if math.isfinite(found):
            return found
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"not {'an int' if kind is int else 'a number'}: {text!r}")


def at_least(
    lowest: float, kind: Callable[[str], _Number], most: float = sys.maxsize
) -> Callable[[str], _Number]:
    """Return a type of argument: a number of at least ``lowest``, and at most ``most``."""

    def parse(text: str) -> _Number:
        found = number(text, kind)
        if found < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {text}")
        if found > most:
            raise argparse.ArgumentTypeError(f"must be at most {most:,}, not {text:.80}")
        return found

    return parse


def seconds(text: str) -> float:
    """Return the seconds of a duration: ``10``, ``10s``, ``100ms``, ``2m`` or ``1m30s``."""
    found = duration(text)
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"not a duration such as 10s or 100ms: {text!r}")
    if found > _YEAR:
        raise argparse.ArgumentTypeError(f"must be at most a year, not {text:.80}")
    return found


def count(text: str) -> int:
    """Return an int of at least 0."""
    return at_least(0, int)(text)


def size(text: str) -> int:
    """Return the bytes of a size: ``1000``, ``256KiB``, ``64MiB`` or ``1GiB``."""
    found = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB|)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"not a size such as 1000 or 256KiB: {text!r}")
    return int(found[1]) * _SIZES[found[2]]


def items(kind: Callable[[str], _Value]) -> Callable[[str], list[_Value]]:
    """Return a type of argument: values with commas between them, or ranges of them.

    ``LOW..HIGH`` doubles from ``LOW`` to ``HIGH``: ``16..128`` is ``16,32,64,128``.
    """

    def parse(text: str) -> list[_Value]:
        found: list[_Value] = []
        for part in text.split(","):
            low, dots, high = part.partition("..")
            found += _doubled(kind(low), kind(high), part) if dots else [kind(part)]
        if len(set(found)) != len(found):
            raise argparse.ArgumentTypeError(f"a value stands there twice: {text}")
        return found

    return parse


def _doubled(low: Any, high: Any, text: str) -> list[Any]:
    if isinstance(low, str) or not 0 < low <= high:
        raise argparse.ArgumentTypeError(f"not a range of numbers above 0, such as 16..128: {text}")
    found = []
    while low <= high:
        found.append(low)
        low *= 2
    return found


class _Output(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, _OTHER_NAMES.get(str(values), values))


def add_output(
    command: argparse._ActionsContainer, note: str = "", others: tuple[str, ...] = ()
) -> None:
    """Add ``-o``, with etcdctl's ``-w``. It has no default, which would replace an earlier one.

    Args:
        command: a parser, or a group of its arguments.
        note: what the formats mean for this command, for the help.
        others: formats that only this command has.
    """
    formats = (*FORMATS, *others)
    command.add_argument(
        *("-o", "--output", "-w", "--write-out"),
        dest="output",
        action=_Output,
        choices=(*formats, *_OTHER_NAMES),
        metavar="FORMAT",
        default=argparse.SUPPRESS,
        help=f"{', '.join(formats)} or simple, which is table (default: table)"
        + (f"; {note}" if note else ""),
    )


def add_timeouts(command: argparse._ActionsContainer) -> None:
    """Add the time-outs of a store. They have no defaults, which would replace earlier ones."""
    for name, what, default in (
        ("--connect-timeout", "within which the store must answer", "10s"),
        ("--timeout", "until the deadline of each operation", "30s"),
    ):
        command.add_argument(
            name,
            type=duration,
            default=argparse.SUPPRESS,
            metavar="TIME",
            help=f"{what}, such as 5s or 100ms (default: {default})",
        )
