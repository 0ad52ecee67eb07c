"""Shows the progress of a job: a bar of Spark's tasks on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

__all__ = ["Steps", "progress"]

_EVERY: Final = 0.2  # seconds between two updates


class Steps:
    """Shows the steps of a job, one after the other. Without ``bars``, it shows nothing."""

    def __init__(self, bars: Progress | None = None) -> None:
        self._bars = bars
        self._bar: TaskID | None = None
        #: The session whose tasks are counted, once it has started.
        self.spark: SparkSession | None = None

    def begin(self, name: str) -> None:
        """Begin a step, and show its name."""
        if self._bars is None:
            return
        if self._bar is not None:
            self._bars.update(self._bar, visible=False)
        self._bar = self._bars.add_task(name, total=None)

    def look(self) -> None:
        """Show the number of completed tasks in Spark's running stages."""
        if self._bars is None or self._bar is None or self.spark is None:
            return
        tracker = self.spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if known:
            self._bars.update(
                self._bar,
                completed=sum(stage.numCompletedTasks for stage in known),
                total=sum(stage.numTasks for stage in known),
            )


@contextmanager
def progress() -> Generator[Steps, None, None]:
    """Show a job's steps while it runs, on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield Steps()
        return
    # A duplicate of the descriptor, because standard error is redirected while Java starts.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal:
        console = Console(file=terminal)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
        )
        ended = Event()
        with Progress(*columns, console=console, transient=True) as bars:
            steps = Steps(bars)

            def watch() -> None:
                while not ended.wait(_EVERY):
                    # A failure of the bar must not affect the job. Spark Connect has no tracker,
                    # so the bar moves without numbers.
                    with suppress(Exception):
                        steps.look()

            watcher = Thread(target=watch, name="batchkeeper-progress", daemon=True)
            watcher.start()
            try:
                yield steps
            finally:
                ended.set()
                watcher.join()
