"""The particulars of scans of RocksDB."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from batchkeeper.ops import (
    Delete,
    IndeterminateError,
    Put,
    Range,
    Stat,
    StoreClosedError,
    StoreUnavailableError,
)
from batchkeeper.stores.rocksdb.commits import Commits
from batchkeeper.stores.rocksdb.database import Database
from batchkeeper.stores.rocksdb.walks import KeyWalk

from ...forks import locked_elsewhere
from ...interrupts import interrupted
from ...waiting import PATIENCE, soon, until
from .opening import opened
from .test_backend import Watched

MIB = 1024 * 1024
EVERYTHING = Range()


def many(backend: Any, count: int = 5_000) -> list[str]:
    paths = [f"/t/{number:05d}" for number in range(count)]
    backend.write([Put(path, b"old") for path in paths], soon())
    return paths


def test_a_scan_sees_the_store_as_it_was(backend: Any) -> None:
    """Later pages do not show changes made after the first page."""
    paths = many(backend)
    scan = backend.scans.scan("/", EVERYTHING, None, PATIENCE)
    found = list(next(scan))
    backend.write([Put(path, b"new") for path in paths[::2]], soon())
    backend.write([Delete(path) for path in paths[1::2]], soon())
    backend.write([Put(f"{path}x", b"") for path in paths], soon())
    for page in scan:
        found += page
    assert [(path, value) for path, value, _ in found] == [(path, b"old") for path in paths]


def test_pages_are_bounded_by_bytes(backend: Any) -> None:
    """Large values make pages of few of them."""
    backend.write([Put(f"/t/{number:02d}", bytes(MIB)) for number in range(20)], soon())
    sizes = [len(page) for page in backend.scans.scan("/", EVERYTHING, None, PATIENCE)]
    assert sum(sizes) == 20
    assert max(sizes) <= 5


def test_values_are_not_kept_for_their_stats(backend: Any) -> None:
    """A scan without values holds one of them at a time, and one with values a page of them."""
    backend.write([Put(f"/t/{number:02d}", bytes(MIB)) for number in range(20)], soon())
    most: dict[bool, int] = {}
    found: dict[bool, list[Stat]] = {True: [], False: []}
    for values, scan in ((True, backend.scans.scan), (False, backend.scans.scan_stats)):
        tracemalloc.start()
        try:
            for page in scan("/", EVERYTHING, None, PATIENCE):
                found[values] += [result.stat for result in page] if values else page
            _, most[values] = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert found[False] == found[True]
    assert len(found[True]) == 20
    assert most[True] > 4 * MIB
    assert most[False] < 2.5 * MIB


def test_a_close_ends_scans_and_frees_the_directory(backend: Any, directory: Path) -> None:
    """Closing the store closes iterators, which would keep RocksDB and its lock alive."""
    paths = many(backend)
    scan = backend.scans.scan("/", EVERYTHING, None, PATIENCE)
    next(scan)
    backend.close()
    again = opened(directory)
    assert sum(len(page) for page in again.scans.scan("/", EVERYTHING, None, PATIENCE)) == len(
        paths
    )
    again.close()
    with pytest.raises(StoreClosedError):
        next(scan)


def test_readers_scan_beside_each_other(backend: Any, directory: Path) -> None:
    """Stores opened with read_only are scanned and split like others."""
    paths = many(backend)
    readers = [opened(directory, "?read_only=true") for _ in range(3)]
    ranges = readers[0].scans.split("/", 3, PATIENCE)
    found = [
        path
        for reader, part in zip(readers, ranges, strict=True)
        for page in reader.scans.scan("/", part, None, PATIENCE)
        for path, _, _ in page
    ]
    assert found == paths
    for reader in readers:
        reader.close()


class UnsyncedDisk:
    """A RocksDB whose disk fails to sync."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def flush_wal(self, sync: bool) -> None:
        raise Exception("the disk is gone")  # noqa: TRY002 - as rocksdict does


def test_a_scan_gives_nothing_that_a_power_cut_may_take_back(
    backend: Any, database: Database
) -> None:
    """Writes that could not be synced are not shown, and trees can no longer be deleted."""
    backend.write([Put("/a", b"")], soon())
    db, database.db = database.db, UnsyncedDisk(database.db)
    with pytest.raises(IndeterminateError):
        backend.write([Put("/b", b"")], soon())
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        next(backend.scans.scan("/", EVERYTHING, None, PATIENCE))
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        backend.scans.delete_recursive("/", PATIENCE)
    database.db = db


def test_a_delete_that_fails_half_way_says_so(backend: Any, database: Database) -> None:
    """Some values are deleted, so the error does not say that nothing was applied."""
    many(backend, 2_500)

    class Failing(Watched):
        def get(self, keys: Any) -> Any:
            if b"/t/01000" in keys:
                raise Exception("the disk is gone")  # noqa: TRY002 - as rocksdict does
            return super().get(keys)

    database.db = Failing(database)
    with pytest.raises(IndeterminateError, match="1,000 values were removed") as caught:
        backend.scans.delete_recursive("/t", PATIENCE)
    assert (caught.value.outcome, caught.value.path) == ("unknown", "/t")
    left = [
        path for page in backend.scans.scan("/", EVERYTHING, None, PATIENCE) for path, _, _ in page
    ]
    assert left == [f"/t/{number:05d}" for number in range(1_000, 2_500)]


def test_what_others_remove_is_not_counted(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If deletes meet in a tree, each value counts in exactly one of them.

    Ctrl-C in one ends the wait for its batch, and not the batch.
    """
    many(backend, 2_500)
    counts: list[int] = []
    writing = Commits.writing

    def meeting(commits: Commits, deadline: float) -> Any:
        if not counts:
            counts.append(0)
            counts.append(backend.scans.delete_recursive("/t", PATIENCE))
        return writing(commits, deadline)

    revision = backend.scans.revision(PATIENCE)
    monkeypatch.setattr(Commits, "writing", meeting)
    assert (backend.scans.delete_recursive("/t", PATIENCE), counts) == (0, [0, 2_500])
    assert backend.scans.revision(PATIENCE) == revision + 3  # No write for what is gone.
    many(backend, 3)
    begun, interrupt_is_over = Event(), Event()

    def waiting(commits: Commits, deadline: float) -> Any:
        begun.set()
        interrupt_is_over.wait(PATIENCE)
        return writing(commits, deadline)

    monkeypatch.setattr(Commits, "writing", waiting)
    with interrupted(begun.wait):
        backend.scans.delete_recursive("/t", PATIENCE)
    interrupt_is_over.set()
    until(lambda: not [*backend.scans.scan("/t", EVERYTHING, None, PATIENCE)])


def test_scans_may_end_while_the_store_closes(
    backend: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that another thread drops during the close does not keep the directory locked.

    Nor does one that Ctrl-C interrupts at any point, or one whose error is kept.
    """
    many(backend)
    enter, begun, interrupt_is_over = Database.__enter__, Event(), Event()

    def entering(database: Database) -> None:
        enter(database)
        begun.set()
        interrupt_is_over.wait(PATIENCE)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "__enter__", entering)
        with interrupted(begun.wait):
            next(backend.scans.scan("/", EVERYTHING, None, PATIENCE))
        interrupt_is_over.set()

    def fail(*_: object) -> None:
        raise StoreUnavailableError("the sync failed")

    with monkeypatch.context() as patch:
        patch.setattr(Commits, "wait_to_read", fail)
        with pytest.raises(StoreUnavailableError) as kept:
            next(backend.scans.scan("/", EVERYTHING, None, PATIENCE))
    scans = [backend.scans.scan("/", EVERYTHING, None, PATIENCE) for _ in range(10)]
    for scan in scans:
        next(scan)
    close = KeyWalk.close

    def meeting(self: KeyWalk) -> None:
        if scans:
            scans.pop().close()
        close(self)

    monkeypatch.setattr(KeyWalk, "close", meeting)
    closing = Thread(target=backend.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    opened(directory).close()
    del kept


def test_a_scan_may_be_dropped_wherever_the_garbage_collector_runs(
    backend: Any, database: Database
) -> None:
    """The garbage collector may close a scan in a thread that holds the store's lock."""
    many(backend)
    scan = backend.scans.scan("/", EVERYTHING, None, PATIENCE)
    next(scan)
    dropping = Thread(target=scan.close, daemon=True)
    with locked_elsewhere(database):
        dropping.start()
        dropping.join(PATIENCE)
        assert not dropping.is_alive()
