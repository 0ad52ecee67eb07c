"""Scans through the asynchronous face, and pages whose caller has given up."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

import batchkeeper as bk
from batchkeeper.batching.scans import pages_of_async, results_of_async
from batchkeeper.ops import Range, ScanResult, Stat, StatPage, StoreUnavailableError

from .waiting import PATIENCE


def page(*paths: str) -> list[ScanResult]:
    return [ScanResult(path, b"", Stat(path, 0, 1)) for path in paths]


class Scanner:
    """Yields two pages, the second one when the test allows it, and records its close."""

    def __init__(self) -> None:
        self.reading = threading.Event()
        self.let = threading.Event()
        self.closed = threading.Event()
        self.error: Exception | None = None
        self.begun = False

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        self.begun = True
        try:
            yield page("/a", "/b")
            self.reading.set()
            assert self.let.wait(PATIENCE)
            if self.error:
                raise self.error
            yield page("/c")
        finally:
            self.closed.set()

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        for found in self.scan(prefix, within, revision, timeout):
            yield StatPage.of([stat for _, _, stat in found])

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        raise NotImplementedError

    def delete_recursive(self, path: str, timeout: float) -> int:
        raise NotImplementedError

    def revision(self, timeout: float) -> int:
        raise NotImplementedError


async def given(scanner: Scanner) -> list[str]:
    return [found.path async for found in results_of_async(scanner, "/", Range(), None, 1)]


def test_the_loop_is_free_while_a_page_is_read() -> None:
    """Another task runs while the page is read, and lets the read continue."""
    scanner = Scanner()

    async def main() -> list[str]:
        async def let() -> None:
            await asyncio.to_thread(scanner.reading.wait, PATIENCE)
            scanner.let.set()

        found, _ = await asyncio.wait_for(asyncio.gather(given(scanner), let()), PATIENCE)
        return found

    assert asyncio.run(main()) == ["/a", "/b", "/c"]
    assert scanner.closed.is_set()


def test_an_error_of_a_page_reaches_the_task() -> None:
    """An exception of the back end is raised by the iterator, after the results read before it."""
    scanner = Scanner()
    scanner.error = StoreUnavailableError("gone")
    scanner.let.set()
    found: list[str] = []

    async def main() -> None:
        async for result in results_of_async(scanner, "/", Range(), None, 1):
            found.append(result.path)  # noqa: PERF401 - what comes before the error is kept

    with pytest.raises(StoreUnavailableError, match="gone"):
        asyncio.run(main())
    assert found == ["/a", "/b"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_scan_is_closed_when_its_page_has_come(fails: bool) -> None:
    """Cancelling does not wait for the page, and the scan is closed behind it, without a sound."""
    scanner = Scanner()
    scanner.error = StoreUnavailableError("gone") if fails else None
    complaints: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        task = asyncio.create_task(given(scanner))
        await asyncio.to_thread(scanner.reading.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not scanner.closed.is_set()
        scanner.let.set()
        assert await asyncio.to_thread(scanner.closed.wait, PATIENCE)
        await asyncio.sleep(0)
        gc.collect()  # What nobody has looked at complains when it goes.

    asyncio.run(main())
    assert complaints == []


def test_a_cancelled_scan_is_not_begun_when_its_turn_comes() -> None:
    """A page whose caller has given up is not read once the busy threads are free again."""
    scanner = Scanner()
    busy = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        other = loop.run_in_executor(None, busy.wait, PATIENCE)
        task = asyncio.create_task(given(scanner))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        busy.set()
        assert await other

    asyncio.run(main())
    assert not scanner.begun


def test_a_store_can_be_closed_while_all_threads_of_the_loop_are_busy() -> None:
    """close() needs no thread of the loop: all may wait for scans that only the close ends."""
    free = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = await bk.open_async_store("memory://busy")
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, free.wait, PATIENCE)
        try:
            await asyncio.wait_for(store.close(), PATIENCE / 2)
        finally:
            free.set()
        assert await busy

    asyncio.run(main())


def test_a_scan_that_is_left_is_closed() -> None:
    """Closing the iterator between two pages closes the scan."""
    scanner = Scanner()

    async def main() -> None:
        results = results_of_async(scanner, "/", Range(), None, 1)
        assert (await anext(results)).path == "/a"
        assert not scanner.closed.is_set()
        await results.aclose()
        assert scanner.closed.is_set()

    asyncio.run(main())


@pytest.mark.parametrize("values", [True, False])
def test_pages_come_as_they_are(values: bool) -> None:
    """A task gets whole pages, with values or without, and leaving them closes the scan."""
    scanner = Scanner()

    async def main() -> None:
        pages = pages_of_async(scanner, "/", Range(), None, 1, values=values)
        first = await anext(pages)
        assert [*first.paths] == ["/a", "/b"]
        assert (first.values is None) is not values
        await pages.aclose()
        assert scanner.closed.is_set()

    asyncio.run(main())
