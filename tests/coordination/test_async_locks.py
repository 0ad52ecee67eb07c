"""Locks of tasks, where they differ from those of threads: cancellation above all."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination.async_lobbies import async_lobby
from batchkeeper.coordination.async_locks import AsyncLock, AsyncSemaphore
from batchkeeper.ops.errors import LockBusyError, LockLostError
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE, until

PATH = "/locks/a"
#: More steps than an acquire or a release has.
STEPS = 60

Test = Callable[[bk.AsyncMetadataStore], Coroutine[Any, Any, None]]


@pytest.fixture
def run(store_url: str, faults: FaultInjector) -> Callable[[Test], None]:
    """Run a coroutine function with an empty store of each kind, and close the store after it."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, session_timeout=30.0, wrap=faults) as store:
                await test(store)

    return lambda test: asyncio.run(main(test))


async def until_line(store: bk.AsyncMetadataStore, length: int) -> list[str]:
    """Wait until this many contenders stand in line; the test's own time limit bounds this."""
    while len(names := await store.get_children(PATH)) != length:  # noqa: ASYNC110 - a poll
        await asyncio.sleep(0.001)
    return names


async def step(number: int) -> None:
    """Let the loop go around a few times; later numbers also wait for the store's threads."""
    for _ in range(number % 12):
        await asyncio.sleep(0)
    await asyncio.sleep(0.0003 * (number // 12))


async def cancelled(task: asyncio.Task[Any]) -> bool:
    """Cancel a task; return whether it has ended so."""
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


def test_a_lock_of_tasks(run: Callable[[Test], None]) -> None:
    """It excludes other tasks and clients, in a block as by calls."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        lock, other = AsyncLock(store, PATH, b"one"), AsyncLock(store, PATH, b"two")
        async with lock:
            assert lock.held
            assert await other.holder() == b"one"
            assert not await other.try_acquire()
            with pytest.raises(LockBusyError) as caught:
                await other.acquire(0.01)
            assert caught.value.value == b"one"
            await lock.update(b"uno")
            assert await other.holder() == b"uno"
            with pytest.raises(LockBusyError, match="already"):
                await lock.acquire()
            waiting = asyncio.create_task(other.acquire())
            await until_line(store, 2)
            token = lock.fencing_token
        await waiting
        assert other.fencing_token > token
        await other.release()
        with pytest.raises(LockLostError):
            await other.release()
        assert await store.get_children(PATH) == []

    run(test)


def test_one_task_at_a_time(run: Callable[[Test], None]) -> None:
    """Twenty tasks, half of which share an object: one at a time, with growing tokens."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        shared = AsyncLock(store, PATH)
        inside: list[int] = []
        tokens: list[int] = []

        async def contend(number: int) -> None:
            lock = shared if number % 2 else AsyncLock(store, PATH)
            async with lock:
                inside.append(number)
                await asyncio.sleep(0)
                assert inside == [number]
                tokens.append(lock.fencing_token)
                inside.clear()

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(contend(number))
        assert tokens == sorted(set(tokens))
        assert len(tokens) == 20

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_a_cancelled_acquire(run: Callable[[Test], None], busy: bool) -> None:
    """Wherever it is cancelled, the line is empty afterwards, and the object can be used again."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        session = store.session
        lock, holder = AsyncLock(store, PATH), AsyncLock(store, PATH)
        await holder.acquire()
        number = session.id
        if not busy:
            await holder.release()
        ends = set()
        for steps in range(STEPS):
            task = asyncio.create_task(lock.acquire())
            await step(steps)
            ends.add(await cancelled(task))
            if lock.held:
                await lock.release()
            await until_line(store, int(busy))
        assert True in ends
        if busy:
            await holder.release()
        await lock.acquire()
        await lock.release()
        assert session.id == number

    run(test)


def test_a_cancelled_release(run: Callable[[Test], None]) -> None:
    """Wherever it is cancelled, the lock is released, and the value goes in the background."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        lock = AsyncLock(store, PATH)
        for steps in range(STEPS):
            await lock.acquire()
            task = asyncio.create_task(lock.release())
            await asyncio.sleep(0)
            await step(steps)
            await cancelled(task)
            assert not lock.held
            await until_line(store, 0)

    run(test)


def test_a_cancelled_try(run: Callable[[Test], None]) -> None:
    """An attempt that is cancelled leaves nothing, and hinders nobody."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        lock = AsyncLock(store, PATH)
        async with AsyncLock(store, PATH):
            for steps in range(STEPS):
                task = asyncio.create_task(lock.try_acquire())
                await step(steps)
                await cancelled(task)
                await until_line(store, 1)
        async with lock:
            assert lock.held

    run(test)


def test_a_cancelled_creation_that_comes_late(
    run: Callable[[Test], None], faults: FaultInjector
) -> None:
    """A put that was sent goes on after the cancellation; its value goes again."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        await (await store.watch("/")).close()
        async with AsyncLock(store, "/locks/first"):
            pass
        held = faults.delay("put")
        async with store.watch(PATH) as watch:
            task = asyncio.create_task(AsyncLock(store, PATH).acquire())
            await asyncio.to_thread(held.wait)
            assert await cancelled(task)
            held.release()
            kinds = [(await anext(watch)).kind for _ in range(2)]
        assert kinds == ["created", "deleted"]
        async with AsyncLock(store, PATH) as lock:
            assert lock.held

    run(test)


def test_a_cancelled_wait_for_the_object(run: Callable[[Test], None]) -> None:
    """Tasks that share an object and are cancelled leave its gate to the others."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        lock = AsyncLock(store, PATH)
        await lock.acquire()
        for steps in range(5):
            task = asyncio.create_task(lock.acquire())
            await step(steps)
            assert await cancelled(task)
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        await lock.release()
        await waiting
        assert lock.held

    run(test)


def test_a_cancelled_update(run: Callable[[Test], None]) -> None:
    """Whether the value was changed or not, the lock is held, and the next update holds."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        async with AsyncLock(store, PATH) as lock:
            for steps in range(STEPS // 3):
                task = asyncio.create_task(lock.update(b"lost"))
                await step(steps * 3)
                await cancelled(task)
                await lock.update(b"%d" % steps)
                assert await lock.holder() == lock.value == b"%d" % steps
            await store.transaction([lock.check(), bk.Put("/guarded", b"")])

    run(test)


def test_a_block_that_is_cancelled(run: Callable[[Test], None]) -> None:
    """The lock is released, and the cancellation goes on."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with AsyncLock(store, PATH):
                entered.set()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(hold())
        await entered.wait()
        assert await cancelled(task)
        assert await store.get_children(PATH) == []

    run(test)


def test_a_loss(run: Callable[[Test], None], faults: FaultInjector) -> None:
    """``lost`` wakes waiting tasks, and the end of the block says that the lock was lost."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        lock = AsyncLock(store, PATH)

        async def lose(error: type[Exception] | None) -> None:
            async with lock:
                waiting = asyncio.create_task(lock.lost.wait())
                await asyncio.to_thread(faults.lose_session)
                assert not lock.held
                assert await waiting
                if error is not None:
                    raise error

        with pytest.raises(LockLostError):
            await lose(None)
        with pytest.raises(ZeroDivisionError):
            await lose(ZeroDivisionError)
        async with lock:
            assert lock.held
        assert await lock.lost.wait(0)

    run(test)


@pytest.mark.slow
def test_a_store_that_is_closed_while_tasks_wait(store_url: str) -> None:
    """Each of them ends with StoreClosedError, in line and at the object."""

    async def main() -> None:
        store = await bk.open_async_store(store_url, session_timeout=30.0)
        lock = AsyncLock(store, PATH)
        await lock.acquire()
        tasks = [asyncio.create_task(AsyncLock(store, PATH).acquire()) for _ in range(3)]
        tasks.append(asyncio.create_task(lock.acquire(PATIENCE)))
        tasks.append(asyncio.create_task(AsyncSemaphore(store, PATH, 1).acquire()))
        await until_line(store, 5)
        await store.close()
        async with asyncio.timeout(PATIENCE):
            errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors[:3]] == [bk.StoreClosedError] * 3
        assert isinstance(errors[3], LockBusyError | bk.StoreClosedError)
        assert isinstance(errors[4], bk.StoreClosedError)
        assert not lock.held
        with pytest.raises(LockLostError):
            await lock.release()

    asyncio.run(main())


def test_nothing_is_left_of_a_wait(run: Callable[[Test], None]) -> None:
    """Neither a watch, nor a claim, nor who waits behind one."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        lobby = async_lobby(store, PATH)
        async with AsyncLock(store, PATH):
            assert not await AsyncLock(store, PATH).try_acquire()
            for waiter in (AsyncLock(store, PATH), AsyncSemaphore(store, PATH, 1)):
                with pytest.raises(LockBusyError):
                    await waiter.acquire(0.05)
            (holder,) = lobby._claims.values()
            assert not holder.behind
        assert not lobby._claims
        assert store.metrics().watches == 0

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_a_cancelled_wait_for_another_store(fresh_url: Callable[[str], str], n: int) -> None:
    """Wherever it is cancelled, neither a value nor a watch is left."""

    async def main() -> None:
        url = fresh_url("memory")
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store(url) as store,
            bk.open_async_store(url) as other,
        ):
            for _ in range(n):
                await AsyncSemaphore(other, PATH, n).acquire()
            waiter = AsyncSemaphore(store, PATH, n)
            for steps in range(STEPS):
                task = asyncio.create_task(waiter.acquire())
                await step(steps)
                assert await cancelled(task)
                await until_line(other, n)
            while store.metrics().watches:  # noqa: ASYNC110 - a poll
                await asyncio.sleep(0.001)

    asyncio.run(main())


def test_a_store_serves_its_own_loop_and_ends_with_it() -> None:
    """In another loop, each call is refused without effect; the loop's end ends the session."""
    url = "memory://one-loop"
    ran: list[Callable[[bk.AsyncMetadataStore], Any]] = [
        lambda store: store.put("/a", b""),
        lambda store: store.apply([bk.Put("/a", b"")]),
        lambda store: anext(store.apply_stream([bk.Put("/a", b"")])),
        lambda store: store.flush(),
        lambda store: store.sync(),
        lambda store: store.delete_recursive("/locks"),
        lambda store: anext(store.watch("/")),
        lambda store: AsyncLock(store, "/other").acquire(),
    ]

    locks: list[AsyncLock] = []
    leaders: list[bk.AsyncElection] = []
    members: list[bk.AsyncMembership] = []
    jobs: list[bk.AsyncJob] = []

    async def hold(path: str) -> bk.AsyncMetadataStore:
        store = await bk.open_async_store(url)
        locks.append(AsyncLock(store, path))
        await locks[-1].acquire()
        return store

    async def hold_more(store: bk.AsyncMetadataStore) -> None:
        leaders.append(bk.AsyncElection(store, "/leader", b""))
        await leaders[0].campaign()
        members.append(await bk.AsyncGroup(store, "/group").join("a"))
        queue = bk.AsyncWorkQueue(store, "/work")
        await queue.put(b"")
        jobs.append(await queue.claim())

    async def refused(store: bk.AsyncMetadataStore) -> None:
        for call in (
            *ran,
            lambda _: locks[0].release(),
            lambda _: leaders[0].resign(),
            lambda _: leaders[0].close(),
            lambda _: members[0].leave(),
            lambda _: jobs[0].release(),
        ):
            with pytest.raises(bk.UnsupportedError, match=r"in each loop.*open_store"):
                await call(store)
        assert locks[0].held
        with pytest.raises(bk.UnsupportedError, match="another event loop"):
            store.submit(bk.Put("/a", b""))

    async def give_up() -> None:
        """What was refused elsewhere works here."""
        for end in (leaders[0].close, members[0].leave, jobs[0].release):
            await end()

    with bk.open_store(url) as beside, asyncio.Runner() as first:
        store = first.run(hold(PATH))
        first.run(hold_more(store))
        asyncio.run(refused(store))
        first.run(give_up())
        assert beside.get_children("/leader").result() == []
        assert beside.get_children("/group").result() == []
        assert beside.get_children("/").result() == ["locks", "work"]
        closed = first.run(hold("/locks/b"))
        asyncio.run(closed.close())
        assert beside.get_children("/locks/b").result() == []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            first.close()
            until(lambda: not beside.get_children(PATH).result())
            until(lambda: warned)
        assert "not closed before its event loop" in str(warned[0].message)
        asyncio.run(store.close())
