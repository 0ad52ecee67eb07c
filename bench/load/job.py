"""One measurement in one process: it makes the keys, loads the store, and reads everything back."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from threading import Barrier, BrokenBarrierError
from typing import Any, Final

from ... import open_async_store, open_store
from ...batching import BatchingConfig, MetadataStore, Metrics
from ...ops.errors import StoreUnavailableError
from ..machine import ServerUse
from .callers import Caller, Counted, Loop, StoreGoneError, TaskCaller, latencies
from .metered import Meter, Tick
from .mixes import Mix
from .parts import Flushes, Part, encoded, flushes_between
from .peers import PEERS
from .readback import await_vanished, read_back
from .work import Work, check

__all__ = ["Job", "Pace", "perform", "share"]

#: The timeout of an operation in seconds, so that a dead store is noticed.
_OPERATION_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How a process loads the store.

    Attributes:
        in_flight: operations under way, over all threads; for tasks, their number.
        threads: threads that share them.
        tasks: whether tasks of one event loop do instead.
        rate: operations per second for an open loop; ``None`` for a closed one.
        seconds: the length of the timed part.
        warm_up: the seconds before it.
    """

    in_flight: int = 1000
    threads: int = 1
    tasks: bool = False
    rate: float | None = None
    seconds: float = 0.5
    warm_up: float = 0.15


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement of one process. It can be pickled.

    Attributes:
        url: the URL of the store.
        connect_timeout: seconds within which it must answer.
        root: the folder of this measurement.
        batching: the batch settings; ``None`` for a peer.
        peer: the name of a peer, if one is measured.
        mix: the mix.
        pace: how this process loads the store.
        seed: the seed of all random choices.
        process: the number of this process, from 0.
        processes: the number of processes.
        server: the ids of the servers' processes, if they run on this machine; the first process
            looks at them.
    """

    url: str
    connect_timeout: float
    root: str
    batching: BatchingConfig | None
    peer: str | None
    mix: Mix
    pace: Pace
    seed: int = 1
    process: int = 0
    processes: int = 1
    server: tuple[int, ...] = ()


def perform(job: Job, ready: Callable[[], None], tell: Callable[[Tick], None]) -> Part:
    """Measure.

    Args:
        job: what to measure.
        ready: called once when the warm-up has ended. The timed part begins when it returns.
        tell: receives a tick a few times meanwhile, in a thread of its own.

    Raises:
        WrongAnswerError: the store lost or changed an acknowledged write.
        MetadataStoreError: the store cannot be reached, or failed before the timed part.
    """
    callers = 1 if job.pace.tasks else job.pace.threads
    works = [
        Work(
            job.mix,
            f"{job.root}/{job.process}-{number}",
            share(job.mix.keys.count, job.process * callers + number, job.processes * callers),
            job.seed * 1_000_003 + job.process * callers + number,
        )
        for number in range(callers)
    ]
    peer = PEERS[job.peer] if job.peer else None
    shared = peer is None or peer.shared
    if shared:
        _make_keys(job, works)
    measurement = _Measurement(job, works, ready, tell)
    if job.pace.tasks:
        asyncio.run(measurement.run_tasks())
    else:
        measurement.run_threads()
    read = 0
    if measurement.broken is None and shared:
        with _open(job) as store:
            read = read_back(store, chain.from_iterable(work.expected() for work in works))
            read += await_vanished(store, works)
    return measurement.part(read or measurement.read_back)


def share(total: int, number: int, parts: int) -> int:
    """Return the size of a part of ``total``, so that all parts together make it."""
    return total * (number + 1) // parts - total * number // parts


def _open(job: Job) -> MetadataStore:
    return open_store(job.url, connect_timeout=job.connect_timeout)


def _make_keys(job: Job, works: Sequence[Work]) -> None:
    with _open(job) as store:
        puts = chain.from_iterable(work.first_puts() for work in works)
        for outcome in store.apply_stream(puts):
            if outcome.error is not None:
                raise outcome.error


class _Measurement:
    """The timed part and what belongs to it."""

    def __init__(
        self,
        job: Job,
        works: Sequence[Work],
        ready: Callable[[], None],
        tell: Callable[[Tick], None],
    ) -> None:
        self._job = job
        self._works = works
        self._ready = ready
        self._tell = tell
        self._meter: Meter | None = None
        self._snapshots: list[tuple[Metrics | None, float, int]] = []
        self._server: ServerUse | None = None
        self._server_cpu: float | None = None
        self._server_memory: int | None = None
        self._metrics: Callable[[], Metrics] | None = None
        self._callers: Sequence[Caller | TaskCaller] = ()
        self.broken: str | None = None
        self.read_back = 0  # paths that only the measured client can read

    def run_threads(self) -> None:
        """Let threads load the store."""
        pace = self._job.pace
        number = pace.threads
        barrier = Barrier(number, action=self._meet)
        with self._opened() as store:
            self._metrics = getattr(store, "metrics", None)
            load = getattr(store, "load", None)
            if load is not None:
                load(chain.from_iterable(work.first_puts() for work in self._works))
            callers = [
                Caller(store, work, self._loop(at), barrier) for at, work in enumerate(self._works)
            ]
            self._callers = callers
            _forget_garbage()
            try:
                with ThreadPoolExecutor(number, thread_name_prefix="bench") as pool:
                    runs = [pool.submit(caller.run) for caller in callers]
                    try:
                        wait(runs)
                    except BaseException:
                        barrier.abort()  # The callers look at it, and end.
                        raise
            finally:
                self._stop_meter()
                gc.unfreeze()
            failures = [error for run in runs if (error := run.exception()) is not None]
            if load is not None and not failures:
                for work in self._works:
                    for one in work.expected():
                        check(one, store.get(one.path).result())
                        self.read_back += 1
        self._raise(failures)

    async def run_tasks(self) -> None:
        """Let tasks load the store."""
        job = self._job
        async with open_async_store(
            job.url,
            batching=job.batching,
            connect_timeout=job.connect_timeout,
            operation_timeout=_OPERATION_TIMEOUT,
        ) as store:
            self._metrics = store.metrics
            caller = TaskCaller(store, self._works[0], self._loop(0), self._meet)
            self._callers = [caller]
            _forget_garbage()
            try:
                await caller.run()
            except StoreGoneError as error:
                self._raise([error])
            finally:
                self._stop_meter()
                gc.unfreeze()

    def _opened(self) -> AbstractContextManager[Any]:
        job = self._job
        if job.peer is not None:
            return PEERS[job.peer].open(job.url, job.root)
        return open_store(
            job.url,
            batching=job.batching,
            connect_timeout=job.connect_timeout,
            operation_timeout=_OPERATION_TIMEOUT,
        )

    def _loop(self, number: int) -> Loop:
        pace = self._job.pace
        callers = len(self._works)
        return Loop(
            # A peer has a number of its own, such as one at a time.
            in_flight=share(pace.in_flight, number, callers),
            rate=None if pace.rate is None else pace.rate / callers,
            seconds=pace.seconds,
            warm_up=pace.warm_up,
            offset=number / callers,
        )

    def _meet(self) -> None:
        """Begin or end the timed part: the callers wait meanwhile."""
        if self._snapshots:
            self._snap()
            return
        self._ready()
        self._meter = Meter(
            self._metrics,
            lambda: [caller.counted for caller in self._callers],
            self._job.pace.seconds,
            self._tell,
        )
        self._snap()
        self._meter.start()

    def _snap(self) -> None:
        conflicts = sum(work.conflicts for work in self._works)
        self._snapshots.append((self._metrics and self._metrics(), time.process_time(), conflicts))
        if self._server is None:
            self._server = ServerUse(self._job.server if self._job.process == 0 else ())
        else:
            self._server_cpu, self._server_memory = self._server.cpu, self._server.memory

    def _stop_meter(self) -> None:
        if self._meter is not None:
            self._meter.stop()

    def _raise(self, failures: Sequence[BaseException]) -> None:
        """Raise the first failure, but note where it is a store that has gone."""
        # A broken barrier is what the other callers see of it.
        if not failures:
            return
        first = min(failures, key=lambda error: isinstance(error, BrokenBarrierError))
        if not isinstance(first, StoreGoneError):
            raise first
        if not self._snapshots:
            raise StoreUnavailableError(str(first)) from first
        self.broken = str(first)
        self._snap()

    def part(self, read: int) -> Part:
        """Return what was measured."""
        before, cpu_before, conflicts_before = self._snapshots[0]
        after, cpu_after, conflicts_after = self._snapshots[-1]
        counted: list[Counted] = [caller.counted for caller in self._callers]
        reads, writes = latencies(counted)
        errors: Counter[str] = Counter()
        for work in self._works:
            errors.update(work.errors)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Part(
            seconds=max(one.seconds for one in counted),
            operations=sum(one.ended for one in counted),
            not_started=sum(one.not_started for one in counted),
            reads=encoded(reads),
            writes=encoded(writes),
            flushes=flushes_between(before, after) if before and after else Flushes(),
            conflicts=conflicts_after - conflicts_before,
            errors=errors,
            cpu=cpu_after - cpu_before,
            memory=usage.ru_maxrss * 1024,
            series=self._meter.series if self._meter else (),
            answers_checked=sum(work.checked for work in self._works),
            paths_read_back=read,
            paths_unsure=sum(work.unsure for work in self._works),
            server_cpu=self._server_cpu,
            server_memory=self._server_memory,
            broken=self.broken,
        )


def _forget_garbage() -> None:
    """Keep the garbage collector away from the load generator's own objects."""
    gc.collect()
    gc.freeze()
