"""The cache of tasks, where the faces differ: cancellation above all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination.async_cache import AsyncMetadataCache
from batchkeeper.coordination.async_key_locks import AsyncKeyLocks
from batchkeeper.coordination.entries import NOT_CACHED
from batchkeeper.ops.serdes import json_serde
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE
from .caching import size

Cache = AsyncMetadataCache[Any]
Test = Callable[[bk.AsyncMetadataStore, Cache], Coroutine[Any, Any, None]]


@pytest.fixture
def run(store_url: str, faults: FaultInjector) -> Callable[[Test], None]:
    """Run a coroutine function with an empty store of each kind and a warm cache of JSON."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE):
            async with (
                bk.open_async_store(store_url, wrap=faults) as store,
                AsyncMetadataCache(store, "/a", json_serde) as cache,
            ):
                await warm(cache, "/a/warm")
                await test(store, cache)
                faults.clear()

    return lambda test: asyncio.run(main(test))


async def warm(cache: Cache, path: str) -> None:
    """Read a path until the cache has it."""
    while cache.get_if_cached(path) is NOT_CACHED:
        await cache.get_with_stat(path)
        await asyncio.sleep(0.001)


async def shows(cache: Cache, path: str, value: object) -> None:
    """Read a path until it has a value; the test's own time limit bounds this."""
    while await cache.get(path) != value:  # noqa: ASYNC110 - nothing but a read tells
        await asyncio.sleep(0.001)


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition holds; the test's own time limit bounds this."""
    while not condition():  # noqa: ASYNC110 - the conditions are the cache's own numbers
        await asyncio.sleep(0.001)


async def hit(held: Any) -> None:
    """Wait until a fault has hit."""
    await asyncio.to_thread(held.wait, 1, PATIENCE)


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_the_same_methods(run: Callable[[Test], None]) -> None:
    """Reads, writes, updates and listeners do what they do for threads."""

    async def test(store: bk.AsyncMetadataStore, cache: Cache) -> None:
        events: list[tuple[str, str]] = []
        listener = cache.add_listener(lambda event: events.append((event.kind, event.path)))
        assert await cache.get("/a/b") is None
        await cache.create("/a/b", 1)
        assert await cache.get("/a/b") == 1
        with pytest.raises(bk.BadVersionError):
            await cache.create("/a/b", 2)
        stat = await cache.put("/a/b", 2)
        assert await cache.get_with_stat("/a/b") == (2, stat)
        assert await cache.read_modify_update("/a/b", lambda value: value + 1) == 3
        assert await cache.read_modify_update_or_create("/a/c", lambda value: [value]) == [None]
        assert await cache.get_children("/a") == ["b", "c"]
        assert await cache.refresh("/a/b") == 3
        assert await cache.exists("/a/b")
        await cache.delete("/a/b")
        assert not await cache.exists("/a/b")
        with pytest.raises(bk.NotFoundError):
            await cache.read_modify_update("/a/b", lambda value: value)
        await store.put("/a/d", b"4")
        await shows(cache, "/a/d", 4)
        # Not the creation of another path: what comes after it would follow the gap.
        await until(lambda: events[-1:] == [("created", "/a/d")])
        cache.invalidate_all()
        await until(lambda: events[-1][0] == "gap")
        assert cache.get_if_cached("/a/d") is NOT_CACHED
        listener.close()

    run(test)


def test_fifty_updates_of_one_path(run: Callable[[Test], None]) -> None:
    """They stand in line: fifty writes and no lost update."""

    async def test(store: bk.AsyncMetadataStore, cache: Cache) -> None:
        updates = [
            cache.read_modify_update_or_create("/a/b", lambda value: (value or 0) + 1)
            for _ in range(50)
        ]
        assert sorted(await asyncio.gather(*updates)) == [*range(1, 51)]
        found = await cache.get_with_stat("/a/b")
        assert found is not None
        assert (found.value, found.stat.version) == (50, 49)

    run(test)


def test_cancelled_updates_leave_the_line(run: Callable[[Test], None]) -> None:
    """Whoever is cancelled in line, or in his turn, holds nobody up, and loses no other update."""

    async def test(store: bk.AsyncMetadataStore, cache: Cache) -> None:
        await cache.put("/a/b", 0)
        for turns in range(8):
            updates = [
                asyncio.create_task(cache.read_modify_update("/a/b", lambda value: value + 1))
                for _ in range(6)
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            for update in updates[::2]:
                update.cancel()
            await asyncio.wait(updates)
            for update in updates[1::2]:
                assert not update.cancelled()
                update.result()
        found = await store.get("/a/b")
        assert found is not None
        assert int(found.value) == found.stat.version >= 24
        assert await cache.get("/a/b") == int(found.value)

    run(test)


def test_a_turn_that_comes_with_a_cancellation() -> None:
    """A task that is cancelled just when its turn comes passes it on."""

    async def main() -> None:
        locks = AsyncKeyLocks()
        await locks.lock("a")
        waiting = asyncio.create_task(locks.lock("a"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        locks.unlock("a")
        await cancel(waiting)
        assert len(locks) == 0
        await locks.lock("a")
        locks.unlock("a")
        assert len(locks) == 0

    asyncio.run(main())


def test_a_cancelled_load(run: Callable[[Test], None], faults: FaultInjector) -> None:
    """If the task that reads is cancelled, another of those who wait for it reads."""

    async def test(store: bk.AsyncMetadataStore, cache: Cache) -> None:
        await store.put("/a/b", b"1")
        await store.sync()
        cache.invalidate("/a/b")
        held = faults.delay("get", "/a/b")
        tasks = [asyncio.create_task(cache.get("/a/b")) for _ in range(3)]
        await hit(held)
        await cancel(tasks[0])
        held.release()
        assert await asyncio.gather(*tasks[1:]) == [1, 1]
        waiting = faults.delay("get", "/a/c")
        tasks = [asyncio.create_task(cache.get("/a/c")) for _ in range(2)]
        await hit(waiting)
        await cancel(tasks[1])
        waiting.release()
        assert await tasks[0] is None

    run(test)


def test_a_cancelled_write(run: Callable[[Test], None], faults: FaultInjector) -> None:
    """Whether a cancelled write takes effect or not, later reads show what has become of it."""

    async def test(store: bk.AsyncMetadataStore, cache: Cache) -> None:
        writes: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: cache.put("/a/b", 2),
            lambda: cache.read_modify_update("/a/b", lambda _: 2),
        ]
        for write in writes:
            await cache.put("/a/b", 1)
            await warm(cache, "/a/b")
            held = faults.delay("put", "/a/b")
            writing = asyncio.create_task(write())
            await hit(held)
            await cancel(writing)
            assert cache.get_if_cached("/a/b") is NOT_CACHED
            reading = asyncio.create_task(cache.get("/a/b"))
            held.release()
            assert await reading == 2
            assert await cache.get("/a/b") == 2
        held = faults.delay("delete", "/a/b")
        deleting = asyncio.create_task(cache.delete("/a/b"))
        await hit(held)
        await cancel(deleting)
        held.release()
        assert await cache.get("/a/b") is None

    run(test)


def test_an_outage(run: Callable[[Test], None], faults: FaultInjector) -> None:
    """The cache is empty in an outage, and caches again after it."""

    async def test(store: bk.AsyncMetadataStore, cache: Cache) -> None:
        await cache.put("/a/b", 1)
        await warm(cache, "/a/b")
        gaps: list[str] = []
        cache.add_listener(lambda event: gaps.append(event.kind))
        faults.cut()
        await until(lambda: cache.get_if_cached("/a/b") is NOT_CACHED)
        faults.restore()
        await warm(cache, "/a/b")
        assert await cache.get("/a/b") == 1
        await until(lambda: "gap" in gaps)

    run(test)


def test_a_function_that_raises(run: Callable[[Test], None]) -> None:
    """Nothing is written, and the next in line goes on."""

    async def test(store: bk.AsyncMetadataStore, cache: Cache) -> None:
        def fail(value: Any) -> Any:
            raise ZeroDivisionError

        await cache.put("/a/b", 1)
        results = await asyncio.gather(
            cache.read_modify_update("/a/b", fail),
            cache.read_modify_update("/a/b", lambda value: value + 1),
            return_exceptions=True,
        )
        assert isinstance(results[0], ZeroDivisionError)
        assert results[1] == 2

    run(test)


def test_a_listener_that_is_a_coroutine_function(run: Callable[[Test], None]) -> None:
    """It is awaited, one event after the other, and may await the cache, and close it."""

    async def test(store: bk.AsyncMetadataStore, cache: Cache) -> None:
        seen: list[Any] = []

        async def act(event: bk.WatchEvent) -> None:
            if event.kind != "gap":
                seen.append(await cache.get(event.path))
                cache.invalidate_all()
            if len(seen) == 2:
                await cache.close()

        cache.add_listener(act)
        await store.put("/a/b", b"1")
        await until(lambda: seen == [1])
        await store.put("/a/c", b"2")
        with pytest.raises(bk.StoreClosedError):
            await shows(cache, "/a/b", "nothing")
        assert seen == [1, 2]

    run(test)


def test_the_store_closes_first(store_url: str, faults: FaultInjector) -> None:
    """Calls under way and later ones end with StoreClosedError, and nothing of the cache stays."""

    async def main() -> None:
        async with bk.open_async_store(store_url, wrap=faults) as store:
            cache = AsyncMetadataCache(store, "/a", json_serde)
            await cache.put("/a/b", 1)
            await warm(cache, "/a/b")
            held = faults.delay("get", "/a/c")
            reading = [asyncio.create_task(cache.get("/a/c")) for _ in range(2)]
            await hit(held)
            await store.close(0)
            for error in await asyncio.gather(*reading, return_exceptions=True):
                assert isinstance(error, bk.StoreClosedError)
            await until(lambda: not size(cache))
            with pytest.raises(bk.StoreClosedError):
                await cache.get("/a/b")
            await cache.close()
            await until(lambda: len(asyncio.all_tasks()) == 1)

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())
