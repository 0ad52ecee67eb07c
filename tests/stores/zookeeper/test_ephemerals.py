"""Ephemeral values on a real ZooKeeper: they belong to one session, and to no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from batchkeeper.ops import (
    ABSENT,
    AuthenticationError,
    BadVersionError,
    Check,
    Delete,
    Exists,
    Get,
    IndeterminateError,
    Put,
    SessionLostError,
    Stat,
    Transaction,
    TransactionRefusedError,
    UnsupportedError,
)
from batchkeeper.stores import parse_url
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.session.write_ids import WriteIds
from batchkeeper.stores.zookeeper.wire.jute import ANYONE, MULTI
from batchkeeper.testing.servers import ZooKeeperServer

from ...waiting import soon, until
from ..calls import kinds, lose_the_answer, read, write
from .opening import Requests, before_exchange, connected, end_session, ephemeral, in_session


def conflicts(backend: ZooKeeperBackend) -> int:
    return backend.tally.counts()["conflict"]


def test_ephemerals_travel_beside_others(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """Ephemeral and lasting creations share a multi, and their parents are persistent."""
    write(backend, Put("/first", b""))
    ops = [
        op
        for i in range(200)
        for op in (ephemeral(backend, f"/e/{i}/x", b"e"), Put(f"/p/{i}", b"p"))
    ]

    stats = write(backend, *ops)

    assert {(s.version, s.ephemeral, s.owned) for s in stats[::2]} == {(0, True, True)}
    assert {(s.version, s.ephemeral, s.owned) for s in stats[1::2]} == {(0, False, False)}
    assert len({stat.revision for stat in stats}) == 1
    assert [found.stat for found in read(backend, *[Get(op.path) for op in ops])] == stats
    assert other.exists("/e/0").ephemeralOwner == 0
    owner = other.exists("/e/0/x").ephemeralOwner
    assert f"{owner & (1 << 64) - 1:#x}" == backend.session.id


def test_an_ephemeral_put_over_a_value_changes_the_value_only(
    backend: ZooKeeperBackend, other: KazooClient
) -> None:
    """Whether a path is ephemeral is decided at its creation, whatever later puts say."""
    other.create("/theirs", b"", ephemeral=True)
    write(backend, Put("/lasting", b""), ephemeral(backend, "/mine"))

    stats = write(
        backend,
        ephemeral(backend, "/lasting", b"1"),
        ephemeral(backend, "/theirs", b"1"),
        Put("/mine", b"1"),
        in_session(backend, Put("/new", b"", ABSENT, ephemeral=True)),
    )

    flags = [(stat.version, stat.ephemeral, stat.owned) for stat in stats]
    assert flags == [(1, False, False), (1, True, False), (1, True, True), (0, True, True)]


def test_below_an_ephemeral_path_nothing_can_be_put(backend: ZooKeeperBackend) -> None:
    """All such puts of a call are refused after one conflict, and their neighbours are applied."""
    write(backend, *[ephemeral(backend, f"/e{i}") for i in range(20)])
    before = conflicts(backend)

    answers = write(
        backend,
        Put("/plain", b""),
        *[Put(f"/e{i}/a", b"") for i in range(10)],
        *[Put(f"/e{i}/a/b", b"", ABSENT) for i in range(5, 15)],
        ephemeral(backend, "/e15/x"),
        in_session(backend, Put("/e16/x-", b"", ephemeral=True, sequential=True)),
        Put("/e17/x", b"", 3),
        Transaction([Put("/t", b""), Put("/e18/x", b"")]),
        Put("/other", b""),
    )

    assert kinds(answers[1:23]) == [UnsupportedError] * 22
    assert "below an ephemeral one" in str(answers[1])
    assert kinds(answers[23:25]) == [BadVersionError, TransactionRefusedError]
    assert (answers[24].index, type(answers[24].error)) == (1, UnsupportedError)
    assert kinds([answers[0], answers[25]]) == [Stat, Stat]
    assert conflicts(backend) == before + 1


def test_an_ephemeral_path_and_one_below_it_in_one_call(backend: ZooKeeperBackend) -> None:
    """The one above is created, and the ones below are refused together, after one conflict."""
    write(backend, Put("/first", b""))
    before = conflicts(backend)
    answers = write(
        backend, Put("/e/below", b""), ephemeral(backend, "/e"), Put("/a", b""), Put("/e/b/c", b"")
    )

    assert kinds(answers) == [UnsupportedError, Stat, Stat, UnsupportedError]
    assert conflicts(backend) == before + 1


def test_an_ephemeral_value_takes_the_place_of_an_empty_parent(
    backend: ZooKeeperBackend, other: KazooClient
) -> None:
    """A parent that is left over is replaced by an ephemeral node; one in use cannot be."""
    write(backend, Put("/left/a", b""), Put("/used/a", b""))
    write(backend, Delete("/left/a"))
    other.create("/foreign", None)  # a parent that this client has never seen
    other.create("/busy/a", b"", makepath=True)

    answers = write(
        backend,
        ephemeral(backend, "/left", b"1"),
        in_session(backend, Put("/foreign", b"1", ABSENT, ephemeral=True)),
        ephemeral(backend, "/used", b"1"),
        ephemeral(backend, "/busy", b"1"),
    )

    assert kinds(answers) == [Stat, Stat, UnsupportedError, Stat]
    assert [(s.version, s.ephemeral) for s in answers[:2]] == [(0, True), (0, True)]
    # kazoo's own parents hold an empty value.
    assert (answers[3].version, answers[3].ephemeral) == (1, False)
    found = read(backend, Get("/left"), Get("/foreign"), Get("/used"))
    assert [f and (f.value, f.stat) for f in found] == [(b"1", s) for s in answers[:2]] + [None]


def test_a_value_that_is_replaced_by_a_parent_during_an_ephemeral_put(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    other: KazooClient,
) -> None:
    """If the node is not the one that the client has seen, nobody knows what the put has met."""
    write(backend, Put("/a", b"1"))

    def replace() -> None:
        other.delete("/a")
        other.create("/a", None)

    before_exchange(connection, lambda: None, replace)  # between look and multi
    (answer,) = write(backend, ephemeral(backend, "/a", b"2"))

    assert isinstance(answer, IndeterminateError)
    assert answer.applied


def test_a_lost_ephemeral_creation_is_settled(backend: ZooKeeperBackend, line: Any) -> None:
    """Its answer is lost, the session goes on: it gets its Stat, and is there once."""
    write(backend, Put("/a", b""))
    ops = [ephemeral(backend, "/e/x", b"1"), Put("/p", b""), ephemeral(backend, "/a", b"2")]

    answers = lose_the_answer(backend, line, ops)

    assert [(a.version, a.ephemeral, a.owned) for a in answers] == [
        (0, True, True),
        (0, False, False),
        (1, False, False),
    ]
    assert [found.stat for found in read(backend, *[Get(op.path) for op in ops])] == answers
    assert backend.tally.counts()["settled"] == 1


def test_a_lost_ephemeral_creation_whose_session_ends(
    backend: ZooKeeperBackend, line: Any, zookeeper_server: ZooKeeperServer
) -> None:
    """A value that is gone with its session, whatever happened, is lost; the rest stays unknown."""
    write(backend, Put("/a", b""), Put("/x", b""))
    write(backend, Put("/a", b""))
    gone = [
        ephemeral(backend, "/e", b"1"),
        ephemeral(backend, "/s-", b"1", sequential=True),
        in_session(
            backend,
            Transaction([Check("/no", ABSENT), Check("/a", 1), Put("/t", b"", ephemeral=True)]),
        ),
    ]
    unknown = [
        Put("/p", b""),
        in_session(backend, Transaction([Put("/u", b"", ephemeral=True), Put("/v", b"")])),
        in_session(backend, Transaction([Put("/w", b"", ephemeral=True), Delete("/x")])),
    ]

    answers = lose_the_answer(
        backend, line, [*gone, *unknown], lambda: end_session(backend, zookeeper_server.url)
    )

    assert kinds(answers) == [SessionLostError] * 3 + [IndeterminateError] * 3
    assert read(backend, *[Exists(path) for path in ("/e", "/t", "/u", "/p")]) == [
        False,
        False,
        False,
        True,
    ]


def test_a_write_of_an_earlier_session_is_lost(
    backend: ZooKeeperBackend, zookeeper_server: ZooKeeperServer
) -> None:
    """It ends with SessionLostError, and never lands in the next session."""
    write(backend, ephemeral(backend, "/before"), Put("/lasting", b""))
    old = [
        ephemeral(backend, "/e"),
        ephemeral(backend, "/lasting", b"1"),
        ephemeral(backend, "/s-", sequential=True),
        in_session(backend, Transaction([Check("/lasting", 0), Put("/t", b"", ephemeral=True)])),
    ]
    end_session(backend, zookeeper_server.url)
    until(lambda: backend.session.number == 2)

    answers = write(backend, *old, Put("/plain", b""), ephemeral(backend, "/new"))

    assert kinds(answers) == [SessionLostError] * 4 + [Stat, Stat]
    assert answers[0].path == "/e"
    paths = ("/before", "/e", "/s-0000000000", "/t", "/new")
    assert read(backend, *[Exists(path) for path in paths]) == [False] * 4 + [True]
    assert read(backend, Get("/lasting"))[0].stat.version == 0


@pytest.mark.parametrize("slots", [True, False])
def test_a_session_that_ends_at_the_last_moment(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, other: KazooClient, slots: bool
) -> None:
    """A write checks its session when it is sent, with or without a slot."""
    other.create("/open")
    if not slots:
        other.set_acls("/", [make_acl("world", "anyone", read=True, write=True, admin=True)])
    write(backend, Put("/open/before", b""))
    op = ephemeral(backend, "/open/e")
    begin = connection.begin

    def end_first(requests: Requests, *args: Any, **options: Any) -> Any:
        if requests[0][0] == MULTI:
            # As kazoo's thread does, when it learns that the session has ended.
            with connection.lock:
                connection.sessions = 2
        return begin(requests, *args, **options)

    connection.begin = end_first  # type: ignore[method-assign]
    answers = write(backend, op, Put("/open/p", b""))
    other.set_acls("/", OPEN_ACL_UNSAFE)

    assert kinds(answers) == [SessionLostError, Stat]
    assert sorted(other.get_children("/open")) == ["before", "p"]


def test_a_write_that_never_happened_keeps_its_error_after_its_session(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """It does not count as lost with the session, in which it would have made nothing."""
    op = ephemeral(backend, "/e")
    begin = connection.begin

    def refuse(requests: Requests, *args: Any, **options: Any) -> Any:
        if requests[0][0] != MULTI:
            return begin(requests, *args, **options)
        with connection.lock:
            connection.sessions = 2
        return lambda _: [AuthenticationError("not permitted")]

    connection.begin = refuse  # type: ignore[method-assign]
    assert kinds(write(backend, op)) == [AuthenticationError]


def test_slots_belong_to_the_session_that_they_name(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    url: str,
    zookeeper_server: ZooKeeperServer,
) -> None:
    """If a session ends while slots are made, they are made again, in the next one."""

    def end() -> None:
        end_session(backend, zookeeper_server.url)
        until(lambda: connection.sessions == 2 and connection.connected)

    before_exchange(connection, end)
    slots = WriteIds(connection, parse_url(url).prefix(), ANYONE).take(3, soon())

    assert slots is not None
    assert [slot.session for slot in slots] == [2, 2, 2]


def test_ephemerals_without_slots(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """Where no slots are permitted, ephemeral creations get their Stat all the same."""
    other.create("/open")
    other.set_acls("/", [make_acl("world", "anyone", read=True, write=True, admin=True)])

    calls = [[ephemeral(backend, "/open/a"), Put("/open/b", b"")], [ephemeral(backend, "/open/c")]]
    for ops in calls:
        stats = write(backend, *ops)
        assert [found.stat for found in read(backend, *[Get(op.path) for op in ops])] == stats
    other.set_acls("/", OPEN_ACL_UNSAFE)


def test_ephemerals_have_the_rights_of_other_nodes(url: str, zookeeper_server: object) -> None:
    """With ``acl=creator-all``, nobody else may read or change ephemeral and sequential values."""
    mine = connected(f"{url}?acl=creator-all", username="me", password="secret")
    theirs = connected(url, create=False)
    paths = [stat.path for stat in write(mine, *_both(mine))]

    answers = write(theirs, *[Put(path, b"x") for path in paths])
    assert {str(answer).partition(" to ")[0] for answer in answers} == {"ZooKeeper denies access"}
    assert len(paths) == 3
    mine.close()
    theirs.close()


def _both(backend: ZooKeeperBackend) -> list[Any]:
    return [
        ephemeral(backend, "/e"),
        ephemeral(backend, "/s-", sequential=True),
        Put("/s-", b"", sequential=True),
    ]


def test_ephemerals_end_with_the_session(
    backend: ZooKeeperBackend, other: KazooClient, until_gone: Callable[[str], None]
) -> None:
    """Closing the store removes them, and leaves the rest."""
    write(backend, *[ephemeral(backend, f"/e/{i}") for i in range(100)], Put("/p", b""))
    backend.close()

    until_gone("/e/99")
    assert sorted(other.get_children("/e")) == []
    assert other.exists("/p")


@pytest.fixture
def until_gone(other: KazooClient) -> Callable[[str], None]:
    def wait(path: str) -> None:
        until(lambda: other.exists(path) is None)

    return wait
