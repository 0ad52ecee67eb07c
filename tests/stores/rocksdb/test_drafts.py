"""Transactions, sequences and expected revisions on RocksDB."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Check,
    Delete,
    Exists,
    Get,
    GetChildren,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    Put,
    Range,
    Stat,
    Transaction,
    TransactionRefusedError,
)
from batchkeeper.stores import Backend, ConnectOptions, connect
from batchkeeper.stores.rocksdb.database import Database

from ...waiting import PATIENCE
from ..calls import read, write
from .opening import opened
from .test_backend import Watched

EVERYTHING = Range()


def everything(backend: Any) -> list[tuple[str, bytes, Stat]]:
    pages = backend.scans.scan("/", EVERYTHING, None, PATIENCE)
    return [tuple(found) for page in pages for found in page]


# --- transactions


def test_a_refused_transaction_leaves_nothing_and_costs_its_neighbours_nothing(
    backend: Any, directory: Path
) -> None:
    """Its puts, deletes and ephemeral values do not happen; others of the call do."""
    write(backend, Put("/a", b"1"), Put("/b", b"1"))
    first, refused, last, later = write(
        backend,
        Put("/c", b"2"),
        Transaction(
            [Put("/a", b"2"), Delete("/b"), Put("/d", b"2", ephemeral=True), Check("/x", 0)]
        ),
        Transaction([Check("/c", 0), Put("/e/f", b"2")]),
        Delete("/e"),
    )
    assert (first.version, last[1].version) == (0, 0)
    assert isinstance(refused, TransactionRefusedError)
    assert (refused.index, refused.path, type(refused.error)) == (3, "/x", BadVersionError)
    assert isinstance(later, NotEmptyError)
    left = [(path, value) for path, value, _ in everything(backend)]
    assert left == [("/a", b"1"), ("/b", b"1"), ("/c", b"2"), ("/e/f", b"2")]
    assert {stat.revision for _, value, stat in everything(backend) if value == b"2"} == {2}
    backend.close()
    with closing(opened(directory)) as again:
        assert [path for path, _, _ in everything(again)] == ["/a", "/b", "/c", "/e/f"]


def test_the_parts_of_a_transaction_count_in_their_order(backend: Any) -> None:
    """A parent can go after its last child, but not after a child that was put before."""
    write(backend, *(Put(path, b"") for path in ("/a", "/a/b", "/x", "/y", "/y/z")))
    gone, put_before, put_after, child_after = write(
        backend,
        Transaction([Delete("/a/b"), Delete("/a")]),
        Transaction([Put("/x/y", b""), Delete("/x")]),
        Transaction([Delete("/x"), Put("/x/y", b"")]),
        Transaction([Delete("/y"), Delete("/y/z")]),
    )
    assert gone == [None, None]
    assert (put_before.index, type(put_before.error)) == (1, NotEmptyError)
    assert [type(result) for result in put_after] == [type(None), Stat]
    assert (child_after.index, type(child_after.error)) == (0, NotEmptyError)
    assert [path for path, _, _ in everything(backend)] == ["/x/y", "/y", "/y/z"]


def test_what_a_refused_transaction_would_have_put_is_below_nothing(backend: Any) -> None:
    """A later delete in the call is decided as if the refused transaction had not been there."""
    write(backend, Put("/p", b""), Put("/q", b""), Put("/q/r", b""))
    answers = write(
        backend,
        Transaction([Put("/x/y", b""), Delete("/x")]),  # From here on, new values are counted.
        Transaction([Put("/p/a", b""), Check("/none", 0)]),
        Transaction([Delete("/q/r"), Check("/none", 0)]),
        Delete("/p"),
        Delete("/q"),
    )
    assert [type(answer) for answer in answers[:3]] == [TransactionRefusedError] * 3
    assert answers[3] is None
    assert isinstance(answers[4], NotEmptyError)


def test_a_transaction_is_one_synced_write(backend: Any, database: Database) -> None:
    """All parts of all transactions of a call travel in one batch of RocksDB."""
    watched = Watched(database)
    write(backend, *(Transaction([Put(f"/{n}/a", b""), Put(f"/{n}/b", b"")]) for n in range(9)))
    assert watched.calls == ["write", "sync"]
    write(
        backend,
        Transaction([Check("/1/a", 0)]),
        Transaction([Put("/2/a", b""), Put("/x", b""), Delete("/2/b"), Check("/1/b", 1)]),
    )
    assert watched.calls == ["write", "sync"]


def test_values_of_other_programs_refuse_a_transaction(backend: Any, database: Database) -> None:
    """A part whose record is not this package's is the error, whatever the part."""
    database.db[b"/odd"] = b"?"
    for part in (Check("/odd", 0), Put("/odd", b""), Delete("/odd")):
        (refused,) = write(backend, Transaction([Put("/a", b""), part]))
        assert (refused.index, refused.path) == (1, "/odd")
        assert "did not write" in str(refused.error)
    assert read(backend, Exists("/a")) == [False]


# --- expected revisions


def test_a_revision_notices_a_delete_and_a_new_creation(backend: Any) -> None:
    """The version may be the same again, but never the revision."""
    (first,) = write(backend, Put("/a", b"1"))
    write(backend, Delete("/a"))
    (again,) = write(backend, Put("/a", b"2"))
    assert again.version == first.version
    put, deleted, checked = write(
        backend,
        Put("/a", b"3", expected_revision=first.revision),
        Delete("/b", expected_revision=first.revision),
        Transaction([Check("/a", 0, expected_revision=first.revision)]),
    )
    for error in (put, checked.error):
        assert isinstance(error, BadVersionError)
        assert (error.expected_revision, error.actual_revision) == (1, 3)
    assert isinstance(deleted, NotFoundError)
    write(backend, Put("/a", b"3", expected_revision=again.revision))
    (found,) = read(backend, Get("/a"))
    assert write(backend, Delete("/a", 1, expected_revision=found.stat.revision)) == [None]


# --- sequences


def test_a_sequence_goes_on_after_everything_else(directory: Path) -> None:
    """No suffix comes again after deletes of children and parent, nor after a reopening."""
    backend = opened(directory)
    stats = write(backend, *(Put("/q/n-", b"", sequential=True) for _ in range(3)))
    assert [stat.path for stat in stats] == [f"/q/n-000000000{n}" for n in range(3)]
    write(backend, *(Delete(stat.path) for stat in stats))
    backend.close()
    backend = opened(directory)
    write(backend, Put("/q", b""), Delete("/q"))
    (stat,) = write(backend, Put("/q/other-", b"", ABSENT, sequential=True, ephemeral=True))
    assert (stat.path, stat.ephemeral) == ("/q/other-0000000003", True)
    backend.close()
    backend = opened(directory)
    # The ephemeral child is gone, and its number too.
    (stat,) = write(backend, Put("/q/n-", b"", sequential=True))
    assert stat.path == "/q/n-0000000004"
    backend.close()


def test_each_parent_has_a_sequence_of_its_own(backend: Any, database: Database) -> None:
    """Numbers grow per parent, whatever the name before them; the root is a parent, too."""
    paths = ["/n-", "/q/a-", "/q/b-", "/q-", "/q/a/n", "/q/a-", "/n-"]
    stats = write(backend, *(Put(path, b"", sequential=True) for path in paths))
    assert [stat.path for stat in stats] == [
        "/n-0000000000",
        "/q/a-0000000000",
        "/q/b-0000000001",
        "/q-0000000001",
        "/q/a/n0000000000",
        "/q/a-0000000002",
        "/n-0000000002",
    ]
    counters = [key for key in database.db.keys() if b"sequence" in key]  # noqa: SIM118
    parents = ("/", "/q", "/q/a")
    assert counters == [b"batchkeeper/sequence" + parent.encode() for parent in parents]


def test_a_sequence_passes_over_paths_that_others_have_put(backend: Any) -> None:
    """A sequential put overwrites nothing, neither in the store nor in its own call."""
    write(backend, Put("/q/n-0000000000", b"mine"))
    first, second, plain, both = write(
        backend,
        Put("/q/n-", b"1", sequential=True),
        Put("/q/n-", b"2", sequential=True),
        Put("/q/n-0000000002", b"mine"),
        Transaction([Put("/q/n-0000000004", b"mine"), Check("/q/n-0000000000", 0)]),
    )
    assert (first.path, second.path) == ("/q/n-0000000001", "/q/n-0000000003")
    assert (plain.version, both[0].version) == (0, 0)
    (third,) = write(backend, Put("/q/n-", b"3", sequential=True))
    assert third.path == "/q/n-0000000005"
    assert [value for _, value, _ in everything(backend)] == [
        b"mine",
        b"1",
        b"mine",
        b"2",
        b"mine",
        b"3",
    ]


def test_thousands_of_sequential_puts_are_one_write(backend: Any, database: Database) -> None:
    """They share one read and one write of RocksDB, and one revision."""
    watched = Watched(database)
    stats = write(backend, *(Put("/q/n-", b"", sequential=True) for _ in range(5000)))
    assert watched.calls == ["write", "sync"]
    assert watched.asked[-1] == 5000
    assert len(watched.asked) < 5
    assert [stat.path[-10:] for stat in stats] == [f"{n:010}" for n in range(5000)]
    assert {stat.revision for stat in stats} == {1}


# --- the memory store as a model

PATHS = ["/a", "/a/b", "/a/b/c", "/a-", "/d", "/d/e"]
WRITES = st.tuples(
    st.sampled_from(["put", "put", "ephemeral", "delete", "check"]),
    st.sampled_from(PATHS),
    st.sampled_from([None, None, None, ABSENT, 0, 1]),
    st.sampled_from([None, None, None, "right", "wrong"]),
)
TRANSACTIONS = st.lists(WRITES, min_size=1, max_size=4, unique_by=lambda write: write[1])
CALLS = st.lists(st.one_of(WRITES, TRANSACTIONS, st.just("sequential")), min_size=1, max_size=5)


class Side:
    """One of the two stores under comparison."""

    def __init__(self, backend: Backend) -> None:
        self.backend: Any = backend
        self.revisions: dict[str, int] = {}

    def single(self, kind: str, path: str, version: int | None, revision: str | None) -> Any:
        wanted = None
        if revision is not None:
            wanted = self.revisions.get(path, 1) + (10**9 if revision == "wrong" else 0)
        if kind == "check":
            if version is None and wanted is None:
                version = 0
            return Check(path, version, expected_revision=None if version == ABSENT else wanted)
        if kind == "delete":
            return Delete(path, None if version == ABSENT else version, expected_revision=wanted)
        revision = None if version == ABSENT else wanted
        return Put(path, b"", version, ephemeral=kind == "ephemeral", expected_revision=revision)

    def call(self, described: list[Any]) -> list[Any]:
        """Execute a call, and return its answers without what differs between the stores."""
        operations: list[Any] = []
        used: set[str] = set()
        for one in described:
            if one == "sequential":
                operations.append(Put("/d/n", b"", sequential=True))
                continue
            parts = one if isinstance(one, list) else [one]
            paths = {path for _, path, _, _ in parts}
            if paths & used:
                continue
            used |= paths
            made = [self.single(*part) for part in parts]
            bare = not isinstance(one, list) and not isinstance(made[0], Check)
            operations.append(made[0] if bare else Transaction(made))
        if not any(operation.options for operation in operations):
            # A call without options may decide its deletes first, and differ.
            operations = [Transaction([operation]) for operation in operations]
        answers = write(self.backend, *operations)
        for path, _, stat in everything(self.backend):
            self.revisions[path] = stat.revision
        return [self.told(answer) for answer in answers]

    def told(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self.told(one) for one in answer]
        if isinstance(answer, TransactionRefusedError):
            return (answer.index, self.told(answer.error))
        if isinstance(answer, MetadataStoreError):
            return (type(answer), answer.path)
        if isinstance(answer, Stat):
            return Stat(answer.path, answer.version, 0, 0, 0, *answer[5:])
        return answer

    def state(self) -> Any:
        names = read(self.backend, *map(GetChildren, ("/", "/a", "/a/b", "/d")))
        return names, [(path, self.told(stat)) for path, _, stat in everything(self.backend)]


@pytest.fixture(scope="module")
def new_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return a new directory for each example."""
    place, numbers = tmp_path_factory.mktemp("examples"), count()
    return lambda: place / str(next(numbers))


@pytest.mark.slow
@settings(max_examples=2 * settings.default.max_examples)
@given(calls=st.lists(CALLS, min_size=1, max_size=6))
def test_it_answers_like_the_memory_store(
    new_directory: Callable[[], Path], calls: list[list[Any]]
) -> None:
    """Transactions and sequences of any calls have the same answers and effects on both."""
    directory = new_directory()
    with (
        closing(opened(directory, "?sync=false")) as ours,
        closing(connect("memory://model", ConnectOptions())) as model,
    ):
        sides = Side(ours), Side(model)
        for call in calls:
            answers = [side.call(call) for side in sides]
            assert answers[0] == answers[1]
            states = [side.state() for side in sides]
            assert states[0] == states[1]
    with closing(opened(directory, "?sync=false")) as again:
        left = [path for path, _, _ in everything(again)]
        assert left == [path for path, stat in states[0][1] if not stat.ephemeral]
