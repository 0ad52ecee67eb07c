"""An example of a store in a package of its own: ``files:///ABSOLUTE/DIRECTORY``.

This module is what batchkeeper sees: the record of the kind, and the back end. ``directory`` keeps
the files, and knows batchkeeper's values and errors only. docs/reference/extending.md walks through
both.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final, TypeVar

import batchkeeper as bk
from batchkeeper.stores import (
    Answer,
    Backend,
    ConnectOptions,
    Limits,
    PutValue,
    ReadRequest,
    Scans,
    State,
    StoreKind,
    StoreURL,
    Tally,
    WriteRequest,
    decide,
    evenly,
    partly_removed,
    send_by,
    spans,
    step_of,
    to_its_end,
)

from .directory import Directory, prepare, unavailable

__all__ = ["KIND", "FilesBackend", "connect"]

_R = TypeVar("_R", ReadRequest, WriteRequest)
_T = TypeVar("_T")

_MIB: Final = 1024 * 1024
_EVERYTHING: Final = bk.Range()
# The number of values that a scan or a recursive delete processes under one lock.
_PAGE: Final = 100


class FilesBackend:
    """Executes batches on a directory. It is also its own facet of scans."""

    history = None
    acls = None
    session = None
    watches = None
    # There is no server that could be away.
    connected = True

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.tally = Tally()
        self.limits = Limits(
            # They bound how long one call keeps the lock, and the memory that its answers take.
            write_ops=256,
            read_ops=256,
            request_bytes=16 * _MIB,
            op_bytes=200,
            value_bytes=_MIB,
            # Every call takes the same lock, so a second one would only wait.
            in_flight=1,
            singles=1,
        )

    @property
    def scans(self) -> Scans:
        return self

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        with self._directory.locked(send_by(deadline)), self._directory.changing() as revision:
            return _answers(requests, partial(self._write, revision))

    def _write(self, revision: int, request: WriteRequest) -> Answer:
        """Carry out a write, unless the state of its path forbids it. The lock is held."""
        step = step_of(request)
        found = self._directory.find(step.path, whole=False)
        occupied = step.effect == "delete" and self._occupied(step.path)
        if found is None:
            state = State(bk.ABSENT, occupied=occupied)
        else:
            state = State(found.stat.version, found.stat.revision, occupied)
        if error := decide(step, state):
            return error
        match step.effect:
            case PutValue(value, ephemeral=False):
                now = time.time_ns() // 1_000_000
                stat = bk.Stat(step.path, 0, revision, created=now, modified=now)
                if found is not None:
                    before = found.stat
                    stat = stat._replace(version=before.version + 1, created=before.created)
                self._directory.put(stat, value)
                return stat
            case "delete":
                self._directory.remove(step.path)
                return None
            case _:
                # It needs a capability that the record does not state.
                return bk.UnsupportedError(f"a files store has no {request.kind} like this")

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        with self._directory.locked(deadline):
            return _answers(requests, self._read)

    def _read(self, request: ReadRequest) -> Answer:
        match request.kind:
            case "get":
                return self._directory.find(request.path)
            case "exists":
                return self._directory.find(request.path, whole=False) is not None
            case "get_children":
                above = request.path.removesuffix("/") + "/"
                below = (path for path in self._under(request.path) if path != request.path)
                return sorted({path.removeprefix(above).partition("/")[0] for path in below})
            case _:
                return bk.UnsupportedError(f"a files store knows no {request.kind}")

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""

    def close(self) -> None:
        self._directory.close()

    # --- scans

    def scan(
        self, prefix: str, within: bk.Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[bk.ScanResult], None, None]:
        """Yield the values under ``prefix``, each as of its page."""
        for page in self._pages(prefix, within, timeout, whole=True):
            yield [bk.ScanResult(stat.path, value, stat) for value, stat in page]

    def scan_stats(
        self, prefix: str, within: bk.Range, revision: int | None, timeout: float
    ) -> Generator[bk.StatPage, None, None]:
        """Yield the stats of the values under ``prefix``, each as of its page."""
        for page in self._pages(prefix, within, timeout, whole=False):
            yield bk.StatPage.of([stat for _, stat in page])

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[bk.Range]:
        """Return ranges whose numbers of values differ by one at most."""
        return evenly(self._alone(partial(self._under, prefix), timeout), n)

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove the current values under ``path``, and return their number."""
        paths = self._alone(partial(self._under, path), timeout)
        removed = 0
        try:
            for start in range(0, len(paths), _PAGE):
                some = paths[start : start + _PAGE]
                removed += self._alone(partial(self._remove, some), timeout)
        except bk.MetadataStoreError as error:
            raise partly_removed(removed, path, error) from error
        return removed

    def revision(self, timeout: float) -> int:
        """Return the revision of the last change."""
        return self._alone(lambda: self._directory.revision, timeout)

    def _pages(
        self, prefix: str, within: bk.Range, timeout: float, *, whole: bool
    ) -> Generator[list[bk.GetResult], None, None]:
        def page(some: Sequence[str]) -> list[bk.GetResult]:
            found = (self._directory.find(path, whole=whole) for path in some)
            return [value for value in found if value is not None]  # Some may be gone by now.

        paths = self._alone(partial(self._under, prefix, within), timeout)
        for start in range(0, len(paths), _PAGE):
            if results := self._alone(partial(page, paths[start : start + _PAGE]), timeout):
                yield results

    def _remove(self, paths: Sequence[str]) -> int:
        with self._directory.changing():
            return sum(map(self._directory.remove, paths))

    def _alone(self, work: Callable[[], _T], timeout: float) -> _T:
        """Do something under the lock.

        The engine calls ``write`` and ``read`` on threads of its own, but scans on the thread of
        their caller. There, Ctrl-C could strike before the lock is released.
        """

        def call() -> _T:
            with self._directory.locked(time.monotonic() + timeout):
                return work()

        return to_its_end(call)

    def _under(self, prefix: str, within: bk.Range = _EVERYTHING) -> list[str]:
        """Return the paths under a prefix and within a range, in order."""
        paths = self._directory.paths()
        return [
            path
            for start, end in spans(prefix, within)
            for path in paths[bisect_left(paths, start) : bisect_left(paths, end)]
        ]

    def _occupied(self, path: str) -> bool:
        return any(found != path for found in self._under(path))


def _answers(requests: Sequence[_R], execute: Callable[[_R], Answer]) -> list[Answer]:
    """Execute requests one after the other; the error of one is its answer, and ends no other."""

    def answer(request: _R) -> Answer:
        try:
            return execute(request)
        except bk.MetadataStoreError as error:
            return error.for_path(request.path)
        except OSError as error:
            return unavailable(error).for_path(request.path)

    return [answer(request) for request in requests]


def connect(url: StoreURL, options: ConnectOptions) -> Backend:
    """Open the store in the directory of ``files:///absolute/path``.

    Option: ``sync`` (default true: a write is on the disk before it is acknowledged; false: it
    survives the end of the process, but not of the machine).

    Raises:
        InvalidSettingError: the URL is invalid, or the directory has files of something else.
        StoreUnavailableError: there is no store, and ``options.create`` is false.
        OSError: the directory cannot be created, read or written; batchkeeper raises a
            StoreUnavailableError for it.
    """
    url.check_options(("sync",))
    if url.hosts or not url.path.startswith("/") or "\0" in url.path:
        raise bk.InvalidSettingError(
            f"a files URL needs an absolute directory after three slashes: {url.text}"
        )
    sync = url.flag("sync", default=True)
    prepare(url.path, create=options.create, sync=sync)
    return FilesBackend(Directory(url.path, sync=sync))


KIND: Final = StoreKind(
    scheme="files",
    title="files",
    url_form="files:///ABSOLUTE/DIRECTORY",
    connect=connect,
    capabilities=frozenset({"linearizable_reads", "expected_revisions", "times"}),
)
