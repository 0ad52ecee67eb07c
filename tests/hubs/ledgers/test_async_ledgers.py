"""The table of ledgers for tasks, where the faces differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    AsyncLedgerTable,
    AsyncMetaStore,
    LedgerMetadata,
    NoLedgerError,
    Version,
)
from batchkeeper.testing import FaultInjector

from ...waiting import PATIENCE


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition holds; the test's own time limit bounds this."""
    while not condition():  # noqa: ASYNC110 - the conditions are plain lists
        await asyncio.sleep(0.001)


def test_tasks_have_the_same_ledgers(store_url: str) -> None:
    """The names are the same, with await and async for; callbacks may be coroutine functions."""

    async def main() -> None:
        async with bk.open_async_store(store_url) as store, AsyncMetaStore(store) as tables:
            ledgers = AsyncLedgerTable(tables)
            ids = [await ledgers.new_id() for _ in range(3)]
            with pytest.raises(NoLedgerError):
                await ledgers.read(ids[0])
            told: list[Any] = []
            plain: list[Any] = []

            async def tell(ledger_id: int, found: LedgerMetadata | None) -> None:
                # It may use the table.
                there = [ledger.ledger_id async for ledger in ledgers.ledgers(ids[0], ids[0])]
                assert there in ([], ids[:1])
                told.append(found)

            first = await ledgers.add_listener(ids[0], tell)
            with await ledgers.add_listener(ids[0], lambda *args: plain.append(args)):
                await until(lambda: told and plain)
                version = await ledgers.create(ids[0], b"1")
                await until(lambda: told[-1] == plain[-1][1] == (b"1", version))
                await ledgers.create(ids[1], b"2")
            first.close()
            assert (await ledgers.read(ids[0])).metadata == b"1"
            async with ledgers.ledgers() as cursor:
                found = [ledger async for ledger in cursor]
            assert [ledger.ledger_id for ledger in found] == ids[:2]
            second = await ledgers.write(ids[0], b"3", version)
            await ledgers.remove(ids[0], second)
            with pytest.raises(NoLedgerError):
                await ledgers.remove(ids[0], Version.ANY)
            assert len(plain) == 2

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(limited())


def test_a_cancelled_add_listener_leaves_nothing(fresh_url: Callable[[str], str]) -> None:
    """Neither a watcher nor a callback."""

    async def main() -> None:
        faults = FaultInjector()
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store(fresh_url("memory"), wrap=faults) as store,
            AsyncMetaStore(store) as tables,
        ):
            ledgers = AsyncLedgerTable(tables)
            told: list[Any] = []
            held = faults.delay("get")
            adding = asyncio.create_task(ledgers.add_listener(5, told.append))  # type: ignore[arg-type]
            await until(lambda: held.hits)
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
            held.remove()
            await ledgers.create(5, b"")
            assert told == []

    asyncio.run(main())
