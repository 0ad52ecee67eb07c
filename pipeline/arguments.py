"""Options that commands of several groups share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from ..ops.durations import parse_duration

__all__ = ["FORMATS", "add_output", "add_timeouts", "duration"]

#: The values of ``--output``.
FORMATS: Final = ("table", "json", "jsonl")

# etcdctl's name for what is written by default.
_OTHER_NAMES: Final = {"simple": "table"}


def duration(text: str) -> float:
    """Return the seconds of a duration; a type of argument."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
