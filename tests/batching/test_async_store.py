"""The store for asyncio: futures set on their loop, waiting without holding it up, early ends."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import batchkeeper
from batchkeeper.batching import AsyncMetadataStore, BatchingConfig
from batchkeeper.batching.engine import Engine, engine_of
from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Delete,
    Get,
    InvalidPathError,
    NotFoundError,
    Operation,
    OperationTimeoutError,
    Put,
    QueueFullError,
    StoreClosedError,
)
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.testing.faults import FaultyBackend

from .faulty import MakeBackend, release_all
from .waiting import LEFT_OPEN, PATIENCE

Test = Callable[[AsyncMetadataStore], Awaitable[None]]


def open_here(
    backend: FaultyBackend, *, operation_timeout: float = 60.0, **settings: Any
) -> AsyncMetadataStore:
    config = BatchingConfig(**settings)
    loop = asyncio.get_running_loop()
    return AsyncMetadataStore(backend, config, operation_timeout, "memory://test", loop)


def run(backend: FaultyBackend, test: Test, **settings: Any) -> None:
    """Run a test on a new loop, with a store that is closed after it."""

    async def main() -> None:
        store = open_here(backend, **settings)
        try:
            async with asyncio.timeout(PATIENCE):
                await test(store)
        finally:
            await store.close(0)

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    """Poll a condition on the loop until it is true."""
    while not condition():  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.0005)


async def fill(
    store: AsyncMetadataStore, backend: FaultyBackend, room: int = 1
) -> list[asyncio.Future[Any]]:
    """Have one write in flight, and fill the queue of writes behind it."""
    futures = [store.submit(Put("/in-flight", b""))]
    await until(lambda: backend.calls)
    return futures + [store.submit(Put(f"/queued/{number}", b"")) for number in range(room)]


# --- results


def test_a_batch_costs_the_loop_one_wake_up(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call hands all results of a batch to the loop, whatever the number of its tasks."""

    async def test(store: AsyncMetadataStore) -> None:
        loop = asyncio.get_running_loop()
        hand_overs: list[Any] = []
        original = loop.call_soon_threadsafe

        def counted(callback: Any, *args: Any, **kwargs: Any) -> Any:
            hand_overs.append(callback)
            return original(callback, *args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        stats = await asyncio.gather(*(store.put(f"/{n}", b"") for n in range(300)))
        assert len(stats) == 300
        assert len(hand_overs) == 3
        errors = await asyncio.gather(
            *(store.delete(f"/missing/{n}") for n in range(100)), return_exceptions=True
        )
        assert {type(error) for error in errors} == {NotFoundError}
        assert len(hand_overs) == 4

    run(make_backend(), test, linger="fixed", max_delay=60, max_ops=100)


def test_a_thousand_tasks_each_get_their_own(make_backend: MakeBackend) -> None:
    """Tasks that put, read and advance their own path, all at once, through small queues."""

    async def test(store: AsyncMetadataStore) -> None:
        async def work(number: int) -> None:
            path, value = f"/{number}", b"%d" % number
            stat = await store.put(path, value, ABSENT)
            assert (stat.path, stat.version) == (path, 0)
            found = await store.get(path)
            assert found is not None
            assert (found.value, found.stat) == (value, stat)
            assert (await store.put(path, b"", 0)).version == 1
            with pytest.raises(BadVersionError):
                await store.put(path, b"", 0)
            assert await store.exists(path)
            await store.delete(path)

        await asyncio.gather(*(work(number) for number in range(1000)))
        assert await store.get_children("/") == []

    run(make_backend(), test, write_queue_size=50, read_queue_size=50, max_singles=5)


def test_an_operation_is_submitted_when_its_coroutine_first_runs(
    backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coroutine that has not run has submitted nothing."""
    # The call says that it was held; on a slow machine, it says so late.
    monkeypatch.setattr(Engine, "grace", PATIENCE)

    async def test(store: AsyncMetadataStore) -> None:
        coroutine = store.put("/a", b"")
        await store.flush()
        assert store.metrics().writes.batches == 0
        coroutine.close()
        with pytest.raises(OperationTimeoutError):
            await store.put("/b", b"", timeout=0.01)

    run(backend, test)


# --- cancelling


def test_cancelling_an_await_removes_a_queued_operation(backend: FaultyBackend) -> None:
    """The operation leaves the queue at once and is never sent; its neighbours are."""

    async def test(store: AsyncMetadataStore) -> None:
        first = asyncio.create_task(store.put("/first", b""))
        await until(lambda: backend.calls)
        tasks = [asyncio.create_task(store.put(f"/{number}", b"")) for number in range(3)]
        await until(lambda: store.metrics().writes.queued == 3)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert tasks[1].cancelled()
        assert store.metrics().writes.queued == 2
        release_all(backend)
        assert (await first).version == (await tasks[0]).version == (await tasks[2]).version == 0
        assert not await store.exists("/1")

    run(backend, test, max_in_flight=1)
    assert not any("/1" in call.paths for call in backend.calls if call.method == "write")


def forget_others(caplog: pytest.LogCaptureFixture) -> None:
    """Have asyncio log now what it will log of the futures that other tests have left."""
    gc.collect()
    caplog.clear()


def test_cancelling_an_await_lets_a_sent_operation_go_on(
    backend: FaultyBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A sent operation takes effect although nothing waits for it any more; so does its error."""

    async def test(store: AsyncMetadataStore) -> None:
        task = asyncio.create_task(store.put("/sent", b""))
        await until(lambda: backend.calls)
        failing = asyncio.create_task(store.delete("/missing"))
        await until(lambda: len(backend.calls) == 2)
        for cancelled in (task, failing):
            cancelled.cancel()
        await asyncio.wait([task, failing])
        assert task.cancelled()
        assert failing.cancelled()
        release_all(backend)
        assert (await store.put("/sent", b"")).version == 1

    forget_others(caplog)
    with caplog.at_level(logging.WARNING):
        run(backend, test, max_ops=1)
    assert caplog.records == []


def test_cancelling_removes_an_operation_that_waits_for_room(backend: FaultyBackend) -> None:
    """A task that waits for room in the queue gives up its place in the order of arrival."""

    async def test(store: AsyncMetadataStore) -> None:
        await fill(store, backend)
        tasks = [asyncio.create_task(store.put(f"/{number}", b"")) for number in range(3)]
        await until(lambda: store.metrics().writes.waiting == 3)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        assert store.metrics().writes.waiting == 2
        release_all(backend)
        assert [(await task).version for task in tasks[1:]] == [0, 0]
        await store.flush()

    run(backend, test, max_in_flight=1, write_queue_size=1, on_full="block")
    assert ["/0"] not in [call.paths for call in backend.calls]


def test_a_timeout_around_an_await_works_like_everywhere(backend: FaultyBackend) -> None:
    """asyncio.timeout gives the operation up; flush has nothing to wait for after that."""

    async def test(store: AsyncMetadataStore) -> None:
        store.submit(Put("/in-flight", b""))
        await until(lambda: backend.calls)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.put("/queued", b"")
        assert store.metrics().writes.queued == 0

    run(backend, test, max_in_flight=1)


# --- full queues


def test_tasks_wait_for_room_in_the_order_of_arrival(backend: FaultyBackend) -> None:
    """A full queue delays the tasks that need it, in order of arrival, but never the loop."""

    async def test(store: AsyncMetadataStore) -> None:
        await fill(store, backend)
        tasks = [asyncio.create_task(store.put(f"/{number}", b"")) for number in range(20)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert store.metrics().writes.waiting == 20
        release_all(backend)
        await asyncio.gather(*tasks)

    run(backend, test, max_in_flight=1, max_ops=1, write_queue_size=1, on_full="block")
    paths = [path for call in backend.calls for path in call.paths]
    assert paths == ["/in-flight", "/queued/0", *(f"/{number}" for number in range(20))]


def test_a_full_queue_executes_singly(backend: FaultyBackend) -> None:
    """With on_full="single" an await on a full queue goes beside the batches."""

    async def test(store: AsyncMetadataStore) -> None:
        await fill(store, backend)
        single = asyncio.create_task(store.put("/single", b""))
        await until(lambda: len(backend.calls) == 2)
        assert backend.calls[1].paths == ["/single"]
        backend.calls[1].release()
        assert (await single).version == 0

    run(backend, test, max_in_flight=1, write_queue_size=1)


def test_waiting_for_room_ends_at_the_deadline(backend: FaultyBackend) -> None:
    """If there is no room by the deadline, the await raises QueueFullError."""

    async def test(store: AsyncMetadataStore) -> None:
        await fill(store, backend)
        with pytest.raises(QueueFullError):
            await store.put("/late", b"", timeout=0.01)
        assert store.metrics().writes.waiting == 0

    run(backend, test, max_in_flight=1, write_queue_size=1, on_full="block")


def test_raise_refuses_an_await_at_once(backend: FaultyBackend) -> None:
    """With on_full="raise" an await on a full queue raises QueueFullError."""

    async def test(store: AsyncMetadataStore) -> None:
        await fill(store, backend)
        with pytest.raises(QueueFullError):
            await store.put("/refused", b"")
        assert store.metrics().waits == 0

    run(backend, test, max_in_flight=1, write_queue_size=1, on_full="raise")


# --- submit


def test_submit_gives_a_future_or_raises(backend: FaultyBackend) -> None:
    """submit returns at once: with a future of the loop, or with QueueFullError."""

    async def test(store: AsyncMetadataStore) -> None:
        futures = await fill(store, backend, 2)
        assert all(asyncio.isfuture(future) for future in futures)
        with pytest.raises(QueueFullError):
            store.submit(Put("/refused", b""))
        release_all(backend)
        assert [(await future).version for future in futures] == [0, 0, 0]
        failing = store.submit(Delete("/missing"))
        with pytest.raises(NotFoundError):
            await failing

    run(backend, test, max_in_flight=1, write_queue_size=2, on_full="block")


def test_submit_uses_a_single_where_one_is_free(backend: FaultyBackend) -> None:
    """With on_full="single", submit raises only if all singles are in use, too."""

    async def test(store: AsyncMetadataStore) -> None:
        await fill(store, backend)
        single = store.submit(Put("/single", b""))
        with pytest.raises(QueueFullError):
            store.submit(Put("/refused", b""))
        await until(lambda: len(backend.calls) == 2)
        backend.calls[1].release()
        assert (await single).version == 0

    run(backend, test, max_in_flight=1, write_queue_size=1, max_singles=1)


def test_cancelling_a_submitted_future_removes_the_operation(backend: FaultyBackend) -> None:
    """A queued operation whose future is cancelled is never sent."""

    async def test(store: AsyncMetadataStore) -> None:
        futures = await fill(store, backend, 2)
        assert futures[1].cancel()
        await until(lambda: store.metrics().writes.queued == 1)
        release_all(backend)
        await futures[2]
        await store.flush()

    run(backend, test, max_in_flight=1, write_queue_size=2)
    assert "/queued/0" not in [path for call in backend.calls for path in call.paths]


# --- closing


def test_close_drains_and_refuses_what_comes_later(make_backend: MakeBackend) -> None:
    """Tasks that wait get their results; then every call raises StoreClosedError."""

    async def test(store: AsyncMetadataStore) -> None:
        async with store:
            tasks = [asyncio.create_task(store.put(f"/{number}", b"")) for number in range(50)]
            await until(lambda: store.metrics().writes.queued == 50)
        assert [(await task).version for task in tasks] == [0] * 50
        for call in (store.get("/a"), store.put("/a", b""), store.delete("/a")):
            with pytest.raises(StoreClosedError):
                await call
        with pytest.raises(StoreClosedError):
            store.submit(Get("/a"))
        await store.close()

    run(make_backend(), test, linger="fixed", max_delay=60)


def test_a_close_that_is_given_up_goes_on_and_holds_nobody(backend: FaultyBackend) -> None:
    """Its thread is one that neither the loop nor Python waits for when it ends."""

    async def test(store: AsyncMetadataStore) -> None:
        (future,) = await fill(store, backend, 0)
        before = {*threading.enumerate()}
        closing = asyncio.create_task(store.close())
        await until(lambda: {*threading.enumerate()} - before)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert all(thread.daemon for thread in {*threading.enumerate()} - before)
        release_all(backend)
        await future

    run(backend, test)


def test_close_with_a_timeout_tells_the_tasks(backend: FaultyBackend) -> None:
    """Operations queued or waiting for room at the timeout end with StoreClosedError."""

    async def test(store: AsyncMetadataStore) -> None:
        futures = await fill(store, backend)
        waiting = asyncio.create_task(store.put("/waits", b""))
        await until(lambda: store.metrics().writes.waiting == 1)
        await store.close(0.01)
        assert all(future.done() for future in futures)
        errors = [future.exception() for future in futures]
        assert {type(error) for error in errors} == {StoreClosedError}
        with pytest.raises(StoreClosedError):
            await waiting

    run(backend, test, max_in_flight=1, write_queue_size=1, on_full="block")


def test_flush_waits_without_holding_up_the_loop(backend: FaultyBackend) -> None:
    """After flush() all futures that were submitted before it are done."""

    async def test(store: AsyncMetadataStore) -> None:
        futures = await fill(store, backend, 5)
        flushing = asyncio.create_task(store.flush())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not flushing.done()
        release_all(backend)
        await flushing
        assert all(future.done() for future in futures)

    run(backend, test, linger="fixed", max_delay=60, max_ops=1, write_queue_size=5)


@LEFT_OPEN
def test_a_loop_that_was_closed_before_the_answers_came_is_left_alone(
    backend: FaultyBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Results for a loop that is gone are dropped; the engine goes on, and can be closed."""
    forget_others(caplog)
    loop = asyncio.new_event_loop()

    async def main() -> AsyncMetadataStore:
        store = open_here(backend)
        store.submit(Put("/a", b""))
        await until(lambda: backend.calls)
        return store

    store = loop.run_until_complete(main())
    loop.close()
    with caplog.at_level(logging.WARNING, "batchkeeper"):
        release_all(backend)
        engine_of(store).close(PATIENCE)
    assert caplog.records == []
    assert store.metrics().writes.operations == 1


@LEFT_OPEN
def test_the_garbage_collector_frees_a_bulk_call_on_a_closed_loop(
    backend: FaultyBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task is part of a cycle: it has the operations, and they lead to what wakes it."""
    loop = asyncio.new_event_loop()

    async def main() -> tuple[AsyncMetadataStore, weakref.ref[asyncio.Task[Any]]]:
        store = open_here(backend)
        task = asyncio.create_task(store.apply([Put("/a", b"")]))
        await until(lambda: backend.calls)
        return store, weakref.ref(task)

    store, task = loop.run_until_complete(main())
    loop.close()
    with caplog.at_level(logging.CRITICAL, "asyncio"):  # It complains of such a task.
        release_all(backend)
        engine_of(store).close(PATIENCE)
        backend.calls.clear()
        del loop, store
        gc.collect()
    assert task() is None


# --- bulk


async def asynchronous(ops: Iterator[Operation]) -> AsyncIterator[Operation]:
    for op in ops:
        await asyncio.sleep(0)
        yield op


def plain(ops: Iterator[Operation]) -> Iterator[Operation]:
    return ops


def puts(*numbers: int) -> Iterator[Operation]:
    return (Put(f"/{number}", b"") for number in range(*numbers))


SOURCES = pytest.mark.parametrize("source", [plain, asynchronous])


@SOURCES
def test_apply_gives_outcomes_in_order(make_backend: MakeBackend, source: Any) -> None:
    """From plain and from asynchronous sources, with errors as outcomes."""

    async def test(store: AsyncMetadataStore) -> None:
        ops: list[Any] = [*puts(40), Put("/0", b"", 9), Delete("/missing"), "put", Get("/1")]
        outcomes = await store.apply(source(iter(ops)))
        assert all(outcome.op is op for outcome, op in zip(outcomes, ops, strict=True))
        assert [type(outcome.error).__name__ for outcome in outcomes] == [
            *["NoneType"] * 40,
            "BadVersionError",
            "NotFoundError",
            "InvalidSettingError",
            "NoneType",
        ]
        assert await store.apply(source(iter([]))) == []

    run(make_backend(), test, write_queue_size=5, on_full="raise")


def test_what_lies_ready_is_read_together(make_backend: MakeBackend) -> None:
    """Operations and paths in a list, with more of them than the queue holds."""

    async def test(store: AsyncMetadataStore) -> None:
        ops: list[Any] = [*puts(300), "put", Get("/1")]
        outcomes = await store.apply(ops)
        assert [outcome.op for outcome in outcomes] == ops
        assert [outcome.ok for outcome in outcomes] == [*[True] * 300, False, True]
        found = await store.get_many([*(put.path for put in puts(300)), "/missing"])
        assert [one and one.stat.path for one in found] == [*(put.path for put in puts(300)), None]
        with pytest.raises(InvalidPathError):
            await store.get_many("/1")

    run(make_backend(), test, write_queue_size=5, read_queue_size=5, on_full="raise")


@SOURCES
def test_apply_stream_starts_at_the_first_outcome_asked_for(
    make_backend: MakeBackend, source: Any
) -> None:
    """Before the first step, nothing is taken from the source."""
    taken: list[Operation] = []

    def noted() -> Iterator[Operation]:
        for op in puts(3):
            taken.append(op)
            yield op

    async def test(store: AsyncMetadataStore) -> None:
        stream = store.apply_stream(source(noted()))
        await store.flush()
        assert taken == []
        assert [outcome.op.path async for outcome in stream] == ["/0", "/1", "/2"]

    run(make_backend(), test)


@SOURCES
def test_apply_stream_reads_ahead_no_more_than_the_queues_hold(
    backend: FaultyBackend, source: Any
) -> None:
    """While the first outcome is outstanding, it takes only as many as the larger queue holds."""
    taken: list[Operation] = []

    def noted() -> Iterator[Operation]:
        for op in puts(50):
            taken.append(op)
            yield op

    async def test(store: AsyncMetadataStore) -> None:
        stream = store.apply_stream(source(noted()))
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: len(taken) >= 10)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(taken) == 10
        release_all(backend)
        assert (await first).op.path == "/0"
        number = 0
        async for outcome in stream:
            number += 1
            assert outcome.op.path == f"/{number}"
            assert len(taken) <= number + 1 + 10
        assert number == 49

    run(backend, test, write_queue_size=10, read_queue_size=4, max_in_flight=1)


@SOURCES
def test_an_exception_of_the_source_comes_after_the_outcomes(
    make_backend: MakeBackend, source: Any
) -> None:
    """Outcomes of operations before the source's failure are yielded first, then its exception."""
    failure = RuntimeError("the file is broken")

    def failing() -> Iterator[Operation]:
        yield from puts(20)
        raise failure

    async def test(store: AsyncMetadataStore) -> None:
        stream = store.apply_stream(source(failing()))
        paths = [(await anext(stream)).op.path for _ in range(20)]
        assert paths == [f"/{number}" for number in range(20)]
        with pytest.raises(RuntimeError) as caught:
            await anext(stream)
        assert caught.value is failure

    run(make_backend(), test)


def test_a_plain_source_lets_other_tasks_run(backend: FaultyBackend) -> None:
    """A long plain iterable does not keep the loop to itself, even while nothing ends."""

    async def test(store: AsyncMetadataStore) -> None:
        turns = 0
        seen: set[int] = set()

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def source() -> Iterator[Operation]:
            for op in puts(3000):
                seen.add(turns)
                yield op
            release_all(backend)

        counting = asyncio.create_task(count())
        outcomes = await store.apply(source())
        counting.cancel()
        assert all(outcome.ok for outcome in outcomes)
        assert len(seen) >= 10

    run(backend, test)


@SOURCES
def test_closing_early_cancels_what_is_queued_and_waits_for_what_was_sent(
    backend: FaultyBackend, source: Any
) -> None:
    """After aclose() nothing of the stream is under way, and nothing more is sent."""

    async def test(store: AsyncMetadataStore) -> None:
        stream: Any = store.apply_stream(source(puts(100)))
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: store.metrics().writes.queued == 4 and backend.calls)
        backend.calls[0].release()
        assert (await first).op.path == "/0"
        await until(lambda: len(backend.calls) == 2)
        closing = asyncio.create_task(stream.aclose())
        await until(lambda: store.metrics().writes.queued == 0)
        await asyncio.sleep(0)
        assert not closing.done()
        release_all(backend)
        await closing
        assert [call.paths for call in backend.calls] == [["/0"], ["/1"]]
        assert await store.exists("/1")
        assert not await store.exists("/2")
        await store.flush()

    run(backend, test, max_ops=1, max_in_flight=1, write_queue_size=5, read_queue_size=1)


def test_cancelling_a_bulk_call_cancels_what_is_queued_and_waits_for_what_was_sent(
    backend: FaultyBackend,
) -> None:
    """The task ends when nothing of its bulk call is under way any more."""

    async def test(store: AsyncMetadataStore) -> None:
        task = asyncio.create_task(store.apply(puts(100)))
        await until(lambda: store.metrics().writes.queued == 4 and backend.calls)
        task.cancel()
        await until(lambda: store.metrics().writes.queued == 0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        release_all(backend)
        await asyncio.wait([task])
        assert task.cancelled()
        assert await store.exists("/0")
        assert [call.paths for call in backend.calls if call.method == "write"] == [["/0"]]

    run(backend, test, max_ops=1, max_in_flight=1, write_queue_size=5, read_queue_size=1)


def test_an_endless_source_is_no_problem(make_backend: MakeBackend) -> None:
    """Outcomes come while the source still goes on; leaving early ends the work."""

    async def test(store: AsyncMetadataStore) -> None:
        stream: Any = store.apply_stream(Put(f"/{n}", b"") for n in itertools.count())
        paths = [(await anext(stream)).op.path for _ in range(500)]
        assert paths == [f"/{number}" for number in range(500)]
        await stream.aclose()
        await store.flush()
        assert store.metrics().queued_bytes == 0

    run(make_backend(), test, write_queue_size=50)


def test_opening_that_is_given_up_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that opens after its caller has given up is closed at once."""
    reached, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class _Late(FaultyBackend):
        def close(self) -> None:
            super().close()
            closed.set()

    def connect_late(url: str, options: ConnectOptions) -> FaultyBackend:
        reached.set()
        assert go_on.wait(PATIENCE)
        return _Late(connect(url, options))

    monkeypatch.setattr("batchkeeper.opening.connect", connect_late)

    async def main() -> None:
        opening = asyncio.ensure_future(batchkeeper.open_async_store("memory://late").__aenter__())
        await asyncio.to_thread(reached.wait, PATIENCE)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()

    asyncio.run(main())
    assert closed.wait(PATIENCE)


# --- sync


def test_tasks_share_requests_to_catch_up(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes while a request is under way needs the next one, and one serves all of them."""

    async def test(store: AsyncMetadataStore) -> None:
        go, begun = threading.Event(), []

        def sync(_timeout: float) -> None:
            begun.append(None)
            go.wait(30)

        monkeypatch.setattr(engine_of(store), "sync", sync)
        first = asyncio.create_task(store.sync())
        await until(lambda: begun)
        others = [asyncio.create_task(store.sync()) for _ in range(100)]
        await asyncio.sleep(0)
        others.pop().cancel()  # It takes nothing from the others.
        go.set()
        await asyncio.gather(first, *others)
        assert len(begun) == 2
        await store.sync()
        assert len(begun) == 3

    run(make_backend(), test)


def test_tasks_that_share_a_request_have_errors_and_deadlines_of_their_own(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request has the time of its first caller. If it fails, the others ask for themselves."""

    async def test(store: AsyncMetadataStore) -> None:
        def sync(timeout: float) -> None:
            if timeout < 5:
                raise OperationTimeoutError("late")

        monkeypatch.setattr(engine_of(store), "sync", sync)
        short, long, late = await asyncio.gather(
            store.sync(1), store.sync(30), store.sync(2), return_exceptions=True
        )
        assert long is None
        assert isinstance(short, OperationTimeoutError)
        assert isinstance(late, OperationTimeoutError)
        assert short is not late

    run(make_backend(), test)
