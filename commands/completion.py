"""The command ``completion``: writes a script with which a shell completes ``batchkeeper``.

The script is complete in itself, so completing starts no Python. ``shtab`` writes it from the
parsers of all commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from ..ops.exit_codes import OK
from .output import write

__all__ = ["add_arguments", "run_with"]

_SHELLS: Final = ("bash", "zsh", "fish")

_INSTALL: Final = """\
to install it, once:
  bash  batchkeeper completion bash > ~/.local/share/bash-completion/completions/batchkeeper
  zsh   batchkeeper completion zsh > DIR/_batchkeeper, where DIR is in $fpath
  fish  batchkeeper completion fish > ~/.config/fish/completions/batchkeeper.fish

"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    command.epilog = f"{_INSTALL}{command.epilog}"
    command.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=", ".join(_SHELLS))


def run_with(parser: Callable[[], argparse.ArgumentParser], arguments: argparse.Namespace) -> int:
    """Write the script for the shell that the arguments name, and return the exit code.

    Args:
        parser: makes the parser of the command, with the arguments of all its commands.
        arguments: the arguments of this command.
    """
    import shtab

    complete = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    whole = parser()
    for action in _actions(whole):
        if action.metavar in complete or action.dest == "dir":
            action.complete = complete.get(str(action.metavar), shtab.DIRECTORY)  # type: ignore[attr-defined]
    write(shtab.complete(whole, shell=arguments.shell).encode())
    return OK


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of a parser and of the parsers below it."""
    found = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found.extend(_actions(below))
    return found
