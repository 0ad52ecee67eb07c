"""Whole calls of reads and writes on a real ZooKeeper, with other clients in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_acl, make_digest_acl

from batchkeeper.ops import (
    ABSENT,
    AuthenticationError,
    BadVersionError,
    Delete,
    Exists,
    Get,
    GetChildren,
    GetResult,
    IndeterminateError,
    NotEmptyError,
    NotFoundError,
    Put,
    Stat,
    StoreUnavailableError,
    UnsupportedError,
    ValueTooLargeError,
)
from batchkeeper.ops.steps import PutValue, Step, step_of
from batchkeeper.stores import parse_url
from batchkeeper.stores.backend import PartRequest
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.reads.reader import Reader
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.wire.jute import MULTI, MULTI_READ
from batchkeeper.testing.servers import ZooKeeperServer

from ...waiting import soon
from ..calls import kinds, read, write
from ..foreign import zookeeper_client
from .opening import before_exchange, bodies_of, connected

Connect = Callable[..., ZooKeeperBackend]


class Chroot:
    """A kazoo client beside the store, with the store's chroot."""

    def __init__(self, client: KazooClient, path: str) -> None:
        self.client = client
        self.path = path

    def set(self, path: str, value: bytes) -> None:
        self.client.set(self.path + path, value)

    def create(self, path: str, value: bytes | None = b"other", **options: Any) -> None:
        self.client.create(self.path + path, value, makepath=True, **options)

    def delete(self, path: str) -> None:
        self.client.delete(self.path + path)

    def flip(self, path: str) -> None:
        """Make the path if it is missing, remove it if it is there."""
        try:
            self.delete(path)
        except NoNodeError:
            self.create(path)


@pytest.fixture
def opened(url: str) -> Iterator[Connect]:
    """Open the same fresh store, as often as wanted."""
    backends = []

    def open_backend(query: str = "", **options: Any) -> ZooKeeperBackend:
        backends.append(connected(url + query, **options))
        return backends[-1]

    yield open_backend
    for backend in backends:
        backend.close()


@pytest.fixture
def backend_url(url: str) -> str:
    return url


@pytest.fixture
def other(
    url: str, zookeeper_server: ZooKeeperServer, backend: ZooKeeperBackend
) -> Iterator[Chroot]:
    with zookeeper_client(zookeeper_server.url) as client:
        yield Chroot(client, parse_url(url).prefix())


class Stamp(NamedTuple):
    """A write of a kind that neither creates nor deletes."""

    path: str
    kind: Any = "stamp"
    value: bytes | None = None
    expected_version: int | None = None
    options: None = None


def step_of_stamp(write: PartRequest) -> Step:
    """Lower a stamp: it sets a value of its own at a node that holds one."""
    if isinstance(write, Stamp):
        return Step(write.path, "exists", PutValue(b"stamp", False))
    return step_of(write)


def test_a_kind_may_set_without_a_value_of_its_own(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step alone decides how a write is sent, also beside puts and deletes."""
    monkeypatch.setattr("batchkeeper.stores.zookeeper.writes.batches.step_of", step_of_stamp)
    write(backend, Put("/d/a", b"1"), Put("/d/b", b"2"), Put("/d/c/e", b"3"))
    answers = backend.write(
        [Delete("/d/b"), Stamp("/d/a"), Put("/d/n", b"4"), Stamp("/d/c"), Stamp("/d/c/e")], soon()
    )
    assert kinds(answers) == [type(None), Stat, Stat, NotFoundError, Stat]
    found = read(backend, Get("/d/a"), Get("/d/b"), Get("/d/c/e"))
    stamped = (b"stamp", 1)
    assert [f and (f.value, f.stat.version) for f in found] == [stamped, None, stamped]
    assert write(backend, Put("/d/a", b"5", 1), Delete("/d/c/e", 1))[1] is None


def test_outcomes_are_independent(backend: ZooKeeperBackend) -> None:
    """In one call every operation gets the outcome that it would have had alone."""
    write(backend, Put("/there", b"0"), Put("/set", b"0"), Put("/gone", b"0"), Put("/low/x", b"0"))

    answers = write(
        backend,
        Put("/new", b"1", ABSENT),
        Put("/there", b"1", ABSENT),
        Put("/there/below", b"1", 7),
        Put("/set", b"1", 0),
        Put("/upsert", b"1"),
        Delete("/gone"),
        Delete("/never"),
        Delete("/low"),
    )

    assert kinds(answers) == [
        Stat,
        BadVersionError,
        BadVersionError,
        Stat,
        Stat,
        type(None),
        NotFoundError,
        NotEmptyError,
    ]
    assert (answers[1].expected, answers[1].actual) == (ABSENT, 0)
    assert (answers[2].expected, answers[2].actual) == (7, ABSENT)
    assert [answers[i].version for i in (0, 3, 4)] == [0, 1, 0]
    assert [found.value for found in read(backend, Get("/new"), Get("/set"), Get("/there"))] == [
        b"1",
        b"1",
        b"0",
    ]
    assert read(backend, Exists("/gone"), Exists("/there/below")) == [False, False]


def test_a_thousand_with_one_in_ten_conflicting(backend: ZooKeeperBackend) -> None:
    """One conflict in ten costs the others nothing but time."""
    write(backend, *[Put(f"/n/{i}", b"0") for i in range(0, 1000, 10)])

    answers = write(backend, *[Put(f"/n/{i}", b"1", ABSENT) for i in range(1000)])

    refused = [i for i, answer in enumerate(answers) if isinstance(answer, BadVersionError)]
    assert refused == list(range(0, 1000, 10))
    assert sum(isinstance(answer, Stat) for answer in answers) == 900


def test_calls_that_always_conflict_look_first(backend: ZooKeeperBackend) -> None:
    """Answers stay right when conflicts have become so frequent that nodes are read first."""
    write(backend, Put("/old", b"0"))

    for i in range(20):
        made, refused, again = write(
            backend, Put(f"/p{i}/new", b"1", ABSENT), Put("/old", b"1", ABSENT), Put("/up", b"1")
        )
        assert isinstance(made, Stat)
        assert isinstance(refused, BadVersionError)
        assert again.version == i


def test_puts_learn_whether_paths_that_nobody_has_seen_have_values(
    opened: Connect, backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """Each soon costs one request: if they exist, if they do not, and if they do again."""
    old = {"a": 1, "b": 0, "c": 1}
    write(opened(), *[Put(f"/{top}/{i}", b"0") for top in old if old[top] for i in range(40)])
    multis, reads = bodies_of(connection, MULTI), bodies_of(connection, MULTI_READ)
    for top, version in old.items():
        for i in range(40):
            if i == 20:
                multis.clear()
                reads.clear()
            (stat,) = write(backend, Put(f"/{top}/{i}", b"1"))
            assert stat.version == version
        assert (len(multis), reads) == (20, [])


def test_calls_with_both_kinds_of_paths_look_first(
    opened: Connect, backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """No guess suits old and new paths together, so their multi comes after a read."""
    write(opened(), *[Put(f"/a/{i}", b"0") for i in range(20)])
    multis = bodies_of(connection, MULTI)
    for i in range(20):
        if i == 10:
            multis.clear()
        one, other = write(backend, Put(f"/a/{i}", b"1"), Put(f"/b/{i}", b"1"))
        assert (one.version, other.version) == (1, 0)
    assert len(multis) == 10


def test_the_stat_that_a_put_gives_is_the_one_that_a_get_finds(backend: ZooKeeperBackend) -> None:
    """Creation, update and reading agree on version, revision and times."""
    created, parent = write(backend, Put("/s/a", b"1"), Put("/s", b"1"))
    assert read(backend, Get("/s/a"), Get("/s")) == [
        GetResult(b"1", created),
        GetResult(b"1", parent),
    ]

    (updated,) = write(backend, Put("/s/a", b"2"))

    assert read(backend, Get("/s/a")) == [GetResult(b"2", updated)]
    assert updated.version == 1
    assert updated.revision > created.revision
    assert updated.created == created.created
    assert not updated.ephemeral


def test_a_parent_holds_no_value_until_one_is_put(backend: ZooKeeperBackend, other: Chroot) -> None:
    """A parent that was made for a child is there for get_children only, with null data."""
    write(backend, Put("/a/b/c", b"1"))

    assert read(backend, Get("/a"), Exists("/a"), Exists("/a/b"), GetChildren("/a")) == [
        None,
        False,
        False,
        ["b"],
    ]
    assert read(backend, Exists("/a")) == [False]
    value, node = other.client.get(other.path + "/a")
    assert value is None
    assert node.owner_session_id is None


@pytest.mark.parametrize("expected", [None, ABSENT])
def test_the_first_put_of_a_parent_gives_version_1(opened: Connect, expected: int | None) -> None:
    """A path that was a parent before its first put starts at version 1, from any creator."""
    write(opened(), Put("/a/b", b"1"))

    (stat,) = write(opened(), Put("/a", b"", expected))

    assert stat.version == 1
    assert read(opened(), Get("/a"), Exists("/a"), GetChildren("/a")) == [
        GetResult(b"", stat),
        True,
        ["b"],
    ]


@pytest.mark.parametrize("same_client", [True, False])
def test_a_parent_has_no_version_to_expect(opened: Connect, same_client: bool) -> None:
    """A put that expects version 0 at a parent without a value is refused."""
    first = opened()
    write(first, Put("/a/b", b"1"))
    backend = first if same_client else opened()

    (refused,) = write(backend, Put("/a", b"1", 0))

    assert isinstance(refused, BadVersionError)
    assert refused.actual == ABSENT
    assert read(backend, Exists("/a")) == [False]


def test_what_became_a_parent_meanwhile_has_no_version_to_expect(opened: Connect) -> None:
    """A client's memory of its own put does not satisfy version 0 after another client's delete."""
    stale, other = opened(), opened()
    write(stale, Put("/t", b"mine", ABSENT))
    write(other, Delete("/t", 0))
    write(other, Put("/t/x", b"1"))

    (refused,) = write(stale, Put("/t", b"mine still", 0))

    assert isinstance(refused, BadVersionError)
    assert refused.actual == ABSENT
    assert read(other, Exists("/t"), Exists("/t/x")) == [False, True]


def test_a_value_that_was_replaced_by_a_parent_is_not_claimed(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, other: Chroot
) -> None:
    """Version 0 never counts as met if the node may have been created again as a parent."""
    write(backend, Put("/t", b"1", ABSENT))

    def replace() -> None:
        other.delete("/t")
        other.create("/t", None)

    # The sync with the look, and the multi.
    before_exchange(connection, lambda: None, replace)

    (answer,) = write(backend, Put("/t", b"2", 0))

    assert isinstance(answer, IndeterminateError)
    assert answer.applied
    assert answer.path == "/t"


def test_puts_that_expect_0_are_looked_at_together(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """Any number of puts that expect 0 in a call takes one read with its sync, and one multi."""
    paths = [f"/t/{n}" for n in range(100)]
    write(backend, *[Put(path, b"1", ABSENT) for path in paths])
    exchanges: list[None] = []
    before_exchange(connection, *[lambda: exchanges.append(None)] * 10)

    answers = write(backend, *[Put(path, b"2", 0) for path in paths])

    assert [answer.version for answer in answers] == [1] * 100
    assert len(exchanges) == 2


def test_an_empty_value_is_a_value(opened: Connect) -> None:
    """Empty is not null: the path exists, has version 0, and can be compared with it."""
    backend = opened()
    write(backend, Put("/empty", b""))

    assert read(opened(), Exists("/empty")) == [True]
    assert read(backend, Exists("/empty"), Get("/none"))[0] is True
    (stat,) = write(opened(), Put("/empty", b"", 0))
    assert stat.version == 1


def test_a_parent_whose_children_went_stays_until_it_is_deleted(
    backend: ZooKeeperBackend,
) -> None:
    """It is listed, it holds no value, and its delete succeeds once."""
    write(backend, Put("/a/b/c", b"1"))
    assert kinds(write(backend, Delete("/a"), Delete("/a/b"))) == [NotEmptyError, NotEmptyError]
    write(backend, Delete("/a/b/c"))
    assert read(backend, GetChildren("/"), Exists("/a/b")) == [["a"], False]

    assert write(backend, Delete("/a/b")) == [None]
    assert write(backend, Delete("/a")) == [None]

    assert read(backend, GetChildren("/")) == [[]]
    assert kinds(write(backend, Delete("/a"))) == [NotFoundError]


def test_a_value_stays_when_its_children_go(backend: ZooKeeperBackend) -> None:
    """A parent with a value keeps it, and its version."""
    write(backend, Put("/a", b"1"), Put("/a/b", b"1"))
    write(backend, Delete("/a/b"))

    (found,) = read(backend, Get("/a"))

    assert (found.value, found.stat.version) == (b"1", 0)


def test_parents_and_children_in_one_call(backend: ZooKeeperBackend) -> None:
    """Paths above and below each other may be written in one call, in any order."""
    below = [Put("/r" + "/x" * depth, b"1", ABSENT) for depth in range(200, 0, -1)]
    assert {answer.version for answer in write(backend, *below, Put("/r", b"1"))} == {0}

    answers = write(backend, Put("/r/new/y", b"1"), Delete("/r" + "/x" * 200), Delete("/r/x"))
    assert kinds(answers) == [Stat, type(None), NotEmptyError]

    leaf = "/r" + "/x" * 199
    answers = write(backend, Delete(leaf), Put(leaf + "/z", b"1"))
    assert kinds(answers) == [NotEmptyError, Stat]
    deletes = [Delete("/r" + "/x" * depth) for depth in range(150, 190)]
    assert kinds(write(backend, *deletes)) == [NotEmptyError] * 40


def test_a_whole_branch_is_deleted_in_one_call(backend: ZooKeeperBackend) -> None:
    """Deletes of parents and children in one call take the children first."""
    write(backend, Put("/r/x/y", b"1"), Put("/r/x", b"1"))

    assert write(backend, Delete("/r"), Delete("/r/x"), Delete("/r/x/y")) == [None, None, None]


def test_a_put_below_a_path_that_the_call_deletes_costs_no_conflict(
    backend: ZooKeeperBackend,
) -> None:
    """Its creation is not sent with the delete, which would fail it."""
    backend.write([Put("/a", b"")], soon())
    below = backend.write([Delete("/a"), Put("/a/b", b"")], soon())[1]
    assert isinstance(below, Stat)
    assert backend.tally.counts()["conflict"] == 0


def test_two_clients_make_the_same_parents_at_once(opened: Connect) -> None:
    """Parents that another client makes first are no obstacle."""
    backends = [opened() for _ in range(4)]

    def put(turn: int) -> list[type]:
        ops = [Put(f"/deep/{i}/er/{turn}", b"1", ABSENT) for i in range(50)]
        return kinds(write(backends[turn], *ops))

    with ThreadPoolExecutor(4) as threads:
        for outcome in threads.map(put, range(4)):
            assert outcome == [Stat] * 50


def test_a_parent_that_another_client_made_costs_no_look_at_the_rest(
    opened: Connect, backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """A multi that failed for its parents is repeated after a read of these parents only."""
    write(opened(), Put("/p/q/first", b"1"))
    reads = bodies_of(connection, MULTI_READ)

    answers = write(backend, *[Put(f"/p/q/{i}", b"1", ABSENT) for i in range(100)])

    assert kinds(answers) == [Stat] * 100
    assert sum(body.count(b"/p/q/") for body in reads) == 0
    assert sum(body.count(b"/p/q") for body in reads) == 1


def test_a_path_that_another_client_made_and_removed(
    backend: ZooKeeperBackend, other: Chroot
) -> None:
    """The client's memory of a path and its parent is only a guess, and never decides."""
    write(backend, Put("/a/x", b"1"), Put("/b", b"1"))
    other.delete("/a/x")
    other.delete("/a")
    other.delete("/b")
    other.create("/c")

    answers = write(
        backend, Put("/a/x", b"2"), Put("/b", b"2", 0), Put("/c", b"2", ABSENT), Put("/a/y", b"2")
    )

    assert kinds(answers) == [Stat, BadVersionError, BadVersionError, Stat]
    assert answers[0].version == 0
    assert (answers[1].actual, answers[2].actual) == (ABSENT, 0)


def test_a_path_that_changes_between_the_rounds(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, other: Chroot
) -> None:
    """A change between the read and the second multi is noticed; neighbours succeed."""
    other.create("/x")
    before_exchange(
        connection,
        lambda: None,  # the multi that fails
        lambda: None,  # the read, which finds /x
        lambda: other.delete("/x"),  # before the second multi
    )

    unconditional, created, wrong = write(
        backend, Put("/x", b"1"), Put("/y", b"1", ABSENT), Put("/z", b"1", 3)
    )

    assert (unconditional.version, created.version) == (0, 0)
    assert isinstance(wrong, BadVersionError)
    assert read(backend, Get("/x"))[0].value == b"1"


def test_a_version_that_changes_between_the_rounds_is_compared_again(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, other: Chroot
) -> None:
    """A condition that held at the read but no longer holds is refused by the second multi."""
    write(backend, Put("/v", b"1"), Put("/there", b"1"))
    before_exchange(
        connection, lambda: None, lambda: None, lambda: other.set("/v", b"of somebody else")
    )

    refused, also = write(backend, Put("/v", b"2", 0), Put("/there", b"2", ABSENT))

    assert (refused.expected, refused.actual) == (0, 1)
    assert isinstance(also, BadVersionError)
    assert read(backend, Get("/v"))[0].value == b"of somebody else"


def test_a_path_that_never_holds_still(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, other: Chroot
) -> None:
    """Even if other clients disturb every round, each operation ends with the right outcome."""
    write(backend, Put("/steady", b"0"))
    before_exchange(connection, *[lambda: other.flip("/restless")] * 25)

    answers = write(
        backend,
        Put("/restless", b"1"),
        *[Put(f"/n/{i}", b"1", ABSENT) for i in range(50)],
        Put("/steady", b"1", 5),
    )

    assert kinds(answers) == [Stat] * 51 + [BadVersionError]


def test_a_parent_that_was_replaced_by_a_value_is_not_claimed(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, other: Chroot
) -> None:
    """ABSENT never counts as met if a value may have been overwritten."""
    write(backend, Put("/before", b"1"))
    other.create("/a", None)

    def replace() -> None:
        other.delete("/a")
        other.create("/a", b"a value, at version 0 like the parent")

    # The multi that fails, the look, and the second multi.
    before_exchange(connection, *[lambda: None] * 2, replace)

    (answer,) = write(backend, Put("/a", b"1", ABSENT))

    assert isinstance(answer, IndeterminateError)
    assert answer.applied
    assert answer.path == "/a"


def test_a_parent_that_got_a_value_meanwhile_is_not_overwritten(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, other: Chroot
) -> None:
    """A put with ABSENT at a parent compares the version that the parent had without a value."""
    write(backend, Put("/before", b"1"))
    other.create("/a", None)
    before_exchange(connection, *[lambda: None] * 2, lambda: other.set("/a", b"of somebody else"))

    (refused,) = write(backend, Put("/a", b"1", ABSENT))

    assert isinstance(refused, BadVersionError)
    assert refused.actual == 1
    assert read(backend, Get("/a"))[0].value == b"of somebody else"


def test_a_delete_above_a_new_path_costs_no_search(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """A delete that a put of the same call makes impossible waits for that put, in one round."""
    write(backend, Put("/a", b"1"), Put("/b", b"1"))
    rounds = []
    before_exchange(connection, *[lambda: rounds.append(1)] * 20)

    answers = write(backend, Delete("/a"), Put("/a/x", b"1"), Delete("/b"))

    assert kinds(answers) == [NotEmptyError, Stat, type(None)]
    assert len(rounds) == 3  # The put and the other delete; the delete; the read.


def test_what_is_not_permitted_ends_alone(backend: ZooKeeperBackend, other: Chroot) -> None:
    """Only the operations without permission end with AuthenticationError."""
    mine = make_digest_acl("somebody", "else", all=True)
    other.create("/locked", acl=[mine])

    answers = write(
        backend,
        Put("/free", b"1"),
        Put("/locked", b"1"),
        Put("/locked/below", b"1"),
        Put("/locked/deep/below", b"1"),
        Put("/there", b"1", 4),
        Delete("/never"),
    )

    assert kinds(answers) == [
        Stat,
        AuthenticationError,
        AuthenticationError,
        AuthenticationError,
        BadVersionError,
        NotFoundError,
    ]
    assert answers[2].path == "/locked/below"
    assert kinds(read(backend, Get("/free"), Get("/locked"), GetChildren("/locked"))) == [
        GetResult,
        AuthenticationError,
        AuthenticationError,
    ]
    assert kinds(read(backend, Get("/locked"))) == [AuthenticationError]


def test_what_is_there_needs_no_permission_to_create(
    opened: Connect, backend: ZooKeeperBackend, other: Chroot
) -> None:
    """Below a parent where only others may create, nodes that they made for all can be written."""
    look_only = [
        make_digest_acl("somebody", "else", all=True),
        make_acl("world", "anyone", read=True),
    ]
    other.create("/theirs/ours", None)
    other.create("/theirs/also", b"0")
    other.client.set_acls(other.path + "/theirs", look_only)

    answers = write(
        opened(),
        Put("/theirs/ours/a/b", b"1"),
        Put("/theirs/also", b"1"),
        Put("/theirs/ours", b"1", 3),
        Put("/theirs/new", b"1"),
        Put("/theirs/new/below", b"1"),
        Put("/theirs/ours/line/", b"1", sequential=True),
        Put("/theirs/line/", b"1", sequential=True),
    )

    assert kinds(answers) == [
        *[Stat, Stat, BadVersionError],
        *[AuthenticationError, AuthenticationError],
        *[Stat, AuthenticationError],
    ]
    assert answers[1].version == 1


def test_what_lies_below_a_parent_that_cannot_be_made_is_answered_together(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, other: Chroot
) -> None:
    """If a missing parent may not be created, all puts below it are refused at once."""
    other.create("/locked", acl=[make_acl("world", "anyone", read=True)])
    rounds: list[int] = []
    before_exchange(connection, *[lambda: rounds.append(1)] * 100)

    answers = write(
        backend, Put("/free", b"1"), *[Put(f"/locked/deep/{i}", b"1", ABSENT) for i in range(50)]
    )

    assert kinds(answers) == [Stat, *[AuthenticationError] * 50]
    assert answers[-1].path == "/locked/deep/49"
    assert len(rounds) < 20  # Without, there would be one for each operation at least.


def test_many_that_are_not_permitted(backend: ZooKeeperBackend, other: Chroot) -> None:
    """Forbidden operations by the hundred do not hold up their neighbours."""
    other.create("/locked", acl=[make_digest_acl("somebody", "else", all=True)])

    answers = write(
        backend, *[Put(f"/{'locked' if i % 2 else 'free'}/{i}", b"1") for i in range(400)]
    )

    assert kinds(answers) == [Stat, AuthenticationError] * 200


def test_nodes_of_the_logged_in_are_theirs(opened: Connect) -> None:
    """With acl=creator-all, a user's nodes are closed to others, and open to the user anywhere."""
    login = {"username": "anna", "password": "secret"}
    write(opened("?acl=creator-all", **login), Put("/a/b", b"1"))

    assert kinds(write(opened(), Put("/a/b", b"2"), Put("/a/c", b"2"))) == [
        AuthenticationError,
        AuthenticationError,
    ]
    (stat,) = write(opened(**login), Put("/a/b", b"2", 0))
    assert stat.version == 1


def test_nothing_is_kept_below_an_ephemeral_node(backend: ZooKeeperBackend, other: Chroot) -> None:
    """A put below another client's ephemeral node is refused with a reason; neighbours succeed."""
    other.create("/eph", ephemeral=True)

    answers = write(backend, Put("/eph/below", b"1"), Put("/else", b"1"), Put("/eph", b"2"))

    assert kinds(answers) == [UnsupportedError, Stat, Stat]
    assert (answers[2].ephemeral, answers[2].owned) == (True, False)
    (found,) = read(backend, Get("/eph"))
    assert found.stat == answers[2]


def test_values_of_a_megabyte(own_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """The largest values go through, and a hundred of them are read in one call by a newcomer."""
    url = own_zookeeper().url
    backend, newcomer = connected(url), connected(url)
    try:
        largest = backend.limits.value_bytes
        paths = [f"/big/{i:03}" for i in range(100)]
        for path in paths:
            assert kinds(write(backend, Put(path, path.encode() * 115_000))) == [Stat]
        small = [f"/small/{i}" for i in range(1000)]
        write(backend, Put("/x", b"x" * largest))
        write(backend, *[Put(path, b"1") for path in small])
        # From here on it takes values for small.
        assert len(read(newcomer, *map(Get, small))) == 1000

        found = read(newcomer, *map(Get, paths), Get("/x"), *map(Exists, paths))
        mixed = read(newcomer, *map(Exists, [*small, *paths]), *map(Get, small))
    finally:
        backend.close()
        newcomer.close()

    assert [result.value for result in found[:100]] == [path.encode() * 115_000 for path in paths]
    assert found[100].value == b"x" * largest
    assert found[101:] == [True] * 100
    assert mixed[:1100] == [True] * 1100
    assert {result.value for result in mixed[1100:]} == {b"1"}


def test_what_no_request_can_hold_is_refused_alone(
    backend: ZooKeeperBackend, other: Chroot
) -> None:
    """An operation that is too large is refused before it is sent, and the session goes on."""
    session = backend.session.id
    # A request has room for its delete, but not for the access rights of its put as well.
    long_path = "/l" + "o" * (backend.limits.request_bytes - 62)

    answers = write(
        backend,
        Put("/before", b"1"),
        Put("/huge", b"x" * 1_048_575),
        Put(long_path, b"1"),
        Delete(long_path),
        Put("/after", b"1"),
    )

    assert kinds(answers) == [Stat, *[ValueTooLargeError] * 2, NotFoundError, Stat]
    assert "jute.maxbuffer" in str(answers[1])
    longer = long_path + "o" * 200
    assert kinds(read(backend, Get("/before"), Get(longer))) == [GetResult, ValueTooLargeError]
    assert kinds(write(backend, Delete(longer), Put(longer, b"", 0), Put("/later", b"1"))) == [
        ValueTooLargeError,
        ValueTooLargeError,
        Stat,
    ]
    assert backend.session.id == session
    assert not other.client.exists(other.path + "/huge")


def test_more_than_one_packet_holds_is_split(backend: ZooKeeperBackend) -> None:
    """Parents and characters of three bytes do not make a call too large."""
    paths = [f"/{i}/" + "\u4e2d" * 900 for i in range(1000)]

    assert (
        kinds(write(backend, *[Put(path, b"x" * 100, ABSENT) for path in paths])) == [Stat] * 1000
    )

    assert all(isinstance(found, GetResult) for found in read(backend, *map(Get, paths)))


def test_children_are_sorted_and_what_is_reserved_is_hidden(
    opened: Connect, zookeeper_server: ZooKeeperServer, other: Chroot
) -> None:
    """Names come in byte order, without the internal ones of the server and the client."""
    backend = opened()
    other.create("/.batchkeeper/x")
    other.create("/zookeeper")
    names = ["b", "a", "Z", "\u00e9", "\u4e2d", "a.b", "zookeeper2"]
    write(backend, *[Put(f"/{name}", b"1") for name in names], Put("/a/zookeeper", b"1"))

    assert read(backend, GetChildren("/"), GetChildren("/a"), GetChildren("/none")) == [
        sorted(names, key=str.encode),
        ["zookeeper"],
        [],
    ]
    root = connected(zookeeper_server.url)
    try:
        assert "zookeeper" not in root.read([GetChildren("/")], soon())[0]  # type: ignore[operator, list-item]
    finally:
        root.close()


def test_the_chroot_is_made_again_if_it_went(backend: ZooKeeperBackend, other: Chroot) -> None:
    """If the chroot of an open store is removed, the next put creates it again."""
    other.client.delete(other.path)

    assert read(backend, GetChildren("/"), Get("/a")) == [[], None]
    assert kinds(write(backend, Put("/a", b"1"))) == [Stat]


def test_many_threads_at_once(backend: ZooKeeperBackend) -> None:
    """Calls from many threads do not mix up their answers."""

    def one(turn: int) -> bool:
        paths = [f"/t{turn}/{i}" for i in range(20)]
        stats = write(backend, *[Put(path, path.encode()) for path in paths])
        found = read(backend, *map(Get, paths))
        return all(
            stat.path == result.stat.path == path and result.value == path.encode()
            for path, stat, result in zip(paths, stats, found, strict=True)
        )

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(one, range(200)))


def test_what_was_applied_is_told_although_a_later_look_fails(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what still waited for the look ends with its error."""

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailableError("gone")

    large = bytes(700_000)  # so that each has a multi of its own
    backend.write([Put("/there", b"")], soon())
    monkeypatch.setattr(Reader, "read_nodes", fail)
    stat, error = backend.write([Put("/new", large), Put("/there", large, 5)], soon())
    assert stat.version == 0
    assert isinstance(error, StoreUnavailableError)
    assert error.path == "/there"
