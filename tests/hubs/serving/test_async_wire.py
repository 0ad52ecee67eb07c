"""Hubs over TCP for tasks: what differs from those for threads, which is cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    AsyncFileLogs,
    AsyncHubConnections,
    AsyncHubServer,
    AsyncRemoteHub,
    AsyncRemoteSubscription,
    AsyncSubscription,
    AsyncTopicHub,
    Message,
    Published,
)

from ...waiting import PATIENCE
from .conftest import R


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[AsyncTopicHub, AsyncRemoteHub]]:
    """A hub behind a server, and the connection of a client."""
    server = AsyncHubServer()
    address = await server.listen()
    logs = AsyncFileLogs(directory, sync=False)
    async with (
        bk.open_async_store("memory://async-wire") as store,
        AsyncTopicHub(store, R, address, logs) as hub,
        AsyncHubConnections(PATIENCE) as connections,
    ):
        server.serve(hub)
        try:
            yield hub, await connections(address)
        finally:
            await server.stop()


async def subscribed(remote: AsyncRemoteHub, topic: str = "t") -> AsyncRemoteSubscription:
    """Subscribe."""
    found = await remote.subscribe("s", topic)
    assert isinstance(found, AsyncRemoteSubscription)
    return found


def test_a_cancelled_take_loses_nothing(tmp_path: Path) -> None:
    """The next call has the messages, whenever the first one was cancelled."""

    async def work() -> None:
        async with served(tmp_path) as (hub, remote):
            found = await subscribed(remote)
            for number in range(1, 60):
                call = asyncio.create_task(found.take())
                for _ in range(number % 20):
                    await asyncio.sleep(0)
                await hub.publish("p", "t", b"%d" % number)
                for _ in range(number // 3):
                    await asyncio.sleep(0)
                call.cancel()
                ended = await asyncio.gather(call, return_exceptions=True)
                messages = ended[0] if isinstance(ended[0], list) else await found.take()
                assert messages == [Message(number, b"%d" % number)]
            await found.consumed(59)

    asyncio.run(work())


def test_a_cancelled_take_and_a_smaller_one(tmp_path: Path) -> None:
    """The next call returns no more than it has asked for, and the one after it the rest."""

    async def work() -> None:
        async with served(tmp_path) as (hub, remote):
            for pauses in range(1, 20):
                topic = f"t{pauses}"
                found = await subscribed(remote, topic)
                for _ in range(3):
                    await hub.publish("p", topic, b"")
                call = asyncio.create_task(found.take())
                for _ in range(pauses):
                    await asyncio.sleep(0)
                call.cancel()
                (ended,) = await asyncio.gather(call, return_exceptions=True)
                taken = ended if isinstance(ended, list) else []
                while len(taken) < 3:
                    taken += await found.take(1)
                    assert len(taken) <= 3
                assert [message.number for message in taken] == [1, 2, 3]

    asyncio.run(work())


@pytest.mark.slow
@pytest.mark.parametrize("request_", ["publish", "subscribe", "consumed", "unsubscribe"])
def test_a_cancelled_call_loses_nothing_else(tmp_path: Path, request_: str) -> None:
    """Whenever it is cancelled, the other requests of its connection get their answers."""

    async def work() -> None:
        async with served(tmp_path) as (hub, remote):
            found = await subscribed(remote)
            calls = {
                "publish": lambda: remote.publish("p", "other", b"x" * 100_000),
                "subscribe": lambda: remote.subscribe("gone", "t"),
                "consumed": lambda: found.consumed(0),
                "unsubscribe": lambda: remote.unsubscribe("gone", "t"),
            }
            for pauses in range(30):
                call = asyncio.ensure_future(calls[request_]())
                other = asyncio.create_task(remote.publish("p", "t", b"%d" % pauses))
                for _ in range(pauses):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                assert await other == Published(pauses + 1, hub.info)
                assert await found.take() == [Message(pauses + 1, b"%d" % pauses)]

    asyncio.run(work())


async def connected(subscription: AsyncSubscription) -> bool:
    """Say whether a subscriber is connected by this subscription."""
    try:
        await subscription.consumed(0)  # It changes nothing.
    except bk.MetadataStoreError:
        return False
    return True


def test_a_cancelled_subscribe_leaves_no_subscriber(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it is cancelled, nobody is connected to the topic for ever."""

    async def work() -> None:
        async with served(tmp_path) as (hub, remote):
            found: list[AsyncSubscription] = []
            subscribe = hub.subscribe

            async def noted(*args: Any) -> Any:
                one = await subscribe(*args)
                assert isinstance(one, AsyncSubscription)
                found.append(one)
                return one

            monkeypatch.setattr(hub, "subscribe", noted)
            await remote.publish("p", "t", b"")
            for pauses in range(40):
                call = asyncio.create_task(remote.subscribe(f"s{pauses}", "t"))
                for _ in range(pauses):
                    await asyncio.sleep(0)
                if call.done():
                    made = await call
                    assert isinstance(made, AsyncRemoteSubscription)
                    await made.close()
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            async with asyncio.timeout(PATIENCE):
                for one in found:
                    while await connected(one):  # noqa: ASYNC110 - nothing else tells
                        await asyncio.sleep(0.005)

    asyncio.run(work())


@pytest.mark.parametrize("pauses", range(12))
def test_a_loop_that_ends_before_its_server(tmp_path: Path, pauses: int) -> None:
    """Nothing hangs, and nothing is logged, when a program ends without ``stop``."""

    async def work() -> None:
        server = AsyncHubServer()
        address = await server.listen()
        store = await bk.open_async_store("memory://async-wire-end").__aenter__()
        hub = AsyncTopicHub(store, R, address, AsyncFileLogs(tmp_path, sync=False))
        await hub.start()
        server.serve(hub)
        found = await subscribed(AsyncRemoteHub(address, PATIENCE))
        waiting = asyncio.create_task(found.take())
        for _ in range(pauses):
            await asyncio.sleep(0)
        assert not waiting.done()
        await store.close()

    asyncio.run(work())
