"""Groups of tasks, where the faces differ: cancellation, and many members at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination._sync.groups import GroupEvent
from batchkeeper.coordination.async_groups import AsyncGroup
from batchkeeper.coordination.members import Member
from batchkeeper.ops.errors import LockBusyError
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE

Test = Callable[[bk.AsyncMetadataStore], Coroutine[Any, Any, None]]


@pytest.fixture
def run(store_url: str) -> Callable[[Test], None]:
    """Run a coroutine function with an empty store of each kind, and close the store after it."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE), bk.open_async_store(store_url) as store:
            await test(store)

    return lambda test: asyncio.run(main(test))


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition holds; the test's own time limit bounds this."""
    while not condition():  # noqa: ASYNC110 - the conditions are the store's own numbers
        await asyncio.sleep(0.001)


async def nobody_left(store: bk.AsyncMetadataStore) -> None:
    """Wait until nothing is below the group."""
    while await store.get_children("/hubs"):  # noqa: ASYNC110 - others end the wait
        await asyncio.sleep(0.01)


def test_a_group_of_tasks(run: Callable[[Test], None]) -> None:
    """Join, update, listen and leave, with the same results as for threads."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        group = AsyncGroup(store, "/hubs")
        told: list[tuple[GroupEvent, Member]] = []
        with group.add_listener(lambda event, member: told.append((event, member))):
            async with await group.join("hub-1", b"1") as member:
                first = Member("hub-1", b"1", member.incarnation)
                await until(lambda: told)
                await member.update(b"2")
                assert await group.members() == {"hub-1": first._replace(data=b"2")}
                await until(lambda: len(told) == 2)
                with pytest.raises(LockBusyError):
                    await AsyncGroup(store, "/hubs").join("hub-1", timeout=0.1)
            await until(lambda: len(told) == 3)
        assert await member.lost.wait(PATIENCE)
        assert [event for event, _ in told] == ["joined", "changed", "left"]
        assert told[0][1] == first
        assert told[2][1] == first._replace(data=b"2")

    run(test)


def test_a_cancelled_join_leaves_nothing(run: Callable[[Test], None]) -> None:
    """At whatever step its task is cancelled, the name is free soon, in the same session."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        group = AsyncGroup(store, "/hubs")
        for steps in range(8):
            task = asyncio.create_task(group.join("hub-1"))
            for _ in range(steps):
                await asyncio.sleep(0.0002)
            task.cancel()
            try:
                member = await task
            except asyncio.CancelledError:
                pass
            else:
                await member.leave()
            async with await group.join("hub-1", b"next"):
                assert list(await group.members()) == ["hub-1"]
        await nobody_left(store)

    run(test)


class WithoutAnswers:
    """A store whose transactions take effect, and whose answers to them never come."""

    def __init__(self, store: bk.AsyncMetadataStore) -> None:
        self._store = store
        self.silent = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transaction(self, ops: Any, *, timeout: float | None = None) -> Any:
        results = await self._store.transaction(ops, timeout=timeout)
        if not self.silent.is_set():
            self.silent.set()
            await asyncio.Event().wait()
        return results


def test_a_join_that_is_cancelled_before_its_answer(run: Callable[[Test], None]) -> None:
    """The value that was created is removed again, in the same session."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        silent: Any = WithoutAnswers(store)
        joining = asyncio.create_task(AsyncGroup(silent, "/hubs").join("hub-1"))
        await silent.silent.wait()
        assert await store.exists("/hubs/hub-1")
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        await nobody_left(store)

    run(test)


def test_a_cancelled_wait_leaves_nothing(run: Callable[[Test], None]) -> None:
    """A task that waits for a name and is cancelled has no part in what comes after."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        group = AsyncGroup(store, "/hubs")
        first = await group.join("hub-1", b"first")
        waiting = asyncio.create_task(group.join("hub-1", b"second"))
        await until(lambda: store.metrics().watches == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: store.metrics().watches == 0)
        await first.leave()
        await nobody_left(store)

    run(test)


def test_a_cancelled_leave_goes_on(run: Callable[[Test], None]) -> None:
    """The value is removed, although nobody waits for that any more."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        group = AsyncGroup(store, "/hubs")
        for steps in range(4):
            member = await group.join("hub-1")
            leaving = asyncio.create_task(member.leave())
            for _ in range(steps):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            if steps:
                await nobody_left(store)
            await member.leave()
        await nobody_left(store)

    run(test)


def test_a_cancelled_leave_while_it_joins_again(fresh_url: Callable[[str], str]) -> None:
    """Who has left is no member, although an attempt to join had been sent before.

    The first request of an attempt removes what may be left of the last incarnation.
    """

    async def test(skip: int) -> None:
        faults = FaultInjector()
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store(fresh_url("memory"), wrap=faults) as store,
        ):
            member = await AsyncGroup(store, "/hubs").join("hub-1")
            attempt = faults.delay("transaction", skip=skip)
            faults.lose_session()
            await until(lambda: attempt.hits)
            leaving = asyncio.create_task(member.leave())
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            attempt.remove()
            await member._gate.enter()  # The attempt has ended.
            assert (member.joined, member.held_until()) == (False, -math.inf)
            await nobody_left(store)

    for skip in (0, 1):
        asyncio.run(test(skip))


@pytest.mark.slow
def test_a_thousand_members_join_at_once(store_url: str) -> None:
    """From ten stores, they share batches, and each store's listener gets all of them."""
    only_one = bk.store_kind(store_url).local_directory
    number = 1 if only_one else 10
    batching = bk.BatchingConfig(linger="fixed", max_delay=0.05)

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
            stores = [
                await stack.enter_async_context(
                    bk.open_async_store(store_url, session_timeout=60, batching=batching)
                )
                for _ in range(number)
            ]
            groups = [AsyncGroup(store, "/hubs") for store in stores]
            told: list[set[str]] = [set() for _ in groups]
            for group, names in zip(groups, told, strict=True):
                group.add_listener(lambda _event, member, names=names: names.add(member.name))
            each = 1_000 // number
            before = [store.metrics().writes.batches for store in stores]
            members = await asyncio.gather(
                *(
                    group.join(f"hub-{n}-{k}", b"%d" % k)
                    for n, group in enumerate(groups)
                    for k in range(each)
                )
            )
            used = [
                store.metrics().writes.batches - count
                for store, count in zip(stores, before, strict=True)
            ]
            assert sum(used) <= 500, used
            expected = {member.name for member in members}
            await until(lambda: all(names == expected for names in told))
            found = await groups[-1].members()
            assert {name: each.incarnation for name, each in found.items()} == {
                member.name: member.incarnation for member in members
            }

    asyncio.run(main())
