"""Hubs: claims of topics, consume marks and subscriptions.

Claims are many in one call, or one call for each by a thousand tasks. The messages of a hub stay in
memory, because the client does not store them. Hubs that fail are what ``hubs simulate`` is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import batchkeeper.hubs as bh
from batchkeeper import AsyncMetadataStore
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError

from ..rows import Figures
from ..work import split_warm_up, stopwatch, timed
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
            owners = await bh.async_open_ownership(store, managers, hosts, ownership)

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
