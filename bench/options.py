"""What the commands of the benchmark share: how they declare options, write files, and tell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ..ops.errors import InvalidSettingError
from ..pipeline.arguments import at_least, seconds

#: Types of arguments: a number of something; one of processes or threads; a time to measure.
FROM_1: Final = at_least(1, int, 1_000_000)
FEW: Final = at_least(1, int, 1_000)
TIME: Final = at_least(0.01, seconds)


def declare(group: argparse._ActionsContainer) -> Callable[..., None]:
    """Return a function that declares an option of a group.

    It takes the name, the type, the name of the value, the default, and what the option is for. The
    help says what the default is, unless that is ``None``.
    """

    def option(
        name: str,
        kind: Callable[[str], Any],
        value: str | None,
        default: Any,
        about: str,
        **more: Any,
    ) -> None:
        if default is not None:
            shown = f"{default:g}" if isinstance(default, float) else default
            about += f" (default: {shown}{'s' if kind in (seconds, TIME) else ''})"
        group.add_argument(name, type=kind, metavar=value, default=default, help=about, **more)

    return option


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Report a file or folder that cannot be written as bad input.

    Raises:
        InvalidSettingError: the block has raised an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise InvalidSettingError(
            f"{error.filename or file} cannot be written: {error.strerror}"
        ) from error


def output_console(width: int) -> Console:
    """Return the console for results; if they are piped, it has this width."""
    return Console(width=None if sys.stdout.isatty() else width)


def tell(message: str) -> None:
    """Write a message to standard error, as one line."""
    sys.stderr.write(f"batchkeeper: {' '.join(message.splitlines())}\n")


def check_writable(*files: Path) -> None:
    """Refuse files that could not be written at the end.

    Raises:
        InvalidSettingError: one of them cannot be written, or two are the same.
    """
    real = [file.resolve() for file in files]
    for file in real:
        if real.count(file) > 1:
            raise InvalidSettingError(f"two results cannot go into the same file: {file}")
        new = not file.exists()
        if new or file.is_file() or file.is_dir():  # Opening a pipe would end what reads it.
            with writing(file), file.open("a"):
                pass
        if new:
            file.unlink()
