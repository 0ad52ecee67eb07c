"""The scans and the history of a back end with faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol, TypeVar

from ...ops.results import Change, Range, ScanResult, StatPage
from ...stores.backend import History, Scans
from .calls import Method

__all__ = ["FaultyHistory", "FaultyScans", "Run"]

_T = TypeVar("_T")


class Run(Protocol):
    """Makes a call, with its fault.

    Args:
        method: the method.
        path: its prefix, or ``None``.
        forward: makes the call without a fault.
        deadline: by ``time.monotonic()``.
    """

    def __call__(
        self, method: Method, path: str | None, forward: Callable[[], _T], deadline: float
    ) -> _T: ...


class FaultyScans:
    """Scans whose pages are calls with faults."""

    def __init__(self, run: Run, scans: Scans) -> None:
        self._run = run
        self._scans = scans

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        pages = self._scans.scan(prefix, within, revision, timeout)
        return _pages(self._run, "scan", prefix, pages, timeout)

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        pages = self._scans.scan_stats(prefix, within, revision, timeout)
        return _pages(self._run, "scan_stats", prefix, pages, timeout)

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        return self._run(
            "split", prefix, lambda: self._scans.split(prefix, n, timeout), _after(timeout)
        )

    def delete_recursive(self, path: str, timeout: float) -> int:
        return self._run(
            "delete_recursive",
            path,
            lambda: self._scans.delete_recursive(path, timeout),
            _after(timeout),
        )

    def revision(self, timeout: float) -> int:
        return self._run("revision", None, lambda: self._scans.revision(timeout), _after(timeout))


class FaultyHistory:
    """A history whose pages are calls with faults."""

    def __init__(self, run: Run, history: History) -> None:
        self._run = run
        self._history = history

    def revision(self, path: str, timeout: float) -> int:
        call = partial(self._history.revision, path, timeout)
        return self._run("revision", path, call, _after(timeout))

    def changes(
        self, prefix: str, after: int, until: int, timeout: float
    ) -> Generator[Sequence[Change], None, None]:
        pages = self._history.changes(prefix, after, until, timeout)
        return _pages(self._run, "changes", prefix, pages, timeout)


def _pages(
    run: Run, method: Method, path: str, pages: Generator[_T, None, None], timeout: float
) -> Generator[_T, None, None]:
    """Yield pages. Each request for a page is a call, even the last one, which finds none."""
    with closing(pages):
        while True:
            page = run(method, path, lambda: next(pages, None), _after(timeout))
            if page is None:
                return
            yield page


def _after(timeout: float) -> float:
    return time.monotonic() + timeout
