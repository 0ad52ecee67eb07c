"""Counters, barriers and work queues of tasks, where the faces differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination.async_barriers import AsyncDoubleBarrier
from batchkeeper.coordination.async_counters import AsyncCounter
from batchkeeper.coordination.async_work import AsyncWorkQueue
from batchkeeper.ops.errors import LockLostError
from batchkeeper.testing import FaultInjector

from ..forks import holds_in_a_child
from ..waiting import PATIENCE

Test = Callable[[bk.AsyncMetadataStore], Coroutine[Any, Any, None]]


@pytest.fixture
def run(store_url: str) -> Callable[[Test], None]:
    """Run a coroutine function with an empty store of each kind, and close the store after it."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url) as store:
                await test(store)

    return lambda test: asyncio.run(main(test))


@pytest.fixture
def run_faulty(fresh_url: Callable[[str], str], faults: FaultInjector) -> Callable[[Test], None]:
    """Run a coroutine function with a store in memory that has faults."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(fresh_url("memory"), wrap=faults) as store:
                await test(store)

    return lambda test: asyncio.run(main(test))


async def until(condition: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Wait for a condition; the test's own time limit bounds this."""
    while not await condition():  # noqa: ASYNC110 - the conditions are the store's contents
        await asyncio.sleep(0.001)


async def cancelled_after(steps: int, call: Coroutine[Any, Any, Any]) -> bool:
    """Cancel a call after some turns of the loop; return whether it had not ended before."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


def test_a_counter(run: Callable[[Test], None]) -> None:
    """Tasks that share a counter get each number once, through several blocks."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        counter = AsyncCounter(store, "/c", block=3)
        numbers = await asyncio.gather(*(counter.next() for _ in range(20)))
        assert sorted(numbers) == [*range(20)]
        assert await counter.reserve(2) == range(21, 23)
        assert await counter.next() == 23

    run(test)


def test_a_counter_whose_tasks_are_cancelled(
    run_faulty: Callable[[Test], None], faults: FaultInjector
) -> None:
    """A cancelled call skips a block at most: the next one goes on, and nothing comes twice."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        counter = AsyncCounter(store, "/c", block=2)
        taken: list[int] = []
        for steps in range(30):
            if not await cancelled_after(steps, counter.next()):
                break
            taken.append(await counter.next())
        held = faults.delay("put", "/c", applied=True)
        taking = asyncio.create_task(counter.reserve(5))
        await asyncio.to_thread(held.wait)
        taking.cancel()
        held.release()
        taken += [await counter.next() for _ in range(5)]
        assert taken == sorted(set(taken))

    run_faulty(test)


def test_a_counter_in_a_forked_child(run_faulty: Callable[[Test], None]) -> None:
    """A child hands out nothing of the parent's block."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        counter = AsyncCounter(store, "/c")
        assert await counter.next() == 0

        def refused() -> bool:
            call = counter.next()
            try:
                call.send(None)
            except bk.StoreClosedError:
                return True
            return False

        assert holds_in_a_child(refused)
        assert await counter.next() == 1

    run_faulty(test)


def test_a_barrier(run: Callable[[Test], None]) -> None:
    """Tasks begin together and end together, round after round."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        steps: list[str] = []

        async def work() -> None:
            barrier = AsyncDoubleBarrier(store, "/b", 3)
            for number in range(2):
                async with barrier:
                    steps.append(f"{number} in")
                steps.append(f"{number} out")

        await asyncio.gather(*(work() for _ in range(3)))
        assert [step for step in steps if "in" in step] == ["0 in"] * 3 + ["1 in"] * 3
        assert steps[:3] == ["0 in"] * 3
        assert await store.get_children("/b") == []

    run(test)


def test_a_barrier_whose_tasks_are_cancelled(run_faulty: Callable[[Test], None]) -> None:
    """Whoever is cancelled on the way in, or out, is gone soon, and can come again."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        barrier = AsyncDoubleBarrier(store, "/b", 2)
        other = AsyncDoubleBarrier(store, "/b", 2)

        async def nobody() -> bool:
            return not await store.get_children("/b")

        for steps in range(0, 40, 2):
            assert await cancelled_after(steps, barrier.enter())
            await until(nobody)
        await asyncio.gather(barrier.enter(), other.enter())
        for steps in range(0, 40, 2):
            assert await cancelled_after(steps, barrier.leave())
        with pytest.raises(bk.OperationTimeoutError):
            await barrier.leave(0)
        await other.leave()
        assert await nobody()
        await asyncio.gather(barrier.enter(), other.enter())
        await asyncio.gather(barrier.leave(), other.leave())

    run_faulty(test)


def test_a_work_queue(run: Callable[[Test], None]) -> None:
    """Tasks do each job once, in order, and wait for those to come."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        queue = AsyncWorkQueue(store, "/q")
        done: list[bytes] = []

        async def work() -> None:
            while True:
                async with await queue.claim() as job:
                    if job.value == b"end":
                        return
                    done.append(job.value)

        working = [asyncio.create_task(work()) for _ in range(3)]
        await queue.put_all([b"%d" % number for number in range(20)])
        await queue.put_all([b"end"] * 3, priority=500)
        await asyncio.gather(*working)
        assert sorted(done) == sorted(b"%d" % number for number in range(20))
        assert await queue.size() == 0
        job_path = await queue.put(b"again")
        job = await queue.claim()
        assert (job.path, job.attempt, job.held) == (job_path, 1, True)
        await job.release()
        with pytest.raises(LockLostError):
            await job.done()

    run(test)


def test_a_work_queue_whose_tasks_are_cancelled(run_faulty: Callable[[Test], None]) -> None:
    """A cancelled claim leaves the job to others, within the same session."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        queue = AsyncWorkQueue(store, "/q")
        await queue.put(b"job")
        cancelled = 0
        for steps in range(0, 100, 2):
            claiming = queue.claim()
            task = asyncio.create_task(claiming)
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            try:
                job = await task
            except asyncio.CancelledError:
                cancelled += 1
            else:
                await job.release()
        assert cancelled
        async with await queue.claim():
            pass
        assert await queue.size() == 0
        assert await store.get_children("/q/claims") == []

    run_faulty(test)


def test_a_cancelled_claim_that_was_sent(
    run_faulty: Callable[[Test], None], faults: FaultInjector
) -> None:
    """A claim that takes effect after its task was cancelled is given back."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        queue = AsyncWorkQueue(store, "/q")
        await queue.put(b"job")
        held = faults.delay("transaction")
        claiming = asyncio.create_task(queue.claim())
        await asyncio.to_thread(held.wait)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        held.release()
        job = await queue.claim()
        assert job.attempt == 2
        await job.done()

    run_faulty(test)


def test_the_store_is_closed(run_faulty: Callable[[Test], None]) -> None:
    """Tasks that wait when the store is closed get an error."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        queue = AsyncWorkQueue(store, "/q")
        waiting = [
            asyncio.create_task(queue.claim()),
            asyncio.create_task(AsyncDoubleBarrier(store, "/b", 2).enter()),
        ]

        async def both() -> bool:
            return bool(await store.get_children("/b")) and store.metrics().watches == 2

        await until(both)
        await store.close()
        for task in waiting:
            with pytest.raises(bk.StoreClosedError):
                await task

    run_faulty(test)


def test_a_loop_that_begins_tasks_at_once(fresh_url: Callable[[str], str]) -> None:
    """An eager task factory, which Python has since 3.12, stops nothing."""

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", None))
        url = fresh_url("memory")
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store(url) as store,
            bk.open_async_store(url) as other,
        ):
            heard = asyncio.Event()
            async with bk.AsyncLock(store, "/lock"):
                waiting = asyncio.create_task(bk.AsyncLock(other, "/lock").acquire())
            await waiting
            election = bk.AsyncElection(store, "/election", b"me")
            election.add_listener(lambda _: heard.set())
            await election.campaign()
            await heard.wait()
            await election.resign()
            await bk.AsyncGroup(store, "/group").join("a")
            cache = bk.AsyncMetadataCache(store, "/cache")
            await cache.put("/cache/a", b"1")
            assert await cache.get("/cache/a") == b"1"
            queue = bk.AsyncWorkQueue(store, "/queue")
            await queue.put(b"1")
            await (await queue.claim()).done()

    asyncio.run(main())
