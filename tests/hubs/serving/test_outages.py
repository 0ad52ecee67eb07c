"""The calls of a client while the owner of their topics does not answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import batchkeeper as bk
from batchkeeper.hubs import AsyncTopicClient, HubInfo, Published, Redirect, TopicClient

from ...waiting import PATIENCE, until

ME = HubInfo("alive:1", 1)


class Region:
    """A hub that redirects to a dead owner, until the topics are free."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.free = False

    def __call__(self, address: str) -> Region:
        if address == "dead:1":
            raise ConnectionRefusedError(address)
        return self

    def publish(self, publisher: str, topic: str, message: bytes, redirected: bool) -> object:
        self.asked[topic] += 1
        return Published(1, ME) if self.free else Redirect(HubInfo("dead:1", 1))

    def busy(self) -> list[str]:
        """The topics for which somebody asks on."""
        return [topic for topic, count in self.asked.items() if count > 1]


class Tasks(Region):
    """The same for tasks."""

    async def __call__(self, address: str) -> Tasks:  # type: ignore[override]
        super().__call__(address)
        return self

    async def publish(self, *what: object) -> object:  # type: ignore[override]
        return super().publish(*what)  # type: ignore[arg-type]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait."""
    with ThreadPoolExecutor(32) as made:
        yield made


@pytest.mark.slow
def test_one_call_asks_on_for_all(pool: ThreadPoolExecutor) -> None:
    """Thousands may wait for a dead owner. When one finds that its topic is free, all ask again."""
    region = Region()
    client = TopicClient(region, ["alive:1"], timeout=PATIENCE)  # type: ignore[arg-type]
    calls = [pool.submit(client.publish, "p", f"t{number}", b"") for number in range(30)]
    until(lambda: len(region.asked) == 30 and sum(region.asked.values()) > 35)
    assert len(region.busy()) == 1
    region.free = True
    assert {call.result(PATIENCE) for call in calls} == {Published(1, ME)}
    assert sum(count > 2 for count in region.asked.values()) <= 1


@pytest.mark.slow
def test_another_call_takes_over(pool: ThreadPoolExecutor) -> None:
    """When the one that asks has no time left, the others are not left alone."""
    region = Region()
    client = TopicClient(region, ["alive:1"])  # type: ignore[arg-type]
    first = pool.submit(client.publish, "p", "first", b"", 0.5)
    until(lambda: region.busy() == ["first"])
    second = pool.submit(client.publish, "p", "second", b"", PATIENCE)
    with pytest.raises(bk.OperationTimeoutError):
        first.result(PATIENCE)
    until(lambda: region.asked["second"] > 2)
    region.free = True
    assert second.result(PATIENCE) == Published(1, ME)


def test_a_task_that_is_cancelled_while_it_asks_for_all() -> None:
    """Another one asks on."""

    async def work() -> None:
        region = Tasks()
        client = AsyncTopicClient(region, ["alive:1"], PATIENCE)  # type: ignore[arg-type]
        calls = [
            asyncio.create_task(client.publish("p", f"t{number}", b"")) for number in range(100)
        ]
        while not region.busy():  # noqa: ASYNC110 - a test of what happens meanwhile
            await asyncio.sleep(0)
        (topic,) = region.busy()
        calls.pop(int(topic[1:])).cancel()
        while len(region.busy()) < 100:  # noqa: ASYNC110
            await asyncio.sleep(0)
        region.free = True
        assert {*await asyncio.gather(*calls)} == {Published(1, ME)}

    asyncio.run(work())
