"""Another process that takes part in a measurement, and how the two keep time.

Each measurement that needs one has a module that is also the process's program. The process prints
``ready`` when it is, and waits for a line before it begins.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from ...ops.errors import StoreUnavailableError

__all__ = ["Process", "await_go", "begin", "line_of", "other_process", "say"]

Process: TypeAlias = "subprocess.Popen[str]"

_READY: Final = "ready\n"


@contextmanager
def other_process(module: str, *arguments: str) -> Iterator[Process]:
    """Start a module as a process, and wait until it is ready."""
    command = [sys.executable, "-m", module, *arguments]
    # Leaving the block closes the pipes, which ends the process, and waits for its end.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if line_of(process) != _READY:
            raise StoreUnavailableError("the other client has failed to open the store")
        yield process


def begin(process: Process) -> None:
    """Let a process begin."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def line_of(process: Process) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise StoreUnavailableError("the other client has failed")


# In the other process:


def await_go() -> bool:
    """Say that this process is ready, and wait; return ``False`` if its parent has gone."""
    say(_READY)
    return bool(sys.stdin.readline())


def say(text: str) -> None:
    """Print a line for the parent."""
    sys.stdout.write(text)
    sys.stdout.flush()
