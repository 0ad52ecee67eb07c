"""Flushing and closing: which operations they wait for, how these end, and that nothing hangs."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from batchkeeper.batching import BatchingConfig
from batchkeeper.batching.engine import Engine, engine_of
from batchkeeper.ops import (
    Get,
    IndeterminateError,
    InvalidSettingError,
    OperationTimeoutError,
    StoreClosedError,
)
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.testing.faults import Call, Fault, FaultyBackend

from ..interrupts import interrupted
from ..waits import noted_waits
from .faulty import MakeBackend, OpenOn, refuses, release_all
from .waiting import PATIENCE, AnyFuture, until


def working_since(before: set[threading.Thread]) -> list[str]:
    """Return the names of the package's threads that are alive, and were not before."""
    return [
        thread.name
        for thread in set(threading.enumerate()) - before
        if thread.name.startswith("batchkeeper-")
    ]


# --- flush


def test_flush_sends_what_lingers(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """flush() does not wait for company: reads and writes leave at once, and have ended."""
    store = open_on(make_backend(), linger="fixed", max_delay=60)
    futures: list[AnyFuture] = [store.put("/a", b""), store.get("/a"), store.get("/b")]
    store.flush()
    assert all(future.done() for future in futures)
    assert dict(store.metrics().writes.causes) == {"flush": 1}
    # "/b" leaves with the first flush; "/a" only when the put has ended.
    assert set(store.metrics().reads.causes) == {"flush"}


def test_flush_with_nothing_to_send_returns(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """A flush of an idle store returns at once, as often as it is called."""
    store = open_on(make_backend(), linger="fixed", max_delay=60)
    store.flush()
    store.put("/a", b"")
    store.flush()
    store.flush()
    assert store.metrics().writes.batches == 1


@pytest.mark.slow
def test_after_a_flush_operations_linger_again(
    make_backend: MakeBackend, open_on: OpenOn, waits: Callable[[], int]
) -> None:
    """Batches leave early only while a flush waits, and again with the next one."""
    store = open_on(make_backend(), linger="fixed", max_delay=0.2)
    for number in range(3):
        store.put("/a", b"")
        store.flush()
        store.flush()
        store.put("/b", b"").result(PATIENCE)
        causes = dict(store.metrics().writes.causes)
        assert causes == {"flush": number + 1, "delay": number + 1}


def test_flush_waits_for_what_came_before_and_not_for_what_comes_after(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor, waits: Callable[[], int]
) -> None:
    """Operations submitted while a flush waits do not keep it from returning."""
    store = open_on(backend, max_in_flight=2)
    before = [store.put("/before", b"")]
    backend.wait_for_calls(1)
    flushing = pool.submit(store.flush)
    until(waits)
    after = store.put("/after", b"")
    backend.wait_for_calls(2)
    assert not flushing.done()
    backend.calls[0].release()
    flushing.result(PATIENCE)
    assert all(future.done() for future in before)
    assert not after.done()


def test_flushes_of_many_threads_all_return(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor, waits: Callable[[], int]
) -> None:
    """Each flush waits for all that was submitted before it, those of earlier flushes too."""
    store = open_on(backend, max_in_flight=1)
    flushes, submitted = [], []
    for number in range(5):
        submitted.append(store.put(f"/{number}", b""))
        backend.wait_for_calls(1)
        flushes.append(pool.submit(store.flush))
        until(lambda: waits() == len(flushes))
    again = pool.submit(store.flush)
    assert not any(flushing.done() for flushing in flushes)
    release_all(backend)
    for flushing in [*flushes, again]:
        flushing.result(PATIENCE)
    assert all(future.done() for future in submitted)


def test_flush_covers_what_waits_for_room_and_for_its_path(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor, waits: Callable[[], int]
) -> None:
    """A flush also waits for operations that wait in a line or for room in the queue."""
    store = open_on(
        backend, linger="fixed", max_delay=60, write_queue_size=3, on_full="block", max_ops=2
    )
    store.put("/a", b"")
    in_line = [store.put("/a", b""), store.put("/a", b"")]
    waiting = pool.submit(store.put, "/waits", b"")
    until(lambda: store.metrics().writes.waiting == 1)
    flushing = pool.submit(store.flush)
    until(waits)
    release_all(backend)
    flushing.result(PATIENCE)
    assert waiting.result(PATIENCE).done()
    assert [future.result(0).version for future in in_line] == [1, 2]


@pytest.mark.slow
def test_flush_covers_cancelled_operations_and_those_past_their_deadline(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor, waits: Callable[[], int]
) -> None:
    """A flush also ends when the last operations end without being sent."""
    store = open_on(backend, max_in_flight=1)
    # Time enough for it to be sent, and for the cancel while it is under way.
    store.put("/in-flight", b"", timeout=1.0)
    backend.wait_for_calls(1)
    cancelled, late = store.put("/a", b""), store.put("/b", b"", timeout=0.01)
    flushing = pool.submit(store.flush)
    until(waits)
    assert cancelled.cancel()
    flushing.result(PATIENCE)
    assert isinstance(late.exception(0), OperationTimeoutError)


def test_an_interrupted_flush_leaves_the_store_as_it_was(
    backend: FaultyBackend, open_on: OpenOn
) -> None:
    """After a Ctrl-C in flush() operations still end, and linger again when it is over."""
    store = open_on(backend, linger="fixed", max_delay=0.1, max_ops=2)
    futures = [store.put("/a", b""), store.put("/b", b"")]
    # Their sender runs. To interrupt the start of a thread, which waits too, ends that thread.
    until(lambda: backend.calls)
    waits: list[Callable[[], int]] = []
    with (
        interrupted(lambda: until(lambda: waits and waits[0]())),
        noted_waits("MainThread") as main_waits,
    ):
        waits.append(main_waits)
        store.flush()
    release_all(backend)
    assert [future.result(PATIENCE).version for future in futures] == [0, 0]
    store.flush()
    assert store.put("/c", b"").result(PATIENCE).version == 0
    assert dict(store.metrics().writes.causes) == {"ops": 1, "delay": 1}


# --- close


def test_close_drains(make_backend: MakeBackend, open_on: OpenOn, waits: Callable[[], int]) -> None:
    """close() sends what is queued without waiting for company, and waits for the answers."""
    store = open_on(make_backend(), linger="fixed", max_delay=60)
    futures: list[AnyFuture] = [store.put("/a", b""), store.put("/a", b""), store.get("/a")]
    store.close()
    assert [future.result(0).version for future in futures[:2]] == [0, 1]
    assert futures[2].result(0).stat.version == 1
    assert set(store.metrics().writes.causes) == {"close"}


def test_after_close_calls_are_refused(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """A closed store raises StoreClosedError with its name, and flush has nothing to do."""
    store = open_on(make_backend())
    store.close()
    for call in (lambda: store.put("/a", b""), lambda: store.submit(Get("/a"))):
        with pytest.raises(StoreClosedError, match="the store is closed: memory://test"):
            call()
    store.flush()
    assert store.metrics().writes.queued == 0


def test_closing_twice_does_no_harm(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor, waits: Callable[[], int]
) -> None:
    """A second close waits for the first, up to its timeout; a later close returns at once."""
    store = open_on(backend)
    future = store.put("/a", b"")
    backend.wait_for_calls(1)
    closing = [pool.submit(store.close) for _ in range(5)]
    until(waits)
    with pytest.raises(StoreClosedError):
        store.get("/a")
    store.close(0.01)  # waits no longer than it is told
    assert not any(closed.done() for closed in closing)
    release_all(backend)
    for closed in closing:
        closed.result(PATIENCE)
    assert future.result(0).version == 0
    store.close()
    store.close(1.0)
    # As if others had closed it while the last callbacks ran: each needs an end of its own.
    sink = store._sink
    sink._to_dispatch.put(None)
    for _ in range(2):
        pool.submit(sink._run).result(PATIENCE)


def test_close_with_a_timeout_ends_what_cannot_be_sent(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor, waits: Callable[[], int]
) -> None:
    """Operations queued, in a line or without room at the timeout end with StoreClosedError."""
    store = open_on(backend, max_in_flight=1, write_queue_size=2, on_full="block")
    held = store.put("/held", b"")
    backend.wait_for_calls(1)
    queued: list[AnyFuture] = [store.put("/queued", b""), store.put("/held", b"behind")]
    waiting = pool.submit(store.put, "/waits", b"")
    until(lambda: store.metrics().writes.waiting == 1)
    store.close(0.01)
    for future in queued:
        with pytest.raises(StoreClosedError, match="closed before the operation was executed"):
            future.result(0)
    with pytest.raises(StoreClosedError):
        waiting.result(PATIENCE)
    # Held before it was applied, so the back end knows that it never was.
    assert type(held.exception(0)) is StoreClosedError
    assert [path for call in backend.calls for path in call.paths] == ["/held"]


def test_close_says_of_a_sent_write_that_it_is_unknown(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """A sent write that the close interrupts ends with IndeterminateError."""
    backend = make_backend(lambda call: Fault(hold="after"))
    store = open_on(backend)
    write: AnyFuture = store.put("/a", b"")
    read: AnyFuture = store.get("/b")
    backend.wait_for_calls(2)
    store.close(0)
    assert type(write.exception(0)) is IndeterminateError
    assert isinstance(read.exception(0), StoreClosedError)


def test_close_does_not_wait_for_ever_for_a_call(
    make_backend: MakeBackend, open_on: OpenOn, deaf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that does not return even after the back end is closed is given up after a while."""
    monkeypatch.setattr(Engine, "last_wait", 0.01)
    before = set(threading.enumerate())
    store = open_on(make_backend(deaf))
    write: AnyFuture = store.put("/a", b"")
    read: AnyFuture = store.get("/b")
    until(lambda: write.running() and read.running())
    behind = store.put("/a", b"")
    store.close(0)
    assert type(write.exception(0)) is IndeterminateError
    assert type(read.exception(0)) is StoreClosedError
    assert type(behind.exception(0)) is StoreClosedError
    deaf.go.set()
    until(lambda: not working_since(before))
    assert type(write.exception(0)) is IndeterminateError


def test_an_interrupt_while_close_waits_for_a_call_ends_the_futures(
    make_backend: MakeBackend, open_on: OpenOn, deaf: Any
) -> None:
    """After a Ctrl-C beside a call that does not return, its future ends all the same."""
    store = open_on(make_backend(deaf))
    write: AnyFuture = store.put("/a", b"")
    until(write.running)
    engine = engine_of(store)
    with interrupted(lambda: until(lambda: engine._stopping)):
        store.close(0)
    assert type(write.exception(PATIENCE)) is IndeterminateError
    deaf.go.set()


@pytest.mark.slow
def test_close_waits_until_deadlines_without_a_timeout(
    make_backend: MakeBackend, open_on: OpenOn, deaf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a timeout the operations' own deadlines bound the drain."""
    monkeypatch.setattr(Engine, "last_wait", 0.01)
    # Time enough for the first one to be sent, on a slow machine too.
    store = open_on(make_backend(deaf), max_in_flight=1, operation_timeout=1.0)
    futures = [store.put("/a", b""), store.put("/a", b"")]
    store.close()
    assert [type(future.exception(0)) for future in futures] == [
        IndeterminateError,
        OperationTimeoutError,
    ]


def test_close_ends_the_threads(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """After close() no thread of the store is left."""
    before = set(threading.enumerate())
    store = open_on(make_backend(), max_ops=1, write_queue_size=1)
    for number in range(50):
        store.put(f"/{number}", b"").add_done_callback(lambda _: None)
    threads = set(threading.enumerate()) - before
    assert threads
    store.close()
    assert not any(thread.is_alive() for thread in threads)


def test_a_callback_may_close(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """close() from a done-callback drains and returns; the remaining callbacks still run."""
    store = open_on(make_backend())
    closed: Future[list[bool]] = Future()
    last = threading.Event()
    others: list[AnyFuture] = []

    def close(future: AnyFuture) -> None:
        others.extend(store.put(f"/{number}", b"") for number in range(20))
        others[-1].add_done_callback(lambda _: last.set())
        store.close()
        closed.set_result([other.done() for other in others])

    store.put("/a", b"").add_done_callback(close)
    assert closed.result(PATIENCE) == [True] * 20
    assert last.wait(PATIENCE)


def test_close_passes_an_error_of_the_back_end_on(
    make_backend: MakeBackend, open_on: OpenOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the back end cannot be closed properly, close() says so, and the store is closed."""
    backend = make_backend()
    store = open_on(backend)

    def fail() -> None:
        raise OSError("stuck")

    with monkeypatch.context() as patched:
        patched.setattr(backend, "close", fail)
        with pytest.raises(OSError, match="stuck"):
            store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.get("/a")


def test_an_interrupted_close_closes(
    backend: FaultyBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """After a Ctrl-C in close() everything has ended, and closing again returns."""
    store = open_on(backend, max_in_flight=1)
    held = store.put("/held", b"")
    backend.wait_for_calls(1)
    queued = store.put("/queued", b"")
    with interrupted(lambda: until(lambda: refuses(store))):
        store.close()
    assert [type(future.exception(0)) for future in (held, queued)] == [StoreClosedError] * 2
    pool.submit(store.close).result(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize(("on_full", "timeout"), [("single", 0.0), ("block", None)])
def test_close_during_full_load(
    make_backend: MakeBackend,
    open_on: OpenOn,
    pool: ThreadPoolExecutor,
    on_full: str,
    timeout: float | None,
) -> None:
    """After a close amid many threads, each future ends, and each acknowledged write is there.

    What ended with an error that says so is not there.
    """
    backend: Any = make_backend()
    # Another opener of the same values, which go with the last one.
    keeper = open_on(connect(backend.url, ConnectOptions()))
    store = open_on(
        backend, max_ops=7, write_queue_size=30, max_singles=3, on_full=on_full, max_in_flight=3
    )

    def push(thread: int) -> dict[str, AnyFuture]:
        futures: dict[str, AnyFuture] = {}
        for number in itertools.count():
            path = f"/{thread}/{number}"
            try:
                futures[path] = store.put(path, b"")
            except StoreClosedError:
                return futures
        return futures

    pushing = [pool.submit(push, thread) for thread in range(24)]
    until(lambda: len(backend.calls) > 100)
    store.close(timeout)
    by_path = {path: put for pushed in pushing for path, put in pushed.result(PATIENCE).items()}
    futures = by_path.values()
    assert all(future.done() for future in futures)
    errors = {type(future.exception(0)) for future in futures}
    assert errors <= {type(None), StoreClosedError}
    if timeout is None:
        assert errors == {type(None)}
    reads = keeper.apply(map(Get, by_path))
    for future, found in zip(futures, reads, strict=True):
        assert (future.exception(0) is None) == (found.result is not None)


def test_close_races_with_cancels(
    make_backend: MakeBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """Cancels during a close neither hang it nor leave a future without an end."""
    for _ in range(20):
        store = open_on(make_backend(), linger="fixed", max_delay=60, max_ops=10)
        futures = [store.put(f"/{number}", b"") for number in range(95)]
        closing = pool.submit(store.close)
        cancelled = [future.cancel() for future in reversed(futures)]
        closing.result(PATIENCE)
        assert wait(futures, PATIENCE).not_done == set()
        for future, gone in zip(reversed(futures), cancelled, strict=True):
            assert future.cancelled() == gone
            if gone:
                with pytest.raises(CancelledError):
                    future.result(0)


@pytest.mark.parametrize("timeout", [-1, True, "1", float("nan"), float("inf")])
def test_a_wrong_timeout_is_refused_and_closes_nothing(
    make_backend: MakeBackend, open_on: OpenOn, timeout: Any
) -> None:
    """close(timeout) takes seconds from 0 on."""
    store = open_on(make_backend())
    with pytest.raises(InvalidSettingError, match="timeout must be a number of seconds"):
        store.close(timeout)
    assert store.put("/a", b"").result(PATIENCE).version == 0


def test_an_open_store_cannot_be_pickled(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """Pickling a store is refused with what to do instead; its settings pickle."""
    store = open_on(make_backend())
    with pytest.raises(TypeError, match=r"cannot be pickled.*Pickle its URL"):
        pickle.dumps(store)
    config = BatchingConfig(max_ops=7)
    assert pickle.loads(pickle.dumps(config)) == config


# --- calls that outlast their deadlines


@pytest.fixture
def settling(make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch) -> MakeBackend:
    """Make a back end whose calls return only when it is closed, like calls that settle a write."""

    def make(**limits: int) -> FaultyBackend:
        closed = threading.Event()

        def settle(call: Call) -> Fault:
            assert closed.wait(60)
            return Fault(error=IndeterminateError("given up at the close"))

        backend = make_backend(settle, **limits)
        close = backend.close

        def close_and_let_go() -> None:
            closed.set()
            close()

        monkeypatch.setattr(backend, "close", close_and_let_go)
        # Whoever waited for this would not come back in time.
        monkeypatch.setattr(Engine, "last_wait", 1000.0)
        return backend

    return make


@pytest.mark.slow
def test_flush_does_not_wait_for_a_call_that_settles(
    settling: MakeBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """Operations end at their deadlines, whatever their call finds out later."""
    store = open_on(settling())
    # Time enough for all of them to be sent, on a slow machine too.
    futures: list[AnyFuture] = [store.put(f"/{n}", b"", timeout=1.0) for n in range(5)]
    pool.submit(store.flush).result(PATIENCE)
    assert {type(future.exception(0)) for future in futures} == {IndeterminateError}
    assert store.metrics().writes.in_flight >= 1


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [None, 0, 0.1])
def test_close_ends_calls_that_settle(
    settling: MakeBackend, open_on: OpenOn, pool: ThreadPoolExecutor, timeout: float | None
) -> None:
    """close() makes the back end give up these calls; operations behind them end unsent."""
    before = set(threading.enumerate())
    backend = settling(in_flight=2)
    store = open_on(backend)
    sent = store.put("/a", b"", timeout=1.0)  # sent by then, on a slow machine too
    backend.wait_for_calls(1)
    behind: list[AnyFuture] = [store.put("/a", b"", timeout=0.1), store.get("/a", timeout=0.1)]
    assert type(sent.exception(PATIENCE)) is IndeterminateError
    pool.submit(store.close, timeout).result(PATIENCE)
    for future in behind:
        assert type(future.exception(0)) in {OperationTimeoutError, StoreClosedError}
    assert [call.paths for call in backend.calls] == [["/a"]]
    metrics = store.metrics()
    assert (metrics.writes.in_flight, metrics.writes.queued, metrics.reads.queued) == (0, 0, 0)
    assert not working_since(before)
