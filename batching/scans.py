"""Walks over many paths. They run in the caller's thread and bypass the queues and their order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing
from types import TracebackType
from typing import TypeVar

from ..ops.errors import InvalidSettingError, MetadataStoreError, StoreClosedError
from ..ops.operations import check_revision
from ..ops.paths import check_parent, check_path
from ..ops.results import ChangePage, ForeignKeys, Range, ScanPage, ScanResult, StatPage
from ..stores.backend import Scans
from .reentry import in_back_end, refused
from .settings import check_flag

__all__ = [
    "AsyncResultStream",
    "ResultStream",
    "check_scan",
    "check_split",
    "ended",
    "pages_of",
    "pages_of_async",
    "results_of",
    "results_of_async",
]

_T = TypeVar("_T")
_Page = TypeVar("_Page")
_Raised = BaseException | type[BaseException]


class ResultStream(Generator[_T, None, None]):
    """Yields results one by one, and counts the keys of other clients that it leaves out.

    It is a generator: closing it ends the scan.

    Attributes:
        foreign: the keys left out so far, because they are not valid paths.
    """

    def __init__(self, begin: Callable[[], Generator[Sequence[_T], None, None]]) -> None:
        self.foreign = ForeignKeys()
        # It refers to the count, not to this object, so that a dropped stream is closed at once.
        self._results = _items(_here(begin, os.getpid()), self.foreign)

    def __iter__(self) -> Generator[_T, None, None]:  # noqa: PYI058 - as of a generator
        """Return the generator itself, so that a loop runs at its speed."""
        return self._results

    def __next__(self) -> _T:
        return next(self._results)

    def send(self, value: None) -> _T:
        return self._results.send(value)

    def throw(
        self,
        typ: _Raised,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> _T:
        return self._results.throw(_raised(typ, val, tb))

    def close(self) -> None:
        self._results.close()


class AsyncResultStream(AsyncGenerator[_T, None]):
    """A :class:`ResultStream` for ``async for``. It reads its pages on other threads.

    Attributes:
        foreign: the keys left out so far, because they are not valid paths.
    """

    def __init__(self, begin: Callable[[], Generator[Sequence[_T], None, None]]) -> None:
        self.foreign = ForeignKeys()
        self._results = one_by_one(begin, self.foreign)

    def __aiter__(self) -> AsyncGenerator[_T, None]:  # noqa: PYI058 - as of a generator
        """Return the generator itself, so that a loop runs at its speed."""
        return self._results

    async def asend(self, value: None) -> _T:
        return await self._results.asend(value)

    async def athrow(
        self,
        typ: _Raised,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> _T:
        return await self._results.athrow(_raised(typ, val, tb))

    async def aclose(self) -> None:
        await self._results.aclose()


def _raised(typ: _Raised, val: BaseException | object, tb: TracebackType | None) -> BaseException:
    """Return the arguments of ``throw`` as one exception: generators no longer take three."""
    if isinstance(typ, BaseException):
        error = typ
    elif isinstance(val, BaseException):
        error = val
    else:
        error = typ() if val is None else typ(val)
    return error if tb is None else error.with_traceback(tb)


def check_scan(
    prefix: str, start: str | None, end: str | None, revision: int | None
) -> tuple[str, Range, int | None]:
    """Return the arguments of a scan, if they are valid.

    Raises:
        InvalidPathError: the prefix, or a bound, is not a valid path.
        InvalidSettingError: the revision is invalid.
    """
    check_parent(prefix)
    for bound in (start, end):
        if bound is not None:
            check_path(bound)
    if revision is not None:
        check_revision("revision", revision)
    return prefix, Range(start, end), revision


def check_split(prefix: str, n: int) -> None:
    """Refuse invalid arguments of a split.

    Raises:
        InvalidPathError: the prefix is not a valid path.
        InvalidSettingError: ``n`` is not an int of 1 or more.
    """
    check_parent(prefix)
    if type(n) is not int or n < 1:
        raise InvalidSettingError(f"n must be an int of 1 or more, not {n!r}")


def results_of(
    scanner: Scans, prefix: str, within: Range, revision: int | None, timeout: float
) -> ResultStream[ScanResult]:
    """Yield the results of a scan, one by one. Closing the iterator ends the scan."""
    return ResultStream(lambda: scanner.scan(prefix, within, revision, timeout))


def pages_of(
    scanner: Scans,
    prefix: str,
    within: Range,
    revision: int | None,
    timeout: float,
    *,
    values: bool,
) -> Generator[ScanPage | StatPage, None, None]:
    """Yield the results of a scan in pages of columns. Closing the iterator ends the scan."""
    check_flag("values", values)
    process = os.getpid()
    if values:
        found = _here(lambda: scanner.scan(prefix, within, revision, timeout), process)
        return _columns(found)
    return _here(lambda: scanner.scan_stats(prefix, within, revision, timeout), process)


def _columns(pages: Generator[Sequence[ScanResult], None, None]) -> Generator[ScanPage, None, None]:
    with closing(pages):
        yield from map(ScanPage.of, pages)


def _items(
    pages: Generator[Sequence[_T], None, None], foreign: ForeignKeys
) -> Generator[_T, None, None]:
    """Yield the entries of pages, one by one. Closing the iterator closes the pages."""
    with closing(pages):
        for page in pages:
            _count(page, foreign)
            yield from page


def _count(page: object, foreign: ForeignKeys) -> None:
    # Pages of other types have no foreign keys.
    if isinstance(page, ScanPage | StatPage | ChangePage) and page.foreign:
        foreign.add(page.foreign)


def _here(
    begin: Callable[[], Generator[_Page, None, None]], process: int
) -> Generator[_Page, None, None]:
    """Yield pages in this process, and refuse to do so in a forked child.

    The threads and connections belong to the parent, so the child would get no answer.
    """
    with closing(begin()) as pages:
        while True:
            if os.getpid() != process:
                raise StoreClosedError(
                    "the store was opened before this process was forked; open it here"
                )
            if in_back_end():
                raise refused()
            page = next(pages, None)
            if page is None:
                return
            yield page


def results_of_async(
    scanner: Scans, prefix: str, within: Range, revision: int | None, timeout: float
) -> AsyncResultStream[ScanResult]:
    """Yield the results of a scan, one by one, and read its pages on other threads."""
    return AsyncResultStream(lambda: scanner.scan(prefix, within, revision, timeout))


def pages_of_async(
    scanner: Scans,
    prefix: str,
    within: Range,
    revision: int | None,
    timeout: float,
    *,
    values: bool,
) -> AsyncGenerator[ScanPage | StatPage, None]:
    """Yield the results of a scan in pages of columns, and read them on other threads."""
    check_flag("values", values)

    def begin() -> Generator[Sequence[ScanPage | StatPage], None, None]:
        with closing(pages_of(scanner, prefix, within, revision, timeout, values=values)) as pages:
            for page in pages:
                yield (page,)

    return one_by_one(begin, ForeignKeys())


async def one_by_one(
    begin: Callable[[], Generator[Sequence[_T], None, None]], foreign: ForeignKeys
) -> AsyncGenerator[_T, None]:
    """Yield the entries of pages, one by one, and read the pages on other threads."""
    pages: Generator[Sequence[_T], None, None] | None = None
    given_up = False

    def next_page() -> Sequence[_T] | None:
        nonlocal pages
        if given_up:
            return None  # No task waits for the page, and other work may wait for this thread.
        if pages is None:
            pages = begin()
        return next(pages, None)

    def close(read: asyncio.Future[Sequence[_T] | None]) -> None:
        if not read.cancelled():
            read.exception()  # Nothing else retrieves it, and asyncio would log that.
        if pages is not None:
            pages.close()

    loop = asyncio.get_running_loop()
    reading = loop.run_in_executor(None, next_page)
    try:
        # Shielded, so that cancelling the task does not cancel the read. A read cannot be stopped,
        # and the generator cannot be closed before it has ended.
        while (page := await asyncio.shield(reading)) is not None:
            _count(page, foreign)
            for found in page:
                yield found
            reading = loop.run_in_executor(None, next_page)
    finally:
        given_up = True
        if reading.done():
            close(reading)
        else:
            reading.add_done_callback(close)


def ended(call: Callable[[], _T]) -> Future[_T]:
    """Run a call and return its result or error as a future that has ended."""
    future: Future[_T] = Future()
    try:
        future.set_result(call())
    except MetadataStoreError as error:
        future.set_exception(error)
    return future
