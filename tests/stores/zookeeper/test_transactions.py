"""Transactions on a real ZooKeeper: groups inside a multi, which stand or fall together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kazoo.client import KazooClient

import batchkeeper as bk
from batchkeeper.batching.engine import Engine
from batchkeeper.ops import (
    ABSENT,
    AuthenticationError,
    BadVersionError,
    Check,
    Delete,
    Exists,
    Get,
    GetChildren,
    IndeterminateError,
    NotEmptyError,
    NotFoundError,
    Operation,
    Put,
    Stat,
    Transaction,
    TransactionRefusedError,
    UnsupportedError,
    ValueTooLargeError,
)
from batchkeeper.stores import parse_url
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.session.write_ids import WriteIds
from batchkeeper.stores.zookeeper.wire.jute import EXISTS
from batchkeeper.stores.zookeeper.writes import writer
from batchkeeper.stores.zookeeper.writes.settling import MultiSettler

from ...waiting import PATIENCE, error, result, until
from ..calls import kinds, lose_the_answer, read, write
from .opening import before_exchange, bodies_of, connected, in_session


def txn(*parts: Any) -> Transaction:
    return Transaction(parts)


def refused(answer: Any) -> tuple[int, type]:
    """Return what a refused transaction says."""
    assert isinstance(answer, TransactionRefusedError)
    return answer.index, type(answer.error)


def there(backend: ZooKeeperBackend, *paths: str) -> list[bool]:
    return [bool(found) for found in read(backend, *[Exists(path) for path in paths])]


def conflicts(backend: ZooKeeperBackend) -> int:
    return backend.tally.counts()["conflict"]


def test_transactions_travel_beside_others(backend: ZooKeeperBackend) -> None:
    """They share a multi with each other and with other writes, and have one result a part."""
    write(backend, *[Put(f"/owner/{i}", b"") for i in range(100)], Put("/gone", b""))
    write(backend, *[Put(f"/owner/{i}", b"") for i in range(100)])

    answers = write(
        backend,
        *[txn(Check(f"/owner/{i}", 1), Put(f"/data/{i}", b"%d" % i)) for i in range(100)],
        txn(Delete("/gone"), Put("/come", b""), Check("/none", ABSENT)),
        Put("/plain", b""),
    )

    stats = [answer[1] for answer in answers[:100]]
    assert [answer[0] for answer in answers[:100]] == [None] * 100
    assert [found.stat for found in read(backend, *[Get(s.path) for s in stats])] == stats
    assert [type(part) for part in answers[100]] == [type(None), Stat, type(None)]
    assert {stat.revision for stat in [*stats, answers[100][1], answers[101]]} == {
        stats[0].revision
    }
    assert there(backend, "/gone", "/come", "/none") == [False, True, False]


def test_refused_transactions_cost_one_conflict(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """All of a call are found with one read, and their neighbours are applied together."""
    write(backend, *[Put(f"/a/{i}", b"x" * 3_000) for i in range(40)])
    before = conflicts(backend)
    looks = bodies_of(connection, EXISTS)

    answers = write(
        backend,
        *[Put(f"/p/{i}", b"") for i in range(10)],
        *[txn(Put(f"/n/{i}", b""), Check(f"/a/{i}", 3 * (i % 2))) for i in range(20)],
        *[txn(Check(f"/a/{i}", ABSENT), Put(f"/m/{i}", b"")) for i in range(20, 25)],
        *[txn(Put(f"/m/{i}", b""), Delete(f"/none/{i}")) for i in range(25, 30)],
        *[txn(Put(f"/m/{i}", b""), Put(f"/a/{i}", b"", 7)) for i in range(30, 35)],
        *[txn(Put(f"/a/{i}/x", b""), Delete(f"/a/{i}")) for i in range(35, 40)],
    )

    assert kinds(answers[:10]) == [Stat] * 10
    assert kinds(answers[10:30:2]) == [list] * 10
    assert [refused(answer) for answer in answers[11:30:2]] == [(1, BadVersionError)] * 10
    assert [refused(answer) for answer in answers[30:]] == [
        *[(0, BadVersionError)] * 5,
        *[(1, NotFoundError)] * 5,
        *[(1, BadVersionError)] * 5,
        *[(1, NotEmptyError)] * 5,
    ]
    assert conflicts(backend) == before + 1
    # Their nodes are seen at one moment, whatever the sizes of their values.
    assert not any(b"/a/3" in look for look in looks)
    assert there(backend, "/n/1", "/m/20", "/m/25", "/m/30", "/a/35/x") == [False] * 5
    error = answers[11].error
    assert (error.path, error.expected, error.actual) == ("/a/1", 3, 0)


def test_a_look_counts_what_earlier_parts_change(backend: ZooKeeperBackend) -> None:
    """After a neighbour's conflict, a transaction that empties a path still may delete it."""
    write(backend, Put("/a", b""), Put("/a/b", b""), Put("/a/c", b""))

    answers = write(
        backend,
        txn(Check("/none", 3)),
        txn(Delete("/a/b"), Delete("/a/c"), Delete("/a")),
    )

    assert kinds(answers) == [TransactionRefusedError, list]
    assert there(backend, "/a") == [False]


#: Parts, and whether they hold: ``None``, or the first that does not, and why.
IN_ORDER: dict[str, tuple[list[Any], tuple[int, type] | None]] = {
    "children first": ([Delete("/a/b"), Delete("/a")], None),
    "parent first": ([Delete("/a"), Delete("/a/b")], (0, NotEmptyError)),
    "put below and delete": ([Delete("/a/b"), Put("/a/c", b""), Delete("/a")], (2, NotEmptyError)),
    "delete and put below": ([Delete("/a/b"), Delete("/a"), Put("/a/c/d", b"")], None),
    "put below what is put": ([Put("/n/m", b""), Put("/n", b"")], None),
    "all new": ([Put("/n/m/o", b"", ABSENT), Check("/n/x", ABSENT), Put("/n", b"", ABSENT)], None),
    "a new parent is absent": ([Put("/n/m/o", b""), Check("/n/m", ABSENT)], None),
    "a new parent has no version": ([Put("/n/m", b""), Check("/n", 0)], (1, BadVersionError)),
    "nor can it be set": ([Put("/n/m", b""), Put("/n", b"", 0)], (1, BadVersionError)),
    "nor deleted": ([Put("/n/m", b""), Delete("/n")], (1, NotEmptyError)),
    "nothing there": ([Check("/x/y/z", ABSENT), Check("/x", ABSENT)], None),
    "a deleted one is absent": ([Delete("/a/b"), Check("/a/b/c", ABSENT)], None),
    "all kinds": ([Check("/a/b", 0), Delete("/d", 0), Put("/a", b"", 1)], None),
    "the first counts": (
        [Check("/a", 1), Put("/d", b"", 4), Check("/no", 1)],
        (1, BadVersionError),
    ),
    "below ephemeral": ([Put("/e", b"", ephemeral=True), Put("/e/x", b"")], (1, UnsupportedError)),
    "ephemeral above": ([Put("/e/x", b""), Put("/e", b"", ephemeral=True)], (1, UnsupportedError)),
    "none below a new ephemeral": ([Put("/e", b"", ephemeral=True), Check("/e/x", ABSENT)], None),
    "none below an ephemeral": ([Check("/mine/x/y", ABSENT), Put("/n", b"")], None),
    "none below what goes": ([Check("/mine/x", ABSENT), Delete("/mine")], None),
    "none below it any more": ([Delete("/mine"), Check("/mine/x", ABSENT)], None),
    "an ephemeral one": ([Check("/e", ABSENT), Put("/f", b"", ephemeral=True)], None),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_parts_are_decided_in_order(backend: ZooKeeperBackend, case: str) -> None:
    """Each part meets what the parts before it have left."""
    write(
        backend,
        Put("/a", b""),
        Put("/a/b", b""),
        Put("/d", b""),
        in_session(backend, Put("/mine", b"", ephemeral=True)),
    )
    write(backend, Put("/a", b""))
    parts, refusal = IN_ORDER[case]

    (answer,) = write(backend, in_session(backend, Transaction(parts)))

    if refusal is not None:
        assert refused(answer) == refusal
        assert read(backend, GetChildren("/")) == [["a", "d", "mine"]]
        return
    puts = {part.path: stat for part, stat in zip(parts, answer, strict=True) if stat}
    for part in parts:
        assert (part.path in puts) == (part.kind == "put")
    found = read(backend, *[Get(path) for path in puts])
    assert [get.stat for get in found] == list(puts.values())
    if case in {"put below what is put", "all new"}:
        assert {stat.version for stat in puts.values()} == {0}


#: Requests that meet in one call, and must not disturb each other.
MEETINGS: dict[str, list[Operation]] = {
    "a put below what is deleted": [Put("/a/x", b""), txn(Delete("/a/b"), Delete("/a"))],
    "a delete below what is deleted": [Delete("/a/b"), txn(Delete("/a"), Put("/n", b""))],
    "a put of a parent": [Put("/n/m", b""), txn(Put("/n", b""), Check("/d", 0))],
    "a put below a put": [Put("/n", b""), txn(Put("/n/m", b""), Check("/d", 0))],
    "a check of a parent": [Put("/n/m", b""), txn(Check("/n", ABSENT), Put("/o", b""))],
    "a delete of a parent": [Delete("/d"), txn(Put("/d/x", b""), Put("/o", b""))],
    "crossing": [txn(Put("/n/m", b""), Delete("/d")), txn(Put("/d/x", b""), Put("/n", b""))],
    "one deletes": [txn(Delete("/d")), txn(Put("/d/x", b"")), txn(Put("/d/y", b""))],
    "two below a new one": [txn(Put("/n/m", b"")), txn(Put("/n/o", b"")), Put("/n/p", b"")],
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("meeting", MEETINGS)
def test_relatives_in_one_call(backend: ZooKeeperBackend, meeting: str, backwards: bool) -> None:
    """Parents and children of different requests are in one call, and no multi fails for that.

    Only a delete of a path that another request fills may be refused.
    """
    write(backend, Put("/a", b""), Put("/a/b", b""), Put("/d", b""))
    before = conflicts(backend)
    ops = MEETINGS[meeting]

    answers = write(backend, *(reversed(ops) if backwards else ops))

    bad = [answer for answer in answers if isinstance(answer, Exception)]
    assert len(bad) <= 1
    assert all("has values below it" in str(error) for error in bad)
    # A refusal costs one conflict.
    assert conflicts(backend) - before <= len(bad)


def test_an_ephemeral_part_whose_path_the_call_makes_a_parent(backend: ZooKeeperBackend) -> None:
    """The put beside it comes first, and the transaction is refused: nothing of it is applied."""
    whole = txn(Put("/d/e", b""), Put("/a/b", b"v", ephemeral=True))

    below, answer = write(backend, Put("/a/b/c", b""), in_session(backend, whole))

    assert isinstance(below, Stat)
    assert refused(answer) == (1, UnsupportedError)
    assert there(backend, "/a/b/c", "/a/b", "/d/e") == [True, False, False]


def test_a_transaction_is_never_split(url: str, zookeeper_server: object) -> None:
    """Where a request has no room for a whole call, each transaction is in one multi."""
    with closing(connected(f"{url}?jute_maxbuffer=4000")) as backend:
        ops = [
            txn(*[Put(f"/t{i}/{k}", bytes(300)) for k in range(1 + i % 5)], Check("/no", ABSENT))
            for i in range(20)
        ]
        answers = write(backend, Put("/plain", b""), *ops)

        revisions = [{stat.revision for stat in answer if stat} for answer in answers[1:]]
        assert {len(some) for some in revisions} == {1}
        assert len(set.union(*revisions)) > 5


def test_a_transaction_that_fits_in_no_request(url: str, zookeeper_server: object) -> None:
    """It is refused as too large, and its neighbours are applied."""
    with closing(connected(f"{url}?jute_maxbuffer=4000")) as backend:
        large = txn(Check("/no", ABSENT), *[Put(f"/t/{k}", bytes(500)) for k in range(8)])
        answers = write(backend, Put("/a", b""), large, txn(Put("/b", b"")))

        assert kinds(answers) == [Stat, ValueTooLargeError, list]
        assert there(backend, "/t/0") == [False]


def test_a_check_for_nothing_leaves_nothing(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """Neither the path nor its parents are there afterwards; a parent without a value is absent."""
    write(backend, Put("/p/child", b""), Put("/left/child", b""))
    write(backend, Delete("/left/child"))
    other.create("/foreign", None)
    other.create("/empty", b"")

    answers = write(
        backend,
        txn(Check("/x/y/z", ABSENT), Check("/p/q/r", ABSENT), Check("/p", ABSENT), Put("/a", b"")),
        txn(Check("/left", ABSENT), Check("/foreign", ABSENT), Put("/b", b"")),
        txn(Put("/c", b""), Check("/empty", ABSENT)),
    )

    assert kinds(answers[:2]) == [list, list]
    assert refused(answers[2]) == (1, BadVersionError)
    names = set(other.get_children("/")) - {".batchkeeper"}
    assert names == {"a", "b", "p", "left", "foreign", "empty"}
    assert other.get_children("/p") == ["child"]


def test_a_check_of_version_0_needs_a_value(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """A parent without a value is no value at version 0, whatever the client remembers."""
    write(backend, Put("/a", b""), Put("/b/child", b""), Put("/c", b""))
    other.delete("/c")
    other.create("/c/child", b"", makepath=True)
    other.delete("/c/child")
    other.delete("/c")
    other.create("/c", None)

    answers = write(
        backend, *[txn(Check(path, 0), Put(f"{path}2", b"")) for path in ("/a", "/b", "/c")]
    )

    assert kinds(answers) == [list, TransactionRefusedError, TransactionRefusedError]
    assert refused(answers[2]) == (0, BadVersionError)
    assert answers[2].error.actual == ABSENT


def test_a_check_below_an_ephemeral_path_that_goes(backend: ZooKeeperBackend) -> None:
    """The path is deleted by the same call, and the check holds before and after."""
    write(backend, in_session(backend, Put("/e", b"", ephemeral=True)))

    answers = write(backend, Delete("/e"), txn(Check("/e/x/y", ABSENT), Put("/a", b"")))

    assert kinds(answers) == [type(None), list]


def test_an_ephemeral_node_above_that_is_replaced(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    other: KazooClient,
) -> None:
    """If the node below which nothing can be is another one, the check may not have held."""
    write(backend, in_session(backend, Put("/e", b"", ephemeral=True)))

    def replace() -> None:
        other.delete("/e")
        other.create("/e/x", b"", makepath=True)

    # After the first attempt and the look.
    before_exchange(connection, lambda: None, lambda: None, replace)
    (answer,) = write(backend, txn(Check("/e/x", ABSENT), Put("/b", b"")))

    assert isinstance(answer, IndeterminateError)
    assert answer.applied


@pytest.mark.parametrize("when", ["before the multi", "after the multi"])
def test_a_node_that_is_replaced_between_look_and_multi(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    other: KazooClient,
    when: str,
) -> None:
    """Nobody knows whether the condition held, so the transaction is only known as applied."""
    write(backend, Put("/a", b""), Put("/c", b""))
    after = when == "after the multi"

    def replace() -> None:
        if after:
            until(lambda: other.exists("/b") is not None)
        other.delete("/a")
        other.create("/a", None)

    before_exchange(connection, *[lambda: None] * (1 + after), replace)
    answers = write(
        backend,
        txn(Check("/a", 0), Put("/b", b"")),
        txn(Check("/c", 0), Put("/d", b"")),
        txn(Put("/e", b""), Check("/a", 0)),
    )

    assert kinds(answers) == [IndeterminateError, list, IndeterminateError]
    assert answers[0].applied
    assert answers[2].applied
    assert there(backend, "/b", "/d", "/e") == [True] * 3


def test_a_second_look_over_another_connection_is_repeated(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    other: KazooClient,
    line: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the connection changes meanwhile, nobody knows which state the read has seen."""
    write(backend, Put("/a", b"1"))
    begin, calls = connection.begin, []

    def cut(*args: Any, **how: Any) -> Any:
        calls.append(args)
        finish = begin(*args, **how)
        if len(calls) != 3:  # after the read and the multi
            return finish

        def finish_and_cut(deadline: float) -> Any:
            replies = finish(deadline)
            other.delete("/a")
            other.create("/a", None)
            before = connection.number
            line.cut()
            until(lambda: connection.number != before)
            return replies

        return finish_and_cut

    monkeypatch.setattr(connection, "begin", cut)
    (answer,) = write(backend, txn(Check("/a", 0), Put("/b", b"")))

    assert isinstance(answer, IndeterminateError)
    assert answer.applied


def test_a_second_look_does_not_hold_up_a_multi_that_was_not_sent(
    url: str, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost before the multi: the transaction ends in time, as not applied."""
    begin, calls = ZooKeeperConnection.begin, []

    def cut_off(connection: ZooKeeperConnection, *args: Any, **how: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:  # after the look
            line.close()
            until(lambda: not connection.connected)
        return begin(connection, *args, **how)

    chroot = parse_url(url).prefix()
    with bk.open_store(f"zookeeper://{line.address}{chroot}") as store:
        result(store.put("/a", b"1"))
        # The back end says that the multi was not sent; on a slow machine, it says so late.
        monkeypatch.setattr(Engine, "grace", PATIENCE)
        monkeypatch.setattr(ZooKeeperConnection, "begin", cut_off)
        found = error(store.transaction([Check("/a", 0), Put("/b", b"")], timeout=1))

    assert type(found) is bk.StoreUnavailableError


def test_an_outage_between_the_multis_of_a_call(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier parts keep their answers, although the second read was not sent."""
    write(backend, Put("/a", b"1"), Put("/t", b""))
    monkeypatch.setattr(writer, "_MOST", 1)
    take, calls = WriteIds.take, []

    def fail(ids: WriteIds, count: int, deadline: float) -> Any:
        calls.append(count)
        if len(calls) == 2:
            raise bk.StoreUnavailableError("no slots")
        return take(ids, count, deadline)

    monkeypatch.setattr(WriteIds, "take", fail)
    answers = write(backend, *[txn(Check("/a", 0), Put(f"/t/{n:02}", b"")) for n in range(40)])

    assert kinds(answers) == [*[list] * calls[0], *[bk.StoreUnavailableError] * (40 - calls[0])]
    assert 0 < calls[0] < 40


def test_a_transaction_that_waits_has_no_part_in_the_round(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a multi is that of its own requests only."""
    write(backend, Put("/g", b""))
    send, unknown = MultiSettler.send, IndeterminateError("lost")
    rounds: list[int] = []

    def lose(settler: MultiSettler, groups: Any, deadline: float, then: Any) -> Any:
        rounds.append(len(groups))
        if len(rounds) > 1:
            return send(settler, groups, deadline, then)
        return [unknown] * len(groups)

    monkeypatch.setattr(MultiSettler, "send", lose)
    answers = write(
        backend,
        Put("/p/q", b"", ABSENT),
        Put("/g/v", b"", ABSENT),
        txn(Put("/g/v/c", b"", ABSENT), Check("/p", ABSENT)),
    )

    assert kinds(answers) == [IndeterminateError, IndeterminateError, list]


def test_a_lost_transaction_is_settled(backend: ZooKeeperBackend, line: Any) -> None:
    """Its answer is lost: it gets the results that it had, once, and so do its neighbours."""
    write(backend, Put("/a", b""), Put("/gone", b""), Put("/owner", b""))
    write(backend, Put("/a", b""), Put("/owner", b""))
    ops: list[Any] = [
        txn(
            Check("/owner", 1),
            Put("/n/m", b"1", ABSENT),
            Put("/a", b"2", 1),
            Check("/none/such", ABSENT),
            Delete("/gone"),
        ),
        txn(Put("/o", b"3"), Check("/x", ABSENT)),
        Put("/plain", b"4"),
    ]

    answers = lose_the_answer(backend, line, ops)

    first, second, plain = answers
    assert [stat and stat.version for stat in first] == [None, 0, 2, None, None]
    found = read(backend, Get("/n/m"), Get("/a"), Get("/o"), Get("/plain"))
    assert [get.stat for get in found] == [first[1], first[2], second[0], plain]
    assert second[1] is None
    assert there(backend, "/gone", "/none", "/x") == [False] * 3
    assert backend.tally.counts()["settled"] == 1


def test_a_lost_transaction_that_was_refused(
    backend: ZooKeeperBackend, line: Any, other: KazooClient
) -> None:
    """Its neighbours' answers are lost with its own; each gets the outcome that it had."""
    write(backend, Put("/a", b""), Put("/owner", b""))

    answers = lose_the_answer(
        backend, line, [txn(Put("/n", b""), Check("/owner", 5)), Put("/p", b"", ABSENT)]
    )

    assert refused(answers[0]) == (1, BadVersionError)
    assert isinstance(answers[1], Stat)
    assert there(backend, "/n", "/p") == [False, True]


def test_a_lost_transaction_whose_stat_is_gone(
    backend: ZooKeeperBackend, line: Any, other: KazooClient
) -> None:
    """If one of its Stats cannot be read back, the transaction is known as applied."""
    write(backend, Put("/a", b""))
    ops = [txn(Put("/a", b"1"), Put("/b", b"")), txn(Put("/c", b""))]

    answers = lose_the_answer(backend, line, ops, lambda: other.set("/a", b"later"))

    assert kinds(answers) == [IndeterminateError, list]
    assert answers[0].applied


def test_permissions_of_a_part(url: str, zookeeper_server: object) -> None:
    """A part that the user may not execute refuses the transaction, and only that."""
    theirs = connected(url)
    mine = connected(f"{url}?acl=creator-all", username="me", password="secret")
    write(mine, Put("/mine", b""), Put("/mine/a", b""))
    write(theirs, Put("/open", b""))

    answers = write(
        theirs,
        txn(Put("/ok", b""), Put("/mine", b"x")),
        txn(Put("/ok2", b""), Put("/mine/b", b"x")),
        txn(Check("/mine", 0), Put("/ok3", b"")),
        txn(Put("/ok4", b""), Put("/open", b"")),
    )

    assert [refused(answer) for answer in answers[:3]] == [
        (1, AuthenticationError),
        (1, AuthenticationError),
        (0, AuthenticationError),
    ]
    assert isinstance(answers[3], list)
    mine.close()
    theirs.close()


def test_a_store_without_its_chroot(zookeeper_server: Any, fresh_url: Callable[[str], str]) -> None:
    """Below a chroot that is missing, only checks for nothing and puts hold."""
    backend = connected(fresh_url("zookeeper"), create=False)

    answers = write(backend, txn(Check("/a", 0)), txn(Delete("/a")), Delete("/a"))
    (made,) = write(backend, txn(Check("/a", ABSENT), Put("/b", b"")))

    assert [refused(answer) for answer in answers[:2]] == [(0, BadVersionError), (0, NotFoundError)]
    assert isinstance(made[1], Stat)
    backend.close()
