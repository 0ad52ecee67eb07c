"""Watches: how fast one takes the changes of another process, and how soon after each.

As a process, ``python -m batchkeeper.bench.limits.watched URL ROOT COUNT`` opens the store, prints
``ready``, waits for a line, puts COUNT fresh paths in batches, and prints the rate of its puts.
With a session timeout as fourth argument, the values are ephemeral, and the process then waits.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager
from queue import SimpleQueue
from threading import Thread
from typing import Final

from ... import open_store
from ...ops.operations import Put
from ...ops.results import WatchEvent
from ..figures import histogram, percentiles
from ..target import Target
from ..workload import WrongAnswerError
from .ours import check_outcomes
from .processes import Process, await_go, begin, line_of, other_process, say
from .work import Figures, Stopwatch, items

__all__ = ["abandoned_values", "watched_puts", "watched_puts_alone"]

# Seconds: more than twice a tick of the bench's ZooKeeper, which accepts no less.
_SESSION: Final = 5.0
_PATIENCE: Final = 60.0
_BETWEEN_LOOKS: Final = 0.05
# The watch is read while the writer is at work, so this is never reached.
_EVENTS: Final = 1_000_000


def watched_puts(there: Target, count: int) -> Figures:
    """Measure the events of a watch while another process puts in batches.

    ``rate`` counts the events from the first to the last; ``made`` is the rate of the puts.
    """
    events: list[WatchEvent] = []
    with (
        _other(there, count) as process,
        there.open() as store,
        store.watch(there.root, max_events=_EVENTS) as watch,
    ):
        begin(process)
        with Stopwatch(there) as clock:
            events.append(next(watch))
            begun = time.perf_counter()
            while len(events) < count:
                events.append(next(watch))
            seconds = time.perf_counter() - begun
        made = float(line_of(process))
    _check(events, there.root, count)
    return {**clock.figures(count), "rate": (count - 1) / seconds, "made": made}


def _check(events: Sequence[WatchEvent], root: str, count: int) -> None:
    if {event.kind for event in events} != {"created"}:
        raise WrongAnswerError("events that are not those of creations")
    revisions = [event.revision for event in events if event.revision is not None]
    if revisions != sorted(revisions):
        raise WrongAnswerError("events in another order than the revisions")
    if {event.path for event in events} != {path for path, _ in items(root, count)}:
        raise WrongAnswerError("events that are not those of the puts")


def watched_puts_alone(there: Target, count: int) -> Figures:
    """Measure the time from the end of another client's put to its event, on an idle store."""
    arrived: SimpleQueue[tuple[str, int]] = SimpleQueue()
    delays: array[int] = array("q")
    with there.open() as writer, there.open() as store, store.watch(there.root) as watch:

        def take() -> None:
            for event in watch:
                arrived.put((event.path, time.perf_counter_ns()))

        thread = Thread(target=take, daemon=True)
        thread.start()
        with Stopwatch(there) as clock:
            for path, value in items(there.root, count):
                writer.put(path, value).result()
                ended = time.perf_counter_ns()
                found, at = arrived.get(timeout=_PATIENCE)
                if found != path:
                    raise WrongAnswerError(f"an event of {found}, not of {path}")
                delays.append(max(1, at - ended))  # An event may come before the answer.
        watch.close()
        thread.join()
    return {**clock.figures(count), "delay": percentiles(histogram(delays))["p50"]}


def abandoned_values(there: Target, count: int) -> Figures:
    """Measure how long the ephemeral values of a killed process outlive its session timeout."""
    with there.open() as store:
        with _other(there, count, str(_SESSION)) as process:
            begin(process)
            line_of(process)
            store.sync()
            if len(store.get_children(there.root).result()) != count:
                raise WrongAnswerError("ephemeral values are missing while their session lives")
            process.kill()
            killed = time.perf_counter()
        while store.get_children(there.root).result():
            time.sleep(_BETWEEN_LOOKS)
            store.sync()
        seconds = time.perf_counter() - killed
    return {"rate": count / seconds, "after": max(0.001, seconds - _SESSION)}


def _other(there: Target, count: int, *more: str) -> AbstractContextManager[Process]:
    return other_process(__name__, there.url.text, there.root, str(count), *more)


def _main(argv: Sequence[str]) -> int:
    url, root, count, *session = argv
    ephemeral = bool(session)
    timeout = float(session[0]) if session else 30.0
    with open_store(url, session_timeout=timeout) as store:
        ops = [Put(path, value, ephemeral=ephemeral) for path, value in items(root, int(count))]
        if not await_go():
            return 1  # the parent has gone
        begun = time.perf_counter()
        check_outcomes(store.apply(ops), len(ops))
        say(f"{len(ops) / (time.perf_counter() - begun)}\n")
        sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
