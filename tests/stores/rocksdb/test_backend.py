"""The particulars of the store on RocksDB; the common contract is in conformance."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Delete,
    Exists,
    Get,
    GetChildren,
    GetResult,
    IndeterminateError,
    InvalidSettingError,
    NotEmptyError,
    NotFoundError,
    Operation,
    OperationTimeoutError,
    Put,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from batchkeeper.stores import (
    Backend,
    ConnectOptions,
    RequestRefusedError,
    connect,
)
from batchkeeper.stores.rocksdb.database import Database
from batchkeeper.stores.rocksdb.layout import META, META_KEY

from ...programs import run_python
from ...waiting import PATIENCE, soon, until
from ..calls import read, write
from .opening import opened, recorded


class Watched:
    """Wraps the RocksDB of a back end: records calls, and can hold or fail syncs."""

    def __init__(self, database: Database) -> None:
        self._db = database.db
        self.calls: list[str] = []  # "write" and "sync", as they ended
        self.writes = threading.Semaphore(0)  # one for each write
        self.asked: list[int] = []  # keys of each call that reads
        self.write_failure: str | None = None
        self.sync_failure: str | None = None
        self.close_failure: str | None = None
        self.syncing = threading.Event()  # a sync has begun
        self.go_on = threading.Event()  # syncs wait for it
        self.go_on.set()
        self.closed_during_a_call = False
        self._busy = False
        database.db = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def get(self, keys: bytes | list[bytes]) -> Any:
        self.asked.append(len(keys) if isinstance(keys, list) else 1)
        return self._db.get(keys)

    def write(self, batch: Any, options: Any) -> None:
        if self.write_failure:
            raise Exception(self.write_failure)  # noqa: TRY002 - as rocksdict does
        self._db.write(batch, options)
        self.calls.append("write")
        self.writes.release()

    def flush_wal(self, sync: bool) -> None:
        assert sync
        self._busy = True
        self.syncing.set()
        assert self.go_on.wait(PATIENCE)
        self._busy = False
        if self.sync_failure:
            raise Exception(self.sync_failure)  # noqa: TRY002 - as rocksdict does
        self._db.flush_wal(True)
        self.calls.append("sync")

    def close(self) -> None:
        self.closed_during_a_call = self._busy
        self._db.close()
        if self.close_failure:
            raise Exception(self.close_failure)  # noqa: TRY002 - as rocksdict does


def refuses(backend: Backend) -> bool:
    """Say whether a back end refuses calls because it is closed."""
    try:
        backend.read([Exists("/b")], soon())
    except StoreClosedError:
        return True
    return False


@contextmanager
def deciding(backend: Backend, database: Database) -> Iterator[None]:
    """Let another call decide for as long as the context lasts."""
    begun, go_on = threading.Event(), threading.Event()

    class Deciding(Watched):
        def write(self, batch: Any, options: Any) -> None:
            begun.set()
            assert go_on.wait(PATIENCE)
            super().write(batch, options)

    database.db = Deciding(database)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(write, backend, Put("/other", b""))
        assert begun.wait(PATIENCE)
        try:
            yield
        finally:
            go_on.set()
            other.result(PATIENCE)


class NotedLock:
    """A lock that reports when a thread waits for it."""

    def __init__(self, waiting: threading.Event) -> None:
        self._lock = threading.Lock()
        self._waiting = waiting

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waiting.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


# --- what lies in the directory


def test_keys_are_the_paths_as_they_are(directory: Path) -> None:
    """Another tool finds each value under its path in UTF-8, at the end of its record."""
    backend = opened(directory)
    write(backend, Put("/a", b"one"), Put("/ä/中", b"two"))
    backend.close()
    db = Rdict(str(directory), Options(raw_mode=True))
    records = {key: value for key, value in db.items() if key.startswith(b"/")}
    db.close()
    assert list(records) == [b"/a", "/ä/中".encode()]
    assert [record[-3:] for record in records.values()] == [b"one", b"two"]


def test_everything_is_there_after_a_reopening(directory: Path) -> None:
    """Values, versions, times and absence survive, and revisions go on where they were."""
    backend = opened(directory)
    write(backend, Put("/a", b"1"), Put("/b", b""), Put("/c", b""))
    last, _ = write(backend, Put("/a", b"2"), Delete("/c"))
    before = read(backend, Get("/a"), Get("/b"), Get("/c"), GetChildren("/"))
    backend.close()
    backend = opened(directory)
    assert read(backend, Get("/a"), Get("/b"), Get("/c"), GetChildren("/")) == before
    assert before[3] == ["a", "b"]
    (stat,) = write(backend, Put("/a", b"3", last.version))
    assert stat.revision > last.revision
    assert (stat.version, stat.created) == (2, last.created)
    backend.close()


def test_a_revision_is_not_given_twice_even_if_its_path_is_gone(directory: Path) -> None:
    """Revisions go on after a reopening although the path that had the last one was deleted."""
    backend = opened(directory)
    (stat,) = write(backend, Put("/a", b""))
    write(backend, Delete("/a"))
    backend.close()
    backend = opened(directory)
    (again,) = write(backend, Put("/a", b"", ABSENT))
    assert again.version == 0
    assert again.revision > stat.revision + 1
    backend.close()


WRITER = """
import os, sys, threading, time
from batchkeeper.ops import Put
from batchkeeper.stores import ConnectOptions, connect
store = connect("rocksdb://" + sys.argv[1], ConnectOptions())

def write(writer):
    number = 0
    while True:
        value = f"{writer}/{number}".encode() * 20
        batch = [Put(f"/{writer}/{number}/{index}", value) for index in range(20)]
        store.write(batch, time.monotonic() + 60)
        os.write(1, f"{writer} {number}\\n".encode())
        number += 1

for writer in range(3):
    threading.Thread(target=write, args=(writer,)).start()
"""


def test_a_killed_process_loses_nothing_it_acknowledged(directory: Path) -> None:
    """After kill -9 every acknowledged batch is there, and no batch is there in part."""
    acknowledged = dict.fromkeys(range(3), -1)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            writer, number = map(int, line.split())
            acknowledged[writer] = number
            if count == 100:
                process.send_signal(signal.SIGKILL)
    backend = opened(directory)
    assert sum(acknowledged.values()) >= 95
    for writer, last in acknowledged.items():
        for number in range(last + 2):
            found = read(backend, *(Get(f"/{writer}/{number}/{index}") for index in range(20)))
            if number <= last or any(found):
                assert {result.value for result in found} == {f"{writer}/{number}".encode() * 20}
                assert len({result.stat.revision for result in found}) == 1
    backend.close()


# --- one call


def test_a_call_writes_once_and_syncs(backend: Backend, database: Database) -> None:
    """A call of any size is one synced write to RocksDB, or none if no operation succeeds."""
    watched = Watched(database)
    write(backend, *(Put(f"/{index}", b"") for index in range(100)), Delete("/nothing"))
    assert watched.calls == ["write", "sync"]
    write(backend, Delete("/nothing"), Put("/1", b"", 7))
    assert watched.calls == ["write", "sync"]


def test_sync_can_be_turned_off(directory: Path) -> None:
    """With sync=false in the URL nothing is synced, and no read waits for it."""
    backend, database = recorded(directory, "?sync=false")
    watched = Watched(database)
    write(backend, Put("/a", b""))
    assert read(backend, Exists("/a"), GetChildren("/")) == [True, ["a"]]
    assert watched.calls == ["write"]
    backend.close()


def test_deletes_of_one_call_count_in_their_order(backend: Backend) -> None:
    """A leaf and then its parent can be deleted in one call; in reverse order, the parent stays."""
    write(backend, Put("/a", b""), Put("/a/b", b""), Put("/x", b""), Put("/x/y", b""))
    refused, *gone = write(backend, Delete("/x"), Delete("/a/b"), Delete("/a"), Delete("/x/y"))
    assert isinstance(refused, NotEmptyError)
    assert gone == [None, None, None]
    assert read(backend, GetChildren("/")) == [["x"]]


def test_a_delete_that_does_not_hold_keeps_its_parent_too(backend: Backend) -> None:
    """A parent is not empty if the delete of its child in the same call is refused."""
    write(backend, Put("/a", b""), Put("/a/b", b""))
    child, parent = write(backend, Delete("/a/b", 7), Delete("/a"))
    assert isinstance(child, BadVersionError)
    assert isinstance(parent, NotEmptyError)
    assert read(backend, Exists("/a"), Exists("/a/b")) == [True, True]


def test_a_delete_looks_below_its_own_path_only(backend: Backend) -> None:
    """Siblings whose names sort around what lies below do not keep a path from being deleted."""
    write(backend, *(Put(path, b"") for path in ("/a", "/a!", "/a.b", "/a0", "/a-b/c")))
    assert write(backend, Delete("/a")) == [None]
    assert read(backend, GetChildren("/")) == [["a!", "a-b", "a.b", "a0"]]


def test_children_are_found_around_subtrees(backend: Backend) -> None:
    """Each child is named once and in order, whatever sorts between it and what is below it."""
    paths = ["/p/x", "/p/x!", "/p/x/1/2", "/p/x/3", "/p/x0", "/p/y/1", "/p/y-z", "/p2", "/p/ä"]
    write(backend, *(Put(path, b"") for path in paths))
    assert read(backend, GetChildren("/p"), GetChildren("/p/x"), GetChildren("/p/nothing")) == [
        ["x", "x!", "x0", "y", "y-z", "ä"],
        ["1", "3"],
        [],
    ]


def test_large_records_are_not_all_held_at_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    """Records that may be large are read one by one, with the same answers."""
    write(backend, Put("/large", bytes(1000)), Put("/b", b"1"), Put("/c", b"2"))
    monkeypatch.setattr("batchkeeper.stores.rocksdb.database._RECORDS_BYTES", 4 * 1000)
    watched = Watched(database)
    refused, missing, *stats = write(
        backend,
        Put("/large", b"", 5),
        Delete("/missing"),
        Put("/new", b"", ABSENT),
        Put("/b", b"", 0),
        Put("/c", b""),
    )
    assert isinstance(refused, BadVersionError)
    assert refused.actual == 0
    assert isinstance(missing, NotFoundError)
    assert [stat.version for stat in stats] == [0, 1, 1]
    assert watched.asked == [1] * 5
    watched.asked.clear()
    names = ("/large", "/new", "/b", "/missing")
    found = read(backend, *map(Get, names), GetChildren("/"), Exists("/c"))
    assert [result and len(result.value) for result in found[:4]] == [1000, 0, 0, None]
    assert found[4:] == [["b", "c", "large", "new"], True]
    assert watched.asked == [1] * 6
    watched.asked.clear()
    assert read(backend, Exists("/b"), Exists("/missing"), Exists("/c")) == [True, False, True]
    assert watched.asked == [3]


def test_a_call_reads_fewer_paths_where_values_are_large(directory: Path) -> None:
    """The answers to one call have at most 128 MiB, estimated by the largest value so far."""
    backend = opened(directory)
    write(backend, Put("/a", b""))
    assert backend.limits.read_ops == 10_000
    before = backend.limits
    write(backend, Put("/a", bytes(4 * 1024 * 1024)))
    assert backend.limits.read_ops == 31
    assert before.read_ops == 10_000
    write(backend, Put("/a", b""))
    backend.close()
    backend = opened(directory)
    assert backend.limits.read_ops == 31
    backend.close()


def test_a_call_that_cannot_start_by_its_deadline_changes_nothing(
    backend: Backend, database: Database
) -> None:
    """While another call decides, a write ends at its deadline and is never applied."""
    with (
        deciding(backend, database),
        pytest.raises(OperationTimeoutError, match="busy") as caught,
    ):
        backend.write([Put("/b", b"")], time.monotonic())
    assert caught.value.outcome == "not_applied"
    assert read(backend, Exists("/b")) == [False]


def test_a_failed_write_is_indeterminate(
    backend: Backend, directory: Path, database: Database
) -> None:
    """When RocksDB fails to write, the outcome is unknown, and the message has its reason."""
    watched = Watched(database)
    watched.write_failure = "IO error: No space left on device"
    with pytest.raises(IndeterminateError, match=r"No space left.*Make room") as caught:
        write(backend, Put("/a", b""))
    assert caught.value.outcome == "unknown"
    assert str(directory) in str(caught.value)


# --- several calls: one sync for those that wait together


def test_calls_that_wait_together_share_a_sync(backend: Backend, database: Database) -> None:
    """While one call waits for the disk, others are written; then one sync covers all of them."""
    watched = Watched(database)
    watched.go_on.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(write, backend, Put("/0", b""))
        assert watched.syncing.wait(PATIENCE)
        others = [pool.submit(write, backend, Put(f"/{index}", b"")) for index in (1, 2, 3)]
        for _ in range(4):
            assert watched.writes.acquire(timeout=PATIENCE)
        assert not first.done()
        watched.go_on.set()
        assert [call.result(PATIENCE)[0].revision for call in (first, *others)]
    assert watched.calls == ["write"] * 4 + ["sync"] * 2


class Disk(Watched):
    """Knows which revisions survive a power cut: those that could be read before a sync began."""

    safe = 0

    def flush_wal(self, sync: bool) -> None:
        safe = META.unpack(self._db.get(META_KEY))[1]
        super().flush_wal(sync)
        self.safe = safe


def test_nothing_is_acknowledged_before_it_is_on_the_disk(
    backend: Backend, database: Database
) -> None:
    """Under load from many threads, each answer comes after a sync that covers it."""
    disk = Disk(database)

    def work(worker: int) -> None:
        for number in range(100):
            path = f"/{(worker + number) % 5}" if worker < 3 else f"/{worker}"
            for answer in write(backend, Put(path, b"")):
                assert answer.revision <= disk.safe
            for found in read(backend, Get(path)):
                assert found.stat.revision <= disk.safe

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, worker) for worker in range(6)]:
            done.result(PATIENCE)
    assert disk.safe == disk.calls.count("write") == 600


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        (Put("/a", b"", ABSENT), BadVersionError),
        (Delete("/a", 5), BadVersionError),
        (Delete("/p"), NotEmptyError),
        (Get("/a"), None),
        (Exists("/a"), None),
        (GetChildren("/p"), None),
    ],
)
def test_an_answer_waits_until_what_it_rests_on_is_on_the_disk(
    backend: Backend, operation: Operation, answer: type[Exception] | None, database: Database
) -> None:
    """If a refusal or a read depends on another call's write, that is synced before the answer."""
    write(backend, Put("/p", b""))
    watched = Watched(database)
    watched.go_on.clear()
    waiting = threading.Event()
    backend._commits._sync_lock = NotedLock(waiting)  # type: ignore[attr-defined]
    ends: list[str] = []
    call = backend.read if answer is None else backend.write
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(write, backend, Put("/a", b"1"), Put("/p/child", b""))
        first.add_done_callback(lambda _: ends.append("first"))
        assert watched.syncing.wait(PATIENCE)
        second = pool.submit(call, [operation], soon())
        second.add_done_callback(lambda _: ends.append("second"))
        assert waiting.wait(PATIENCE)
        assert ends == []
        watched.go_on.set()
        (found,) = second.result(PATIENCE)
    assert first.result(PATIENCE)[0].version == 0
    if answer is not None:
        assert isinstance(found, answer)
    else:
        assert found in (True, ["child"]) or found.value == b"1"
    assert watched.calls == ["write", "sync"]


def test_a_read_of_other_paths_waits_for_no_sync(backend: Backend, database: Database) -> None:
    """Reads are answered while a write of other paths waits for the disk."""
    write(backend, Put("/a", b"1"))
    watched = Watched(database)
    watched.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(write, backend, Put("/b", b""), Put("/c", b""))
        assert watched.syncing.wait(PATIENCE)
        (found, missing) = read(backend, Get("/a"), Get("/d"))
        assert (found.value, missing) == (b"1", None)
        assert not running.done()
        watched.go_on.set()
        running.result(PATIENCE)


def test_after_a_failed_sync_nothing_more_is_written(
    backend: Backend, directory: Path, database: Database
) -> None:
    """Writes that were not synced are indeterminate; later ones are refused until a reopening."""
    write(backend, Put("/old", b"1"))
    watched = Watched(database)
    watched.sync_failure = "IO error: fdatasync"
    with pytest.raises(IndeterminateError, match=r"failed to sync.*fdatasync"):
        write(backend, Put("/a", b""))
    # The next sync would succeed: the system has forgotten what it could not write.
    watched.sync_failure = None
    for refused in (Put("/b", b""), Put("/a", b"", 7), Delete("/old")):
        with pytest.raises(StoreUnavailableError, match=r"open it again.*fdatasync") as caught:
            write(backend, refused)
        assert caught.value.outcome == "not_applied"
        assert not caught.value.retriable
        assert str(directory) in str(caught.value)
    for read_too_early in (Get("/a"), GetChildren("/")):
        with pytest.raises(StoreUnavailableError, match="open it again") as unread:
            read(backend, read_too_early)
        assert not unread.value.retriable
    assert read(backend, Exists("/old"), Exists("/b")) == [True, False]
    assert watched.calls == ["write"]
    backend.close()
    again = opened(directory)
    assert write(again, Put("/b", b""))
    again.close()


# --- closing


def test_close_waits_for_the_call_under_way(backend: Backend, database: Database) -> None:
    """A write that runs while the store is closed is finished before RocksDB is closed."""
    watched = Watched(database)
    watched.go_on.clear()
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(write, backend, Put("/a", b""))
        assert watched.syncing.wait(PATIENCE)
        closes = [pool.submit(backend.close) for _ in range(2)]
        until(lambda: refuses(backend))
        assert not any(close.done() for close in closes)
        watched.go_on.set()
        assert running.result(PATIENCE)[0].version == 0
        for close in closes:
            close.result(PATIENCE)
    assert not watched.closed_during_a_call


def test_a_failed_close_is_said_to_be_one(
    backend: Backend, directory: Path, database: Database
) -> None:
    """A failure of the close is an error of this package, but the store is closed."""
    watched = Watched(database)
    watched.close_failure = "IO error: No space left on device"
    with pytest.raises(StoreUnavailableError, match=r"failed to close.*No space left") as caught:
        backend.close()
    assert str(directory) in str(caught.value)
    backend.close()
    with pytest.raises(StoreClosedError):
        read(backend, Get("/a"))


def test_after_close_calls_are_refused_and_the_directory_is_free(directory: Path) -> None:
    """A closed store raises StoreClosedError, twice closed or not, and another can open it."""
    backend = opened(directory)
    write(backend, Put("/a", b"1"))
    backend.close()
    backend.close()
    with pytest.raises(StoreClosedError, match=str(directory)):
        write(backend, Put("/a", b""))
    with pytest.raises(StoreClosedError, match=str(directory)):
        read(backend, Get("/a"))
    again = opened(directory)
    assert read(again, Exists("/a")) == [True]
    again.close()


# --- opening


def test_a_second_opener_is_refused(backend: Backend, directory: Path) -> None:
    """A second opener, in any process, gets an error with the reason; the first one works on."""
    with pytest.raises(StoreUnavailableError, match="already open") as caught:
        opened(directory)
    assert str(directory) in str(caught.value)
    script = (
        "import sys; from batchkeeper.stores import ConnectOptions, connect\n"
        "connect('rocksdb://' + sys.argv[1], ConnectOptions())"
    )
    other = run_python("-c", script, str(directory))
    assert other.returncode == 1
    assert "StoreUnavailableError" in other.stderr.splitlines()[-1]
    assert f"{directory} is already open" in other.stderr.splitlines()[-1]
    assert write(backend, Put("/a", b""))


def test_a_read_only_opener_sees_what_is_there_and_writes_nothing(
    backend: Backend, directory: Path
) -> None:
    """Beside its writer, any number of readers can open a store, and see its state at that time."""
    write(backend, Put("/a", b"1"))
    before = {path: path.stat().st_mtime_ns for path in (directory, *directory.iterdir())}
    readers = [opened(directory, "?read_only=true") for _ in range(2)]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    write(backend, Put("/a", b"2"))
    for reader in readers:
        (found,) = read(reader, Get("/a"))
        assert isinstance(found, GetResult)
        assert (found.value, found.stat.revision) == (b"1", 1)
        with pytest.raises(UnsupportedError, match="is open read-only"):
            write(reader, Put("/a", b"3"))
        assert reader.scans is not None
        with pytest.raises(UnsupportedError, match="is open read-only"):
            reader.scans.delete_recursive("/", 60)
        assert reader.scans.revision(60) == 1
        reader.close()
    (kept,) = read(backend, Get("/a"))
    assert isinstance(kept, GetResult)
    assert kept.value == b"2"


def test_a_directory_that_takes_no_writes_can_be_read(tmp_path: Path) -> None:
    """The error of a full disk names the option that opens the store without writing."""
    opened(tmp_path / "store").close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreUnavailableError, match=r"too large.*read_only=true"):
            opened(tmp_path / "store")
        opened(tmp_path / "store", "?read_only=true").close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_a_read_only_opener_misses_nothing_that_its_writer_is_moving(
    backend: Backend, directory: Path, database: Database
) -> None:
    """Readers see acknowledged writes, also while RocksDB moves them from its log into a table."""
    acknowledged = 0
    ended = threading.Event()

    def count() -> None:
        nonlocal acknowledged
        dice = random.Random(4711)
        while not ended.is_set():
            write(backend, Put(f"/a/{acknowledged + 1}", b""))
            acknowledged += 1
            if acknowledged % 20 == 0:
                ended.wait(dice.uniform(0, 0.02))
                database.db.flush()  # As at 8 MiB.

    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(count)
        try:
            for _ in range(150):
                latest = acknowledged
                reader = opened(directory, "?read_only=true")
                found = read(
                    reader, *(Get(f"/a/{n}") for n in range(max(1, latest - 50), latest + 1))
                )
                reader.close()
                assert latest == 0 or None not in found
        finally:
            ended.set()
        counting.result()


def empty(place: Path) -> None:
    place.mkdir()


def unfinished(place: Path) -> None:
    place.mkdir()
    for name in ("LOCK", "LOG", "IDENTITY"):
        (place / name).touch()


def file_in_its_place(place: Path) -> None:
    place.write_text("precious")


def other_files(place: Path) -> None:
    place.mkdir()
    (place / "thesis.txt").write_text("precious")


def dangling_link(place: Path) -> None:
    place.symlink_to(place.with_name("nowhere"))


def file_above(place: Path) -> None:
    place.parent.rmdir()
    place.parent.write_text("precious")


def missing_parents(place: Path) -> None:
    place.parent.rmdir()


def missing(place: Path) -> None:
    assert not place.exists()


def everything_below(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return each file's inode, time of change and content."""
    return {
        str(path): (
            path.lstat().st_ino,
            path.lstat().st_ctime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (directory, *directory.rglob("*"))
    }


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (missing, StoreUnavailableError, "there is no RocksDB store in {}, .*create=True"),
        (missing_parents, StoreUnavailableError, "there is no RocksDB store in {}, .*create=True"),
        (empty, StoreUnavailableError, "there is no RocksDB store in {}, .*create=True"),
        (unfinished, StoreUnavailableError, "there is no RocksDB store in {}, .*create=True"),
        (other_files, InvalidSettingError, "not a RocksDB store, .*thesis.txt.*{}"),
        (file_in_its_place, InvalidSettingError, "must be a directory.*{}"),
        (dangling_link, InvalidSettingError, "must be a directory.*{}"),
        (file_above, StoreUnavailableError, "{} cannot be used: Not a directory"),
    ],
)
@pytest.mark.parametrize(
    ("query", "create"), [("", False), ("?read_only=true", True), ("?read_only=true", False)]
)
def test_an_opener_that_may_not_create_leaves_no_trace(
    tmp_path: Path,
    make: Callable[[Path], None],
    error: type[Exception],
    message: str,
    query: str,
    create: bool,
) -> None:
    """Without create, or with read_only, a missing store is refused, and the disk is unchanged."""
    place = tmp_path / "above" / "store"
    place.parent.mkdir()
    make(place)
    before = everything_below(tmp_path)
    with pytest.raises(error, match=message.format(place)):
        opened(place, query, create=create)
    assert everything_below(tmp_path) == before


def test_without_create_a_store_that_is_there_is_opened_to_read_and_write(directory: Path) -> None:
    """Only the creation of a store is refused, and nothing else."""
    opened(directory).close()
    backend = opened(directory, create=False)
    write(backend, Put("/a", b"1"))
    assert read(backend, Exists("/a")) == [True]
    backend.close()


def test_missing_parents_of_the_directory_are_made(tmp_path: Path) -> None:
    """A directory that is missing is made, with those above it."""
    backend = opened(tmp_path / "a" / "b" / "c")
    assert write(backend, Put("/a", b""))
    backend.close()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    """A file in the place of the directory is refused, and stays unchanged."""
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(InvalidSettingError, match=f"must be a directory.*{file}"):
        opened(file)
    assert file.read_text() == "precious"
    with pytest.raises(StoreUnavailableError, match=f"{file}/below cannot be used"):
        opened(file / "below")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def somebody_elses_files(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.txt").write_text("precious")


def somebody_elses_rocksdb(directory: Path) -> None:
    db = Rdict(str(directory))
    db["a"] = 1
    db.close()


def rocksdb_of_another_tool(directory: Path) -> None:
    somebody_elses_rocksdb(directory)
    (directory / "rocksdict-config.json").unlink()


@pytest.mark.parametrize(
    "make", [somebody_elses_files, somebody_elses_rocksdb, rocksdb_of_another_tool]
)
def test_what_is_not_ours_is_not_touched(directory: Path, make: Callable[[Path], None]) -> None:
    """A directory with anything else in it is refused, and every file in it stays the same."""
    make(directory)
    before = contents(directory)
    with pytest.raises(InvalidSettingError, match=str(directory)):
        opened(directory)
    assert contents(directory) == before


def test_a_raw_rocksdb_of_somebody_else_is_refused(directory: Path) -> None:
    """A RocksDB that looks like ours but lacks our record is refused, and its data stay."""
    db = Rdict(str(directory), Options(raw_mode=True))
    db[b"/a"] = b"1"
    db.close()
    with pytest.raises(InvalidSettingError, match=f"batchkeeper did not create.*{directory}"):
        opened(directory)
    db = Rdict(str(directory), Options(raw_mode=True))
    assert dict(db.items()) == {b"/a": b"1"}
    db.close()


def test_a_later_format_is_refused(directory: Path) -> None:
    """A store of a format that this version does not know is refused with both numbers."""
    opened(directory).close()
    db = Rdict(str(directory), Options(raw_mode=True))
    db[b"batchkeeper"] = struct.pack(">BQI", 3, 1, 1)
    db.close()
    with pytest.raises(InvalidSettingError, match=r"format 3.*supports formats 1 to 2"):
        opened(directory)


@pytest.mark.parametrize("left", [(), ("LOCK", "LOG"), ("LOCK", "MANIFEST-000001", "IDENTITY")])
def test_an_unfinished_creation_is_finished(directory: Path, left: tuple[str, ...]) -> None:
    """Files of a process that died while creating the store do no harm."""
    directory.mkdir()
    for name in left:
        (directory / name).touch()
    backend = opened(directory)
    assert write(backend, Put("/a", b""))
    backend.close()


@pytest.mark.parametrize("torn", ["", '{"raw_mode":tr'])
def test_a_kill_during_the_opening_leaves_the_store_usable(directory: Path, torn: str) -> None:
    """A configuration file that rocksdict was writing when it was killed loses nothing."""
    backend = opened(directory)
    write(backend, Put("/a", b"1"))
    backend.close()
    (directory / "rocksdict-config.json").write_text(torn)
    backend = opened(directory)
    assert read(backend, Exists("/a")) == [True]
    backend.close()


def flipped(data: bytes) -> bytes:
    """Return bytes with one bit flipped in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("CURRENT", flipped),
        ("CURRENT", None),
        ("MANIFEST-*", flipped),
        ("MANIFEST-*", None),
        ("*.sst", lambda data: data[:-1]),
        ("*.sst", None),
        ("[0-9]*.log", flipped),
        ("[0-9]*.log", lambda data: data[: len(data) // 2]),
        ("[0-9]*.log", None),
    ],
)
def test_a_damaged_store_is_said_to_be_one(
    directory: Path, name: str, damage: Callable[[bytes], bytes] | None
) -> None:
    """Opening a store of a killed process ends with one clear error, whichever file is damaged."""
    backend = opened(directory)
    write(backend, Put("/a", b"in a table"))
    backend.close()
    backend = opened(directory)
    for number in range(20):
        write(backend, Put(f"/b/{number}", b"in the log"))
    killed = shutil.copytree(directory, directory.with_name("killed"))
    backend.close()
    (path,) = killed.glob(name)
    path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    for query in ("?read_only=true", ""):
        with pytest.raises((StoreUnavailableError, InvalidSettingError), match=str(killed)):
            opened(killed, query)


def test_a_log_that_ends_in_the_middle_of_a_record_was_not_synced(directory: Path) -> None:
    """What a power cut leaves behind the last sync is left out, and the store opens."""
    backend = opened(directory)
    write(backend, Put("/a", b"1"))
    killed = shutil.copytree(directory, directory.with_name("killed"))
    backend.close()
    (log,) = killed.glob("[0-9]*.log")
    # A checksum, the length 500, the kind of a whole record, and 20 of its bytes.
    log.write_bytes(log.read_bytes() + b"\xff\xff\xff\xff\xf4\x01\x01" + b"x" * 20)
    backend = opened(killed)
    assert read(backend, Exists("/a")) == [True]
    backend.close()


def test_without_sync_a_flipped_bit_is_found_and_a_cut_log_is_not(directory: Path) -> None:
    """As docs/rocksdb.md says: the store opens without the changes that were cut off."""
    backend = opened(directory, "?sync=false")
    for number in range(20):
        write(backend, Put(f"/{number}", b"in the log"))
    killed = shutil.copytree(directory, directory.with_name("killed"))
    backend.close()
    (log,) = killed.glob("[0-9]*.log")
    whole = log.read_bytes()
    log.write_bytes(flipped(whole))
    with pytest.raises(StoreUnavailableError, match=str(killed)):
        opened(killed, "?sync=false")
    log.write_bytes(whole[: len(whole) // 2])
    backend = opened(killed, "?sync=false")
    assert read(backend, Exists("/0"), Exists("/19")) == [True, False]
    backend.close()


def test_a_damaged_value_hurts_only_itself(directory: Path) -> None:
    """A damaged block refuses a whole call; alone, only its values fail, and are not retriable."""
    paths = [f"/{index:02}" for index in range(40)]
    backend = opened(directory)
    write(backend, *(Put(path, random.Random(path).randbytes(8192)) for path in paths))
    backend.close()
    opened(directory).close()  # replays the log into a table
    (table,) = directory.glob("*.sst")
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 16)
    backend = opened(directory)
    with pytest.raises(RequestRefusedError) as refused:
        read(backend, *(Get(path) for path in paths))
    assert isinstance(refused.value.error, StoreUnavailableError)
    assert not refused.value.error.retriable
    failed = []
    for path in paths:
        try:
            read(backend, Get(path))
        except StoreUnavailableError as error:
            failed.append((error.path, error.retriable))
    ((damaged, retriable),) = failed
    assert not retriable
    with pytest.raises(StoreUnavailableError, match=f"failed to read in {directory}"):
        write(backend, Put(damaged, b"", 3))
    backend.close()


@pytest.mark.parametrize(
    "url",
    [
        "rocksdb://",
        "rocksdb://relative/path",
        "rocksdb://./relative",
        "rocksdb:///a%00b",
        "rocksdb://{directory}?sync=perhaps",
        "rocksdb://{directory}?snyc=true",
        "rocksdb://{directory}?max_value_bytes=-1",
        "rocksdb://{directory}?max_value_bytes=99999999999",
    ],
)
def test_a_url_that_names_no_directory_is_refused(url: str, tmp_path: Path) -> None:
    """A RocksDB URL has an absolute directory and known options; the message repeats the URL."""
    directory = tmp_path / "x"
    url = url.format(directory=directory)
    with pytest.raises(InvalidSettingError) as caught:
        connect(url, ConnectOptions())
    assert url in str(caught.value)
    assert not directory.exists()
