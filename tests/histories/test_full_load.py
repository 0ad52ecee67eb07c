"""Threads that push as hard as they can: bounds, fairness, and a close in the middle of it."""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

import batchkeeper as bk

PATIENCE = 120.0
THREADS = 64
BOUNDS = bk.BatchingConfig(
    max_ops=100,
    max_bytes=8_000,
    read_queue_size=200,
    write_queue_size=200,
    max_queued_bytes=30_000,
    max_in_flight=3,
    max_singles=2,
)


class Push:
    """Threads that submit without waiting for anything but the store itself, until it is closed.

    Attributes:
        ended: for each thread, how many of its operations have ended.
        puts: for each thread, how many paths it has put: ``/push/THREAD/1`` and so on.
        failed: what ended otherwise than with a result.
    """

    def __init__(self, store: bk.MetadataStore, threads: int) -> None:
        self._store = store
        self.ended = [0] * threads
        self.puts = [0] * threads
        self.failed: list[BaseException] = []
        self._under_way: list[list[Future[Any]]] = [[] for _ in range(threads)]
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, mine: int) -> None:
        under_way = self._under_way[mine]

        def submitted(future: Future[Any]) -> None:
            under_way.append(future)
            future.add_done_callback(count)

        def count(_: object) -> None:
            self.ended[mine] += 1  # on the one thread that runs callbacks

        try:
            while True:
                number = self.puts[mine] + 1
                path = f"/push/{mine}/{number}"
                submitted(self._store.put(path, b"x" * (number % 200)))
                self.puts[mine] = number
                submitted(self._store.get(path))
                submitted(self._store.exists(f"/push/{mine}/1"))
                if len(under_way) > 10_000:
                    self._look_at([future for future in under_way if future.done()])
                    under_way[:] = [future for future in under_way if not future.done()]
        except bk.StoreClosedError:
            return
        except BaseException as error:
            self.failed.append(error)

    def _look_at(self, futures: list[Future[Any]]) -> None:
        errors = (future.exception(0) for future in futures)
        self.failed.extend(error for error in errors if error is not None)

    def check_ended(self) -> None:
        """Check that every thread has come to its end, and every operation to a result."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread hangs in its call"
        for under_way in self._under_way:
            assert all(future.done() for future in under_way)
            self._look_at(under_way)
        assert not self.failed, self.failed[:5]


def watch(store: bk.MetadataStore, seconds: float) -> list[str]:
    """Look at a store that is under load again and again; return which bounds were broken."""
    broken: set[str] = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        now = store.metrics()
        seen = {
            "reads queued": (now.reads.queued, BOUNDS.read_queue_size),
            "writes queued": (now.writes.queued, BOUNDS.write_queue_size),
            # Of both queues, each of which has a bound of its own.
            "bytes queued": (now.queued_bytes, 2 * BOUNDS.max_queued_bytes),
            "reads in flight": (now.reads.in_flight, BOUNDS.max_in_flight or 0),
            "writes in flight": (now.writes.in_flight, BOUNDS.max_in_flight or 0),
            "singles": (now.singles.queued, BOUNDS.max_singles),
            "singles in flight": (now.singles.in_flight, BOUNDS.max_singles),
            "operations in a batch": (
                now.writes.operations + now.reads.operations,
                BOUNDS.max_ops * (now.writes.batches + now.reads.batches),
            ),
            "bytes in a batch": (
                now.writes.bytes + now.reads.bytes,
                BOUNDS.max_bytes * (now.writes.batches + now.reads.batches),
            ),
            "callers waiting": (now.reads.waiting + now.writes.waiting, THREADS),
        }
        broken.update(f"{name}: {n} of {most}" for name, (n, most) in seen.items() if n > most)
        time.sleep(0.001)
    return sorted(broken)


def check_fairness(ended: list[int]) -> None:
    """Check that every thread got on, and none of them far less than the others."""
    assert min(ended) > 0, ended
    # Python's own scheduling lets threads differ by a factor of two or three.
    assert min(ended) * 10 >= statistics.median(ended), ended


def under_full_load(url: str, seconds: float) -> None:
    """Push and watch, close in the middle of it, and see that nothing is missing afterwards."""
    with ExitStack() as stack:
        # Values in memory go with their last opener, so one stays.
        if url.startswith("memory:"):
            stack.enter_context(bk.open_store(url))
        with bk.open_store(url, BOUNDS, connect_timeout=60.0, operation_timeout=60.0) as store:
            push = Push(store, THREADS)
            broken = watch(store, seconds)
            ended = list(push.ended)
        push.check_ended()
        assert not broken, broken
        check_fairness(ended)
        with bk.open_store(url, connect_timeout=60.0) as store:
            paths = [f"/push/{n}/{k + 1}" for n in range(THREADS) for k in range(push.puts[n])]
            missing = [o for o in store.apply(map(bk.Exists, paths)) if o.result is not True]
            assert not missing, missing[:5]


def test_full_load(store_url: str) -> None:
    """64 threads for 5 s: bounds hold, nobody starves; a close ends all, and loses nothing."""
    under_full_load(store_url, 5.0)


@pytest.mark.soak
def test_full_load_for_a_minute(store_url: str) -> None:
    """64 threads for a minute: bounds hold, nobody starves, and the close loses nothing."""
    under_full_load(store_url, 60.0)
