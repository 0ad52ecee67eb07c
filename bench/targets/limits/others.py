"""Other clients of the same server, in other processes: those who put, and those who watch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final

from batchkeeper import Put, WatchEvent, open_store
from batchkeeper.bench.children import Child, child
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError

from ..rows import Figures
from ..work import items, percentile, stopwatch
from .puts import check_outcomes, plain_put, saturate
from .variants import variant

_PATIENCE: Final = 60.0
# The watch is read while the writer is at work, so this is never reached.
_EVENTS: Final = 1_000_000


@variant("watched puts", times=2.0, least=1_000)
def watched_puts(there: Target, count: int) -> Figures:
    """Measure the events of a watch while another process puts in batches.

    ``rate`` counts the events from the first to the last; ``made`` is the rate of the puts.
    """
    events: list[WatchEvent] = []
    with (
        child(_put, there.url.text, there.root, count) as process,
        there.open() as store,
        store.watch(there.root, max_events=_EVENTS) as watch,
    ):
        process.begin()
        with stopwatch(there) as clock:
            events.append(next(watch))
            begun = time.perf_counter()
            while len(events) < count:
                events.append(next(watch))
            seconds = time.perf_counter() - begun
        made = process.receive()
    _check(events, there.root, count)
    return {**clock.figures(count), "rate": (count - 1) / seconds, "made": made}


def _check(events: Sequence[WatchEvent], root: str, count: int) -> None:
    if {event.kind for event in events} != {"created"}:
        raise WrongAnswerError("events that are not those of creations")
    revisions = [event.revision for event in events if event.revision is not None]
    if revisions != sorted(revisions):
        raise WrongAnswerError("events in another order than the revisions")
    if {event.path for event in events} != {path for path, *_ in items(root, count)}:
        raise WrongAnswerError("events that are not those of the puts")


@variant("watched puts alone", least=100)
def watched_puts_alone(there: Target, count: int) -> Figures:
    """Measure the time from the end of another client's put to its event, on an idle store."""
    arrived: SimpleQueue[tuple[str, int]] = SimpleQueue()
    delays: list[int] = []
    with there.open() as writer, there.open() as store, store.watch(there.root) as watch:

        def take() -> None:
            for event in watch:
                arrived.put((event.path, time.perf_counter_ns()))

        thread = Thread(target=take, daemon=True)
        thread.start()
        with stopwatch(there) as clock:
            for path, value, _, _ in items(there.root, count):
                writer.put(path, value).result()
                ended = time.perf_counter_ns()
                found, at = arrived.get(timeout=_PATIENCE)
                if found != path:
                    raise WrongAnswerError(f"an event of {found}, not of {path}")
                delays.append(max(1, at - ended))  # An event may come before the answer.
        watch.close()
        thread.join()
    return {**clock.figures(count), "delay": percentile(delays, "p50")}


_ALONE: Final = 100
_WARM_UP: Final = 20
_UNTIL_SATURATED: Final = 0.3


@variant("neighbour's puts", times=4.0, least=100)
def neighbours_puts(there: Target, count: int) -> Figures:
    """Measure the ``p99`` of the neighbour's puts in seconds, and that of its puts ``alone``."""
    with child(_put_alone, there.url.text, f"{there.root}/other", count) as other:
        alone = other.receive()
        with there.open() as store, ThreadPoolExecutor(1) as pool:
            ended = Event()
            beside = pool.submit(_beside, other, ended)
            saturate(store, f"{there.root}/ours", ended)
    latencies = beside.result()
    return {
        "rate": len(latencies) / sum(latencies) * 1e9,
        "p99": percentile(latencies, "p99"),
        "alone": percentile(alone, "p99"),
    }


def _beside(other: Child, ended: Event) -> list[int]:
    """Start the neighbour's puts once the server is saturated, and return their latencies."""
    try:
        time.sleep(_UNTIL_SATURATED)
        other.begin()
        latencies: list[int] = other.receive()
        return latencies
    finally:
        ended.set()


# In another process:


def _put(parent: Connection, url: str, root: str, count: int) -> None:
    """Put fresh paths in batches, and send the rate."""
    with open_store(url) as store:
        ops = [Put(path, value) for path, value, _, _ in items(root, count)]
        parent.send("ready")
        parent.recv()
        begun = time.perf_counter()
        check_outcomes(store.apply(ops), count)
        parent.send(count / (time.perf_counter() - begun))
        parent.recv()


def _put_alone(parent: Connection, url: str, root: str, count: int) -> None:
    """Put with the plain client, first alone; send the latencies in nanoseconds."""
    with plain_put(url, root) as put:
        steps = iter(items(root, _WARM_UP + _ALONE + count))

        def put_some(count: int) -> list[int]:
            latencies = []
            for path, value, _, _ in itertools.islice(steps, count):
                begun = time.perf_counter_ns()
                put(path, value)
                latencies.append(time.perf_counter_ns() - begun)
            return latencies

        put_some(_WARM_UP)
        alone = put_some(_ALONE)
        parent.send("ready")
        parent.send(alone)
        parent.recv()
        parent.send(put_some(count))
