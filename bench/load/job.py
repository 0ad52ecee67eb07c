"""One measurement in one process: it makes the keys, loads the store, and reads everything back."""

from __future__ import annotations

import asyncio
import gc
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from threading import Barrier, BrokenBarrierError
from typing import Any, Final, NamedTuple

from ... import open_async_store, open_store
from ...batching import BatchingConfig, MetadataStore, Metrics
from ...ops.errors import MetadataStoreError, StoreUnavailableError
from ...ops.operations import Get
from ..conditions import server_use
from ..results.runs import Moment
from .callers import Caller, Pace, StoreGoneError, TaskCaller
from .mixes import Mix
from .parts import Part, encoded, flushes_between
from .peers import PEERS
from .work import Expected, Work, check

#: The timeout of an operation in seconds, so that a dead store is noticed.
_OPERATION_TIMEOUT: Final = 10.0
_AT_ONCE: Final = 5_000
_LONGEST_WAIT: Final = 0.5
# Sessions end soon after their store was closed, but not always before `close` returns.
_GRACE: Final = 10.0
#: The steps of a measurement, if they are not shorter than the least.
_STEPS = 50
_LEAST_STEP = 0.05


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


def perform(job: Job, ready: Callable[[], None]) -> Part:
    """Measure.

    Args:
        job: what to measure.
        ready: called once when the warm-up has ended. The timed part begins when it returns.

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
    shared = job.peer is None or PEERS[job.peer].shared
    if shared:
        _make_keys(job, works)
    measurement = _Measurement(job, works, ready)
    if job.pace.tasks:
        asyncio.run(measurement.run_tasks())
    else:
        measurement.run_threads()
    read = measurement.read_back
    if measurement.broken is None and shared:
        with _open(job) as store:
            read = read_back(store, chain.from_iterable(work.expected() for work in works))
            read += await_vanished(store, works)
    return measurement.part(read)


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


class _Snapshot(NamedTuple):
    """What has been counted at the beginning or at the end of the timed part."""

    metrics: Metrics | None
    cpu: float
    conflicts: int
    server: tuple[float, int] | None  # its CPU and memory


class _Measurement:
    """The timed part and what belongs to it."""

    def __init__(self, job: Job, works: Sequence[Work], ready: Callable[[], None]) -> None:
        self._job = job
        self._works = works
        self._ready = ready
        self._series: list[Moment] = []
        self._stop_meter: Callable[[], None] = lambda: None
        self._snapshots: list[_Snapshot] = []
        self._metrics: Callable[[], Metrics] | None = None
        self._callers: Sequence[Caller | TaskCaller] = ()
        self._settings: dict[str, Any] = {
            "batching": job.batching,
            "connect_timeout": job.connect_timeout,
            "operation_timeout": _OPERATION_TIMEOUT,
        }
        self.broken: str | None = None
        self.read_back = 0  # paths that only the measured client can read

    def run_threads(self) -> None:
        """Let threads load the store."""
        job, number = self._job, self._job.pace.threads
        barrier = Barrier(number, action=self._meet)
        opened: AbstractContextManager[Any] = (
            open_store(job.url, **self._settings)
            if job.peer is None
            else PEERS[job.peer].open(job.url, job.root)
        )
        with opened as store:
            self._metrics = getattr(store, "metrics", None)
            load = getattr(store, "load", None)
            if load is not None:
                load(chain.from_iterable(work.first_puts() for work in self._works))
            callers = [
                Caller(store, work, self._share(at), barrier, at / number)
                for at, work in enumerate(self._works)
            ]
            self._callers = callers
            with self._undisturbed(), ThreadPoolExecutor(number, "bench") as pool:
                try:
                    runs = [pool.submit(caller.run) for caller in callers]
                    # Python handles a signal that comes as a wait begins only after the wait.
                    while wait(runs, _LONGEST_WAIT).not_done:
                        pass
                except BaseException:
                    barrier.abort()  # The callers look at it, and end.
                    raise
            failures = [error for run in runs if (error := run.exception()) is not None]
            if load is not None and not failures:
                for work in self._works:
                    for one in work.expected():
                        check(one, store.get(one.path).result())
                        self.read_back += 1
        self._raise(failures)

    async def run_tasks(self) -> None:
        """Let tasks load the store."""
        async with open_async_store(self._job.url, **self._settings) as store:
            self._metrics = store.metrics
            caller = TaskCaller(store, self._works[0], self._job.pace, self._meet)
            self._callers = [caller]
            with self._undisturbed():
                try:
                    await caller.run()
                except StoreGoneError as error:
                    self._raise([error])

    def _share(self, number: int) -> Pace:
        pace = self._job.pace
        return replace(
            pace,
            # A peer has a number of its own, such as one at a time.
            in_flight=share(pace.in_flight, number, pace.threads),
            rate=None if pace.rate is None else pace.rate / pace.threads,
        )

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Keep the garbage collector away from the load generator's own objects."""
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            self._stop_meter()
            gc.unfreeze()

    def _meet(self) -> None:
        """Begin or end the timed part: the callers wait meanwhile."""
        if not self._snapshots:
            self._ready()
            if self._metrics is not None:
                self._stop_meter = _metered(
                    self._metrics,
                    lambda: sum(caller.counted.ended for caller in self._callers),
                    self._job.pace.seconds,
                    self._series,
                )
        self._snap()

    def _snap(self) -> None:
        self._snapshots.append(
            _Snapshot(
                self._metrics and self._metrics(),
                time.process_time(),
                sum(work.conflicts for work in self._works),
                server_use(self._job.server if self._job.process == 0 else ()),
            )
        )

    def _raise(self, failures: Sequence[BaseException]) -> None:
        """Raise the first failure, but note where it is a store that has gone."""
        if not failures:
            return
        # A broken barrier is what the other callers see of it.
        first = min(failures, key=lambda error: isinstance(error, BrokenBarrierError))
        if not isinstance(first, StoreGoneError):
            raise first
        if not self._snapshots:
            raise StoreUnavailableError(str(first)) from first
        self.broken = str(first)
        self._snap()

    def part(self, read: int) -> Part:
        """Return what was measured."""
        before, after = self._snapshots[0], self._snapshots[-1]
        counted = [caller.counted for caller in self._callers]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        server_cpu, server_memory = None, None
        if before.server is not None and after.server is not None:
            server_cpu, server_memory = after.server[0] - before.server[0], after.server[1]
        return Part(
            seconds=max(one.seconds for one in counted),
            operations=sum(one.ended for one in counted),
            not_started=sum(one.not_started for one in counted),
            reads=encoded(*(one.reads for one in counted)),
            writes=encoded(*(one.writes for one in counted)),
            conflicts=after.conflicts - before.conflicts,
            errors=sum((work.errors for work in self._works), Counter[str]()),
            cpu=after.cpu - before.cpu,
            memory=usage.ru_maxrss * 1024,
            series=self._series,
            answers_checked=sum(work.checked for work in self._works),
            paths_read_back=read,
            paths_unsure=sum(work.unsure for work in self._works),
            server_cpu=server_cpu,
            server_memory=server_memory,
            broken=self.broken,
            **flushes_between(before.metrics, after.metrics),
        )


def _metered(
    metrics: Callable[[], Metrics], ended: Callable[[], int], seconds: float, series: list[Moment]
) -> Callable[[], None]:
    """Look at a store a few times while its callers work, on a thread.

    Args:
        metrics: the store's metrics.
        ended: returns the number of operations that have ended.
        seconds: the length of the timed part, which begins now.
        series: gets what is seen.

    Returns:
        a function that ends it.
    """
    stopped = threading.Event()

    def run() -> None:
        begun, before, earlier = time.monotonic(), 0, metrics()
        while not stopped.wait(max(_LEAST_STEP, seconds / _STEPS)):
            at, now, later = time.monotonic() - begun, ended(), metrics()
            flushed = flushes_between(earlier, later)
            queued = later.reads.queued + later.writes.queued
            in_flight = later.reads.in_flight + later.writes.in_flight
            batches = flushed["batches"], flushed["batched"]
            series.append(Moment(at, now - before, *batches, queued, in_flight))
            before, earlier = now, later

    thread = threading.Thread(target=run, name="bench meter", daemon=True)
    thread.start()

    def stop() -> None:
        stopped.set()
        thread.join()

    return stop


def read_back(store: MetadataStore, expected: Iterable[Expected]) -> int:
    """Compare the contents of a store with what it must hold; return the number of paths.

    Pass another ``store`` than the writer's, opened afterwards, so that its answers do not come
    from the writer's memory.

    Raises:
        WrongAnswerError: a path is missing, not deleted, or wrong. The message names it.
        MetadataStoreError: a path could not be read.
    """
    # A ZooKeeper server may lag behind the one that acknowledged the writes.
    store.sync()
    count = 0
    remaining: Iterator[Expected] = iter(expected)
    while part := list(islice(remaining, _AT_ONCE)):
        outcomes = store.apply(Get(one.path) for one in part)
        for one, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome.error, MetadataStoreError):
                raise outcome.error
            check(one, outcome.result)
        count += len(part)
    return count


def await_vanished(store: MetadataStore, works: Sequence[Work]) -> int:
    """Check that the ephemeral values went with their session; return their number."""
    if not any(work.used_ephemerals for work in works):
        return 0
    end = time.monotonic() + _GRACE
    expected = [one for work in works for one in work.vanished()]
    while time.monotonic() < end and any(store.get(one.path).result() for one in expected):
        time.sleep(0.05)
    return read_back(store, expected)
