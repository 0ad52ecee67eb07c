"""Interleaved rounds: all variants in turn, again and again.

The speed of a machine changes from minute to minute, and that of a server with the data it holds,
by more than what is compared differs. So each round measures every variant once, in an order of its
own, and figures are compared within rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_T = TypeVar("_T")

#: Shows the beginning of a measurement: a text, its number from 1, and the number of all.
Show: TypeAlias = Callable[[str, int, int], None]


class Rounds:
    """Counts rounds and turns, and shows each turn before it begins.

    Args:
        show: shows the turns.
        order: returns the order of one round, from the names and the number of the round.

    Attributes:
        number: the number of the round, from 0.
    """

    def __init__(self, show: Show, order: Callable[[Sequence[str], int], Sequence[str]]) -> None:
        self._show = show
        self._order = order
        self._done = 0
        self._expected = 0
        self.number = 0

    def expect(self, turns: int) -> None:
        """Say how many turns come from now on."""
        self._expected = self._done + turns

    def show(self, text: str) -> None:
        """Show a turn, which begins now."""
        self._done += 1
        self._show(text, self._done, self._expected)

    def turns(self, *groups: Sequence[str]) -> Iterator[str]:
        """Yield the names of one round, group after group."""
        for names in groups:
            for name in self._order(names, self.number):
                self.show(f"round {self.number + 1}: {name}")
                yield name
        self.number += 1


def alternating(names: Sequence[_T], number: int) -> Sequence[_T]:
    """Return the names in turn forwards and backwards: neighbours stay beside each other."""
    return names[::-1] if number % 2 else names


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
