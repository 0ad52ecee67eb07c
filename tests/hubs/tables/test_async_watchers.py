"""One-shot watchers of tasks, where the faces differ: coroutine functions and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs.errors import IllegalOperationError, NoKeyError
from batchkeeper.hubs.tables import AsyncMetaStore, AsyncTable, Version
from batchkeeper.testing import FaultInjector

from ...waiting import PATIENCE
from .watching import CHANGED, REMOVED, Calls

Test = Callable[[AsyncTable, FaultInjector], Coroutine[Any, Any, None]]


@pytest.fixture
def run(store_url: str) -> Callable[[Test], None]:
    """Run a coroutine function with an empty table of each kind."""

    async def main(test: Test) -> None:
        faults = FaultInjector()
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store(store_url, wrap=faults) as store,
            AsyncMetaStore(store) as tables,
        ):
            await test(await tables.create_table("t"), faults)
            faults.clear()

    return lambda test: asyncio.run(main(test))


async def arm(table: AsyncTable, key: str, watcher: Any) -> None:
    with suppress(NoKeyError):
        await table.get(key, watcher=watcher)


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition holds; the test's own time limit bounds this."""
    while not condition():  # noqa: ASYNC110 - the conditions are plain numbers
        await asyncio.sleep(0.001)


def test_functions_and_coroutine_functions(run: Callable[[Test], None]) -> None:
    """Both are called on the loop, one after the other; coroutines are awaited."""

    async def test(table: AsyncTable, _: FaultInjector) -> None:
        calls, begun, end = Calls(), asyncio.Event(), asyncio.Event()

        async def slow(key: str, event: Any) -> None:
            begun.set()
            await end.wait()
            calls(key, event)

        await arm(table, "k", slow)
        await arm(table, "k", calls)
        await table.put("k", {}, Version.NEW)
        await begun.wait()
        await table.get("k")
        assert calls == []
        end.set()
        await until(lambda: len(calls) == 2)
        await arm(table, "k", slow)
        await table.remove("k", Version.ANY)
        await until(lambda: len(calls) == 3)
        assert calls[-1] == ("k", REMOVED)
        with pytest.raises(IllegalOperationError):
            await table.get("k", watcher=5)  # type: ignore[arg-type]

    run(test)


def test_a_watcher_arms_itself_again(run: Callable[[Test], None]) -> None:
    """A coroutine function may use the table that calls it, and misses no last value."""

    async def test(table: AsyncTable, _: FaultInjector) -> None:
        seen: list[bytes] = []

        async def look(*_: object) -> None:
            seen.append((await table.get("k", watcher=look)).value["n"])

        await table.put("k", {"n": b"0"}, Version.NEW)
        await look()
        for number in range(1, 30):
            await table.put("k", {"n": b"%d" % number}, Version.ANY)
        await until(lambda: seen[-1] == b"29")

    run(test)


@pytest.mark.parametrize("held", ["watch", "get"])
def test_a_cancelled_get_arms_nothing(run: Callable[[Test], None], held: str) -> None:
    """Whether it waits for the watch or for its read; others that wait go on."""

    async def test(table: AsyncTable, faults: FaultInjector) -> None:
        lost, calls = Calls(), Calls()
        fault = faults.delay(held)
        cancelled = asyncio.create_task(arm(table, "k", lost))
        other = asyncio.create_task(arm(table, "k", calls))
        await until(lambda: fault.hits)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        fault.remove()
        await other
        await table.put("k", {}, Version.NEW)
        await until(lambda: calls)
        assert (lost, calls) == ([], [("k", CHANGED)])
        assert not table.disarm("k", lost)

    run(test)


def test_nothing_is_called_after_a_close(run: Callable[[Test], None]) -> None:
    """Neither what is armed nor what is due, and calls that wait end at once."""

    async def test(table: AsyncTable, faults: FaultInjector) -> None:
        calls, begun, end = Calls(), asyncio.Event(), asyncio.Event()

        async def slow(*_: object) -> None:
            begun.set()
            await end.wait()

        await arm(table, "k", slow)
        await arm(table, "k", calls)
        await arm(table, "other", calls)
        await table.put("k", {}, Version.NEW)
        await begun.wait()  # The other one is due, too.
        fault = faults.delay("get")
        waiting = asyncio.create_task(arm(table, "k", calls))
        await until(lambda: fault.hits)
        await table.shelf.store.close(0)
        end.set()
        with pytest.raises(bk.StoreClosedError):
            await waiting
        await until(lambda: not any("listener" in t.get_name() for t in asyncio.all_tasks()))
        assert calls == []
        assert not table.disarm("other", calls)

    run(test)
