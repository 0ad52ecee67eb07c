"""Operations that arrive without the engine's lock: at whatever moment, none is overlooked."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching import MetadataStore, queues
from batchkeeper.batching.accumulator import Accumulator
from batchkeeper.batching.engine import engine_of
from batchkeeper.ops import (
    Get,
    GetResult,
    Operation,
    OperationTimeoutError,
    Put,
    QueueFullError,
    StoreClosedError,
)
from batchkeeper.testing.faults import FaultyBackend

from .faulty import OpenOn, refuses
from .waiting import PATIENCE, AnyFuture, until

#: Seconds in which a thread does what it does at once, if nothing holds it up.
MOMENT = 0.2


class Watched(deque[Any]):
    """An intake that calls a function before each operation is appended."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def append(self, entry: Any) -> None:
        self.before()
        super().append(entry)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """The class of all intakes of this test."""

    class Intake(Watched):
        pass

    monkeypatch.setattr(queues, "deque", Intake)
    return Intake


@pytest.fixture
def busy(backend: FaultyBackend, open_on: OpenOn) -> Iterator[MetadataStore]:
    """A store whose only sender of writes is under way, so that writes arrive without the lock."""
    store = open_on(backend, max_in_flight=1, max_delay=60)
    store.put("/first", b"")
    backend.wait_for_calls(1)
    assert engine_of(store).writes.allowance
    yield store
    backend.plan = None
    backend.calls[0].release()


def in_intake(store: MetadataStore) -> list[str]:
    return [entry.path for entry in engine_of(store).queues.intake]


def test_writes_arrive_without_the_lock_while_a_batch_is_under_way(busy: MetadataStore) -> None:
    """They lie in the intake, up to a number; then they are taken in together."""
    futures = [busy.put(f"/{number}", b"") for number in range(100)]
    assert len(in_intake(busy)) == 100
    futures += [busy.put(f"/{number}", b"") for number in range(100, 300)]
    assert 0 < len(in_intake(busy)) < 200
    assert busy.metrics().writes.queued == 300
    assert not in_intake(busy)
    assert not any(future.done() for future in futures)


def test_what_is_submitted_first_goes_first(busy: MetadataStore, backend: FaultyBackend) -> None:
    """On one path, reads and writes keep the order of the calls, whichever way they arrive."""
    futures: list[AnyFuture] = []
    for number in range(10):
        futures.append(busy.put("/a", b"%d" % number))
        futures.append(busy.get("/a"))
        futures.append(busy.put("/a", bytes(5000)))  # too large for the intake
        futures.append(busy.get("/a"))
    backend.plan = None
    backend.calls[0].release()
    versions = [future.result(PATIENCE) for future in futures]
    found = [r.stat.version if isinstance(r, GetResult) else r.version for r in versions]
    assert found == [number // 2 for number in range(40)]


def test_one_that_arrives_as_the_sender_falls_idle(
    busy: MetadataStore, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that has found nothing to do still takes what arrives before it waits."""
    arrived: list[AnyFuture] = []
    due = Accumulator.due

    def then_arrives(self: Accumulator, now: float) -> Any:
        cause = due(self, now)
        if cause is None and self is engine_of(busy).writes.batches and not arrived:
            thread = threading.Thread(target=lambda: arrived.append(busy.put("/a", b"")))
            thread.start()
            thread.join(MOMENT)
        return cause

    monkeypatch.setattr(Accumulator, "due", then_arrives)
    backend.plan = None
    backend.calls[0].release()
    until(lambda: arrived)
    assert arrived[0].result(PATIENCE).version == 0


def test_one_that_arrives_after_the_sender_has_fallen_idle(
    watched: type[Watched], busy: MetadataStore, backend: FaultyBackend
) -> None:
    """A caller that believes a sender to be under way wakes it if it is not."""
    backend.plan = None

    def fall_idle() -> None:
        watched.before = staticmethod(lambda: None)
        backend.calls[0].release()
        until(lambda: engine_of(busy).writes.idle)

    watched.before = staticmethod(fall_idle)
    assert busy.put("/a", b"").result(PATIENCE).version == 0


def test_one_that_arrives_after_the_store_was_closed(
    watched: type[Watched], busy: MetadataStore, backend: FaultyBackend, pool: ThreadPoolExecutor
) -> None:
    """It is refused, as any call after ``close``."""
    backend.plan = None

    def close() -> None:
        watched.before = staticmethod(lambda: None)
        backend.calls[0].release()
        pool.submit(busy.close).result(PATIENCE)

    watched.before = staticmethod(close)
    with pytest.raises(StoreClosedError):
        busy.put("/a", b"")
    assert not in_intake(busy)


def test_one_that_arrives_before_the_store_is_closed(
    busy: MetadataStore, backend: FaultyBackend, pool: ThreadPoolExecutor
) -> None:
    """``close`` sends it, and ``flush`` waits for it."""
    future = busy.put("/a", b"")
    flushing = pool.submit(busy.flush)
    closing = pool.submit(busy.close)
    until(lambda: refuses(busy))
    assert not flushing.done()
    assert not closing.done()
    backend.plan = None
    backend.calls[0].release()
    closing.result(PATIENCE)
    flushing.result(PATIENCE)
    assert future.result(0).version == 0


def test_one_in_the_intake_ends_at_its_deadline(busy: MetadataStore) -> None:
    """Whether it is the next to end, or not."""
    kept = busy.put("/a", b"")
    late = [busy.put(f"/{number}", b"", timeout=0.02 - number * 0.005) for number in range(3)]
    assert {type(future.exception(PATIENCE)) for future in late} == {OperationTimeoutError}
    assert not kept.done()


def test_one_in_the_intake_can_be_cancelled(busy: MetadataStore, backend: FaultyBackend) -> None:
    """It is never sent, and gives its place back."""
    futures = [busy.put(f"/{number}", b"") for number in range(3)]
    assert in_intake(busy) == ["/0", "/1", "/2"]
    assert futures[1].cancel()
    backend.plan = None
    backend.calls[0].release()
    assert futures[2].result(PATIENCE).version == 0
    assert sorted(backend.calls[1].paths) == ["/0", "/2"]
    assert busy.metrics().writes.queued == 0


def test_a_batch_is_full_at_its_size(backend: FaultyBackend, open_on: OpenOn) -> None:
    """The operation that fills a batch wakes a second sender, wherever the others lie."""
    store = open_on(backend, max_in_flight=2, max_delay=60, max_ops=10)
    store.put("/first", b"")
    backend.wait_for_calls(1)
    waiting = store.put("/0", b"")  # A second sender waits for others from now on.
    until(lambda: engine_of(store).writes.watched)
    for number in range(1, 9):
        store.put(f"/{number}", b"")
    assert in_intake(store)
    assert len(backend.calls) == 1
    store.put("/9", b"")
    assert len(backend.wait_for_calls(2)[1].paths) == 10
    assert not waiting.done()


def test_a_queue_is_never_fuller_than_its_bound(backend: FaultyBackend, open_on: OpenOn) -> None:
    """What lies in the intake counts, in operations and in bytes."""
    store = open_on(backend, max_in_flight=1, write_queue_size=300, on_full="raise")
    store.put("/first", b"")
    backend.wait_for_calls(1)
    taken = 0
    with pytest.raises(QueueFullError):  # noqa: PT012 - which of them it is, is the point
        for taken in range(1000):
            store.put(f"/{taken}", b"")
    assert taken == 300
    assert store.metrics().writes.queued == 300


def test_the_bytes_in_a_queue_are_bounded(backend: FaultyBackend, open_on: OpenOn) -> None:
    """Also those of operations that arrive without the lock."""
    store = open_on(backend, max_in_flight=1, max_queued_bytes=1_000_000, on_full="raise")
    store.put("/first", b"")
    backend.wait_for_calls(1)
    with pytest.raises(QueueFullError):  # noqa: PT012
        for number in range(1000):
            store.put(f"/{number}", bytes(4000))
    assert 995_000 < store.metrics().queued_bytes <= 1_000_000


def test_nothing_joins_one_that_is_larger_than_the_bound(
    backend: FaultyBackend, open_on: OpenOn
) -> None:
    """It goes alone, also past what would arrive without the lock."""
    store = open_on(backend, max_in_flight=1, max_queued_bytes=500_000, on_full="raise")
    store.put("/first", b"")
    backend.wait_for_calls(1)
    assert engine_of(store).writes.allowance
    store.put("/large", bytes(600_000))
    with pytest.raises(QueueFullError):
        store.put("/small", b"")


def test_small_ones_do_not_pass_a_large_one_that_waits_for_bytes(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """They wait behind it, although there is room for them."""
    store = open_on(backend, max_in_flight=1, max_queued_bytes=2_000_000, on_full="block")
    store.put("/first", b"")
    backend.wait_for_calls(1)
    for number in range(2):
        store.put(f"/queued/{number}", bytes(600_000))
    large = pool.submit(store.put, "/large", bytes(900_000))
    until(lambda: store.metrics().writes.waiting == 1)
    store.get("/a")  # The engine decides again what may arrive without its lock.
    small = pool.submit(store.put, "/small", b"")
    until(lambda: store.metrics().writes.waiting == 2)
    backend.plan = None
    backend.calls[0].release()
    assert [future.result(PATIENCE).result(PATIENCE).version for future in (large, small)] == [0, 0]


def test_one_that_arrives_as_another_begins_to_wait_for_room(
    watched: type[Watched], backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """It waits behind that one, and holds no room that the other needs."""
    store = open_on(backend, max_in_flight=1, max_queued_bytes=1_000_000, on_full="block")
    store.put("/first", b"")
    backend.wait_for_calls(1)
    store.put("/queued", bytes(300_000))
    large: list[AnyFuture] = []

    def begin_to_wait() -> None:
        watched.before = staticmethod(lambda: None)
        large.append(pool.submit(store.put, "/a", bytes(999_000)))
        until(lambda: store.metrics().writes.waiting == 1)

    watched.before = staticmethod(begin_to_wait)
    small = store.put("/a", bytes(3000))
    assert store.metrics().writes.waiting == 2
    backend.plan = None
    backend.calls[0].release()
    assert large[0].result(PATIENCE).result(PATIENCE).version == 0
    assert small.result(PATIENCE).version == 1


def test_two_that_arrive_at_once_and_fill_a_batch(
    watched: type[Watched], backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """Each has seen room for itself, and nobody waits until the batch has its age."""
    store = open_on(backend, max_in_flight=2, max_ops=3, max_delay=60)
    store.put("/first", b"")
    backend.wait_for_calls(1)
    store.put("/0", b"")
    until(lambda: engine_of(store).writes.allowance == 1)

    def arrive() -> None:
        watched.before = staticmethod(lambda: None)
        pool.submit(store.put, "/1", b"").result(PATIENCE)

    watched.before = staticmethod(arrive)
    store.put("/2", b"")
    assert len(backend.wait_for_calls(2)[1].paths) == 3


def test_a_batch_that_a_cancellation_fills_nearly(backend: FaultyBackend, open_on: OpenOn) -> None:
    """The operation that fills it is not left to a sender that waits."""
    store = open_on(backend, max_in_flight=2, max_ops=4, max_delay=60)
    store.put("/w", b"")
    store.get("/r")
    backend.wait_for_calls(2)
    write = store.put("/a", b"")
    for path in ("/a", "/a", "/b"):
        store.get(path)
    until(lambda: engine_of(store).reads.allowance)
    assert write.cancel()
    store.get("/c")
    assert len(backend.wait_for_calls(3)[2].paths) == 4


def test_what_an_abandoned_stream_has_submitted_is_cancelled(
    busy: MetadataStore, backend: FaultyBackend
) -> None:
    """It may lie in the intake when a sender cancels it."""
    store = busy

    def ops() -> Iterator[Operation]:
        yield Get("/a")
        backend.wait_for_calls(2)[1].release()
        until(lambda: engine_of(store).reads.idle)
        yield Put("/b", b"")

    stream = store.apply_stream(ops())
    assert next(stream).ok
    assert in_intake(store) == ["/b"]
    del stream
    backend.plan = None
    backend.calls[0].release()
    until(lambda: engine_of(store).writes.idle)
    store.flush()
    assert store.exists("/b").result(PATIENCE) is False


def test_a_finalizer_that_calls_the_store_leaves_an_operation_what_it_is() -> None:
    """The garbage collector may run it in the middle of a call, at any allocation."""

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ended.append(store.delete("/other"))

    ended: list[AnyFuture] = []
    before = gc.get_threshold()
    with bk.open_store("memory://finalizers") as store:
        store.put("/a", b"kept").result()
        gc.collect()
        gc.disable()
        gc.set_threshold(1)
        try:
            for _ in range(20):
                store.put("/other", b"").result()
                Garbage()
                gc.enable()
                found = store.get("/a")
                gc.disable()
                assert found.result(PATIENCE) == store.get("/a").result(PATIENCE)
        finally:
            gc.set_threshold(*before)
            gc.enable()
        assert [future.result(PATIENCE) for future in ended]
        kept = store.get("/a").result()
        assert kept is not None
        assert kept.value == b"kept"
