"""The load of several processes, each with a client of its own.

The processes are started once and measure one variant after the other. They warm up together and
begin together: each says when it is ready, and waits until all are.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from ...ops.errors import StoreUnavailableError
from .job import Job, perform, share
from .metered import Tick
from .parts import Part

__all__ = ["LocalCrew", "opened_crew", "split"]

_READY: Final = "ready"
_TICK: Final = "tick"
_PART: Final = "part"
_FAILED: Final = "failed"


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

    def measure(self, job: Job, tell: Callable[[Tick], None]) -> list[Part]:
        """Measure a job; see :func:`perform`."""
        return [perform(job, lambda: None, tell)]


class _StoppedError(Exception):
    """Another process has failed before the timed part."""


class _Processes(LocalCrew):
    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    def measure(self, job: Job, tell: Callable[[Tick], None]) -> list[Part]:
        count = len(self._connections)
        for number, connection in enumerate(self._connections):
            connection.send(split(job, number, count))
        gathered = _Gathered(self._connections, tell)
        while gathered.working:
            for connection in gathered.heard():
                gathered.take(connection, *_received(connection))
            gathered.begin_if_ready()
        if gathered.failures:
            raise gathered.failures[0]
        return gathered.parts


class _Gathered:
    """What the processes of one measurement have sent."""

    def __init__(self, connections: Sequence[Connection], tell: Callable[[Tick], None]) -> None:
        self.working = list(connections)
        self.parts: list[Part] = []
        self.failures: list[BaseException] = []
        self._count = len(connections)
        self._ready: list[Connection] = []
        self._ticks: dict[Connection, Tick] = {}
        self._tell = tell

    def heard(self) -> list[Connection]:
        """Wait for a process to send something, and return those that have."""
        found = wait(self.working)
        return [connection for connection in self.working if connection in found]

    def take(self, connection: Connection, what: str, content: Any) -> None:
        if what == _TICK:
            self._ticks[connection] = content
            if len(self._ticks) == self._count:
                self._tell(_together(list(self._ticks.values())))
                self._ticks.clear()
        elif what == _READY:
            self._ready.append(connection)
        else:
            self.working.remove(connection)
            if what == _PART:
                self.parts.append(content)
            elif not isinstance(content, _StoppedError):
                self.failures.append(content)

    def begin_if_ready(self) -> None:
        """Let the processes begin once all are ready; end them if one has failed."""
        if self._ready and len(self._ready) == len(self.working):
            for connection in self._ready:
                connection.send(not self.failures)
            self._ready.clear()


def _received(connection: Connection) -> tuple[str, Any]:
    try:
        found: tuple[str, Any] = connection.recv()
    except EOFError:
        return _FAILED, StoreUnavailableError("a process of the load has ended by itself")
    return found


def _together(ticks: Sequence[Tick]) -> Tick:
    return Tick(
        rate=sum(tick.rate for tick in ticks),
        latencies=[time for tick in ticks for time in tick.latencies],
        share=min(tick.share for tick in ticks),
    )


@contextmanager
def opened_crew(processes: int) -> Iterator[LocalCrew]:
    """Yield a crew of measuring processes, which end with the context."""
    if processes == 1:
        yield LocalCrew()
        return
    # Not by a fork: the client has threads.
    context = multiprocessing.get_context("spawn")
    connections = []
    children = []
    try:
        for number in range(processes):
            ours, theirs = context.Pipe()
            child = context.Process(
                target=_serve, args=(theirs,), name=f"bench {number}", daemon=True
            )
            child.start()
            theirs.close()
            connections.append(ours)
            children.append(child)
        yield _Processes(connections)
    except BaseException:
        # They may be in the middle of a measurement.
        for child in children:
            child.terminate()
        raise
    finally:
        for connection in connections:
            connection.close()
        for child in children:
            child.join()


def _serve(connection: Connection) -> None:
    """Measure the jobs that arrive, until the other side has gone."""
    # Ctrl-C reaches all processes of a terminal; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sending = threading.Lock()  # ticks come from another thread

    def send(what: str, content: object) -> None:
        with sending:
            connection.send((what, content))

    def ready() -> None:
        send(_READY, None)
        if not connection.recv():
            raise _StoppedError

    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job: Job = connection.recv()
            try:
                part = perform(job, ready, lambda tick: send(_TICK, tick))
            except (EOFError, BrokenPipeError):
                return
            except Exception as error:
                send(_FAILED, error)
            else:
                send(_PART, part)
