"""Shows a benchmark while it runs: how far it is, and what it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .load.metered import Tick

__all__ = ["Live", "show_live"]


class Live:
    """Receives what happens.

    Args:
        step: shows the beginning of a measurement.
        tick: shows what is seen of it; any thread may call it.
    """

    def __init__(self, step: Callable[[str, int, int], None], tick: Callable[[Tick], None]) -> None:
        self.step = step
        self.tick = tick


@contextmanager
def show_live(console: Console) -> Iterator[Live]:
    """Yield what shows a run on a terminal, and as a line for each measurement elsewhere."""
    if not console.is_terminal:

        def say(text: str, number: int, total: int) -> None:
            console.file.write(f"[{number}/{total}] {text}\n")
            console.file.flush()

        yield Live(say, lambda _: None)
        return
    columns = (
        BarColumn(20),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[seen]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, expand=False) as progress:
        task = progress.add_task("", total=1, seen="")
        over = 0  # measurements

        def step(text: str, number: int, total: int) -> None:
            nonlocal over
            over = number - 1
            progress.update(task, completed=over, total=total, description=text, seen="")

        def tick(seen: Tick) -> None:
            progress.update(task, completed=over + seen.share, seen=_seen(seen))

        yield Live(step, tick)


def _seen(tick: Tick) -> str:
    times = sorted(tick.latencies)
    if not times:
        return f"{tick.rate:,.0f}/s"
    p50, p99 = (times[min(len(times) - 1, len(times) * part // 100)] / 1e6 for part in (50, 99))
    return f"{tick.rate:,.0f}/s p50 {p50:.1f} p99 {p99:.1f} ms"
