"""The load of several processes, each with a client of its own.

The processes are started once and measure one variant after the other. They warm up together and
begin together: each says when it is ready, and waits until all are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection

from ..children import Child, child
from .job import Job, perform, share
from .parts import Part


def split(job: Job, process: int, processes: int) -> Job:
    """Return the part of a job that one of several processes has."""
    pace = job.pace
    return replace(
        job,
        process=process,
        processes=processes,
        pace=replace(
            pace,
            in_flight=max(1, share(pace.in_flight, process, processes)),
            rate=None if pace.rate is None else pace.rate / processes,
        ),
    )


class LocalCrew:
    """This process alone."""

    def measure(self, job: Job) -> list[Part]:
        """Measure a job; see :func:`perform`."""
        return [perform(job, lambda: None)]


class _StoppedError(Exception):
    """Another process has failed before the timed part."""


class _Processes(LocalCrew):
    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children

    def measure(self, job: Job) -> list[Part]:
        for number, one in enumerate(self._children):
            one.send(split(job, number, len(self._children)))
        # Each one is ready, or has failed.
        failures = [one.receive() for one in self._children]
        waiting = [
            one for one, error in zip(self._children, failures, strict=True) if error is None
        ]
        for one in waiting:
            one.send(len(waiting) == len(self._children))
        found = [one.receive() for one in waiting]
        for error in (*failures, *found):
            if isinstance(error, Exception) and not isinstance(error, _StoppedError):
                raise error
        return found


@contextmanager
def opened_crew(processes: int) -> Iterator[LocalCrew]:
    """Yield a crew of measuring processes, which end with the context."""
    with ExitStack() as stack:
        if processes == 1:
            yield LocalCrew()
        else:
            yield _Processes([stack.enter_context(child(_serve)) for _ in range(processes)])


def _serve(connection: Connection) -> None:
    """Measure the jobs that arrive, until the other side has gone."""

    def ready() -> None:
        connection.send(None)
        if not connection.recv():
            raise _StoppedError

    connection.send("started")
    while True:
        job: Job = connection.recv()
        try:
            connection.send(perform(job, ready))
        except (EOFError, BrokenPipeError):
            return
        except Exception as error:
            connection.send(error)
