"""Claims of topics: many in one call, and one call for each, by a thousand tasks.

The claims of tasks leave nothing but the owners and the epochs of their topics. The messages of a
hub stay in memory, because their logs are none of the client's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from ... import open_async_store
from ...batching import AsyncMetadataStore
from ...hubs import (
    AsyncComparedOwnership,
    AsyncEphemeralOwnership,
    AsyncHosts,
    AsyncOwnership,
    AsyncTopicHub,
    Claim,
    HubInfo,
    HubSettings,
    Layout,
    Message,
    Published,
    Version,
    async_open_managers,
    open_managers,
)
from ...hubs.managers import TopicOwnershipManager
from ..target import Target
from ..workload import WrongAnswerError
from .ours import check_count
from .work import Figures, Stopwatch

__all__ = [
    "claims_in_paths",
    "claims_in_tables",
    "compared_claims",
    "ephemeral_claims",
    "publishes_that_claim",
]

_TASKS: Final = 1000
_ADDRESS: Final = "hub-1:4080"
# The claims of the warm-up, as a part of those that are measured.
_WARM_UP: Final = 0.15

_Topics: TypeAlias = Sequence[str]
#: Claims a topic, and checks that this was its first claim.
_ClaimOne: TypeAlias = Callable[[str], Awaitable[None]]


def claims_in_paths(there: Target, count: int) -> Figures:
    """Measure first claims by one call of ``write_owner_infos``, in the layout of paths."""
    return _claims_of_one_call(there, count, "paths")


def claims_in_tables(there: Target, count: int) -> Figures:
    """Measure the same in the layout of tables."""
    return _claims_of_one_call(there, count, "tables")


def _claims_of_one_call(there: Target, count: int, layout: Layout) -> Figures:
    me, (warm_up, timed) = HubInfo(_ADDRESS, 1), _topics(count)

    def claim(owners: TopicOwnershipManager, topics: _Topics) -> None:
        ended = owners.write_owner_infos((topic, me, Version.NEW) for topic in topics)
        for topic, one in zip(topics, ended, strict=True):
            if not isinstance(one, Version):
                raise _wrong(topic, one)

    with there.open() as store, open_managers(store, there.root, layout) as managers:
        claim(managers.ownership, warm_up)
        with Stopwatch(there) as watch:
            claim(managers.ownership, timed)
    return watch.figures(count)


def ephemeral_claims(there: Target, count: int) -> Figures:
    """Measure first claims by ``EphemeralOwnership.claim``, one call for each, in 1,000 tasks."""

    async def measured(store: AsyncMetadataStore) -> Figures:
        owners = AsyncEphemeralOwnership(store, there.root)
        return await _single_claims(there, count, owners, HubInfo(_ADDRESS, 1))

    return _in_tasks(there, measured)


def compared_claims(there: Target, count: int) -> Figures:
    """Measure the same by ``ComparedOwnership.claim``."""

    async def measured(store: AsyncMetadataStore) -> Figures:
        async with (
            AsyncHosts(store, there.root) as hosts,
            await async_open_managers(store, there.root) as managers,
        ):
            me = (await hosts.register(_ADDRESS)).info
            owners = AsyncComparedOwnership(store, there.root, managers.ownership, hosts)
            return await _single_claims(there, count, owners, me)

    return _in_tasks(there, measured)


def publishes_that_claim(there: Target, count: int) -> Figures:
    """Measure the first publishes to topics: each makes the hub claim its topic."""

    async def measured(store: AsyncMetadataStore) -> Figures:
        hub = AsyncTopicHub(store, there.root, _ADDRESS, _Logs(), HubSettings(shed_interval=None))

        async def publish(topic: str) -> None:
            done = await hub.publish("publisher", topic, b"message", redirected=True)
            if not isinstance(done, Published) or done.number != 1 or done.hub != hub.info:
                raise _wrong(topic, done)

        async with hub:
            figures = await _claims_of_tasks(there, count, publish)
            for topic, claim in hub.topics.items():
                if claim.epoch != 1:
                    raise _wrong(topic, claim)
            return figures

    return _in_tasks(there, measured)


class _Logs:
    """Logs that keep no more than the number of the last message."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    async def begin(self, claim: Claim) -> int:
        return self._last.setdefault(claim.topic, 0)

    async def append(self, claim: Claim, bodies: Sequence[bytes]) -> int:
        self._last[claim.topic] += len(bodies)
        return self._last[claim.topic]

    async def read(self, topic: str, after: int, most: int) -> list[Message]:
        return []

    async def end(self, claim: Claim) -> None:
        del self._last[claim.topic]


def _in_tasks(
    there: Target, measured: Callable[[AsyncMetadataStore], Awaitable[Figures]]
) -> Figures:
    async def run() -> Figures:
        url = there.url.text
        async with open_async_store(url, connect_timeout=there.connect_timeout) as store:
            return await measured(store)

    return asyncio.run(run())


async def _single_claims(there: Target, count: int, owners: AsyncOwnership, me: HubInfo) -> Figures:
    async def claim(topic: str) -> None:
        ended = await owners.claim(topic, me)
        if not isinstance(ended, Claim) or ended.topic != topic or ended.epoch != 1:
            raise _wrong(topic, ended)

    return await _claims_of_tasks(there, count, claim)


async def _claims_of_tasks(there: Target, count: int, claim: _ClaimOne) -> Figures:
    warm_up, timed = _topics(count)
    await _claim_all(warm_up, claim)
    with Stopwatch(there) as watch:
        await _claim_all(timed, claim)
    return watch.figures(count)


async def _claim_all(topics: _Topics, claim: _ClaimOne) -> None:
    rest = iter(topics)

    async def task(rest: Iterable[str]) -> int:
        count = 0
        for topic in rest:
            await claim(topic)
            count += 1
        return count

    check_count(sum(await asyncio.gather(*(task(rest) for _ in range(_TASKS)))), len(topics))


def _topics(count: int) -> tuple[_Topics, _Topics]:
    """Return the topics of the warm-up, and those that are measured."""
    warm_up = max(1, int(count * _WARM_UP))
    topics = [f"topic-{number}" for number in range(warm_up + count)]
    return topics[:warm_up], topics[warm_up:]


def _wrong(topic: str, ended: object) -> WrongAnswerError:
    return WrongAnswerError(
        f"topic {topic} should be claimed for the first time, not {ended!r:.200}"
    )
