"""Sessions on RocksDB: ephemeral values, and who may take them for living."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

import batchkeeper as bk
from batchkeeper.ops import (
    ABSENT,
    Check,
    Delete,
    Exists,
    Get,
    GetChildren,
    MetadataStoreError,
    NotEmptyError,
    Put,
    Range,
    StoreUnavailableError,
    Transaction,
    UnsupportedError,
)
from batchkeeper.stores.rocksdb import ephemerals
from batchkeeper.stores.rocksdb.database import Database
from batchkeeper.stores.rocksdb.sessions import RocksSession

from ...programs import run_python
from ...waiting import PATIENCE
from ..calls import read, write
from .opening import opened, recorded
from .processes import WAIT, WRITER, kill, running, writer
from .test_backend import Watched

EVERYTHING = Range()
META = struct.Struct(">BQI")
PLAIN = struct.Struct(">BIQQQ")


def raw(directory: Path) -> dict[bytes, bytes]:
    """Return what is in the database of a store that is not open."""
    db = Rdict(str(directory), Options(raw_mode=True))
    try:
        return dict(db.items())
    finally:
        db.close()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ephemeral values be removed two at a time."""
    monkeypatch.setattr(ephemerals, "_BATCH", 2)


def lock_files(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith("batchkeeper-")]


def paths_of(backend: Any, prefix: str = "/") -> list[str]:
    pages = backend.scans.scan(prefix, EVERYTHING, None, PATIENCE)
    return [found.path for page in pages for found in page]


def stats_of(backend: Any, prefix: str = "/") -> list[tuple[str, bool, bool]]:
    pages = backend.scans.scan_stats(prefix, EVERYTHING, None, PATIENCE)
    return [(stat.path, stat.ephemeral, stat.owned) for page in pages for stat in page]


# --- while the store is open


def test_creation_decides_whether_a_value_is_ephemeral(backend: Any) -> None:
    """Later puts keep a value's session, or its having none, whatever flag they carry."""
    write(backend, Put("/e", b"1", ephemeral=True), Put("/p", b"1"))
    write(backend, Put("/e", b"2"), Put("/p", b"2"))
    write(backend, Put("/e", b"3"), Put("/p", b"3", ephemeral=True))
    write(backend, Transaction([Put("/e", b"4", 2), Put("/p", b"4", 2, ephemeral=True)]))
    e, p = read(backend, Get("/e"), Get("/p"))
    assert (e.value, e.stat.version, e.stat.ephemeral, e.stat.owned) == (b"4", 3, True, True)
    assert (p.value, p.stat.version, p.stat.ephemeral, p.stat.owned) == (b"4", 3, False, False)


def test_a_put_returns_the_stat_that_a_get_finds(backend: Any) -> None:
    """The stats of puts, gets and scans of ephemeral values agree."""
    for value in (b"1", b"2"):
        (put,) = write(backend, Put("/e", value, ephemeral=True))
        (found,) = read(backend, Get("/e"))
        assert found.stat == put
        (page,) = backend.scans.scan("/", EVERYTHING, None, PATIENCE)
        assert [*page] == [("/e", value, put)]
        (stats,) = backend.scans.scan_stats("/", EVERYTHING, None, PATIENCE)
        assert [*stats] == [put]


def test_a_page_tells_ephemeral_values_from_others(backend: Any) -> None:
    """A page of a scan has the values and stats of both kinds, each its own."""
    write(backend, *(Put(f"/{n}", b"%d" % n, ephemeral=n % 3 == 0) for n in range(9)))
    (page,) = backend.scans.scan("/", EVERYTHING, None, PATIENCE)
    assert page.values == [b"%d" % n for n in range(9)]
    flags = [n % 3 == 0 for n in range(9)]
    assert (page.ephemeral, page.owned) == (flags, flags)


def test_ephemeral_values_count_below_their_parents(backend: Any) -> None:
    """A path with an ephemeral value below it has a child, and cannot be deleted."""
    write(backend, Put("/p", b""), Put("/p/e", b"", ephemeral=True))
    refused, children = *write(backend, Delete("/p")), *read(backend, GetChildren("/p"))
    assert isinstance(refused, NotEmptyError)
    assert children == ["e"]
    assert write(backend, Delete("/p/e"), Delete("/p")) == [None, None]


@pytest.mark.parametrize("how", ["delete", "transaction", "recursive"])
def test_a_deleted_ephemeral_leaves_nothing_behind(
    backend: Any, directory: Path, how: str, database: Database
) -> None:
    """After its delete, the path can hold a value that outlives the session."""
    write(backend, Put("/e", b"", ephemeral=True))
    if how == "delete":
        write(backend, Delete("/e"))
    elif how == "transaction":
        write(backend, Transaction([Check("/e", 0)]), Transaction([Delete("/e")]))
    else:
        assert backend.scans.delete_recursive("/", PATIENCE) == 1
    assert [*database.db.keys()] == [b"batchkeeper"]
    write(backend, Put("/e", b"stays"))
    backend.close()
    assert [key for key in raw(directory) if key != b"batchkeeper"] == [b"/e"]
    with closing(opened(directory)) as again:
        assert paths_of(again) == ["/e"]


def test_the_session_lasts_as_long_as_the_store(directory: Path) -> None:
    """It has an id of its own, no time-out, and is closed with the store."""
    ids = set()
    for _ in range(2):
        backend = opened(directory)
        session = backend.session
        assert (session.state, session.number, session.timeout) == ("connected", 1, math.inf)
        assert session.valid_until() == math.inf
        ids.add(session.id)
        backend.close()
        assert (session.state, session.id, session.valid_until()) == ("closed", None, -math.inf)
    assert len(ids) == 2
    assert None not in ids


def test_a_session_that_nobody_needs_leaves_no_trace(backend: Any, directory: Path) -> None:
    """Without an ephemeral value, there is no lock file."""
    write(backend, Put("/p", b""), Put("/q/n-", b"", sequential=True))
    refused, *_ = write(backend, Transaction([Put("/e", b"", 7, ephemeral=True)]))
    assert isinstance(refused, MetadataStoreError)
    assert lock_files(directory) == []


def test_the_lock_is_there_before_the_value(
    backend: Any, directory: Path, database: Database
) -> None:
    """When RocksDB is given the first ephemeral value, its session's file is locked already."""

    class Looking(Watched):
        def write(self, batch: Any, options: Any) -> None:
            (name,) = lock_files(directory)
            program = (
                "import fcntl, sys; file = open(sys.argv[1]);"
                "fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)"
            )
            looked.append("BlockingIOError" in run_python("-c", program, directory / name).stderr)
            super().write(batch, options)

    looked: list[bool] = []
    database.db = Looking(database)
    write(backend, Put("/e", b"", ephemeral=True))
    assert looked == [True]


def test_a_lock_that_cannot_be_taken_refuses_ephemeral_values_only(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without locks, the ephemeral put fails, and its neighbours do not."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    refused, together, done = write(
        backend,
        Put("/e", b"", ephemeral=True),
        Transaction([Put("/t", b""), Put("/t/e", b"", ephemeral=True)]),
        Put("/p", b""),
    )
    assert isinstance(refused, StoreUnavailableError)
    assert "No locks available" in str(refused)
    assert (refused.path, refused.outcome) == ("/e", "not_applied")
    assert (together.index, type(together.error)) == (1, StoreUnavailableError)
    assert done.version == 0
    assert read(backend, Exists("/e"), GetChildren("/")) == [False, ["p"]]


# --- after its end


@pytest.mark.usefixtures("small_batches")
def test_a_close_removes_the_ephemeral_values(directory: Path) -> None:
    """Of a closed store, only the other values are left, however many batches it takes."""
    backend = opened(directory)
    write(backend, *(Put(f"/e/{n}", b"", ephemeral=True) for n in range(5)), Put("/e", b""))
    assert len(lock_files(directory)) == 1
    backend.close()
    assert lock_files(directory) == []
    assert [key for key in raw(directory) if key != b"batchkeeper"] == [b"/e"]


def test_a_session_is_over_before_its_values_go(
    backend: Any, directory: Path, database: Database
) -> None:
    """While they are removed, the session is closed, and its lock still held for readers."""
    write(backend, Put("/e", b"", ephemeral=True))
    seen = []

    class Looking(Watched):
        def write(self, batch: Any, options: Any) -> None:
            seen.append((backend.session.valid_until(), len(lock_files(directory))))
            super().write(batch, options)

    database.db = Looking(database)
    backend.close()
    assert seen == [(-math.inf, 1)]


def test_a_close_syncs_the_removal(backend: Any, database: Database) -> None:
    """The removal is on the disk when the store has been closed."""
    watched = Watched(database)
    write(backend, Put("/e", b"", ephemeral=True))
    backend.close()
    assert watched.calls == ["write", "sync"] * 2


@pytest.mark.usefixtures("small_batches")
def test_a_close_that_cannot_remove_them_still_ends_the_session(directory: Path) -> None:
    """If the disk fails half-way, readers hide what is left, and the next opener removes it."""
    backend, database = recorded(directory)
    write(backend, *(Put(f"/e/{n}", b"", ephemeral=True) for n in range(5)))

    class Failing(Watched):
        def write(self, batch: Any, options: Any) -> None:
            super().write(batch, options)
            self.write_failure = "IO error: No space left on device"

    database.db = Failing(database)
    backend.close()
    assert backend.session.state == "closed"
    assert sum(key.startswith(b"/e/") for key in raw(directory)) == 3
    with closing(opened(directory, "?read_only=true")) as reader:
        assert paths_of(reader) == []
    with closing(opened(directory)) as again:
        assert read(again, GetChildren("/")) == [[]]
    assert [*raw(directory)] == [b"batchkeeper"]


@pytest.mark.slow
def test_nothing_of_a_killed_process_is_left_after_the_next_opening(directory: Path) -> None:
    """10,000 ephemeral values are gone before the first call, with their names and lock file."""
    with closing(opened(directory)) as backend:
        write(backend, Put("/e", b"stays"))
    with writer(directory, "/e/*10000", "/f/x/y") as process:
        kill(process)
    assert len(lock_files(directory)) == 1
    with closing(opened(directory)) as backend:
        assert lock_files(directory) == []
        assert paths_of(backend) == ["/e"]
        assert read(backend, GetChildren("/"), GetChildren("/e"), Exists("/e/77")) == [
            ["e"],
            [],
            False,
        ]
        (stat,) = write(backend, Put("/e/77", b"", ABSENT))
        # Three calls put values before this one, and the removal took two batches.
        assert (stat.version, stat.revision) == (0, 6)
        assert write(backend, Delete("/e/77"), Delete("/e")) == [None, None]
    assert [*raw(directory)] == [b"batchkeeper"]


@pytest.mark.usefixtures("small_batches")
def test_a_kill_during_the_removal_leaves_the_rest_to_the_next_opener(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opener that fails after some batches has lost nothing but ephemeral values."""
    with writer(directory, "/e/*5", "/f") as process:
        kill(process)
    commit = ephemerals.Commits.write
    left = 2

    def failing(self: Any, *arguments: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailableError("killed")
        return commit(self, *arguments)

    monkeypatch.setattr(ephemerals.Commits, "write", failing)
    with pytest.raises(StoreUnavailableError, match="killed"):
        opened(directory)
    monkeypatch.undo()
    assert sum(key.startswith(b"/") for key in raw(directory)) == 2
    with closing(opened(directory)) as again:
        assert paths_of(again) == []


def test_a_list_entry_alone_removes_nothing(directory: Path) -> None:
    """Only a value of the listed session is removed, whatever the list says."""
    backend, database = recorded(directory)
    with closing(backend):
        write(backend, Put("/p", b"1"), Put("/e", b"1", ephemeral=True))
        # What the database of a session that never was would contain.
        db = database.db
        for path in (b"/p", b"/e", b"/none"):
            db[b"batchkeeper/ephemeral/0123456789abcdef" + path] = b""
        ephemerals.remove_ephemerals(database, backend._commits, 0x0123456789ABCDEF)
        assert [key for key in db.keys() if b"0123456789abcdef" in key] == []  # noqa: SIM118
        assert paths_of(backend) == ["/e", "/p"]


# --- readers


def test_a_reader_sees_the_ephemeral_values_of_a_living_writer(directory: Path) -> None:
    """They are ephemeral and not the reader's own; the reader has no session and puts nothing."""
    with (
        writer(directory, "/e/a", "/e/b"),
        closing(opened(directory, "?read_only=true")) as reader,
    ):
        for _ in range(2):
            (found,) = read(reader, Get("/e/a"))
            assert (found.value, found.stat.ephemeral, found.stat.owned) == (b"mine", True, False)
            assert stats_of(reader) == [("/e/a", True, False), ("/e/b", True, False)]
            assert read(reader, GetChildren("/e"), Exists("/e/b")) == [["a", "b"], True]
        assert reader.session is None
        assert reader.watches is None
        with pytest.raises(UnsupportedError, match="is open read-only"):
            write(reader, Put("/x", b"", ephemeral=True))


def test_callers_of_a_read_only_store_get_clear_errors(backend: Any, directory: Path) -> None:
    """Writes, the session and watches are refused; what the kind can do does not matter."""
    with bk.open_store(f"rocksdb://{directory}?read_only=true") as store:
        for refused in (
            store.put("/e", b"", ephemeral=True),
            store.put("/q/n-", b"", sequential=True),
            store.transaction([bk.Check("/e", ABSENT)]),
        ):
            with pytest.raises(UnsupportedError, match="is open read-only"):
                refused.result(PATIENCE)
        for use in (lambda: store.session, lambda: store.add_session_listener(print)):
            with pytest.raises(UnsupportedError, match="session"):
                use()
        with pytest.raises(UnsupportedError, match="watches"):
            store.watch("/")


@pytest.mark.parametrize("opened_before", [True, False], ids=["before", "after"])
def test_a_reader_hides_them_when_the_writer_was_killed(
    directory: Path, opened_before: bool
) -> None:
    """Whenever it was opened, no call of a reader shows an ephemeral value of a dead process."""
    with closing(opened(directory)) as backend:
        write(backend, *(Put(path, b"") for path in ("/e", "/e/b/x", "/e/c", "/g")))
    gone = ("/e/a", "/e/b", "/e/b/y", "/e/d/x/y", "/f/x", "/f/y/z")
    with writer(directory, *gone) as process:
        reader = opened(directory, "?read_only=true") if opened_before else None
        if reader is not None:
            assert len(paths_of(reader)) == 10
        kill(process)
    reader = reader or opened(directory, "?read_only=true")
    with closing(reader):
        assert read(reader, *map(Get, gone)) == [None] * 6
        assert read(reader, *map(Exists, gone)) == [False] * 6
        assert read(reader, *map(GetChildren, ("/", "/e", "/e/b", "/e/d", "/f"))) == [
            ["e", "g"],
            ["b", "c"],
            ["x"],
            [],
            [],
        ]
        left = ["/e", "/e/b/x", "/e/c", "/g"]
        assert paths_of(reader) == left
        assert [path for path, _, _ in stats_of(reader)] == left
        assert [r.start for r in reader.scans.split("/", 4, PATIENCE)][1:] == left[1:]


def test_a_scan_shows_one_moment_of_a_writer(directory: Path) -> None:
    """A scan that began while the writer lived goes on with its values; the next shows none."""
    with (
        writer(directory, "/e/*2500") as process,
        closing(opened(directory, "?read_only=true")) as reader,
    ):
        pages = reader.scans.scan("/", EVERYTHING, None, PATIENCE)
        found = len(next(pages))
        kill(process)
        assert found + sum(map(len, pages)) == 2500
        assert paths_of(reader) == []


def test_a_reader_that_was_opened_before_a_close_hides_them_after_it(directory: Path) -> None:
    """The values of a session end for earlier readers, too, when its store is closed."""
    backend = opened(directory)
    write(backend, Put("/e", b"", ephemeral=True))
    with closing(opened(directory, "?read_only=true")) as reader:
        assert paths_of(reader) == ["/e"]
        backend.close()
        assert paths_of(reader) == []
        assert read(reader, Get("/e")) == [None]


def test_the_next_writer_does_not_revive_the_values_of_the_last(directory: Path) -> None:
    """A reader from before a kill hides the dead session's values while another writer lives."""
    with writer(directory, "/e/old") as process:
        reader = opened(directory, "?read_only=true")
        kill(process)
    with writer(directory, "/e/new"), closing(reader):
        assert read(reader, GetChildren("/e")) == [[]]
        with closing(opened(directory, "?read_only=true")) as later:
            assert read(later, GetChildren("/e")) == [["new"]]


def test_a_reader_hides_the_values_of_several_sessions(directory: Path) -> None:
    """Each ended session's values are hidden, and those of one that lives are shown."""
    sessions: dict[str, Any] = {}
    with closing(opened(directory)) as backend:
        for name in "abc":
            backend.session = sessions[name] = RocksSession(str(directory))
            write(backend, Put(f"/e/{name}", b"", ephemeral=True))
        with closing(opened(directory, "?read_only=true")) as reader:
            shown = [read(reader, GetChildren("/e"))[0]]
            for name in "bac":
                sessions[name].unlock()
                shown.append(read(reader, GetChildren("/e"))[0])
            assert shown == [["a", "b", "c"], ["a", "c"], ["c"], []]


READER = """
import sys, time
from batchkeeper.ops import GetChildren
from batchkeeper.stores import ConnectOptions, connect
reader = connect("rocksdb://" + sys.argv[1] + "?read_only=true", ConnectOptions())
print(*reader.read([GetChildren("/e")], time.monotonic() + 60)[0])
"""


def test_readers_in_the_writers_own_process_do_not_drop_its_lock(
    backend: Any, directory: Path
) -> None:
    """They see the values, and after their end, other processes still see them, too."""
    write(backend, Put("/e/mine", b"", ephemeral=True))
    with closing(opened(directory, "?read_only=true")) as reader:
        (found,) = read(reader, Get("/e/mine"))
        assert (found.stat.ephemeral, found.stat.owned) == (True, False)
    assert run_python("-c", READER, directory, check=True).stdout == "mine\n"


FORKED = (
    WRITER
    + """
import os
if not os.fork():
"""
    + READER.replace("\n", "\n    ")
    + """
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
)


def test_a_forked_child_knows_that_its_parent_lives(directory: Path) -> None:
    """The child has a copy of the parent's registry, but asks the lock file."""
    done = run_python("-c", FORKED, directory, "/e/parents", check=True)
    assert done.stdout == "parents\n"


ORPHAN = (
    WRITER
    + """
import os
if not os.fork():
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
time.sleep(600)
"""
)


def test_a_forked_child_does_not_keep_the_session_alive(directory: Path) -> None:
    """The values end with the process that put them, although its child has the file open."""
    with running(ORPHAN, directory, "/e/a") as process:
        with closing(opened(directory, "?read_only=true")) as reader:
            assert read(reader, GetChildren("/e")) == [["a"]]
            kill(process)
            assert process.stdin is not None  # The child waits for its end.
            assert read(reader, GetChildren("/e")) == [[]]
        process.stdin.close()


OUTLIVES = (
    WRITER
    + """
import os
if not os.fork():
    print("ready", flush=True)
    sys.stdin.read()
"""
    + READER.replace("\n", "\n    ")
    + """
    sys.stdout.flush()
    os._exit(0)
time.sleep(600)
"""
)


def test_a_forked_child_knows_that_its_parent_is_dead(directory: Path) -> None:
    """A child that outlives its parent hides the parent's values, too."""
    with running(OUTLIVES, directory, "/e/parents") as process:
        kill(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.read() == "\n"


CHILD_CLOSES = """
import os, sys
import batchkeeper as bk
store = bk.open_store("rocksdb://" + sys.argv[1])
store.put("/e/a", b"", ephemeral=True).result()
if not os.fork():
    store.close()
    os._exit(0)
os.wait()
assert store.exists("/e/a").result()
"""


def test_a_forked_child_that_closes_the_store_ends_nothing(directory: Path) -> None:
    """The parent's values, lock and lock file are as before, for itself and for readers."""
    with (
        running(CHILD_CLOSES + WAIT, directory),
        closing(opened(directory, "?read_only=true")) as reader,
    ):
        assert read(reader, GetChildren("/e")) == [["a"]]
        assert len(lock_files(directory)) == 1


def test_a_lock_file_that_cannot_be_read_is_an_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that cannot find out who lives raises, and neither shows nor hides the values."""
    with (
        writer(directory, "/e/a"),
        closing(opened(directory, "?read_only=true")) as reader,
    ):

        def denied(*_: object) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(os, "open", denied)
        for ask in (lambda: read(reader, Get("/e/a")), lambda: paths_of(reader)):
            with pytest.raises(StoreUnavailableError, match=r"lock file.*Permission denied"):
                ask()
        monkeypatch.undo()
        assert paths_of(reader) == ["/e/a"]


# --- formats


def old_store(directory: Path) -> None:
    """Make a store as the first releases did."""
    opened(directory).close()
    db = Rdict(str(directory), Options(raw_mode=True))
    db[b"batchkeeper"] = META.pack(1, 5, 40)
    db[b"/a"] = PLAIN.pack(1, 3, 5, 1000, 2000) + b"old"
    db.close()


def test_old_stores_can_be_read_and_written(directory: Path) -> None:
    """A store of the first releases opens, and plain puts leave it one of their stores."""
    old_store(directory)
    with closing(opened(directory)) as backend:
        (found,) = read(backend, Get("/a"))
        assert (found.value, found.stat) == (b"old", ("/a", 3, 5, 1000, 2000, False, False))
        (stat,) = write(backend, Put("/b", b"new"))
        write(backend, Delete("/a"), Transaction([Put("/c", b""), Delete("/b")]))
        write(backend, Put("/b", b"new", ABSENT))
    records = raw(directory)
    assert records[b"batchkeeper"] == META.pack(1, 8, 40)
    assert records[b"/b"][:13] == struct.pack(">BIQ", 1, 0, stat.revision + 2)
    assert len(records[b"/b"]) == PLAIN.size + len(b"new")
    assert set(records) == {b"batchkeeper", b"/b", b"/c"}


@pytest.mark.parametrize(
    "operation",
    [
        Put("/e", b"", ephemeral=True),
        Put("/q/n-", b"", sequential=True),
        Transaction([Put("/e", b"", ephemeral=True)]),
    ],
    ids=["ephemeral", "sequential", "transaction"],
)
def test_old_releases_refuse_stores_that_they_would_misread(
    directory: Path, operation: Any
) -> None:
    """The first ephemeral or sequential put, and none that is refused, makes the format 2."""
    old_store(directory)
    with closing(opened(directory)) as backend:
        write(backend, Put("/b", b""))
        write(backend, Transaction([Check("/a", 7), Put("/e", b"", ephemeral=True)]))
        reader, read_database = recorded(directory, "?read_only=true")
        with closing(reader):
            assert read_database.db.get(b"batchkeeper")[0] == 1
        write(backend, operation)
    assert raw(directory)[b"batchkeeper"][0] == 2
    with closing(opened(directory)) as backend:
        write(backend, Put("/b", b""))
    assert raw(directory)[b"batchkeeper"][0] == 2


def test_own_keys_are_in_no_scan(backend: Any, directory: Path, database: Database) -> None:
    """Scans, splits and removals of everything leave out what the client keeps for itself."""
    write(backend, Put("/e", b"", ephemeral=True), Put("/q/n-", b"", sequential=True))
    foreign = [b"aaa", b"batch", b"batchkeeper\0", b"batchkeeper-x", b"batchkeeper0", b"\xff"]
    for key in foreign:
        database.db[key] = b""
    (page,) = backend.scans.scan("/", EVERYTHING, None, PATIENCE)
    assert (page.paths, page.foreign) == (["/e", "/q/n-0000000000"], foreign)
    assert len(backend.scans.split("/", 9, PATIENCE)) == 2
    assert backend.scans.delete_recursive("/", PATIENCE) == 2
    (stat,) = write(backend, Put("/q/n-", b"", sequential=True))
    assert stat.path == "/q/n-0000000001"


def test_a_damaged_ephemeral_value_is_not_taken_for_one(backend: Any, database: Database) -> None:
    """A record with the form of an ephemeral value and a wrong header is an error."""
    write(backend, Put("/ok", b"", ephemeral=True))
    for record in (b"\2", bytes([2]) + bytes(35), b"\2\xff" + bytes(35)):
        database.db[b"/bad"] = record
        answers = [
            *read(backend, Get("/bad")),
            *write(backend, Put("/bad", b""), Delete("/bad"), Put("/x", b"", ephemeral=True)),
        ]
        assert [getattr(answer, "path", None) for answer in answers[:3]] == ["/bad"] * 3
        assert all("did not write" in str(answer) for answer in answers[:3])
        with pytest.raises(MetadataStoreError, match="did not write the value at '/bad'"):
            paths_of(backend)


def test_a_lock_file_alone_is_no_store(directory: Path) -> None:
    """A directory with nothing but an old lock file can still become a store."""
    directory.mkdir()
    (directory / f"batchkeeper-session-{'0' * 16}").touch()
    opened(directory).close()
