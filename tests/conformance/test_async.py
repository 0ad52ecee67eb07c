"""The contract through the asynchronous face, on every store, with batching on and off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

import batchkeeper as bk

from ..waiting import PATIENCE

Test = Callable[[bk.AsyncMetadataStore], Coroutine[Any, Any, None]]


@pytest.fixture
def run(store_url: str, batching: bk.BatchingConfig) -> Callable[[Test], None]:
    """Run a coroutine function with an empty store of each kind, and close the store after it."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=batching) as store:
                await test(store)

    return lambda test: asyncio.run(main(test))


async def error(awaitable: Awaitable[Any]) -> bk.MetadataStoreError:
    """Return the error of an operation, which must end with one."""
    with pytest.raises(bk.MetadataStoreError) as caught:
        await awaitable
    return caught.value


def test_the_life_of_a_path(run: Callable[[Test], None]) -> None:
    """Create, read, change, list and delete give what the synchronous face gives."""

    async def life(store: bk.AsyncMetadataStore) -> None:
        assert await store.get("/a") is None
        assert await store.exists("/a") is False
        stat = await store.put("/a", b"0", expected_version=bk.ABSENT)
        assert (stat.path, stat.version) == ("/a", 0)
        assert (await store.put("/a", b"1", expected_version=0)).version == 1
        found = await store.get("/a")
        assert found is not None
        assert (found.value, found.stat.version) == (b"1", 1)
        assert await store.exists("/a") is True
        await store.put("/a/b", b"")
        assert await store.get_children("/") == ["a"]
        assert type(await error(store.delete("/a"))) is bk.NotEmptyError
        assert await store.delete("/a/b") is None
        assert await store.delete("/a", expected_version=1) is None
        assert await store.get("/a") is None

    run(life)


def test_errors_are_raised_where_it_is_awaited(run: Callable[[Test], None]) -> None:
    """A refused operation raises from its await, with the fields of the error filled in."""

    async def refusals(store: bk.AsyncMetadataStore) -> None:
        assert type(await error(store.delete("/a"))) is bk.NotFoundError
        refused = await error(store.put("/a", b"", expected_version=3))
        assert isinstance(refused, bk.BadVersionError)
        assert (refused.path, refused.expected, refused.outcome) == ("/a", 3, "not_applied")
        await store.put("/a", b"")
        assert isinstance(await error(store.put("/a", b"", bk.ABSENT)), bk.BadVersionError)
        assert isinstance(await error(store.delete("/a", 4)), bk.BadVersionError)

    run(refusals)


def test_bad_input_is_refused(run: Callable[[Test], None]) -> None:
    """Bad paths, values, versions and sizes raise, and nothing of them reaches the store."""

    async def bad_input(store: bk.AsyncMetadataStore) -> None:
        bad: Any
        for bad in ("a", "/a/", "/a//b", "/zookeeper/x", None):
            assert isinstance(await error(store.get(bad)), bk.InvalidPathError)
            assert isinstance(await error(store.put(bad, b"")), bk.InvalidPathError)
        for bad in ("text", None):
            assert isinstance(await error(store.put("/a", bad)), bk.InvalidSettingError)
        for bad in (-2, "0", True):
            assert isinstance(await error(store.put("/a", b"", bad)), bk.InvalidSettingError)
        assert isinstance(await error(store.delete("/a", bk.ABSENT)), bk.InvalidSettingError)
        large = bytes(17 * 1024 * 1024)
        assert isinstance(await error(store.put("/a", large)), bk.ValueTooLargeError)
        assert isinstance(await error(store.get("/a", timeout=0)), bk.InvalidSettingError)
        assert await store.get_children("/") == []

    run(bad_input)


@pytest.mark.slow
def test_a_thousand_tasks_each_get_their_own(run: Callable[[Test], None]) -> None:
    """1,000 tasks that each put, read and delete their own path never see another's."""

    async def one(store: bk.AsyncMetadataStore, number: int) -> None:
        path, value = f"/task/{number}", b"%d" % number
        stat = await store.put(path, value, expected_version=bk.ABSENT)
        found = await store.get(path)
        assert found is not None
        assert (stat.version, stat.path, found.value) == (0, path, value)
        await store.delete(path, expected_version=0)

    async def crowd(store: bk.AsyncMetadataStore) -> None:
        await asyncio.gather(*(one(store, number) for number in range(1000)))
        assert await store.get_children("/task") == []

    run(crowd)


def test_operations_on_one_path_take_effect_in_order(run: Callable[[Test], None]) -> None:
    """Tasks started in an order on one path take effect in that order, reads among the writes."""

    async def hot(store: bk.AsyncMetadataStore) -> None:
        ops = [
            op
            for number in range(100)
            for op in (store.put("/a", b"%d" % number), store.get("/a"), store.exists("/a"))
        ]
        results = await asyncio.gather(*ops)
        assert [stat.version for stat in results[::3]] == list(range(100))
        assert [found.value for found in results[1::3]] == [b"%d" % n for n in range(100)]
        assert results[2::3] == [True] * 100

    run(hot)


def test_submit_gives_a_future_at_once(run: Callable[[Test], None]) -> None:
    """submit is not a coroutine: it returns an asyncio future of the result or the error."""

    async def submit(store: bk.AsyncMetadataStore) -> None:
        put = store.submit(bk.Put("/a", b"1", bk.ABSENT))
        get = store.submit(bk.Get("/a"))
        again = store.submit(bk.Put("/a", b"2", bk.ABSENT))
        assert all(isinstance(future, asyncio.Future) for future in (put, get, again))
        assert (await put).version == 0
        assert (await get).value == b"1"
        assert isinstance(await error(again), bk.BadVersionError)

    run(submit)


def test_apply_takes_plain_and_asynchronous_sources(run: Callable[[Test], None]) -> None:
    """apply and apply_stream give outcomes in the order given, from either kind of iterable."""

    def plain() -> Iterator[bk.Operation]:
        for number in range(300):
            yield bk.Put(f"/{number}", b"", bk.ABSENT)

    async def asynchronous() -> AsyncIterator[bk.Operation]:
        for op in plain():
            await asyncio.sleep(0)
            yield op

    async def bulk(store: bk.AsyncMetadataStore) -> None:
        first = await store.apply(plain())
        assert [outcome.op.path for outcome in first] == [f"/{number}" for number in range(300)]
        assert all(outcome.ok for outcome in first)
        second = [outcome async for outcome in store.apply_stream(asynchronous())]
        assert [outcome.op.path for outcome in second] == [f"/{number}" for number in range(300)]
        assert all(isinstance(outcome.error, bk.BadVersionError) for outcome in second)

    run(bulk)


def test_apply_stream_passes_on_its_sources_exception_last(run: Callable[[Test], None]) -> None:
    """If the source fails, earlier operations end and are yielded, and then its error is raised."""

    def source() -> Iterator[bk.Operation]:
        for number in range(10):
            yield bk.Put(f"/{number}", b"")
        raise RuntimeError("the source is broken")

    async def broken(store: bk.AsyncMetadataStore) -> None:
        outcomes: list[bk.Outcome] = []

        async def collect() -> None:
            async for outcome in store.apply_stream(source()):
                outcomes.append(outcome)  # noqa: PERF401 - what came before the exception counts

        with pytest.raises(RuntimeError, match="the source is broken"):
            await collect()
        assert [outcome.ok for outcome in outcomes] == [True] * 10
        assert len(await store.get_children("/")) == 10

    run(broken)


def test_cancelling_removes_what_is_queued(store_url: str) -> None:
    """A cancelled await of a queued operation means that it is never executed."""

    async def main() -> None:
        patient = bk.BatchingConfig(linger="fixed", max_delay=60)
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=patient) as store:
                kept = asyncio.create_task(store.put("/kept", b""))
                dropped = asyncio.create_task(store.put("/dropped", b""))
                await asyncio.sleep(0)
                dropped.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await dropped
                await store.flush()
                assert (await kept).version == 0
                children = asyncio.create_task(store.get_children("/"))
                await asyncio.sleep(0)
                await store.flush()
                assert await children == ["kept"]

    asyncio.run(main())


def test_leaving_the_block_finishes_what_was_submitted(
    store_url: str, batching: bk.BatchingConfig
) -> None:
    """At the end of an async with-block every future has ended; later calls are refused."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=batching) as store:
                futures = [store.submit(bk.Put(f"/{number}", b"")) for number in range(300)]
            assert {(await future).version for future in futures} == {0}
            assert isinstance(await error(store.get("/0")), bk.StoreClosedError)
            await store.close()

    asyncio.run(main())


def test_a_store_can_be_awaited_and_flushed(store_url: str, batching: bk.BatchingConfig) -> None:
    """open_async_store can be awaited without a block; flush ends what was submitted before."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            store = await bk.open_async_store(store_url, batching=batching)
            futures = [store.submit(bk.Put(f"/{number}", b"")) for number in range(300)]
            await store.flush()
            # What ended on another thread reaches its future in the loop's next turn.
            await asyncio.sleep(0)
            assert all(future.done() for future in futures)
            await store.close()

    asyncio.run(main())
