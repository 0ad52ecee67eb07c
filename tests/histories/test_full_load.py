"""Threads that push as hard as they can: bounds, fairness, and a close in the middle of it."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.backend import Answer, PassingBackend, Request

from ..waiting import PATIENCE

pytestmark = pytest.mark.slow

THREADS = 64
# Small, so that every one of them is reached: more callers wait than a batch has operations.
BOUNDS = bk.BatchingConfig(
    max_ops=20,
    max_bytes=2_000,
    read_queue_size=60,
    write_queue_size=60,
    max_queued_bytes=4_000,
    max_in_flight=3,
    max_singles=1,
)
WINDOW = 3


class Watched(PassingBackend):
    """A back end that records the largest requests and the most calls at a time."""

    def __init__(self, url: str) -> None:
        super().__init__(connect(url, ConnectOptions(connect_timeout=60.0)))
        self._lock = threading.Lock()  # guards what follows
        self._calls = {"write": 0, "read": 0}
        self._bytes = 0
        self.most: Counter[str] = Counter()

    def write(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]:
        with self._noted("write", requests):
            return super().write(requests, deadline)

    def read(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]:
        with self._noted("read", requests):
            return super().read(requests, deadline)

    @contextmanager
    def _noted(self, method: str, requests: Sequence[Request]) -> Iterator[None]:
        op_bytes = self.limits.op_bytes
        size = sum(len(r.path) + len(r.value or b"") + op_bytes for r in requests)
        with self._lock:
            self._calls[method] += 1
            self._bytes += size
            seen = {
                f"{method} calls": self._calls[method],
                "operations in a call": len(requests),
                "bytes in a call": size,
                "bytes in flight": self._bytes,
            }
            for name, number in seen.items():
                self.most[name] = max(self.most[name], number)
        try:
            yield
        finally:
            with self._lock:
                self._calls[method] -= 1
                self._bytes -= size


class Push:
    """Threads that submit as fast as the store lets them, until it is closed.

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
        """Check that every thread has ended, and that every operation has a result."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread hangs in its call"
        for under_way in self._under_way:
            assert all(future.done() for future in under_way)
            self._look_at(under_way)
        assert not self.failed, self.failed[:5]


def watch(store: bk.MetadataStore, push: Push, operations: int) -> Counter[str]:
    """Watch a store's metrics while operations end, and return the maximum of each number."""
    most: Counter[str] = Counter()
    ended, until = sum(push.ended), time.monotonic() + PATIENCE
    target = ended + operations
    while ended < target:
        if (before := ended) < (ended := sum(push.ended)):
            until = time.monotonic() + PATIENCE
        assert time.monotonic() < until, f"nothing ends after {before}"
        now = store.metrics()
        seen = {
            "reads queued": now.reads.queued,
            "writes queued": now.writes.queued,
            "bytes queued": now.queued_bytes,
            "singles": now.singles.queued,
            "callers waiting": now.reads.waiting + now.writes.waiting,
        }
        for name, number in seen.items():
            most[name] = max(most[name], number)
        time.sleep(0.001)
    return most


def check_bounds(most: Counter[str]) -> None:
    """Check that no bound was exceeded, and that the load was high enough to reach them."""
    bounds = {
        "reads queued": BOUNDS.read_queue_size,
        "writes queued": BOUNDS.write_queue_size,
        "bytes queued": 2 * BOUNDS.max_queued_bytes,  # each queue has its own bound
        "singles": BOUNDS.max_singles,
        "callers waiting": THREADS,
        # Single executions stand beside the batches of writes, and are of one kind or the other.
        "read calls": WINDOW + BOUNDS.max_singles,
        "write calls": WINDOW + BOUNDS.max_singles,
        "operations in a call": BOUNDS.max_ops,
        "bytes in a call": BOUNDS.max_bytes,
        "bytes in flight": (2 * WINDOW + BOUNDS.max_singles) * BOUNDS.max_bytes,
    }
    exceeded = {name: number for name, number in most.items() if number > bounds[name]}
    assert not exceeded, exceeded
    assert most["callers waiting"] > BOUNDS.max_ops, "not much of a load"


def check_fairness(ended: list[int]) -> None:
    """Check that every thread made progress, and none much less than an equal share.

    Python's own scheduling lets threads differ by a factor of two or three. Where room is given to
    the wrong caller, most of them get next to nothing. Operations are the measure, not seconds, in
    which a busy machine may give some threads no turn.
    """
    assert min(ended) * 10 >= statistics.mean(ended) > 0, sorted(ended)


def under_full_load(url: str, share: int) -> None:
    """Push until as many operations have ended as make a share a thread, close, and check all.

    Args:
        url: of the store.
        share: operations of each thread, on average, from when all of them run.
    """
    with ExitStack() as stack:
        # Values in memory go with their last opener, so one stays.
        if bk.store_kind(url).in_process:
            stack.enter_context(bk.open_store(url))
        backend = Watched(url)
        with bk.MetadataStore(backend, BOUNDS, 60.0, url) as store:
            push = Push(store, THREADS)
            before = list(push.ended)
            most = watch(store, push, share * THREADS)
            ended = [now - then for now, then in zip(push.ended, before, strict=True)]
        push.check_ended()
        check_bounds(most + backend.most)
        check_fairness(ended)
        with bk.open_store(url, connect_timeout=60.0) as store:
            paths = [f"/push/{n}/{k + 1}" for n in range(THREADS) for k in range(push.puts[n])]
            missing = [o for o in store.apply(map(bk.Exists, paths)) if o.result is not True]
            assert not missing, missing[:5]


def test_full_load(store_url: str) -> None:
    """64 threads: bounds hold, no thread starves; a close ends all and loses nothing."""
    under_full_load(store_url, 300)


@pytest.mark.soak
def test_full_load_for_long(store_url: str) -> None:
    """64 threads, about a minute: bounds hold, no thread starves; the close loses nothing."""
    under_full_load(store_url, 6_000)
