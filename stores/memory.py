"""A store in this process's memory, for tests and experiments, and a model for other stores.

All callers in the process that open ``memory://NAME`` share one store. It is dropped when the last
of them closes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Sequence
from typing import Final, assert_never

from ..ops.errors import (
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
)
from ..ops.operations import ABSENT
from ..ops.paths import parent
from ..ops.results import GetResult, Range, Result, ScanResult, Stat, StatPage
from .backend import (
    Answer,
    Backend,
    Limits,
    ReadRequest,
    Scans,
    Tally,
    WriteRequest,
    partly_removed,
    refusal,
)
from .spans import EVERYTHING, evenly, spans
from .urls import ConnectOptions, StoreURL

__all__ = ["connect"]

DEFAULT_MAX_VALUE_BYTES: Final = 16 * 1024 * 1024

# The store itself has no limits. These bounds keep a call from holding the lock for long.
_CALL_OPS: Final = 10_000
_CALL_BYTES: Final = 64 * 1024 * 1024
# The number of values that a walk processes at a time.
_PAGE: Final = 1_000


class _Space:
    """The values of one name, shared by all that have it open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards everything below
        self.values: dict[str, GetResult] = {}
        # For each path with values below it: its children's names, each with the number of values
        # at or below it. A delete thus knows when a name disappears.
        self.children: dict[str, dict[str, int]] = {}
        self.revision = 0

    def put(self, request: WriteRequest, revision: int, now: int) -> Answer:
        path = request.path
        found = self.values.get(path)
        actual = ABSENT if found is None else found.stat.version
        if error := refusal(request, actual, occupied=False):
            return error
        created = now if found is None else found.stat.created
        stat = Stat(path, actual + 1, revision, created, now)
        self.values[path] = GetResult(request.value or b"", stat)
        if found is None:
            self._count(path, +1)
        return stat

    def delete(self, request: WriteRequest) -> Answer:
        path = request.path
        found = self.values.get(path)
        actual = ABSENT if found is None else found.stat.version
        if error := refusal(request, actual, occupied=path in self.children):
            return error
        self.remove(path)
        return None

    def remove(self, path: str) -> None:
        del self.values[path]
        self._count(path, -1)

    def answer(self, request: ReadRequest) -> Result:
        path = request.path
        match request.kind:
            case "get":
                return self.values.get(path)
            case "exists":
                return path in self.values
            case "get_children":
                # Strings compare by code point. That is the byte order of their UTF-8.
                return sorted(self.children.get(path, ()))
            case other:
                assert_never(other)

    def _count(self, path: str, change: int) -> None:
        """Add ``change`` values to the counts of ``path`` and of everything above it."""
        while path != "/":
            above = parent(path)
            name = path[path.rindex("/") + 1 :]
            names = self.children.setdefault(above, {})
            names[name] = names.get(name, 0) + change
            if not names[name]:
                del names[name]
            if not names:
                del self.children[above]
            path = above


_spaces_lock = threading.Lock()  # guards _spaces, with the numbers of openers
_spaces: dict[str, tuple[_Space, int]] = {}


class _MemoryBackend:
    history = None

    def __init__(self, name: str, max_value_bytes: int) -> None:
        self._name = name
        self._closed = False  # guarded by the space's lock
        with _spaces_lock:
            self._space, openers = _spaces.get(name, (_Space(), 0))
            _spaces[name] = (self._space, openers + 1)
        self.tally = Tally()
        self.connected = True
        self.limits = Limits(
            write_ops=_CALL_OPS,
            read_ops=_CALL_OPS,
            request_bytes=_CALL_BYTES + max_value_bytes,
            op_bytes=0,
            value_bytes=max_value_bytes,
            # Every call takes the same lock, so a second one would only wait.
            in_flight=1,
            singles=1,
        )

    @property
    def scans(self) -> Scans:
        return self

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        space = self._enter(deadline)
        try:
            revision = space.revision + 1
            now = time.time_ns() // 1_000_000
            answers: list[Answer] = []
            for request in requests:
                kind = request.kind
                if kind == "put":
                    answers.append(space.put(request, revision, now))
                elif kind == "delete":
                    answers.append(space.delete(request))
                else:
                    assert_never(kind)
            # A revision without any change does no harm.
            space.revision = revision
        finally:
            space.lock.release()
        return answers

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        space = self._enter(deadline)
        try:
            return [space.answer(request) for request in requests]
        finally:
            space.lock.release()

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        """Yield the values under ``prefix``, as of the request for the first page, in pages."""
        for page in self._pages(prefix, within, timeout):
            yield [ScanResult(path, *found) for path, found in page]

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Yield the stats of the values under ``prefix``, as of the request for the first page."""
        for page in self._pages(prefix, within, timeout):
            yield StatPage.of([found.stat for _, found in page])

    def _pages(
        self, prefix: str, within: Range, timeout: float
    ) -> Generator[list[tuple[str, GetResult]], None, None]:
        space = self._enter(time.monotonic() + timeout)
        try:
            # Results are immutable, so a copy of the dict is a snapshot.
            values = space.values.copy()
        finally:
            space.lock.release()
        paths = _under(values, prefix, within)
        for start in range(0, len(paths), _PAGE):
            if self._closed:
                raise self._why_closed()
            yield [(path, values[path]) for path in paths[start : start + _PAGE]]

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return ranges whose numbers of values differ by one at most. See :class:`Scans`."""
        paths = self._paths_under(prefix, timeout)
        return evenly(paths, n)

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove the values that are under ``path`` now. See :class:`Scans`."""
        paths = self._paths_under(path, timeout)
        removed = 0
        for start in range(0, len(paths), _PAGE):
            try:
                space = self._enter(time.monotonic() + timeout)
            except MetadataStoreError as error:
                raise partly_removed(removed, path, error) from error
            try:
                for found in paths[start : start + _PAGE]:
                    if found in space.values:
                        space.remove(found)
                        removed += 1
                space.revision += 1
            finally:
                space.lock.release()
        return removed

    def revision(self, timeout: float) -> int:
        """Return the revision of the last change."""
        space = self._enter(time.monotonic() + timeout)
        try:
            return space.revision
        finally:
            space.lock.release()

    def _paths_under(self, prefix: str, timeout: float) -> list[str]:
        space = self._enter(time.monotonic() + timeout)
        try:
            paths = list(space.values)
        finally:
            space.lock.release()
        return _under(paths, prefix, EVERYTHING)

    def close(self) -> None:
        with self._space.lock:
            if self._closed:
                return
            self._closed = True
        with _spaces_lock:
            space, openers = _spaces[self._name]
            if openers > 1:
                _spaces[self._name] = (space, openers - 1)
            else:
                del _spaces[self._name]

    def _enter(self, deadline: float) -> _Space:
        """Take the space's lock, which the caller must release."""
        space = self._space
        if not space.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise OperationTimeoutError(f"memory://{self._name} was busy until the deadline")
        if self._closed:
            space.lock.release()
            raise self._why_closed()
        return space

    def _why_closed(self) -> StoreClosedError:
        return StoreClosedError(f"memory://{self._name} is closed")


def _under(paths: Iterable[str], prefix: str, within: Range) -> list[str]:
    """Return the sorted paths under a prefix and within a range."""
    stretches = spans(prefix, within)
    return sorted(path for path in paths if any(low <= path < high for low, high in stretches))


def connect(url: StoreURL, options: ConnectOptions) -> Backend:
    """Open the store ``memory://NAME``, which may be new, or open already in this process.

    The option ``max_value_bytes`` (16 MiB) limits the values that this opener puts.

    Raises:
        InvalidSettingError: the URL has no name, or a path after it, or an unknown option.
    """
    url.check_options(("max_value_bytes",))
    if len(url.hosts) != 1 or url.path not in {"", "/"}:
        raise InvalidSettingError(f"a memory URL must have the form memory://NAME: {url.text}")
    return _MemoryBackend(
        url.hosts[0], url.number("max_value_bytes", default=DEFAULT_MAX_VALUE_BYTES)
    )
