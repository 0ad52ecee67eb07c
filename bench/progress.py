"""Shows progress on standard error: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["show_progress", "tell"]


@contextmanager
def show_progress(console: Console, steps: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call before each of ``steps`` steps, with the step's description."""
    begun = 0
    if not console.is_terminal:

        def say(text: str) -> None:
            nonlocal begun
            begun += 1
            console.file.write(f"[{begun}/{steps}] {text}\n")
            console.file.flush()

        yield say
        return
    columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=steps)

        def advance(text: str) -> None:
            nonlocal begun
            progress.update(task, completed=begun, description=text)
            begun += 1

        yield advance


def tell(message: str) -> None:
    """Write a message to standard error, as one line."""
    sys.stderr.write(f"batchkeeper: {' '.join(message.splitlines())}\n")
