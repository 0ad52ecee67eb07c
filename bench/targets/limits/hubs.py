"""Hubs: claims of topics, consume marks, subscriptions, and a hub that is killed.

Claims are many in one call, or one call for each by a thousand tasks. The messages of a hub stay in
memory, because the client does not store them.

A hub with 10,000 topics is killed to see how soon the other hubs own them all. Each hub is a
process with a store of its own. A client for each topic subscribes again at once, at one of the
other hubs, as the readers of an application would. The clients live in the processes of these hubs,
and reach the other one over TCP.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

import batchkeeper.hubs as bh
from batchkeeper import AsyncMetadataStore, open_async_store
from batchkeeper.bench.children import Child, child
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError

from ..rows import Figures
from ..work import parts, split_warm_up, stopwatch, timed
from .puts import call_in_threads, check_count, in_tasks
from .variants import variant

_ADDRESS: Final = "hub-1:4080"
_SUBSCRIBERS: Final = 10_000
# Of one topic.
_NEIGHBOURS: Final = 100

#: Claims a topic, and checks that this was its first claim.
_ClaimOne: TypeAlias = Callable[[str], Awaitable[None]]


def _topics(count: int) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


def _wrong(topic: str, ended: object) -> WrongAnswerError:
    return WrongAnswerError(
        f"topic {topic} should be claimed for the first time, not {ended!r:.200}"
    )


@variant("claims in paths", "paths", least=20_000)
@variant("claims in tables", "tables", least=20_000)
def claims_of_one_call(there: Target, count: int, layout: bh.Layout) -> Figures:
    """Measure first claims by one call of ``write_owner_infos``."""
    me = bh.HubInfo(_ADDRESS, 1)
    with there.open() as store, bh.open_managers(store, there.root, layout) as managers:

        def claim(topics: Sequence[str]) -> None:
            ended = managers.ownership.write_owner_infos((t, me, bh.Version.NEW) for t in topics)
            for topic, one in zip(topics, ended, strict=True):
                if not isinstance(one, bh.Version):
                    raise _wrong(topic, one)

        return timed(there, claim, *split_warm_up(_topics, count), count)


# Several for each of the thousand tasks.


@variant("ephemeral claims", "ephemeral", least=10_000)
@variant("compared claims", "compared", least=10_000)
def claims(there: Target, count: int, ownership: bh.OwnershipMode) -> Figures:
    """Measure first claims in 1,000 tasks, by one call of ``claim`` each."""

    @asynccontextmanager
    async def claiming(store: AsyncMetadataStore) -> AsyncIterator[_ClaimOne]:
        async with (
            bh.AsyncHosts(store, there.root) as hosts,
            await bh.async_open_managers(store, there.root) as managers,
        ):
            me = (await hosts.register(_ADDRESS)).info
            owners = (
                bh.AsyncEphemeralOwnership(store, there.root)
                if ownership == "ephemeral"
                else bh.AsyncComparedOwnership(store, there.root, managers.ownership, hosts)
            )

            async def claim(topic: str) -> None:
                ended = await owners.claim(topic, me)
                if not isinstance(ended, bh.Claim) or ended.topic != topic or ended.epoch != 1:
                    raise _wrong(topic, ended)

            yield claim

    return asyncio.run(in_tasks(there, count, claiming, _topics))


@variant("publishes that claim", least=10_000)
def publishes_that_claim(there: Target, count: int) -> Figures:
    """Measure the first publishes to topics: each makes the hub claim its topic."""

    @asynccontextmanager
    async def publishing(store: AsyncMetadataStore) -> AsyncIterator[_ClaimOne]:
        hub = bh.AsyncTopicHub(
            store, there.root, _ADDRESS, _Logs(), bh.HubSettings(shed_interval=None)
        )

        async def publish(topic: str) -> None:
            done = await hub.publish("publisher", topic, b"message", redirected=True)
            if not isinstance(done, bh.Published) or done.number != 1 or done.hub != hub.info:
                raise _wrong(topic, done)

        async with hub:
            yield publish
            for topic, claim in hub.topics.items():
                if claim.epoch != 1:
                    raise _wrong(topic, claim)

    return asyncio.run(in_tasks(there, count, publishing, _topics))


class _Logs:
    """Logs that keep no more than the number of the last message."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    async def begin(self, claim: bh.Claim) -> int:
        return self._last.setdefault(claim.topic, 0)

    async def append(self, claim: bh.Claim, bodies: Sequence[bytes]) -> int:
        self._last[claim.topic] += len(bodies)
        return self._last[claim.topic]

    async def read(self, topic: str, after: int, most: int) -> list[bh.Message]:
        return []

    async def end(self, claim: bh.Claim) -> None:
        del self._last[claim.topic]


@variant("mark updates", grows=False, least=1_000_000, fixed=True)
def mark_updates(there: Target, count: int) -> Figures:
    """Measure ``ConsumeMarks.consumed`` of up to 10,000 subscribers in turn, until all is stored.

    Each subscriber gets a hundred marks or more, so most of them never reach the store.
    """
    subscribers = [
        (f"topic-{number // _NEIGHBOURS}", f"subscriber-{number % _NEIGHBOURS}")
        for number in range(max(1, min(_SUBSCRIBERS, count // 100)))
    ]
    last = count // len(subscribers)
    with there.open() as store, bh.open_managers(store, there.root) as managers:
        _create(managers.subscriptions, subscribers)
        with stopwatch(there) as watch, bh.ConsumeMarks(managers.subscriptions) as marks:
            for number in range(1, last + 1):
                mark = bh.MessageSeqId(number)
                for topic, subscriber in subscribers:
                    marks.consumed(topic, subscriber, mark)
        for topic, subscriber in (subscribers[0], subscribers[-1]):
            found = managers.subscriptions.read_subscription_data(topic, subscriber)
            state = None if found is None else found.value.state
            if state is None or state.mark.local < last:
                raise WrongAnswerError(f"{subscriber} of {topic} should be at {last}, not {state}")
    return watch.figures(last * len(subscribers))


@variant("subscriptions read", least=10_000, fixed=True)
def subscriptions_read(there: Target, count: int) -> Figures:
    """Measure ``read_subscriptions`` of a topic with many subscribers: ``seconds`` for all."""
    with there.open() as store, bh.open_managers(store, there.root) as managers:
        subscriptions = managers.subscriptions
        _create(subscriptions, [("topic", f"subscriber-{number}") for number in range(count)])
        subscriptions.read_subscriptions("topic")  # The warm-up.
        with stopwatch(there) as watch:
            found = subscriptions.read_subscriptions("topic")
    check_count(len(found), count)
    return {**watch.figures(count), "seconds": watch.seconds}


def _create(subscriptions: bh.SubscriptionDataManager, found: Sequence[tuple[str, str]]) -> None:
    def create(of: tuple[str, str]) -> None:
        subscriptions.create_subscription_data(*of, bh.SubscriptionData())

    call_in_threads(create, found)


# A hub that is killed:

# Seconds: ten ticks of the bench's ZooKeeper.
_SESSION: Final = 5.0
_PATIENCE: Final = 120.0
_SURVIVORS: Final = 2
_OF_ONE_CLIENT: Final = 500


@variant("ephemeral recovery", "ephemeral", least=10_000, fixed=True)
@variant("compared recovery", "compared", least=10_000, fixed=True)
def recovery(there: Target, count: int, ownership: bh.OwnershipMode) -> Figures:
    """Measure the time from the kill until all topics are claimed, beyond the session timeout."""
    topics = [f"topic-{number}" for number in range(count)]
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())

        def hub(mode: bh.SubscribeMode, own: Sequence[str]) -> Child:
            place = there.url.text, there.root, ownership, directory
            return stack.enter_context(child(_hub, *place, mode, own))

        owner = hub("create", topics)
        owner.begin()
        owner.receive()
        _check([owner], count)
        others = [hub("attach", topics[number::_SURVIVORS]) for number in range(_SURVIVORS)]
        owner.kill()
        killed = time.perf_counter()
        for other in others:
            other.begin()
        for other in others:
            other.receive()
        seconds = time.perf_counter() - killed
        cpu = _check(others, count)
    return {"rate": count / seconds, "after": max(0.001, seconds - _SESSION), "cpu": cpu / count}


def _check(hubs: Sequence[Child], count: int) -> float:
    """Check the number of topics that hubs own, and return the CPU that they have used."""
    for hub in hubs:
        hub.begin()
    found: list[tuple[int, float]] = [hub.receive() for hub in hubs]
    if (owned := sum(topics for topics, _ in found)) != count:
        raise WrongAnswerError(f"{owned} of {count} topics are owned although all have clients")
    return sum(cpu for _, cpu in found)


# In another process:


def _hub(parent: Connection, *arguments: Any) -> None:
    """Be a hub whose clients subscribe to topics when it may begin.

    It sends something when all have subscribed, and then the number of topics that it owns, and the
    seconds of CPU that this took.
    """
    asyncio.run(_serve(parent, *arguments))


async def _serve(
    parent: Connection,
    url: str,
    region: str,
    ownership: bh.OwnershipMode,
    directory: str,
    mode: bh.SubscribeMode,
    topics: Sequence[str],
) -> None:
    # No topic moves for other reasons than the kill, so that their number can be checked.
    settings = bh.HubSettings(ownership=ownership, shed_interval=None)
    logs, server = bh.AsyncFileLogs(directory, sync=False), bh.AsyncHubServer()
    address = await server.listen()
    async with (
        open_async_store(url, session_timeout=_SESSION) as store,
        bh.AsyncTopicHub(store, region, address, logs, settings) as hub,
        AsyncExitStack() as stack,
    ):
        server.serve(hub)
        stack.push_async_callback(server.stop)

        async def client() -> bh.AsyncTopicClient:
            connections = await stack.enter_async_context(bh.AsyncHubConnections())

            async def connect(to: str) -> bh.AsyncHubConnection:
                return hub if to == address else await connections(to)

            return bh.AsyncTopicClient(connect, [address], timeout=_PATIENCE)

        # A connection has a limit of subscriptions.
        clients = [(await client(), some) for some in parts(topics, _OF_ONE_CLIENT)]
        parent.send("ready")
        await asyncio.to_thread(parent.recv)
        begun = time.process_time()
        await asyncio.gather(
            *(one.subscribe("reader", topic, mode) for one, some in clients for topic in some)
        )
        cpu = time.process_time() - begun
        parent.send("done")
        await asyncio.to_thread(parent.recv)
        parent.send((len(hub.topics), cpu))
        await asyncio.to_thread(parent.recv)
