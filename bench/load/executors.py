"""The load of Spark's executors, for stores that one machine cannot load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

from .job import Job, perform
from .parts import Part
from .processes import LocalCrew, split
from .spark import spark_session


class SparkCrew(LocalCrew):
    """Measures in tasks of Spark, which run at the same time.

    The executors need batchkeeper with its extra ``bench``, and one free slot for each task.

    Args:
        spark: the session.
        tasks: the number of tasks.
    """

    def __init__(self, spark: SparkSession, tasks: int) -> None:
        self._context = spark.sparkContext
        self._tasks = tasks

    def measure(self, job: Job) -> list[Part]:
        tasks = self._tasks

        def run(numbers: Iterable[int]) -> Iterable[Part | Exception]:
            for number in numbers:
                yield _perform(split(job, number, tasks))

        found: list[Any] = (
            self._context.parallelize(range(tasks), tasks).barrier().mapPartitions(run).collect()
        )
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found


def _perform(job: Job) -> Part | Exception:
    barrier: Callable[[], None] = BarrierTaskContext.get().barrier
    met = False

    def meet() -> None:
        nonlocal met
        met = True
        barrier()

    try:
        return perform(job, meet)
    except Exception as error:
        if not met:
            barrier()  # The others wait there.
        return error


@contextmanager
def spark_crew(master: str, tasks: int, directory: Path) -> Iterator[SparkCrew]:
    """Yield a crew of tasks of Spark, and end the session afterwards.

    Args:
        master: the URL of a cluster, or ``local`` for processes of this machine.
        tasks: the number of tasks, which all run at the same time.
        directory: the folder for Spark's own files.
    """
    url = f"local[{tasks}]" if master == "local" else master
    with spark_session(directory, master=url) as spark:
        yield SparkCrew(spark, tasks)
