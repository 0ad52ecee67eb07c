"""Hubs and clients for tasks: what differs from those for threads, above all cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    AsyncComparedOwnership,
    AsyncEphemeralOwnership,
    AsyncFileLogs,
    AsyncSubscription,
    AsyncSubscriptionDataManager,
    AsyncTopicClient,
    AsyncTopicHub,
    Claim,
    Hub,
    HubSettings,
    Message,
    Published,
    Redirect,
    TopicLostError,
)

from ...waiting import PATIENCE
from .conftest import R

Work = Callable[[AsyncTopicHub, AsyncTopicHub, bk.AsyncMetadataStore], Awaitable[None]]

OWNERSHIPS: Final[dict[str, type]] = {
    "ephemeral": AsyncEphemeralOwnership,
    "compared": AsyncComparedOwnership,
}


def run(
    store_url: str,
    ownership: str,
    logs: AsyncFileLogs,
    work: Work,
) -> None:
    """Do some work with two hubs of one store."""

    async def main() -> None:
        settings = HubSettings(ownership=ownership)  # type: ignore[arg-type]
        async with (
            bk.open_async_store(store_url) as store,
            AsyncTopicHub(store, R, "hub-1:1", logs, settings) as one,
            AsyncTopicHub(store, R, "hub-2:1", logs, settings) as two,
        ):
            async with asyncio.timeout(PATIENCE):
                for each in (one, two):
                    seen: Iterable[Hub] = ()
                    while sum(hub.eligible for hub in seen) < 2:
                        await asyncio.sleep(0.005)
                        seen = (await each.hosts.hubs()).values()
            await work(one, two, store)

    asyncio.run(main())


def test_a_topic_moves(store_url: str, ownership: str, tmp_path: Path) -> None:
    """A client publishes and reads while a topic moves between hubs."""

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, _: object) -> None:
        hubs = {one.address: one, two.address: two}

        async def connect(address: str) -> AsyncTopicHub:
            return hubs[address]

        client = AsyncTopicClient(connect, [*hubs])
        async with await client.subscribe("s", "t") as reader:
            for number in range(6):
                await client.publish("p", "t", b"%d" % number)
                assert await reader.take() == [Message(number + 1, b"%d" % number)]
                await reader.consumed(number + 1)
                assert any([await each.release("t") for each in hubs.values()])
        assert await client.unsubscribe("s", "t")

    run(store_url, ownership, AsyncFileLogs(tmp_path, sync=False), work)


class Slow(AsyncFileLogs):
    """Logs whose appends wait until they may go on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, sync=False)
        self.entered = asyncio.Event()
        self.may = asyncio.Event()

    async def append(self, claim: Claim, bodies: Sequence[bytes]) -> int:
        self.entered.set()
        await self.may.wait()
        return await super().append(claim, bodies)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
def test_a_cancelled_publish_disturbs_no_other(
    store_url: str, ownership: str, tmp_path: Path
) -> None:
    """Those that share its append get their numbers, in the order of the calls."""

    logs = Slow(tmp_path)

    async def work(one: AsyncTopicHub, *_: object) -> None:
        calls = [asyncio.create_task(one.publish("p", "t", b"0", True))]
        await logs.entered.wait()
        for number in range(1, 4):
            calls.append(asyncio.create_task(one.publish("p", "t", b"%d" % number)))
            for _ in range(20):  # It waits behind the others.
                await asyncio.sleep(0)
        calls[0].cancel()
        calls[2].cancel()
        logs.may.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers[1] == Published(2, one.info)
        assert answers[3] == Published(4, one.info)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert [m.body for m in await logs.read("t", 0, 9)] == [b"0", b"1", b"2", b"3"]

    run(store_url, ownership, logs, work)


@pytest.mark.slow
def test_a_cancelled_claim_is_no_dead_end(store_url: str, ownership: str, tmp_path: Path) -> None:
    """Whenever the caller goes away, the next one gets the topic, or the hub that has it."""

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, _: object) -> None:
        for pauses in range(40):
            topic = f"t{pauses}"
            call = asyncio.create_task(one.publish("p", topic, b"1", True))
            for _ in range(pauses):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            answer = await two.publish("p", topic, b"2", True)
            if isinstance(answer, Redirect):
                assert answer.hub == one.info
                answer = await one.publish("p", topic, b"2", True)
            assert isinstance(answer, Published)

    run(store_url, ownership, AsyncFileLogs(tmp_path, sync=False), work)


def test_a_cancelled_take_loses_nothing(store_url: str, ownership: str, tmp_path: Path) -> None:
    """The next call returns the messages."""

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, _: object) -> None:
        found = await one.subscribe("s", "t", True)
        assert isinstance(found, AsyncSubscription)
        for number in range(20):
            await one.publish("p", "t", b"%d" % number)
            call = asyncio.create_task(found.take())
            for _ in range(number):
                await asyncio.sleep(0)
            if not call.cancel():
                assert await call == [Message(number + 1, b"%d" % number)]
                continue
            try:
                messages = await call
            except asyncio.CancelledError:
                messages = await found.take()
            assert messages == [Message(number + 1, b"%d" % number)]

    run(store_url, ownership, AsyncFileLogs(tmp_path, sync=False), work)


@pytest.mark.slow
def test_a_cancelled_release_is_no_dead_end(store_url: str, ownership: str, tmp_path: Path) -> None:
    """Whenever the caller goes away, the topic is served: by this hub, or by the next."""

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, _: object) -> None:
        async def lost(claim: Claim) -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        one.add_listener(lost=lost)
        for pauses in range(40):
            topic = f"t{pauses}"
            await one.publish("p", topic, b"1", True)
            call = asyncio.create_task(one.release(topic))
            for _ in range(pauses):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            answer = await two.publish("p", topic, b"2", True)
            if isinstance(answer, Redirect):
                assert answer.hub == one.info
                answer = await one.publish("p", topic, b"2", True)
            assert isinstance(answer, Published)

    run(store_url, ownership, AsyncFileLogs(tmp_path, sync=False), work)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
def test_a_claim_ends_although_its_caller_goes_away(
    store_url: str, ownership: str, tmp_path: Path
) -> None:
    """A listener is not interrupted, and the topic is served when it has ended."""

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, _: object) -> None:
        seen: list[str] = []
        entered, may = asyncio.Event(), asyncio.Event()

        async def acquired(claim: Claim) -> None:
            entered.set()
            await may.wait()
            seen.append("acquired")

        async def lost(claim: Claim) -> None:
            seen.append("lost")

        one.add_listener(acquired, lost)
        call = asyncio.create_task(one.publish("p", "t", b"1", True))
        await entered.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        waiting = asyncio.create_task(one.publish("p", "t", b"2", True))
        may.set()
        assert await waiting == Published(1, one.info)
        assert seen == ["acquired"]

    run(store_url, ownership, AsyncFileLogs(tmp_path, sync=False), work)


@pytest.mark.slow
def test_a_cancelled_stop_can_be_repeated(store_url: str, ownership: str, tmp_path: Path) -> None:
    """Wherever it was cancelled, the next call hands all over, and leaves."""

    logs = AsyncFileLogs(tmp_path, sync=False)

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, store: bk.AsyncMetadataStore) -> None:
        names = [f"t{number}" for number in range(5)]
        for pauses in (0, 1, 5, 20, 50, 100, -1):
            hub = AsyncTopicHub(store, R, f"hub-{pauses + 4}:1", logs, one.settings)
            await hub.start()
            for name in names:
                topic = f"{name}-{pauses}"
                assert isinstance(await hub.publish("p", topic, b"1", True), Published)
            call = asyncio.create_task(hub.stop())
            for _ in range(pauses):
                await asyncio.sleep(0)
            while pauses < 0 < hub.valid_until():  # noqa: ASYNC110 - the removal is under way
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await hub.stop()
            assert not hub.topics
            assert not await two.hosts.is_alive(hub.info)
            for name in names:
                answer = await two.publish("p", f"{name}-{pauses}", b"2", True)
                assert answer == Published(2, two.info)

    run(store_url, ownership, logs, work)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
def test_whoever_stops_a_hub_finds_it_stopped(
    store_url: str, ownership: str, tmp_path: Path
) -> None:
    """Two calls at the same time return when all is handed over, not only one of them."""

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, _: object) -> None:
        entered, may = asyncio.Event(), asyncio.Event()

        async def lost(claim: Claim) -> None:
            entered.set()
            await may.wait()

        one.add_listener(lost=lost)
        await one.publish("p", "t", b"1", True)
        calls = [asyncio.create_task(one.stop()) for _ in range(2)]
        await entered.wait()
        assert one.topics
        assert not any(call.done() for call in calls)
        may.set()
        for call in calls:
            await call
            assert not one.topics
            assert not await two.hosts.is_alive(one.info)

    run(store_url, ownership, AsyncFileLogs(tmp_path, sync=False), work)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
def test_clients_do_not_wait_for_each_others_redirect(
    store_url: str, ownership: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a topic with many subscribers has moved, all of them ask the old hub at once."""

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, _: object) -> None:
        await one.publish("p", "t", b"1", True)
        asking = 0
        everybody = asyncio.Event()
        look = OWNERSHIPS[ownership].look  # type: ignore[attr-defined]

        async def slow(self: object, topic: str | bytes) -> object:
            nonlocal asking
            asking += 1
            if asking == 50:
                everybody.set()
            await everybody.wait()
            return await look(self, topic)

        monkeypatch.setattr(OWNERSHIPS[ownership], "look", slow)
        async with asyncio.timeout(PATIENCE):
            calls = [two.subscribe(f"s{number}", "t") for number in range(50)]
            assert await asyncio.gather(*calls) == [Redirect(one.info)] * 50

    run(store_url, ownership, AsyncFileLogs(tmp_path, sync=False), work)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
def test_nobody_is_connected_without_a_subscription(
    store_url: str, ownership: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription that is removed while its subscriber connects ends that connection, too."""

    async def work(one: AsyncTopicHub, two: AsyncTopicHub, _: object) -> None:
        first = await one.subscribe("s", "t", True)
        assert isinstance(first, AsyncSubscription)
        entered, may = asyncio.Event(), asyncio.Event()
        read = AsyncSubscriptionDataManager.read_subscription_data

        async def slow(self: AsyncSubscriptionDataManager, topic: str, subscriber: str) -> object:
            found = await read(self, topic, subscriber)
            entered.set()
            await may.wait()
            return found

        monkeypatch.setattr(AsyncSubscriptionDataManager, "read_subscription_data", slow)
        connecting = asyncio.create_task(one.subscribe("s", "t", True, "attach"))
        await entered.wait()
        removing = asyncio.create_task(one.unsubscribe("s", "t"))
        for _ in range(100):
            await asyncio.sleep(0)
        may.set()
        connection = await connecting
        assert isinstance(connection, AsyncSubscription)
        assert await removing is True
        with pytest.raises(TopicLostError, match="closed"):
            await connection.take(timeout=0)

    run(store_url, ownership, AsyncFileLogs(tmp_path, sync=False), work)
