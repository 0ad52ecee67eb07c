"""Background work: on both faces, each item is worked on, and work once begun ends."""

from __future__ import annotations

import asyncio

import pytest

from batchkeeper.batching.async_background import async_each, async_finish
from batchkeeper.batching.background import each, finish


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
