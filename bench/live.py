"""Shows a benchmark while it runs: how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Show", "show_live"]

#: Shows the beginning of a measurement: a text, its number from 1, and the number of all.
Show: TypeAlias = Callable[[str, int, int], None]


@contextmanager
def show_live(console: Console) -> Iterator[Show]:
    """Yield what shows a run on a terminal, and as a line for each measurement elsewhere."""
    if not console.is_terminal:

        def say(text: str, number: int, total: int) -> None:
            console.file.write(f"[{number}/{total}] {text}\n")
            console.file.flush()

        yield say
        return
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, expand=False) as progress:
        task = progress.add_task("", total=1)

        def step(text: str, number: int, total: int) -> None:
            progress.update(task, completed=number - 1, total=total, description=text)

        yield step
