"""The futures of callers behave like any other for callers and for the standard library."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching import MetadataStore, futures
from batchkeeper.batching.engine import engine_of
from batchkeeper.batching.futures import Relay
from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Delete,
    Exists,
    Get,
    GetChildren,
    NotFoundError,
    Put,
)
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.testing.faults import FaultyBackend, Plan

from .faulty import MakeBackend, OpenOn, release_all
from .waiting import PATIENCE, AnyFuture, until


def waited_for(future: AnyFuture) -> bool:
    """Whether a thread waits for the future in wait() or as_completed()."""
    return bool(future._waiters)


@pytest.fixture
def store(open_on: OpenOn, backend: FaultyBackend) -> MetadataStore:
    """With one batch in flight at a time, later operations stay queued while its call is held."""
    return open_on(backend, max_in_flight=1)


@pytest.fixture
def sent(store: MetadataStore, backend: FaultyBackend) -> AnyFuture:
    """A put whose call is held."""
    future = store.put("/sent", b"")
    backend.wait_for_calls(1)
    return future


@pytest.fixture
def queued(store: MetadataStore, sent: AnyFuture) -> list[AnyFuture]:
    """Three puts that wait until the first one's call is released."""
    return [store.put(f"/queued/{number}", b"") for number in range(3)]


# --- results and states


def test_a_future_is_one_to_everybody(sent: AnyFuture) -> None:
    """The futures are instances of the standard class."""
    assert isinstance(sent, Future)


def test_a_result_comes_to_those_who_wait_and_those_who_come_later(
    store: MetadataStore, backend: FaultyBackend, sent: AnyFuture, pool: ThreadPoolExecutor
) -> None:
    """result() and exception() return to callers that wait before the end, and to later callers."""
    results = [pool.submit(sent.result) for _ in range(4)]
    errors = [pool.submit(sent.exception) for _ in range(4)]
    release_all(backend)
    stat = results[0].result(PATIENCE)
    assert stat.path == "/sent"
    assert all(found.result(PATIENCE) is stat for found in results)
    assert all(found.result(PATIENCE) is None for found in errors)
    assert sent.result() is stat
    assert sent.result(0) is stat
    assert sent.exception() is None


def test_a_future_does_not_keep_what_was_put() -> None:
    """Whoever holds the futures of a bulk load does not hold its values with them."""
    with bk.open_store("memory://kept") as store:
        value = b"value" * 1000
        before = sys.getrefcount(value)
        puts = [
            store.put("/a", value),
            store.put("/b", value, ephemeral=True),
            store.transaction([Put("/c", value)]),
        ]
        for put in puts:
            put.result(PATIENCE)
        store.delete_recursive("/")  # The store has no use for it any more, either.
        until(lambda: sys.getrefcount(value) == before)


def test_an_error_is_raised_by_result_and_returned_by_exception(
    store: MetadataStore, backend: FaultyBackend
) -> None:
    """An operation that the store refuses ends its future with the error."""
    future = store.delete("/missing")
    release_all(backend)
    with pytest.raises(NotFoundError) as caught:
        future.result(PATIENCE)
    assert future.exception() is caught.value
    assert caught.value.path == "/missing"
    with pytest.raises(NotFoundError):
        future.result()


def test_a_timeout_of_the_wait_ends_the_wait_alone(backend: FaultyBackend, sent: AnyFuture) -> None:
    """result(timeout) and exception(timeout) raise TimeoutError, and the operation goes on."""
    for ask in (sent.result, sent.exception):
        with pytest.raises(TimeoutError):
            ask(timeout=0)
        with pytest.raises(TimeoutError):
            ask(timeout=0.001)
    assert not sent.done()
    release_all(backend)
    assert sent.result(PATIENCE).version == 0


def test_states_are_those_of_the_standard_future(
    backend: FaultyBackend, sent: AnyFuture, queued: list[AnyFuture]
) -> None:
    """Queued is pending, sent is running, and after that it is finished or cancelled."""

    def states(future: AnyFuture) -> tuple[bool, bool, bool]:
        return future.running(), future.done(), future.cancelled()

    assert states(queued[0]) == (False, False, False)
    assert states(sent) == (True, False, False)
    assert "pending" in repr(queued[0])
    assert "running" in repr(sent)
    queued[0].cancel()
    assert states(queued[0]) == (False, True, True)
    assert "cancelled" in repr(queued[0])
    release_all(backend)
    sent.result(PATIENCE)
    assert states(sent) == (False, True, False)
    assert "finished returned Stat" in repr(sent)


def test_a_failed_future_says_so(store: MetadataStore, backend: FaultyBackend) -> None:
    """The representation of a future that ended with an error names the error's class."""
    future = store.put("/a", b"", expected_version=7)
    release_all(backend)
    assert isinstance(future.exception(PATIENCE), BadVersionError)
    assert "finished raised BadVersionError" in repr(future)


# --- wait and as_completed


def test_wait_for_all_returns_when_all_have_ended(
    backend: FaultyBackend, sent: AnyFuture, queued: list[AnyFuture], pool: ThreadPoolExecutor
) -> None:
    """wait() returns when all futures have ended, and at once if they ended before."""
    everything = [sent, *queued]
    waiting = pool.submit(wait, everything, PATIENCE, ALL_COMPLETED)
    until(lambda: waited_for(queued[-1]))
    backend.plan = None
    backend.calls[0].release()
    done, not_done = waiting.result(PATIENCE)
    assert (done, not_done) == (set(everything), set())
    assert wait(everything, 0) == (set(everything), set())
    assert not any(waited_for(future) for future in everything)


def test_wait_for_the_first_returns_when_one_has_ended(
    backend: FaultyBackend, sent: AnyFuture, queued: list[AnyFuture], pool: ThreadPoolExecutor
) -> None:
    """FIRST_COMPLETED returns with what has ended, and leaves the others waiting."""
    waiting = pool.submit(wait, [*queued, sent], PATIENCE, FIRST_COMPLETED)
    until(lambda: waited_for(sent))
    backend.calls[0].release()
    done, not_done = waiting.result(PATIENCE)
    assert (done, not_done) == ({sent}, set(queued))
    assert wait([*queued, sent], 0, FIRST_COMPLETED) == ({sent}, set(queued))


def test_wait_for_the_first_error_returns_when_one_has_failed(
    store: MetadataStore, backend: FaultyBackend, sent: AnyFuture, pool: ThreadPoolExecutor
) -> None:
    """FIRST_EXCEPTION passes over a success and returns at the first error."""
    failing: AnyFuture = store.delete("/missing")
    waiting = pool.submit(wait, [sent, failing], PATIENCE, FIRST_EXCEPTION)
    until(lambda: waited_for(failing))
    backend.calls[0].release()
    backend.wait_for_calls(2)
    never: AnyFuture = store.put("/never", b"")
    last = pool.submit(wait, [sent, failing, never], PATIENCE, FIRST_EXCEPTION)
    until(lambda: waited_for(never))
    assert not waiting.done()
    backend.calls[1].release()
    assert waiting.result(PATIENCE).done == {sent, failing}
    assert last.result(PATIENCE) == ({sent, failing}, {never})
    assert wait([failing, never], 0, FIRST_EXCEPTION) == ({failing}, {never})


def test_wait_gives_up_after_its_timeout(sent: AnyFuture, queued: list[AnyFuture]) -> None:
    """wait(timeout) returns the futures that have not ended, and removes its waiter."""
    assert wait([sent, *queued], 0.001) == (set(), {sent, *queued})
    assert not waited_for(sent)


def test_as_completed_yields_each_as_it_ends(
    store: MetadataStore, backend: FaultyBackend, sent: AnyFuture, queued: list[AnyFuture]
) -> None:
    """Results and errors come in the order in which they end; those that have ended come first."""
    failing = store.delete("/missing")
    completed = as_completed([failing, *queued, sent], PATIENCE)
    backend.plan = None
    backend.calls[0].release()
    order = list(completed)
    assert order[0] is sent
    assert set(order[1:]) == {failing, *queued}
    assert set(as_completed([failing, sent], 0)) == {failing, sent}


def test_as_completed_gives_up_after_its_timeout(sent: AnyFuture, queued: list[AnyFuture]) -> None:
    """as_completed(timeout) raises TimeoutError, with the number of those that have not ended."""
    queued[0].cancel()
    completed = as_completed([sent, *queued], 0.001)
    assert next(completed) is queued[0]
    with pytest.raises(TimeoutError, match=r"3 \(of 4\)"):
        next(completed)


@pytest.mark.parametrize("function", [wait, as_completed])
def test_futures_of_other_kinds_and_stores_go_together(
    function: Callable[..., Any],
    make_backend: MakeBackend,
    open_on: OpenOn,
    hold_all: Plan,
    pool: ThreadPoolExecutor,
) -> None:
    """One wait() or as_completed() takes futures of two stores and of an executor, mixed."""
    backends = [make_backend(hold_all) for _ in range(2)]
    stores = [open_on(backend) for backend in backends]
    gate = threading.Event()
    mixed: list[AnyFuture] = [pool.submit(gate.wait, PATIENCE) for _ in range(3)]
    for number in range(20):
        mixed += [store.put(f"/{number}", b"") for store in stores]
    random.Random(1).shuffle(mixed)
    waiting = pool.submit(lambda: function(mixed, PATIENCE))
    if function is wait:
        until(lambda: all(waited_for(future) for future in mixed))
    for backend in backends:
        release_all(backend)
    gate.set()
    found = waiting.result(PATIENCE)
    assert set(found.done if function is wait else found) == set(mixed)


def test_many_waiters_over_the_same_futures_do_not_lock_each_other_out(
    store: MetadataStore, backend: FaultyBackend, sent: AnyFuture, pool: ThreadPoolExecutor
) -> None:
    """Threads that wait for the same futures, in different orders, all come back."""
    many = [sent, *(store.put(f"/{number}", b"") for number in range(200))]
    shuffled = [random.Random(seed).sample(many, len(many)) for seed in range(12)]
    waits = [pool.submit(wait, futures, PATIENCE) for futures in shuffled[::2]]
    iterations = [pool.submit(list, as_completed(futures, PATIENCE)) for futures in shuffled[1::2]]
    release_all(backend)
    assert all(found.result(PATIENCE).done == set(many) for found in waits)
    assert all(set(found.result(PATIENCE)) == set(many) for found in iterations)


# --- asyncio


def test_a_wrapped_future_can_be_awaited(store: MetadataStore, backend: FaultyBackend) -> None:
    """asyncio.wrap_future gives the result or the error to a task."""
    put, failing = store.put("/a", b"1"), store.delete("/missing")

    async def main() -> None:
        wrapped = [asyncio.wrap_future(future) for future in (put, failing)]
        release_all(backend)
        async with asyncio.timeout(PATIENCE):
            stat, error = await asyncio.gather(*wrapped, return_exceptions=True)
            assert stat is put.result(0)
            assert error is failing.exception(0)
            assert await asyncio.wrap_future(put) is stat

    asyncio.run(main())


def test_cancelling_a_wrapped_future_cancels_a_queued_operation(
    backend: FaultyBackend, sent: AnyFuture, queued: list[AnyFuture]
) -> None:
    """Cancelling the task cancels the operation while it is queued, and not once it is sent."""

    async def main() -> None:
        tasks = [asyncio.wrap_future(queued[0]), asyncio.wrap_future(sent)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(main())
    assert queued[0].cancelled()
    assert not sent.cancelled()
    release_all(backend)
    assert sent.result(PATIENCE).version == 0


# --- cancelling


def test_a_queued_operation_is_cancelled_and_never_sent(
    store: MetadataStore, backend: FaultyBackend, sent: AnyFuture, queued: list[AnyFuture]
) -> None:
    """A cancelled operation reaches neither a batch nor the store; its neighbours do."""
    assert queued[1].cancel()
    assert queued[1].done()
    for ask in (queued[1].result, queued[1].exception):
        with pytest.raises(CancelledError):
            ask(0)
    release_all(backend)
    assert wait([sent, *queued], PATIENCE).not_done == set()
    assert [path for call in backend.calls for path in call.paths] == [
        "/sent",
        "/queued/0",
        "/queued/2",
    ]
    assert store.exists("/queued/1").result(PATIENCE) is False


def test_cancelling_again_changes_nothing(store: MetadataStore, queued: list[AnyFuture]) -> None:
    """cancel() returns True on every call, but the place in the queue is given back once."""
    before = store.metrics().writes.queued
    assert [queued[0].cancel() for _ in range(3)] == [True] * 3
    assert store.metrics().writes.queued == before - 1


def test_what_was_sent_or_has_ended_cannot_be_cancelled(
    backend: FaultyBackend, sent: AnyFuture
) -> None:
    """cancel() of an operation that was sent says False, and it goes on to its result."""
    assert not sent.cancel()
    release_all(backend)
    assert sent.result(PATIENCE).version == 0
    assert not sent.cancel()
    assert not sent.cancelled()


def test_a_cancelled_future_is_done_at_once_for_wait(
    sent: AnyFuture,
    queued: list[AnyFuture],
    pool: ThreadPoolExecutor,
    waits: Callable[[], int],
) -> None:
    """A thread in wait() learns at once that a future was cancelled."""
    waiting = [
        pool.submit(wait, queued[:1], PATIENCE, ALL_COMPLETED),
        pool.submit(wait, [sent, *queued], PATIENCE, FIRST_COMPLETED),
        pool.submit(wait, queued[:1], PATIENCE, FIRST_EXCEPTION),
    ]
    until(lambda: waits() == 3)
    queued[0].cancel()
    for found in waiting:
        assert found.result(PATIENCE).done == {queued[0]}
    assert wait(queued[:1], 0).done == {queued[0]}


def test_a_cancelled_future_is_done_at_once_for_as_completed(
    sent: AnyFuture, queued: list[AnyFuture], pool: ThreadPoolExecutor
) -> None:
    """as_completed() yields a cancelled future, whether it is cancelled before or during."""
    queued[0].cancel()
    completed = as_completed([sent, *queued], PATIENCE)
    assert next(completed) is queued[0]
    following = pool.submit(next, completed)
    until(lambda: waited_for(queued[1]))
    queued[1].cancel()
    assert following.result(PATIENCE) is queued[1]
    completed.close()  # type: ignore[attr-defined]


def test_a_cancelled_future_is_done_at_once_for_result_and_a_task(
    queued: list[AnyFuture], pool: ThreadPoolExecutor
) -> None:
    """Threads in result() and tasks that await the future get CancelledError."""
    waiting = [pool.submit(ask) for ask in (queued[0].result, queued[0].exception)]

    async def main() -> None:
        wrapped = asyncio.wrap_future(queued[0])
        pool.submit(queued[0].cancel)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(wrapped), PATIENCE)

    asyncio.run(main())
    for found in waiting:
        with pytest.raises(CancelledError):
            found.result(PATIENCE)


def test_cancels_of_many_threads_agree(
    store: MetadataStore, backend: FaultyBackend, sent: AnyFuture, pool: ThreadPoolExecutor
) -> None:
    """If threads cancel one future together, each of them finds it cancelled and done.

    It is given up once: a later flush returns, and the queue's count is right.
    """
    threads = 4
    barrier = threading.Barrier(threads)

    def cancel(future: AnyFuture) -> tuple[bool, bool]:
        barrier.wait(PATIENCE)
        return future.cancel(), future.done()

    for number in range(300):
        calls: list[AnyFuture] = []
        future: AnyFuture = store.put(f"/{number}", b"")
        future.add_done_callback(calls.append)
        found = [pool.submit(cancel, future) for _ in range(threads)]
        assert [cancelled.result(PATIENCE) for cancelled in found] == [(True, True)] * threads
        until(calls.__len__)
        assert calls == [future]
    assert store.metrics().writes.queued == 0
    behind = store.put("/behind", b"")
    flushing = pool.submit(store.flush)
    assert not flushing.done()
    release_all(backend)
    flushing.result(PATIENCE)
    assert behind.done()


def test_cancelling_races_with_sending_and_one_of_them_wins(
    make_backend: MakeBackend, open_on: OpenOn, hold_all: Plan, pool: ThreadPoolExecutor
) -> None:
    """cancel() says True exactly for the operations that never reach the store."""
    backend = make_backend(hold_all)
    store = open_on(backend, max_ops=5, max_in_flight=2)
    submitted: list[tuple[str, AnyFuture]] = []
    finished = threading.Event()

    def cancel_some(seed: int) -> set[str]:
        dice, cancelled = random.Random(seed), set()
        while not finished.is_set():
            for path, future in submitted[-40:]:
                if dice.random() < 0.3 and future.cancel():
                    cancelled.add(path)
        return cancelled

    cancelling = [pool.submit(cancel_some, seed) for seed in range(3)]
    for number in range(3000):
        submitted.append((f"/{number}", store.put(f"/{number}", b"")))
        if number == 100:
            until(lambda: any(future.cancelled() for _, future in submitted))
            release_all(backend)
    store.flush()
    finished.set()
    cancelled = set().union(*(found.result(PATIENCE) for found in cancelling))
    reached = {path for call in backend.calls for path in call.paths}
    assert all(future.done() for _, future in submitted)
    assert cancelled == {path for path, future in submitted if future.cancelled()}
    assert not cancelled & reached
    assert len(cancelled) + len(reached) == len(submitted)


# --- done-callbacks


def test_callbacks_run_in_order_on_a_thread_of_their_own(
    store: MetadataStore, backend: FaultyBackend, sent: AnyFuture
) -> None:
    """Callbacks run once each, in the order given, on neither a caller's nor a sender's thread."""
    called: list[tuple[str, AnyFuture, threading.Thread]] = []
    finished = threading.Event()

    def note(name: str, future: AnyFuture) -> None:
        called.append((name, future, threading.current_thread()))

    sent.add_done_callback(partial(note, "first"))
    sent.add_done_callback(partial(note, "second"))
    sent.add_done_callback(lambda _: finished.set())
    release_all(backend)
    assert finished.wait(PATIENCE)
    assert [(name, future) for name, future, _ in called] == [("first", sent), ("second", sent)]
    (thread,) = {thread for _, _, thread in called}
    assert thread.name == "batchkeeper-callbacks"  # None of those that send.


def test_a_callback_after_the_end_runs_at_once(
    backend: FaultyBackend, sent: AnyFuture, queued: list[AnyFuture]
) -> None:
    """A callback that is added to a future that has ended runs before the call returns."""
    queued[0].cancel()
    release_all(backend)
    sent.result(PATIENCE)
    called: list[AnyFuture] = []
    for future in (sent, queued[0]):
        future.add_done_callback(called.append)
    assert called == [sent, queued[0]]


def test_a_cancelled_future_runs_its_callbacks(queued: list[AnyFuture]) -> None:
    """Cancelling runs the done-callbacks, with the future already done."""
    finished: Future[bool] = Future()
    queued[0].add_done_callback(lambda future: finished.set_result(future.cancelled()))
    queued[0].cancel()
    assert finished.result(PATIENCE) is True


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_an_exception_in_a_callback_harms_nothing(
    store: MetadataStore,
    backend: FaultyBackend,
    sent: AnyFuture,
    queued: list[AnyFuture],
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception of a callback is logged; the other callbacks, of all futures, still run."""
    finished = threading.Event()

    def fail(future: AnyFuture) -> None:
        raise error

    called: list[AnyFuture] = []
    sent.add_done_callback(fail)
    sent.add_done_callback(called.append)
    queued[2].add_done_callback(called.append)
    queued[2].add_done_callback(lambda _: finished.set())
    with caplog.at_level(logging.ERROR, "batchkeeper.futures"):
        release_all(backend)
        assert finished.wait(PATIENCE)
    assert called == [sent, queued[2]]
    assert [record.name for record in caplog.records] == ["batchkeeper.futures"]
    assert type(error).__name__ in caplog.text
    assert store.put("/after", b"").result(PATIENCE).version == 0


def test_a_callback_may_submit_and_wait(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """A callback can use the store and wait for the result, with the queue full as well."""
    store = open_on(make_backend(), max_in_flight=1, write_queue_size=1, on_full="block", max_ops=1)
    results: Future[list[int]] = Future()

    def again(future: AnyFuture) -> None:
        puts = [store.put("/a", b"again") for _ in range(20)]
        results.set_result([put.result(PATIENCE).version for put in puts])

    first = store.put("/a", b"")
    first.add_done_callback(again)
    others = [store.put(f"/{number}", b"") for number in range(50)]
    assert wait(others, PATIENCE).not_done == set()
    assert results.result(PATIENCE) == list(range(1, 21))


def test_close_runs_the_callbacks_that_are_left(
    make_backend: MakeBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """After close() every done-callback has run, those behind a slow one too."""
    store = open_on(make_backend())
    started, go = threading.Event(), threading.Event()
    called: list[AnyFuture] = []

    def slow(future: AnyFuture) -> None:
        started.set()
        go.wait(PATIENCE)

    store.put("/slow", b"").add_done_callback(slow)
    puts = [store.put(f"/{number}", b"") for number in range(10)]
    for put in puts:
        put.add_done_callback(called.append)
    assert started.wait(PATIENCE)
    closing = pool.submit(store.close)
    until(lambda: all(put.done() for put in puts))
    assert not closing.done()
    go.set()
    closing.result(PATIENCE)
    assert set(called) == set(puts)


def test_callbacks_run_even_if_no_thread_can_be_had(
    store: MetadataStore,
    backend: FaultyBackend,
    sent: AnyFuture,
    queued: list[AnyFuture],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the system has no thread left, results still arrive, and close() runs the callbacks."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(futures, "Thread", NoThread)
    called: list[AnyFuture] = []
    for future in (sent, *queued):
        future.add_done_callback(called.append)
    release_all(backend)
    assert wait([sent, *queued], PATIENCE).not_done == set()
    store.close()
    assert called == [sent, *queued]


# --- the moment between nobody waiting and somebody waiting


def test_nobody_misses_the_end(
    make_backend: MakeBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """A wait, a callback or a cancel that coincides with the end of a future always notices it."""
    store = open_on(make_backend(), max_ops=3)
    called: list[int] = []
    expected = 0

    def ask(future: AnyFuture, how: int) -> bool:
        match how:
            case 0:
                return future.exception(PATIENCE) is None
            case 1:
                return not wait([future], PATIENCE).not_done
            case 2:
                return next(as_completed([future], PATIENCE)) is future
            case _:
                return asyncio.run(awaited(future))

    async def awaited(future: AnyFuture) -> bool:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wrap_future(future)
        return True

    for number in range(400):
        future = store.put(f"/{number}", b"")
        asked = [pool.submit(ask, future, how) for how in (0, 1, 2, *([3] * (number % 10 == 0)))]
        future.add_done_callback(lambda _: called.append(1))
        expected += 1
        assert all(found.result(PATIENCE) for found in asked)
    store.close()
    assert len(called) == expected


# --- nothing of ours is public


def public(found: object) -> set[str]:
    return {name for name in dir(found) if not name.startswith("_")}


KINDS: list[Callable[[Any], Any]] = [
    lambda store: store.get("/a"),
    lambda store: store.put("/a", b"1"),
    lambda store: store.put("/a", b"1", ABSENT),
    lambda store: store.delete("/a"),
    lambda store: store.exists("/a"),
    lambda store: store.get_children("/a"),
    lambda store: store.submit(Get("/a")),
    lambda store: store.submit(Put("/a", b"1")),
    lambda store: store.submit(Delete("/a")),
    lambda store: store.submit(Exists("/a")),
    lambda store: store.submit(GetChildren("/a")),
]


@pytest.mark.parametrize("submit", [*KINDS, lambda store: store.delete_recursive("/a")])
def test_a_future_has_no_public_name_of_its_own(
    open_on: OpenOn, submit: Callable[[Any], AnyFuture]
) -> None:
    """A future has only the public attributes of the standard class, before and after its end."""
    store = open_on(connect("memory://public", ConnectOptions()))
    store.put("/a", b"1").result()
    future = submit(store)
    assert public(future) <= public(Future())
    wait([future], PATIENCE)
    assert public(future) <= public(Future())
    with pytest.raises(AttributeError):
        _ = future.value  # type: ignore[attr-defined]


@pytest.mark.parametrize("submit", KINDS[6:])
def test_an_asyncio_future_has_no_public_name_of_its_own(
    submit: Callable[[Any], asyncio.Future[Any]],
) -> None:
    """The store for tasks returns asyncio futures, with nothing added."""

    async def names() -> tuple[set[str], set[str]]:
        async with bk.open_async_store("memory://public") as store:
            future = submit(store)
            await asyncio.wait([future])
            return public(future), public(asyncio.get_running_loop().create_future())

    own, standard = asyncio.run(names())
    assert own <= standard


def ask_first(future: AnyFuture) -> None:
    future.add_done_callback(lambda _: None)


def ask_last(future: AnyFuture) -> None:
    future.result()
    repr(future)


@pytest.mark.parametrize("ask", [ask_first, ask_last, lambda future: wait([future])])
def test_a_future_that_has_ended_is_freed_when_nobody_holds_it(
    open_on: OpenOn, ask: Callable[[AnyFuture], object]
) -> None:
    """No way of waiting leaves a reference cycle, which only the garbage collector could free.

    The future is held through a weak reference, with the collector switched off.
    """
    store = open_on(connect("memory://freed", ConnectOptions()))
    gc.disable()
    try:
        future: AnyFuture = store.put("/a", b"1")
        ask(future)
        held = weakref.ref(future)
        del future
        until(lambda: held() is None)
    finally:
        gc.enable()


class Held:
    """Something that a caller holds, for weak references."""

    future: AnyFuture


def hold_a_failed_put(store: MetadataStore) -> weakref.ref[Held]:
    """Return what a frame holds that the error of a put leads to, which leads to the error."""
    held = Held()
    held.future = store.put("/a", b"", expected_version=7)
    until(held.future.done)  # Whoever waits makes the entry known to the collector.
    with suppress(BadVersionError):
        held.future.result()
    return weakref.ref(held)


def hold_a_callback(store: MetadataStore) -> weakref.ref[Held]:
    """Return what a done-callback holds, which holds the future."""
    held = Held()
    held.future = store.put("/a", b"")
    held.future.add_done_callback(lambda _: held)
    held.future.result()
    return weakref.ref(held)


@pytest.mark.parametrize("hold", [hold_a_failed_put, hold_a_callback])
def test_the_garbage_collector_frees_a_cycle_through_a_future(
    open_on: OpenOn, hold: Callable[[MetadataStore], weakref.ref[Held]]
) -> None:
    """The collector does not look at most entries, but at each that can be part of a cycle."""
    store = open_on(connect("memory://cycle", ConnectOptions()))
    held = hold(store)

    def freed() -> bool:
        # Threads hold what they did last.
        other = store.put("/b", b"")
        other.add_done_callback(lambda _: None)
        other.result()
        gc.collect()
        return held() is None

    until(freed)


def test_a_closed_store_is_freed_although_a_cancelled_operation_was_left_in_its_queue() -> None:
    """Such an operation stays there until a sender comes to it, without its values."""
    batching = bk.BatchingConfig(max_ops=2, linger="fixed", max_delay=60.0)
    store = bk.open_store("memory://ghost", batching)
    puts: list[Any] = [store.put(path, b"") for path in ("/a", "/b")]
    puts.append(store.submit(bk.Transaction([bk.Put("/left", b"")])))
    assert puts[1].result(PATIENCE).version == 0
    assert puts[2].cancel()
    assert puts[2]._entry.options is None
    store.close()
    held = weakref.ref(engine_of(store))
    del store, puts

    def freed() -> bool:
        gc.collect()
        return held() is None

    until(freed)


# --- threads that wait for one batch wake each other


def stand_in_result(queued: list[AnyFuture], pool: ThreadPoolExecutor) -> list[AnyFuture]:
    """Start a thread that waits for each future, and return when all of them wait."""
    waiters = [pool.submit(future.result, PATIENCE) for future in queued]
    entries = [future._entry for future in queued]  # type: ignore[attr-defined]
    until(lambda: all(entry.caller and entry.caller.gates for entry in entries))
    return waiters


def test_threads_that_wait_for_a_batch_wake_each_other(
    store: MetadataStore, backend: FaultyBackend, sent: AnyFuture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After only one wake-up from outside, all waiting threads return."""
    monkeypatch.setattr(Relay, "first_turn", PATIENCE)
    queued: list[AnyFuture] = [store.put(f"/{n}", b"") for n in range(20)]
    with ThreadPoolExecutor(len(queued)) as pool:
        waiters = stand_in_result(queued, pool)
        release_all(backend)
        assert [waiter.result(PATIENCE / 2).path for waiter in waiters] == [
            f"/{n}" for n in range(20)
        ]


def test_a_thread_that_gives_up_wakes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose wait times out at the very end still wakes the next one."""
    monkeypatch.setattr(Relay, "first_turn", PATIENCE)
    relay, gates = Relay(), [threading.Lock() for _ in range(5)]
    for gate in gates:
        gate.acquire()
    relay.add(gates)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(relay.run)
        for gate in gates:
            # Its thread has left, or comes back: either way it passes on once.
            assert gate.acquire(timeout=PATIENCE / 2)
            relay.pass_on()
        running.result(PATIENCE / 2)


def test_a_baton_that_is_lost_holds_nobody_up() -> None:
    """A thread that is interrupted before it wakes the next one costs only a short delay."""
    relay, gates = Relay(), [threading.Lock() for _ in range(50)]
    for gate in gates:
        gate.acquire()
    relay.add(gates)
    relay.run()
    assert not any(gate.locked() for gate in gates)
