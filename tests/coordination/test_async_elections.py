"""Elections for tasks: what ``test_elections.py`` states, where the faces differ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import async_claims
from batchkeeper.coordination.async_elections import AsyncElection
from batchkeeper.ops import Put
from batchkeeper.ops.errors import (
    InvalidSettingError,
    LockBusyError,
    LockLostError,
    StoreClosedError,
)

from ..waiting import PATIENCE
from .candidates import LONG, PATH

Test = Callable[[bk.AsyncMetadataStore], Coroutine[Any, Any, None]]

# Seconds: too short for a campaign that cannot succeed.
BRIEF = 0.2


@pytest.fixture
def run(store_url: str) -> Callable[[Test], None]:
    """Run a coroutine function with an empty store of each kind, and close the store after it."""
    return lambda test: asyncio.run(opened(store_url, test))


@pytest.fixture
def run_in_memory() -> Callable[[Test], None]:
    """Run a coroutine function with an empty store in memory."""
    return lambda test: asyncio.run(opened("memory://async-elections", test))


async def opened(url: str, test: Test) -> None:
    async with asyncio.timeout(PATIENCE):
        async with bk.open_async_store(url, session_timeout=LONG) as store:
            await test(store)


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition holds; the test's own time limit bounds this."""
    while not condition():  # noqa: ASYNC110 - the conditions are the election's own state
        await asyncio.sleep(0.001)


async def until_entries(store: bk.AsyncMetadataStore, number: int) -> list[str]:
    """Wait until ``number`` candidates are in line; return their names."""
    while len(names := await store.get_children(PATH)) != number:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.001)
    return sorted(names, key=lambda name: name[-10:])


def test_two_candidates(run: Callable[[Test], None]) -> None:
    """The life of an election, from a campaign to the next leader."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        first, second = (AsyncElection(store, PATH, value) for value in (b"first", b"second"))
        heard: list[str] = []
        first.add_listener(heard.append)
        await first.campaign(PATIENCE)
        assert first.is_leader()
        assert await first.leader() == b"first"
        with pytest.raises(LockBusyError) as caught:
            await second.campaign(BRIEF)
        assert caught.value.value == b"first"
        await until_entries(store, 1)
        second.stand()
        names = await until_entries(store, 2)
        await store.transaction([first.check(), Put("/result", b"")])
        term, token = first.lost, first.fencing_token
        await store.delete(f"{PATH}/{names[0]}")
        assert await term.wait(PATIENCE)
        await second.campaign(PATIENCE)
        assert not first.is_leader()
        await until(lambda: heard == ["leading", "lost", "following"])
        await second.update(b"updated")
        assert await first.leader() == b"updated"
        await second.close()
        await first.campaign(PATIENCE)
        assert first.fencing_token > token
        await first.close()
        assert await store.get_children(PATH) == []
        with pytest.raises(StoreClosedError):
            await first.campaign()

    run(test)


def test_two_candidates_in_turn(run_in_memory: Callable[[Test], None]) -> None:
    """In a hundred rounds there is always one leader at most."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        old, new = (AsyncElection(store, PATH, value) for value in (b"1", b"2"))
        await old.campaign()
        for _ in range(100):
            new.stand()
            await old.resign()
            assert not old.is_leader()
            await new.campaign()
            assert not old.is_leader()
            old, new = new, old

    run_in_memory(test)


def test_a_cancelled_campaign_leaves_nothing(run: Callable[[Test], None]) -> None:
    """A campaign that is cancelled at any moment leaves no value, and the next one can lead."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        candidate = AsyncElection(store, PATH, b"cancelled")
        for steps in range(40):
            campaign = asyncio.create_task(candidate.campaign())
            for _ in range(steps):
                await asyncio.sleep(0)
            campaign.cancel()
            led = not (await asyncio.gather(campaign, return_exceptions=True))[0]
            assert candidate.is_leader() == led
            await candidate.resign()
        other = AsyncElection(store, PATH, b"other")
        await other.campaign()
        await until_entries(store, 1)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(candidate.campaign())
            await until_entries(store, 2)
            waiting.cancel()
        await until_entries(store, 1)
        await other.resign()
        assert await store.get_children(PATH) == []

    run(test)


def test_a_cancelled_campaign_that_has_just_been_elected(
    run_in_memory: Callable[[Test], None],
) -> None:
    """Whoever was elected while its campaign was cancelled does not lead without anybody's wish."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        candidate = AsyncElection(store, PATH)
        # The callback runs before the task of the campaign learns that it leads.
        campaign = asyncio.create_task(candidate.campaign())
        await asyncio.sleep(0)
        elected = candidate._candidacy.elected  # type: ignore[union-attr]
        told = elected.set

        def cancel() -> None:
            campaign.cancel()
            told()

        elected.set = cancel  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await campaign
        assert not candidate.is_leader()
        await until_entries(store, 0)

    class Patched(async_claims.AsyncSignal):  # one whose methods can be replaced
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("batchkeeper.coordination.async_elections.AsyncSignal", Patched)
        run_in_memory(test)


def test_a_time_out_of_asyncio(run_in_memory: Callable[[Test], None]) -> None:
    """``asyncio.timeout`` ends a campaign as its own time-out does."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        async with AsyncElection(store, PATH) as first, AsyncElection(store, PATH) as second:
            await first.campaign()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(BRIEF):
                    await second.campaign()
            await until_entries(store, 1)
        assert await store.get_children(PATH) == []

    run_in_memory(test)


def test_a_campaign_of_a_leader_whose_time_has_passed(
    run_in_memory: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits without stopping the loop, until the leader has noticed its loss and leads again."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        async with AsyncElection(store, PATH) as candidate:
            await candidate.campaign()
            with monkeypatch.context() as patch:
                patch.setattr(async_claims.AsyncClaim, "over", lambda *_: False)
                patch.setattr(async_claims.AsyncClaim, "valid_until", lambda _: 0.0)
                campaign = asyncio.create_task(candidate.campaign())
                await asyncio.sleep(0)
                await store.get("/other")
                assert not campaign.done()
            await campaign

    run_in_memory(test)


def test_a_resignation_ends_the_campaigns_of_other_tasks(
    run_in_memory: Callable[[Test], None],
) -> None:
    """All campaigns of one object stand for one candidate; its resignation ends them all."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        leader, candidate = AsyncElection(store, PATH), AsyncElection(store, PATH)
        await leader.campaign()
        campaigns = [asyncio.create_task(candidate.campaign()) for _ in range(3)]
        await until_entries(store, 2)
        campaigns[0].cancel()
        await asyncio.sleep(0)
        assert len(await store.get_children(PATH)) == 2
        await candidate.resign()
        ended = await asyncio.gather(*campaigns, return_exceptions=True)
        assert [type(error) for error in ended] == [
            asyncio.CancelledError,
            LockLostError,
            LockLostError,
        ]

    run_in_memory(test)


def test_callbacks_that_are_coroutine_functions(
    run_in_memory: Callable[[Test], None], caplog: pytest.LogCaptureFixture
) -> None:
    """They are awaited, one event after the other, and may await the election itself.

    What they await may be cancelled: only that call fails.
    """

    async def test(store: bk.AsyncMetadataStore) -> None:
        candidate, other = AsyncElection(store, PATH), AsyncElection(store, PATH)
        heard: list[Any] = []

        async def act(event: str) -> None:
            heard.append(event)
            await asyncio.sleep(0)
            if event == "leading":
                await candidate.update(b"updated")
                heard.append(await candidate.leader())
                await candidate.resign()
                given_up = asyncio.get_running_loop().create_future()
                given_up.cancel()
                await given_up

        candidate.add_listener(act)
        candidate.stand()
        await until(lambda: heard == ["leading", b"updated"])
        await other.campaign()
        candidate.stand()
        await until(lambda: heard == ["leading", b"updated", "following"])

    run_in_memory(test)
    failures = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert ["a listener failed" in record.getMessage() for record in failures] == [True]


def test_a_callback_that_never_ends(run_in_memory: Callable[[Test], None]) -> None:
    """It delays neither the election nor the other listeners."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        candidate = AsyncElection(store, PATH)
        heard: list[str] = []
        candidate.add_listener(lambda _: asyncio.Event().wait())  # type: ignore[arg-type, return-value]
        candidate.add_listener(heard.append)
        await candidate.campaign()
        (name,) = await until_entries(store, 1)
        term = candidate.lost
        await store.delete(f"{PATH}/{name}")
        assert await term.wait(PATIENCE)
        await candidate.campaign()
        await until(lambda: heard == ["leading", "lost", "leading"])

    run_in_memory(test)


def test_a_callback_that_is_cancelled(run_in_memory: Callable[[Test], None]) -> None:
    """A callback that ends by a cancellation hears the next event all the same."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        candidate = AsyncElection(store, PATH)
        heard: list[str] = []

        async def cancelled(event: str) -> None:
            heard.append(event)
            if event == "leading":
                raise asyncio.CancelledError

        candidate.add_listener(cancelled)
        for _ in range(2):
            await candidate.campaign()
            await until(lambda: heard[-1:] == ["leading"])
            await candidate.resign()
            heard.append("resigned")
        assert heard == ["leading", "resigned"] * 2

    run_in_memory(test)


def test_what_is_no_callback(run_in_memory: Callable[[Test], None]) -> None:
    """Only what can be called is a listener."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        with pytest.raises(InvalidSettingError):
            AsyncElection(store, PATH).add_listener(None)  # type: ignore[arg-type]

    run_in_memory(test)


def test_observing(run: Callable[[Test], None]) -> None:
    """``async for`` yields the present value and its changes; a cancelled wait loses none."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        candidate = AsyncElection(store, PATH, b"1")
        async with candidate.observe() as values:
            assert await anext(values) is None
            for n in range(30):
                waiting = asyncio.create_task(anext(values))  # type: ignore[arg-type]
                change = candidate.update(b"%d" % n) if n else candidate.campaign()
                changing = asyncio.create_task(change)
                for _ in range(n):
                    await asyncio.sleep(0)
                waiting.cancel()
                (seen,) = await asyncio.gather(waiting, return_exceptions=True)
                await changing
                present = b"%d" % n if n else b"1"
                if seen != present:
                    assert await anext(values) == present
            await candidate.resign()
            assert await anext(values) is None
        assert [value async for value in values] == []

    run(test)


def test_the_end_of_observing(run_in_memory: Callable[[Test], None]) -> None:
    """``close`` ends an iteration that waits; the end of the store is an error of it."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        candidate = AsyncElection(store, PATH, b"1")
        values, left = candidate.observe(), candidate.observe()
        assert await anext(left) is None
        seen: list[bytes | None] = []
        first = asyncio.Event()

        async def observe() -> None:
            async for value in values:
                seen.append(value)
                first.set()

        observing = asyncio.create_task(observe())
        await first.wait()
        values.close()
        await observing
        assert seen == [None]
        waiting = asyncio.create_task(anext(left))  # type: ignore[arg-type]
        await store.close()
        with pytest.raises(StoreClosedError):
            await waiting

    run_in_memory(test)


def test_the_end_of_the_store(run: Callable[[Test], None]) -> None:
    """``store.close`` ends all: the leader has lost, and waiting campaigns raise."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        leader, other = AsyncElection(store, PATH), AsyncElection(store, PATH)
        heard: list[str] = []
        leader.add_listener(heard.append)
        await leader.campaign()
        campaign = asyncio.create_task(other.campaign())
        await until_entries(store, 2)
        term = leader.lost
        await store.close()
        assert not leader.is_leader()
        assert await term.wait(PATIENCE)
        with pytest.raises(StoreClosedError):
            await campaign
        await until(lambda: heard == ["leading", "lost"])
        await leader.close()
        await other.close()

    run(test)


def test_the_end_of_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that ends with a leader, a candidate and an observer ends in silence."""

    async def main() -> None:
        store = await bk.open_async_store("memory://async-elections-left")
        leader, other = AsyncElection(store, PATH), AsyncElection(store, PATH)
        await leader.campaign()
        other.stand()
        await until_entries(store, 2)
        values = leader.observe()
        await anext(values)
        await store.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == []
