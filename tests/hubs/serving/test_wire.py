"""Hubs over TCP, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    AccessDeniedError,
    AsyncFileLogs,
    AsyncTopicClient,
    AsyncTopicHub,
    HubConnections,
    HubServer,
    HubSettings,
    Message,
    NoSubscriptionStateError,
    Published,
    Redirect,
    RemoteHub,
    RemoteSubscription,
    Rule,
    SubscriberReplacedError,
    SubscriptionPreferences,
    TopicLostError,
)

from .conftest import R

URL = "memory://wire"


@asynccontextmanager
async def served(
    store: bk.AsyncMetadataStore, directory: Path, **settings: int
) -> AsyncIterator[tuple[AsyncTopicHub, HubServer]]:
    """A hub, and the server in front of it."""
    server = HubServer()
    address = await server.listen()
    logs = AsyncFileLogs(directory, sync=False)
    chosen = HubSettings(**settings)  # type: ignore[arg-type]
    async with AsyncTopicHub(store, R, address, logs, chosen) as hub:
        server.serve(hub)
        try:
            yield hub, server
        finally:
            await server.stop()


def test_all_calls_of_a_client(tmp_path: Path) -> None:
    """A remote hub answers as the hub does, with its errors."""

    async def work() -> None:
        async with (
            bk.open_async_store(URL) as store,
            served(store, tmp_path, window=3) as (hub, _),
            HubConnections() as connections,
        ):
            remote = await connections(hub.address)
            assert await connections(hub.address) is remote
            with pytest.raises(NoSubscriptionStateError, match="no subscriber 's'"):
                await remote.subscribe("s", "t", mode="attach")
            found = await remote.subscribe(b"\xff", b"\xfe/\n")
            assert isinstance(found, RemoteSubscription)
            assert await found.take(timeout=0) == []
            for number in range(5):
                body = bytes([number, 255])
                answer = await remote.publish("p", b"\xfe/\n", body)
                assert answer == Published(number + 1, hub.info)
            assert await found.take() == [Message(n + 1, bytes([n, 255])) for n in range(3)]
            await found.consumed(3)
            assert await found.take(1) == [Message(4, b"\x03\xff")]
            with pytest.raises(bk.MetadataStoreError, match="messages 1 to 5"):
                await found.consumed(9)
            again = await remote.subscribe(b"\xff", b"\xfe/\n")
            assert isinstance(again, RemoteSubscription)
            with pytest.raises(SubscriberReplacedError):
                await found.take()
            assert await again.take(timeout=1) == [
                Message(4, b"\x03\xff"),
                Message(5, b"\x04\xff"),
            ]
            await again.close()
            with pytest.raises(TopicLostError):
                await again.take()
            assert await remote.unsubscribe(b"\xff", b"\xfe/\n") is True
            assert await remote.unsubscribe(b"\xff", b"\xfe/\n") is False
            wide = SubscriptionPreferences({"a": b"\xff"}, message_window_size=5)
            found = await remote.subscribe("w", "t", preferences=wide)
            assert isinstance(found, RemoteSubscription)
            for _ in range(9):
                await remote.publish("p", "t", b"")
            assert len(await found.take()) == 5
            await hub.access.set_rule("", Rule())
            with pytest.raises(AccessDeniedError, match="must not publish"):
                await remote.publish("p", "t", b"")

    asyncio.run(work())


def test_a_client_of_several_hubs(tmp_path: Path) -> None:
    """It follows redirects, and its reader survives the end of a server."""

    async def work() -> None:
        async with (
            bk.open_async_store(URL) as store,
            served(store, tmp_path) as (one, first),
            served(store, tmp_path) as (two, _),
            HubConnections(timeout=5.0) as connections,
        ):
            hubs = {one.address: one, two.address: two}
            client = AsyncTopicClient(connections, [*hubs])
            reader = await client.subscribe("s", "t")
            published = await client.publish("p", "t", b"1")
            owner = hubs.pop(published.hub.address)
            (other,) = hubs.values()
            remote = await connections(other.address)
            assert await remote.publish("p", "t", b"", redirected=True) == Redirect(owner.info)
            assert await remote.subscribe("x", "t") == Redirect(owner.info)
            assert await remote.unsubscribe("x", "t") == Redirect(owner.info)
            assert await reader.take() == [Message(1, b"1")]
            waiting = asyncio.create_task(reader.take())
            await asyncio.sleep(0.05)
            await first.stop()
            await one.stop()
            assert (await client.publish("p", "t", b"2")).number == 2
            assert await waiting == [Message(2, b"2")]
            await reader.close()

    asyncio.run(work())


def test_a_cancelled_take_loses_nothing(tmp_path: Path) -> None:
    """The next call has the messages, whenever the first one was cancelled."""

    async def work() -> None:
        async with (
            bk.open_async_store(URL) as store,
            served(store, tmp_path) as (hub, _),
            HubConnections() as connections,
        ):
            found = await (await connections(hub.address)).subscribe("s", "t")
            assert isinstance(found, RemoteSubscription)
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

    asyncio.run(work())


def test_a_hub_that_does_not_answer() -> None:
    """A request ends in its time, and the next one makes a new connection."""

    async def work() -> None:
        server = HubServer()
        address = await server.listen()
        remote = RemoteHub(address, timeout=0.1)
        with pytest.raises(TimeoutError, match=address):
            await remote.publish("p", "t", b"")
        await server.stop()
        with pytest.raises(OSError, match="onnect"):
            await remote.publish("p", "t", b"")
        remote.close()
        with pytest.raises(OSError, match="onnect"):
            await RemoteHub(address, 5.0).publish("p", "t", b"")

    asyncio.run(work())


def test_those_who_wait_for_a_hub_share_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may ask a hub that has crashed: one attempt to connect is enough for all of them.

    Those who come later try again.
    """
    attempts = []

    async def refused(*where: object) -> None:
        attempts.append(where)
        await asyncio.sleep(0)
        raise ConnectionRefusedError

    async def work() -> None:
        hub = RemoteHub("127.0.0.1:1")
        for number in (1, 2):
            asked = (hub.publish("p", f"t{topic}", b"") for topic in range(50))
            failed = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(error) for error in failed} == {ConnectionRefusedError}
            assert len(attempts) == number

    monkeypatch.setattr(asyncio, "open_connection", refused)
    asyncio.run(work())


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\1{", b"\0\0"])
def test_a_client_that_sends_rubbish_is_cut_off(raw: bytes, tmp_path: Path) -> None:
    """Others go on."""

    async def work() -> None:
        async with (
            bk.open_async_store(URL) as store,
            served(store, tmp_path) as (hub, _),
            HubConnections() as connections,
        ):
            host, _, port = hub.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(raw)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            remote = await connections(hub.address)
            assert await remote.publish("p", "t", b"") == Published(1, hub.info)

    asyncio.run(work())
