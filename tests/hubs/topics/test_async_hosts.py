"""Hosts for tasks, where the faces differ: cancellation, and many calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import AsyncHosts, HubLoad, HubsRegisteredError, choose
from batchkeeper.testing import FaultInjector

from ...waiting import PATIENCE

R = "/hedwig/eu"

Test = Callable[[bk.AsyncMetadataStore], Coroutine[Any, Any, None]]


@pytest.fixture
def run(store_url: str) -> Callable[[Test], None]:
    """Run a coroutine function with an empty store of each kind, and close the store after it."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE), bk.open_async_store(store_url) as store:
            await test(store)

    return lambda test: asyncio.run(main(test))


def test_hosts_of_tasks(run: Callable[[Test], None]) -> None:
    """Register, report, drain, forget and leave, with the same results as for threads."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        async with AsyncHosts(store, R) as hosts:
            one, two = await asyncio.gather(hosts.register("hub-1"), hosts.register("hub-2"))
            assert choose(await hosts.hubs()) in {one.info, two.info}
            await one.update(HubLoad(topics=3))
            while (await hosts.hubs())["hub-1"].load != HubLoad(topics=3):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await hosts.set_draining("hub-1", True)
            assert one.draining
            assert choose(await hosts.hubs()) == two.info
            assert await hosts.is_alive(one.info)
            with pytest.raises(HubsRegisteredError):
                await hosts.forget("hub-1")
            async with one:
                pass
            assert not await hosts.is_alive(one.info)
            await hosts.forget("hub-1")
        assert two.lost.is_set()
        with pytest.raises(bk.StoreClosedError):
            await hosts.hubs()

    run(test)


def test_many_first_calls_share_a_view(run: Callable[[Test], None]) -> None:
    """Calls at the same time have one watch, and all get all hubs."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        async with AsyncHosts(store, R) as writing, AsyncHosts(store, R) as hosts:
            await asyncio.gather(*(writing.register(f"hub-{n}") for n in range(10)))
            found = await asyncio.gather(*(hosts.hubs() for _ in range(20)))
            assert all(len(each) == 10 for each in found)
            assert store.metrics().watches == 2

    run(test)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("transaction", None),
        ("put", "/hosts/hub-1"),
        ("scan", None),
        ("get", "/hosts/hub-1"),
    ],
)
def test_a_cancelled_register_leaves_nothing(
    fresh_url: Callable[[str], str], kind: str, path: str | None
) -> None:
    """Whatever it waits for, the hub is not alive afterwards, and can be registered."""

    async def main() -> None:
        faults = FaultInjector()
        url = fresh_url("memory")
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store(url, wrap=faults) as store,
            AsyncHosts(store, R) as hosts,
        ):
            held = faults.delay(kind, None if path is None else R + path)
            task = asyncio.create_task(hosts.register("hub-1"))
            await asyncio.to_thread(faults.wait_for_hits, 1, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            held.release()
            while await store.exists(f"{R}/hosts/hub-1/alive"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            hub = await hosts.register("hub-1")
            assert list(await hosts.hubs()) == ["hub-1"]
            assert await hosts.is_alive(hub.info)

    asyncio.run(main())


def test_a_cancelled_close_waits_for_no_hub(fresh_url: Callable[[str], str]) -> None:
    """It ends while nothing answers, and all hubs leave nevertheless."""

    async def main() -> None:
        faults = FaultInjector()
        url = fresh_url("memory")
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store(url, wrap=faults, operation_timeout=2 * PATIENCE) as store,
            AsyncHosts(store, R) as others,
        ):
            hosts = AsyncHosts(store, R)
            hubs = [await hosts.register(f"hub-{number}") for number in range(3)]
            held = faults.delay("transaction")
            task = asyncio.create_task(hosts.close())
            await asyncio.to_thread(faults.wait_for_hits, 1, PATIENCE)
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE / 2)
            assert task.cancelled()
            held.release()
            while any([await others.is_alive(hub.info) for hub in hubs]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(main())
