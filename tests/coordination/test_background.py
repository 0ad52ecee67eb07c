"""Background work: on both faces, each item is worked on, and work once begun ends."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from batchkeeper.batching.async_background import async_each, async_finish
from batchkeeper.batching.background import Signal, each, finish

from ..waiting import PATIENCE


def test_each_item_is_worked_on_although_some_fail() -> None:
    """The first exception is raised when all have ended."""
    seen: list[int] = []

    def work(number: int) -> None:
        seen.append(number)
        if number % 3 == 1:
            raise ValueError(number)

    async def later(number: int) -> None:
        await asyncio.sleep(0)
        work(number)

    with pytest.raises(ValueError, match="1"):
        each(work, range(10), 2)
    assert sorted(seen) == [*range(10)]
    seen.clear()
    with pytest.raises(ValueError, match="1"):
        asyncio.run(async_each(later, range(10), 2))
    assert sorted(seen) == [*range(10)]


def test_what_was_begun_ends() -> None:
    """Also if the caller is cancelled; its result and its exception reach one that waits."""

    async def main() -> None:
        may, done = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            await may.wait()
            done.set()

        call = asyncio.create_task(async_finish(work))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        may.set()
        await done.wait()

        async def fail() -> None:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await async_finish(fail)

    asyncio.run(main())
    assert finish(int, "7") == 7


def test_a_signal_that_is_set_in_the_middle_of_a_wait() -> None:
    """By a signal handler of the same thread, before each line: the wait ends."""

    def waits(line: int) -> bool:
        signal, lines = Signal(), iter(range(line))

        def trace(*_: object) -> Any:
            if next(lines, None) is None:
                signal.set()
            return trace

        sys.settrace(trace)
        try:
            return signal.wait(PATIENCE)
        finally:
            sys.settrace(None)

    assert all(map(waits, range(6)))
