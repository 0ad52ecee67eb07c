"""The engine: full queues, deadlines, order, and what holds under load."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import pytest

from batchkeeper.batching import MetadataStore, engine, queues
from batchkeeper.batching.engine import Engine
from batchkeeper.batching.lane import Sender
from batchkeeper.batching.metrics import Metrics
from batchkeeper.ops import (
    Get,
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    QueueFullError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from batchkeeper.testing.faults import Fault, FaultyBackend

from ..interrupts import interrupted
from .faulty import MakeBackend, OpenOn, release_all
from .waiting import PATIENCE, AnyFuture, until


def sent_paths(backend: FaultyBackend) -> list[str]:
    return [path for call in backend.calls for path in call.paths]


def fill(store: MetadataStore, backend: FaultyBackend) -> list[AnyFuture]:
    """Have one write in flight, and fill the queue of one write behind it."""
    calls = len(backend.calls)
    futures = [store.put("/in-flight", b"")]
    backend.wait_for_calls(calls + 1)
    return [*futures, store.put("/queued/0", b"")]


# --- batches


def test_a_lone_operation_leaves_at_once_and_later_ones_gather(
    backend: FaultyBackend, open_on: OpenOn
) -> None:
    """With nothing in flight, an operation leaves at once; those that follow leave together."""
    store = open_on(backend, max_delay=60, linger="adaptive")
    first = store.put("/first", b"")
    backend.wait_for_calls(1)
    others = [store.put(f"/{number}", b"") for number in range(10)]
    backend.calls[0].release()
    assert first.result(PATIENCE).version == 0
    backend.wait_for_calls(2)[1].release()
    assert wait(others, PATIENCE).not_done == set()
    assert [len(call.paths) for call in backend.calls] == [1, 10]
    assert dict(store.metrics().writes.causes) == {"idle": 2}


def test_two_callers_that_wait_do_not_take_turns(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """The second one's operation leaves beside the first one's; those of others gather."""
    store = open_on(backend, max_delay=60, linger="adaptive")

    def put(path: str) -> Future[Any]:
        return pool.submit(lambda: store.put(path, b"").result(PATIENCE))

    putting = []
    for number in range(2):
        putting.append(put(f"/{number}"))
        backend.wait_for_calls(number + 1)
    putting += [put("/2"), put("/3")]
    until(lambda: store.metrics().writes.queued == 2)
    for call in backend.calls[:2]:
        call.release()
    backend.wait_for_calls(3)[2].release()
    assert wait(putting, PATIENCE).not_done == set()
    assert [len(call.paths) for call in backend.calls] == [1, 1, 2]


def test_fixed_linger_waits_for_company(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """Without adaptive linger nothing leaves before max_ops, max_bytes or max_delay."""
    backend = make_backend()
    store = open_on(backend, linger="fixed", max_delay=60, max_ops=3, max_bytes=200)
    by_count = [store.put(f"/{number}", b"") for number in range(3)]
    assert wait(by_count, PATIENCE).not_done == set()
    by_bytes = store.put("/large", bytes(300))
    assert by_bytes.result(PATIENCE).version == 0
    by_age = open_on(make_backend(), linger="fixed", max_delay=0.01).put("/a", b"")
    assert by_age.result(PATIENCE).version == 0
    assert dict(store.metrics().writes.causes) == {"ops": 1, "bytes": 1}


def test_no_more_batches_are_in_flight_than_allowed(
    backend: FaultyBackend, open_on: OpenOn
) -> None:
    """max_in_flight bounds the calls of each kind that run at the same time."""
    store = open_on(backend, max_in_flight=3, max_ops=1)
    writes: list[AnyFuture] = [store.put(f"/{number}", b"") for number in range(10)]
    reads: list[AnyFuture] = [store.get(f"/{number}") for number in range(100, 110)]
    calls = backend.wait_for_calls(6)
    metrics = store.metrics()
    assert (metrics.writes.in_flight, metrics.reads.in_flight) == (3, 3)
    assert len(calls) == len(backend.calls) == 6
    release_all(backend)
    assert wait([*writes, *reads], PATIENCE).not_done == set()
    assert len(backend.calls) == 20


def test_the_back_ends_limits_cap_the_settings(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """A batch has no more operations and bytes than the store takes in one call."""
    backend = make_backend(write_ops=4, read_ops=3, request_bytes=100, op_bytes=10)
    store = open_on(backend, linger="fixed", max_delay=60)
    futures: list[AnyFuture] = [store.put(f"/{number}", b"") for number in range(10, 22)]
    futures += [store.get(f"/{number}") for number in range(50, 62)]
    futures += [store.put(f"/{number}", bytes(20)) for number in range(30, 36)]
    store.flush()
    assert all(future.done() for future in futures)
    lengths = {
        kind: {len(call.paths) for call in backend.calls if call.method == kind}
        for kind in ("write", "read")
    }
    # Six puts of 10 + 3 + 20 bytes: three of them have 99.
    assert lengths == {"write": {4, 3}, "read": {3}}


def test_what_waits_behind_a_cancelled_operation_goes(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """A read goes when the write before it, which is still in its queue, is cancelled."""
    store = open_on(make_backend(), linger="fixed", max_delay=60, max_ops=2)
    write, read, other = store.put("/a", b""), store.get("/a"), store.get("/b")
    assert write.cancel()
    assert (read.result(PATIENCE), other.result(PATIENCE)) == (None, None)


def test_without_batching_every_operation_goes_singly(
    backend: FaultyBackend, open_on: OpenOn
) -> None:
    """With enabled=False each call has one operation, and several are under way together."""
    store = open_on(backend, enabled=False, max_in_flight=5)
    futures: list[AnyFuture] = [store.put(f"/{number}", b"%d" % number) for number in range(20)]
    backend.wait_for_calls(5)
    assert store.metrics().writes.in_flight == 5
    again: list[AnyFuture] = [store.put("/0", b"again"), store.get("/0")]
    assert futures[15].cancel()
    release_all(backend)
    store.flush()
    assert {len(call.paths) for call in backend.calls} == {1}
    assert "/15" not in sent_paths(backend)
    assert again[0].result(0).version == 1
    assert again[1].result(0).value == b"again"


def test_it_goes_on_if_no_more_threads_can_be_had(
    backend: FaultyBackend, open_on: OpenOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system cannot start another sender, the running ones do its work."""
    store = open_on(backend, max_in_flight=4, max_ops=1)

    class NoThread(Sender):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(queues, "Sender", NoThread)
    futures = [store.put(f"/{number}", b"") for number in range(20)]
    backend.wait_for_calls(1)
    release_all(backend)
    store.flush()
    assert all(future.done() for future in futures)
    assert len(engine.engine_of(store).writes.senders) == 1


def test_a_sender_whose_start_is_interrupted_does_not_run_twice(
    backend: FaultyBackend, open_on: OpenOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come while a sender starts; another one takes its place, and it ends at once."""
    store = open_on(backend, max_in_flight=2)
    store.put("/a", b"")
    backend.wait_for_calls(1)
    interrupted: list[threading.Thread] = []
    seen = threading.Event()

    class Slow(Sender):
        def start(self) -> None:
            super().start()
            if not interrupted:
                interrupted.append(self)
                raise KeyboardInterrupt

        @property
        def ident(self) -> int | None:
            unseen = interrupted == [self] and not seen.is_set()
            return None if unseen else super().ident

        def run(self) -> None:
            if interrupted in ([], [self]):  # It runs so late that nobody has seen it.
                seen.wait(PATIENCE)
            super().run()

    monkeypatch.setattr(queues, "Sender", Slow)
    with pytest.raises(KeyboardInterrupt):
        store.put("/b", b"")
    late = store.put("/c", b"")
    backend.wait_for_calls(2)
    seen.set()
    interrupted[0].join(PATIENCE)
    assert not interrupted[0].is_alive()
    assert late.cancelled() is False
    release_all(backend)
    store.flush()
    assert late.result(0).version == 0
    assert all(sender.is_alive() for sender in engine.engine_of(store).writes.senders)


# --- full queues


@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_full_queue_executes_singly_beside_the_batches(
    backend: FaultyBackend, open_on: OpenOn, kind: str
) -> None:
    """An operation that finds the queue full is executed at once, alone, while batches are held."""
    store = open_on(backend, max_in_flight=1, write_queue_size=2, read_queue_size=2)

    def submit(path: str) -> AnyFuture:
        return store.put(path, b"") if kind == "write" else store.exists(path)

    first = submit("/in-flight")
    backend.wait_for_calls(1)
    queued = [submit("/queued/1"), submit("/queued/2")]
    single = submit("/single")
    call = backend.wait_for_calls(2)[1]
    assert (call.method, call.paths) == (kind, ["/single"])
    call.release()
    single.result(PATIENCE)
    assert not any(future.done() for future in (first, *queued))
    metrics = store.metrics()
    assert metrics.singles.operations == 1
    assert metrics.waits == 0


def test_no_more_singles_are_under_way_than_allowed(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """When max_singles are under way the caller waits for room, and gets it."""
    store = open_on(backend, max_in_flight=1, write_queue_size=1, max_singles=2)
    futures = fill(store, backend)
    futures += [store.put("/single/1", b""), store.put("/single/2", b"")]
    backend.wait_for_calls(3)
    waiting = pool.submit(store.put, "/waits", b"")
    until(lambda: store.metrics().writes.waiting == 1)
    assert store.metrics().singles.in_flight == 2
    release_all(backend)
    assert waiting.result(PATIENCE).result(PATIENCE).version == 0
    assert wait(futures, PATIENCE).not_done == set()
    assert store.metrics().singles.operations == 2
    assert store.metrics().waits == 1


def test_a_single_gives_its_place_back(backend: FaultyBackend, open_on: OpenOn) -> None:
    """When a single execution has ended, another one may follow it, without end."""
    store = open_on(backend, max_in_flight=1, write_queue_size=1, max_singles=1)
    fill(store, backend)
    for number in range(5):
        single = store.put(f"/single/{number}", b"")
        backend.wait_for_calls(number + 2)[-1].release()
        assert single.result(PATIENCE).version == 0
    assert store.metrics().singles.queued == 0


@pytest.mark.parametrize("full", ["/in-flight", "/queued/0"])
def test_an_operation_with_an_earlier_one_on_its_path_is_not_executed_singly(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor, full: str
) -> None:
    """A single operation waits for earlier ones of its path, because it must not overtake them."""
    store = open_on(backend, max_in_flight=1, write_queue_size=1)
    fill(store, backend)
    waiting = pool.submit(store.put, full, b"second")
    until(lambda: store.metrics().writes.waiting == 1)
    assert store.metrics().singles.operations == 0
    release_all(backend)
    assert waiting.result(PATIENCE).result(PATIENCE).version == 1


def test_waiting_for_room_ends_at_the_deadline(backend: FaultyBackend, open_on: OpenOn) -> None:
    """Without room until its deadline a call raises QueueFullError, and nothing is ever sent."""
    store = open_on(backend, max_in_flight=1, write_queue_size=1, max_singles=0)
    futures = fill(store, backend)
    with pytest.raises(QueueFullError, match=r"queue of writes had no room .* 1 op") as caught:
        store.put("/late", b"", timeout=0.02)
    assert caught.value.path == "/late"
    assert caught.value.outcome == "not_applied"
    assert store.metrics().writes.waiting == 0
    backend.plan = None
    backend.calls[0].release()
    store.flush()
    assert all(future.done() for future in futures)
    assert "/late" not in sent_paths(backend)
    assert store.put("/late", b"").result(PATIENCE).version == 0
    assert dict(store.metrics().errors) == {"QueueFullError": 1}


def test_block_never_executes_singly(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """With on_full="block" the caller waits although singles are free."""
    store = open_on(backend, max_in_flight=1, write_queue_size=1, on_full="block")
    fill(store, backend)
    waiting = pool.submit(store.put, "/waits", b"")
    until(lambda: store.metrics().writes.waiting == 1)
    assert len(backend.calls) == 1
    release_all(backend)
    assert waiting.result(PATIENCE).result(PATIENCE).version == 0
    assert store.metrics().singles.operations == 0


def test_raise_refuses_at_once(backend: FaultyBackend, open_on: OpenOn) -> None:
    """With on_full="raise" a full queue raises QueueFullError, and leaves no trace."""
    store = open_on(backend, max_in_flight=1, write_queue_size=1, on_full="raise")
    fill(store, backend)
    with pytest.raises(QueueFullError) as caught:
        store.put("/refused", b"")
    assert caught.value.path == "/refused"
    other = store.get("/other")  # reads have a queue of their own
    assert (store.metrics().waits, store.metrics().writes.waiting) == (0, 0)
    release_all(backend)
    store.flush()
    assert other.result(0) is None
    assert store.put("/refused", b"").result(PATIENCE).version == 0


def test_room_is_given_in_the_order_of_arrival(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """Waiting callers get room in the order of arrival, and no caller overtakes them."""
    store = open_on(backend, max_in_flight=1, write_queue_size=1, max_ops=1, on_full="block")
    fill(store, backend)
    waiting = []

    def is_waiting(number: int) -> bool:
        return store.metrics().writes.waiting == number

    for number in range(6):
        waiting.append(pool.submit(store.put, f"/waiting/{number}", b""))
        until(partial(is_waiting, number + 1))
    release_all(backend)
    for call in waiting:
        call.result(PATIENCE).result(PATIENCE)
    expected = ["/in-flight", "/queued/0", *(f"/waiting/{number}" for number in range(6))]
    assert sent_paths(backend) == expected


def test_nobody_passes_a_large_operation_that_waits_for_bytes(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """A small operation that would fit waits behind the large one that came before it."""
    store = open_on(backend, max_in_flight=1, max_queued_bytes=100, on_full="block", max_ops=1)
    store.put("/in-flight", b"")
    backend.wait_for_calls(1)
    store.put("/queued", bytes(60))
    large = pool.submit(store.put, "/large", bytes(90))
    until(lambda: store.metrics().writes.waiting == 1)
    small = pool.submit(store.put, "/small", b"")
    until(lambda: store.metrics().writes.waiting == 2)
    release_all(backend)
    futures = [waiting.result(PATIENCE) for waiting in (large, small)]
    assert wait(futures, PATIENCE).not_done == set()
    assert sent_paths(backend) == ["/in-flight", "/queued", "/large", "/small"]


@pytest.mark.slow
def test_one_that_gives_up_waiting_does_not_hold_up_the_others(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """A large operation waits for bytes at the head; when its deadline ends it, others get in."""
    store = open_on(
        backend, max_in_flight=1, max_queued_bytes=100, on_full="block", write_queue_size=10
    )
    store.put("/in-flight", b"")
    backend.wait_for_calls(1)
    store.put("/queued", bytes(60))
    large = pool.submit(store.put, "/large", bytes(90), timeout=1.0)
    until(lambda: store.metrics().writes.waiting == 1)
    small = pool.submit(store.put, "/small", b"")
    with pytest.raises(QueueFullError):
        large.result(PATIENCE)
    assert not small.result(PATIENCE).done()
    assert store.metrics().writes.queued == 2


def test_bytes_are_bounded_in_each_queue(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """The bytes in a queue never exceed max_queued_bytes; callers that need more wait."""
    store = open_on(backend, max_in_flight=1, max_queued_bytes=100, on_full="block")
    store.put("/in-flight", b"")
    store.get("/in-flight-too")
    backend.wait_for_calls(2)
    store.put("/queued", bytes(90))
    store.get("/" + "r" * 94)
    assert store.metrics().queued_bytes == 97 + 95
    waiting: list[Future[AnyFuture]] = [
        pool.submit(store.put, "/waits", bytes(10)),
        pool.submit(store.get, "/waits/too"),
    ]
    until(lambda: store.metrics().writes.waiting + store.metrics().reads.waiting == 2)
    assert store.metrics().queued_bytes == 97 + 95
    release_all(backend)
    assert wait([call.result(PATIENCE) for call in waiting], PATIENCE).not_done == set()
    assert store.metrics().queued_bytes == 0


def test_what_waits_for_bytes_is_not_held_up_by_what_waits_for_it(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """A put that waits for bytes gets them, though a read behind it in its line holds some."""
    store = open_on(backend, max_in_flight=1, max_queued_bytes=100, on_full="block")
    store.put("/in-flight", b"")
    backend.wait_for_calls(1)
    store.put("/queued", b"1")
    putting = pool.submit(store.put, "/large", bytes(500))
    until(lambda: store.metrics().writes.waiting == 1)
    getting = store.get("/large")
    release_all(backend)
    assert putting.result(PATIENCE).result(PATIENCE).version == 0
    assert getting.result(PATIENCE) is not None


def test_an_operation_larger_than_the_bound_goes_alone(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """An operation larger than max_queued_bytes is accepted when the queue is empty."""
    store = open_on(backend, max_in_flight=1, max_queued_bytes=100, on_full="block")
    store.put("/in-flight", b"")
    backend.wait_for_calls(1)
    store.put("/queued", b"")
    giant = pool.submit(store.put, "/giant", bytes(5000))
    until(lambda: store.metrics().writes.waiting == 1)
    release_all(backend)
    assert giant.result(PATIENCE).result(PATIENCE).version == 0
    assert store.put("/another", bytes(5000)).result(PATIENCE).version == 0


def test_an_interrupted_wait_takes_the_operation_back(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """Ctrl-C while a call waits for room gives the operation up, and nothing hangs afterwards."""
    store = open_on(backend, max_in_flight=1, write_queue_size=1, on_full="block")
    fill(store, backend)
    with interrupted(lambda: until(lambda: store.metrics().writes.waiting == 1)):
        store.put("/interrupted", b"")
    assert store.metrics().writes.waiting == 0
    backend.plan = None
    backend.calls[0].release()
    store.flush()
    assert "/interrupted" not in sent_paths(backend)
    assert store.put("/interrupted", b"").result(PATIENCE).version == 0


# --- deadlines


def test_a_queued_operation_ends_at_its_deadline_and_is_never_sent(
    backend: FaultyBackend, open_on: OpenOn
) -> None:
    """An operation that is not sent by its deadline ends with OperationTimeoutError, for good."""
    store = open_on(backend, max_in_flight=1)
    first = store.put("/first", b"")
    backend.wait_for_calls(1)
    late: dict[str, AnyFuture] = {
        "/late": store.put("/late", b"", timeout=0.02),
        "/late/too": store.delete("/late/too", timeout=0.01),
    }
    kept = store.put("/kept", b"")
    for path, future in late.items():
        error = future.exception(PATIENCE)
        assert type(error) is OperationTimeoutError
        assert error.outcome == "not_applied"
        assert error.path == path
    assert "not sent within 0.02 s" in str(late["/late"].exception())
    backend.plan = None
    backend.calls[0].release()
    assert wait([first, kept], PATIENCE).not_done == set()
    assert store.put("/late", b"").result(PATIENCE).version == 0
    assert sent_paths(backend) == ["/first", "/kept", "/late"]


@pytest.mark.slow
def test_a_sent_write_ends_as_indeterminate_and_its_path_stays_blocked(
    make_backend: MakeBackend, open_on: OpenOn, deaf: Any
) -> None:
    """A late write's outcome is unknown, and the next operation of its path waits for its call."""
    deaf.only = 0
    backend = make_backend(deaf)
    store = open_on(backend, max_in_flight=2)
    lost = store.put("/a", b"first", timeout=1.0)  # sent by then, on a slow machine too
    error = lost.exception(PATIENCE)
    assert type(error) is IndeterminateError
    assert (error.outcome, error.path) == ("unknown", "/a")
    following: list[AnyFuture] = [store.put("/a", b"second"), store.get("/a")]
    assert store.put("/b", b"").result(PATIENCE).version == 0
    assert store.get("/b").result(PATIENCE) is not None
    assert sent_paths(backend).count("/a") == 1
    assert not any(future.done() for future in following)
    deaf.go.set()
    assert following[0].result(PATIENCE).version == 1
    assert following[1].result(PATIENCE).value == b"second"
    assert lost.exception() is error


@pytest.mark.slow
def test_what_the_back_end_knows_at_the_deadline_is_told(
    make_backend: MakeBackend, open_on: OpenOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write whose call reports at the deadline that it was not sent is not indeterminate."""
    # On a slow machine, the call is sent late, and reports late.
    monkeypatch.setattr(Engine, "grace", PATIENCE)
    store = open_on(make_backend(lambda _: Fault(hold="before")))
    error = store.put("/a", b"", timeout=1.0).exception(PATIENCE)
    assert type(error) is OperationTimeoutError
    assert "a fault held" in str(error)


def test_a_sent_read_ends_as_timed_out(
    make_backend: MakeBackend, open_on: OpenOn, deaf: Any
) -> None:
    """A read without an answer is never indeterminate, because it changes nothing."""
    store = open_on(make_backend(deaf))
    error = store.get("/a", timeout=0.01).exception(PATIENCE)
    assert type(error) is OperationTimeoutError
    assert error.outcome == "not_applied"


@pytest.mark.parametrize("connected", [True, False])
def test_a_sent_read_says_whether_there_was_a_server(
    make_backend: MakeBackend, open_on: OpenOn, deaf: Any, connected: bool
) -> None:
    """A read that the engine ends is late if there is a server, and otherwise unavailable."""
    backend = make_backend(deaf)
    backend.inner.connected = connected  # type: ignore[attr-defined]
    error = open_on(backend).get("/a", timeout=0.01).exception(PATIENCE)
    assert type(error) is (OperationTimeoutError if connected else StoreUnavailableError)
    assert (error.outcome, error.retriable, error.path) == ("not_applied", True, "/a")


@pytest.mark.parametrize("connected", [True, False])
def test_a_queued_operation_says_whether_there_was_a_server(
    make_backend: MakeBackend, open_on: OpenOn, connected: bool
) -> None:
    """An operation that ends in its queue is late if there is a server, otherwise unavailable."""
    backend = make_backend(lambda _: Fault(hold="before"), in_flight=1)
    store = open_on(backend, on_full="block", max_in_flight=1)
    store.put("/first", b"")
    backend.wait_for_calls(1)
    backend.inner.connected = connected  # type: ignore[attr-defined]
    error = store.put("/queued", b"", timeout=0.05).exception(PATIENCE)
    assert type(error) is (OperationTimeoutError if connected else StoreUnavailableError)
    assert "was not sent within" in str(error)


def test_a_back_end_that_cannot_say_whether_it_is_connected(
    make_backend: MakeBackend,
    open_on: OpenOn,
    deaf: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A fault there is logged, and deadlines are kept all the same."""

    def fail(_: FaultyBackend) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(FaultyBackend, "connected", property(fail))
    store = open_on(make_backend(deaf))
    for path in ("/a", "/b"):
        assert type(store.get(path, timeout=0.01).exception(PATIENCE)) is OperationTimeoutError
    assert "a bug" in caplog.text


def test_a_flush_whose_last_operation_ends_beside_a_younger_one(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor, waits: Callable[[], int]
) -> None:
    """It returns, although the batch has an operation that was submitted after the call."""
    store = open_on(backend, max_in_flight=1, on_full="block")
    store.put("/first", b"")
    (first,) = backend.wait_for_calls(1)
    store.put("/before", b"")
    flushing = pool.submit(store.flush)
    until(waits)
    store.put("/after", b"")
    first.release()
    batch = backend.wait_for_calls(2)[1]
    assert batch.paths == ["/before", "/after"]
    batch.release()
    flushing.result(PATIENCE)


@pytest.mark.slow
def test_deadlines_in_one_batch_are_each_its_own(backend: FaultyBackend, open_on: OpenOn) -> None:
    """Of two operations in one call the one with the shorter deadline ends, the other goes on."""
    store = open_on(backend, linger="fixed", max_delay=60, max_ops=2)
    short, long = store.put("/short", b"", timeout=1.0), store.put("/long", b"")
    (call,) = backend.wait_for_calls(1)
    assert call.paths == ["/short", "/long"]
    assert isinstance(short.exception(PATIENCE), IndeterminateError)
    assert not long.done()
    call.release()
    assert long.result(PATIENCE).version == 0


def test_an_operation_waiting_for_its_path_ends_at_its_deadline(
    make_backend: MakeBackend, open_on: OpenOn, deaf: Any
) -> None:
    """A deadline takes an operation out of the middle of its path's line; those behind move up."""
    deaf.only = 0
    backend = make_backend(deaf)
    store = open_on(backend)
    first = store.put("/a", b"1")
    backend.wait_for_calls(1)
    late = store.put("/a", b"late", timeout=0.01)
    last = store.put("/a", b"2")
    assert type(late.exception(PATIENCE)) is OperationTimeoutError
    deaf.go.set()
    assert (first.result(PATIENCE).version, last.result(PATIENCE).version) == (0, 1)


def test_many_different_deadlines_are_all_kept(backend: FaultyBackend, open_on: OpenOn) -> None:
    """Each queued operation ends by its own deadline, in whatever order they were given."""
    store = open_on(backend, max_in_flight=1)
    first = store.put("/first", b"")
    backend.wait_for_calls(1)
    dice = random.Random(3)
    late = [store.put(f"/{n}", b"", timeout=dice.uniform(0.001, 0.1)) for n in range(300)]
    kept = store.put("/kept", b"")
    assert {type(future.exception(PATIENCE)) for future in late} == {OperationTimeoutError}
    backend.plan = None
    backend.calls[0].release()
    assert wait([first, kept], PATIENCE).not_done == set()
    assert store.metrics().writes.queued == 0


# --- under load


def sampled(
    store: MetadataStore, counts: list[int], seconds: float
) -> tuple[list[Metrics], list[int]]:
    """Return the metrics of a store again and again, and what each thread has done meanwhile.

    The threads count that themselves. On a busy machine, some get no turn for a while, so this
    takes longer until they have done enough to be compared.
    """
    until(lambda: all(counts))
    before, over, samples = [*counts], time.monotonic() + seconds, []
    while time.monotonic() < over or sum(counts) - sum(before) < 200 * len(counts):
        assert time.monotonic() < over + PATIENCE, f"not much is done: {counts}"
        samples.append(store.metrics())
        time.sleep(0.002)
    return samples, [now - then for now, then in zip(counts, before, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("room", "room_bytes"), [(20, 1000), (200, 1_000_000)])
def test_sixty_four_threads_stay_within_the_bounds(
    make_backend: MakeBackend,
    open_on: OpenOn,
    pool: ThreadPoolExecutor,
    room: int,
    room_bytes: int,
    seconds: float,
) -> None:
    """Threads at full load: nothing exceeds its bound, all operations end, and no thread starves.

    The numbers of the metrics fit together at the end. In a large queue, operations arrive without
    the engine's lock.
    """
    backend = make_backend()
    store = open_on(
        backend,
        max_ops=10,
        max_in_flight=2,
        write_queue_size=room,
        read_queue_size=room,
        max_queued_bytes=room_bytes,
        max_singles=3,
    )
    finished = threading.Event()
    counts = [0] * 64

    def push(thread: int) -> int:
        """Put and get the same few paths until the end; return how often."""
        pushed: deque[tuple[int, AnyFuture, AnyFuture]] = deque()

        def check() -> None:
            number, put, got = pushed.popleft()
            assert put.result(PATIENCE).version == number // 5, f"{thread} {number}"
            assert got.result(PATIENCE).stat.version == number // 5, f"{thread} {number}"

        for number in itertools.count():
            if finished.is_set():
                break
            path = f"/{thread}/{number % 5}"
            value = bytes(number % (room_bytes // 25))
            pushed.append((number, store.put(path, value), store.get(path)))
            counts[thread] = number + 1
            if len(pushed) > 100:
                check()
        while pushed:
            check()
        return number

    pushing = [pool.submit(push, thread) for thread in range(64)]
    samples, shares = sampled(store, counts, seconds)
    finished.set()
    by_thread = [pushed.result(PATIENCE) for pushed in pushing]
    store.flush()
    for sample in samples:
        assert 0 <= sample.writes.queued <= room
        assert 0 <= sample.reads.queued <= room
        assert 0 <= sample.queued_bytes <= 2 * room_bytes
        assert sample.writes.in_flight <= 2
        assert sample.reads.in_flight <= 2
        assert sample.singles.in_flight <= sample.singles.queued <= 3
        assert sample.writes.waiting + sample.reads.waiting <= 64
    assert min(shares) * 10 > max(shares), f"some threads get much less done than others: {shares}"
    operations = 2 * sum(by_thread)
    end = store.metrics()
    lanes = (end.reads, end.writes, end.singles)
    assert sum(lane.operations for lane in lanes) == operations
    assert end.operations == {"put": operations // 2, "get": operations // 2}
    assert [(lane.queued, lane.waiting, lane.in_flight) for lane in lanes] == [(0, 0, 0)] * 3
    assert all(sum(lane.causes.values()) == lane.batches for lane in lanes)
    assert sum(lane.batches for lane in lanes) == len(backend.calls)
    assert sum(len(call.paths) for call in backend.calls) == operations
    assert end.singles.batches == end.singles.operations
    assert end.queued_bytes == 0
    assert not end.errors


@pytest.mark.slow
def test_errors_are_counted_by_class(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """The metrics count operations that ended with an error, and no others."""
    backend = make_backend(lambda call: Fault(hold="before") if "/held" in call.paths else None)
    store = open_on(backend, max_in_flight=1)
    futures: list[AnyFuture] = [store.put("/a", b""), store.put("/a", b"", 7), store.put("/b", b"")]
    futures += [store.delete("/missing"), store.delete("/missing"), store.get("/missing")]
    store.flush()
    held = store.put("/held", b"", timeout=1.0)
    cancelled = store.put("/held", b"")
    assert cancelled.cancel()
    assert isinstance(held.exception(PATIENCE), MetadataStoreError)
    store.flush()
    errors = dict(store.metrics().errors)
    # The call gives up at the same deadline as the engine; either may be first.
    assert errors.pop(type(held.exception()).__name__) == 1
    assert errors == {"BadVersionError": 1, "NotFoundError": 2}


def test_metrics_are_a_snapshot(backend: FaultyBackend, open_on: OpenOn) -> None:
    """A result of metrics() never changes, and shows the queues and the operations under way."""
    store = open_on(backend, max_in_flight=1)
    store.put("/in-flight", bytes(10))
    backend.wait_for_calls(1)
    store.put("/queued", bytes(3))
    before = store.metrics()
    store.put("/more", b"")
    assert (before.writes.queued, before.writes.in_flight, before.writes.batches) == (1, 1, 1)
    assert (before.writes.operations, before.writes.bytes, before.queued_bytes) == (1, 20, 10)
    assert store.metrics().writes.queued == 2
    assert before.reads == store.metrics().reads


def test_an_operation_that_no_request_has_room_for_is_refused_by_the_call(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """A path counts as well as a value, for reads too."""
    store = open_on(make_backend(request_bytes=100))
    path = "/" + "p" * 100
    for call in (store.get, store.delete, store.exists, store.get_children):
        with pytest.raises(ValueTooLargeError, match="accepts at most 100 in one request"):
            call(path)
    (outcome,) = store.apply([Get(path)])
    assert isinstance(outcome.error, ValueTooLargeError)
