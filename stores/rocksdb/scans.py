"""Scans, splits and recursive deletes of a store on RocksDB."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from rocksdict import WriteBatch

from ...ops.errors import InvalidPathError, MetadataStoreError, NotFoundError, UnsupportedError
from ...ops.results import Range, ScanPage, ScanResult, StatPage, WatchEvent, printable
from ..backend import to_its_end
from ..keys import Sorted, path_of, sort_keys
from ..refusals import partly_removed
from ..spans import EVERYTHING, evenly, with_outside
from .commits import Commits
from .database import Database
from .ephemerals import Departed
from .layout import META_KEY, OUTSIDE, ephemeral_key
from .value_format import LONGEST_HEADER, is_ours, scan_page, session_of, stat_page
from .walks import KeyWalk

__all__ = ["ReadOnlyScans", "RocksScans", "read_only"]

_Made = TypeVar("_Made", ScanPage, StatPage)

# The most keys that a split keeps for each range: they determine how exact the ranges are.
_KEPT_PER_RANGE: Final = 64


class RocksScans:
    """Reads and removes the values under a path, for any number of threads.

    Args:
        database: the database.
        commits: its writes. A walk waits for them, and removals go through them.
        departed: the values that are left out.
    """

    _owns = True  # whether ephemeral values belong to the session of this store

    def __init__(self, database: Database, commits: Commits, departed: Departed) -> None:
        self._database = database
        self._commits = commits
        self._departed = departed

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        """Yield the values under ``prefix``, as of the first page. See :class:`Scans`."""
        return self._pages(prefix, within, None, scan_page)

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Yield the stats of the values under ``prefix``. See :class:`Scans`."""
        return self._pages(prefix, within, LONGEST_HEADER, stat_page)

    def _pages(
        self,
        prefix: str,
        within: Range,
        first: int | None,
        made_of: Callable[[Sorted, Sequence[bytes], bool], _Made],
    ) -> Generator[_Made, None, None]:
        with self._walk(prefix, within) as walk:
            while not walk.done:
                page = made_of(*self._page(walk, first), self._owns)
                if page or page.foreign:
                    yield page

    def _page(self, walk: KeyWalk, first: int | None) -> tuple[Sorted, Sequence[bytes]]:
        """Return the next keys of a walk, sorted into paths and foreign keys, and records.

        The records are those of the paths: whole, or only their first bytes.
        """
        found = to_its_end(partial(self._found, walk, first))
        keys = sort_keys([key for key, _ in found], shared=False)
        return keys, keys.of([record for _, record in found])

    def _found(self, walk: KeyWalk, first: int | None) -> list[tuple[bytes, bytes]]:
        with self._database:
            try:
                return walk.page(first)
            except Exception as error:
                raise self._database.unreadable(error) from error

    @contextmanager
    def _walk(self, prefix: str, within: Range = EVERYTHING) -> Generator[KeyWalk, None, None]:
        """Yield a walk, which ends with the store and sees only data that is on the disk."""
        stretches = with_outside(prefix, within)
        if stretches and stretches[-1][1] is None:
            stretches[-1:] = OUTSIDE
        walk = to_its_end(partial(self._begun, stretches))
        try:
            yield walk
        finally:
            self._end(walk)

    def _begun(self, stretches: Sequence[tuple[str, str | None]]) -> KeyWalk:
        with self._database:
            try:
                walk = KeyWalk(self._database.db, stretches, self._departed.keys())
            except Exception as error:
                raise self._database.unreadable(error) from error
            self._database.walks.add(walk)
            try:
                self._commits.wait_to_read(None)
            except BaseException:
                self._end(walk)
                raise
        return walk

    def _end(self, walk: KeyWalk) -> None:
        self._database.walks.discard(walk)
        walk.close()

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return ranges with about equally many values. See :class:`Scans`."""
        # Keep one key in `stride`. Whenever too many are kept, drop half and double the stride.
        kept: list[str] = []
        stride, place = 1, 0
        with self._walk(prefix) as walk:
            while not walk.done:
                paths = self._page(walk, 0)[0].paths
                kept += paths[-place % stride :: stride]
                place += len(paths)
                if len(kept) > n * _KEPT_PER_RANGE:
                    kept, stride = kept[::2], stride * 2
        return evenly(kept, n)

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove the current values under ``path``. See :class:`Scans`."""
        removed = 0
        try:
            with self._walk(path) as walk:
                while not walk.done:
                    if paths := self._page(walk, 0)[0].paths:
                        keys = [found.encode() for found in paths]
                        removed += to_its_end(partial(self._remove, keys, timeout))
        except MetadataStoreError as error:
            raise partly_removed(removed, path, error) from error
        return removed

    def delete_foreign(self, key: bytes, timeout: float, *, dry_run: bool) -> None:
        """Remove a foreign key. See ``stores.keys.ForeignRemoval``."""
        if key == META_KEY or key.startswith(META_KEY + b"/"):
            raise InvalidPathError(f"'{printable(key)}' is reserved")
        if not to_its_end(partial(self._remove, [key], timeout, dry_run=dry_run)):
            raise NotFoundError(f"nothing to delete at '{printable(key)}'")

    def _remove(self, keys: list[bytes], timeout: float, *, dry_run: bool = False) -> int:
        """Remove keys, and return how many existed, because others may remove some meanwhile."""
        batch = WriteBatch(raw_mode=True)
        commits = self._commits
        with self._database:
            with commits.writing(time.monotonic() + timeout):
                try:
                    headers = self._database.headers(keys, commits.largest)
                except Exception as error:
                    raise self._database.unreadable(error) from error
                there: list[bytes] = []
                for key, header in zip(keys, headers, strict=True):
                    if header is None:
                        continue
                    there.append(key)
                    batch.delete(key)
                    if is_ours(header) and (session := session_of(header)) is not None:
                        batch.delete(ephemeral_key(session, key))
                number = commits.written
                if there and not dry_run:
                    number = commits.write(batch, there)
                    if commits.watches.needed:
                        revision = commits.revision
                        paths = filter(None, map(path_of, there))
                        commits.report([WatchEvent("deleted", p, None, revision) for p in paths])
            commits.wait(number, changed=bool(there))
            return len(there)

    def revision(self, timeout: float) -> int:
        """Return the revision of the last change, once that is on the disk as far as it has to be.

        A revision that a power cut takes back would be given to another change.
        """
        return to_its_end(partial(self._revision, timeout))

    def _revision(self, timeout: float) -> int:
        commits = self._commits
        with self._database:
            with commits.writing(time.monotonic() + timeout):
                number, revision = commits.written, commits.revision
            commits.wait(number, changed=False)
            return revision


class ReadOnlyScans(RocksScans):
    """The scans of a store that was opened with ``read_only``.

    A scan leaves out the ephemeral values of sessions that had ended when it began.
    """

    _owns = False

    def delete_recursive(self, path: str, timeout: float) -> int:
        raise read_only(self._database.directory)

    def delete_foreign(self, key: bytes, timeout: float, *, dry_run: bool) -> None:
        raise read_only(self._database.directory)


def read_only(directory: str) -> UnsupportedError:
    """Return the error of a write to a store that was opened with ``read_only``."""
    return UnsupportedError(f"the RocksDB store in {directory} is open read-only")
