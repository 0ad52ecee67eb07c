"""Writes whose answers from a real ZooKeeper were lost: each gets the right outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from struct import pack
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    SessionExpiredError,
    SessionMovedError,
    UnknownSessionError,
    ZookeeperError,
)
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Delete,
    Exists,
    Get,
    GetChildren,
    IndeterminateError,
    InvalidPathError,
    MetadataStoreError,
    NotFoundError,
    Operation,
    OperationTimeoutError,
    Put,
    Stat,
)
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.session.write_ids import VOID, WriteIds
from batchkeeper.stores.zookeeper.wire.exchanges import Reply
from batchkeeper.stores.zookeeper.wire.jute import END, GET_DATA, MULTI, SYNC, Done, ZNode
from batchkeeper.stores.zookeeper.writes.settling import Applied, _stamped
from batchkeeper.testing.servers import ZooKeeperServer

from ...waiting import PATIENCE, soon, until
from ..calls import lose_the_answer
from .opening import Requests, connected, end_session


def lose_the_request(
    connection: ZooKeeperConnection,
    line: Any,
    write: Callable[[], Any],
    instead: Callable[[], object] = lambda: None,
    *,
    late: bool = False,
) -> tuple[Any, bytes]:
    """Lose the first multi of a write; return its result, and the multi.

    The connection is cut, and the loss is noticed at once, or ``late``, at the write's deadline.
    """
    begin = connection.begin
    lost: list[bytes] = []

    def lose(requests: Requests, deadline: float, **options: Any) -> Any:
        if requests[0][0] != MULTI or lost:
            return begin(requests, deadline, **options)
        lost.append(requests[0][1])
        instead()
        line.cut()

        def finish(deadline: float) -> list[Reply]:
            until(lambda: not late or time.monotonic() >= deadline)
            return [IndeterminateError("lost")]

        return finish

    connection.begin = lose  # type: ignore[method-assign]
    try:
        return write(), lost[0]
    finally:
        connection.begin = begin  # type: ignore[method-assign]


def refusal_of(backend: ZooKeeperBackend, ops: Sequence[Operation], deadline: float) -> Any:
    with pytest.raises(MetadataStoreError) as refused:
        backend.write(ops, deadline)
    return refused.value


def seed(backend: ZooKeeperBackend) -> None:
    """Leave a slot in use, and values to work on."""
    backend.write([Put("/there", b"0"), Put("/gone", b"0"), Put("/often", b"0")], soon())
    backend.write([Put("/there", b"1"), Put("/often", b"1")], soon())


def test_what_was_applied_is_recovered(backend: ZooKeeperBackend, line: Any) -> None:
    """Every operation of a multi that was applied gets the result that it had, once."""
    seed(backend)
    ops = [
        Put("/new/below", b"n", ABSENT),
        Put("/there", b"2", 1),
        Put("/often", b"2"),
        Put("/plain", b"p"),
        Delete("/gone"),
    ]

    answers = lose_the_answer(backend, line, ops)

    assert [type(answer) for answer in answers] == [Stat] * 4 + [type(None)]
    assert [answer.version for answer in answers[:4]] == [0, 2, 2, 0]
    found = backend.read([Get(op.path) for op in ops], soon())
    assert [result and result.stat for result in found] == answers
    assert backend.tally.counts()["settled"] == 1


def test_a_create_is_never_told_that_it_exists_because_of_itself(
    backend: ZooKeeperBackend, line: Any
) -> None:
    """Creates whose answers are lost, one after the other, succeed: no false conflict."""
    for number in range(5):
        (stat,) = lose_the_answer(backend, line, [Put(f"/{number}", b"", ABSENT)])
        assert isinstance(stat, Stat)
        assert stat.version == 0
    assert backend.tally.counts()["reconnect"] == 5


def test_a_delete_is_never_told_that_nothing_is_there_because_of_itself(
    backend: ZooKeeperBackend, line: Any
) -> None:
    """A delete whose answer is lost succeeds, and one of nothing fails."""
    seed(backend)

    assert list(lose_the_answer(backend, line, [Delete("/gone")])) == [None]
    (missing,) = lose_the_answer(backend, line, [Delete("/gone")])
    assert isinstance(missing, NotFoundError)


def test_what_never_arrived_is_sent_again(
    backend: ZooKeeperBackend, line: Any, connection: ZooKeeperConnection
) -> None:
    """A multi whose request was lost takes effect once, when it is sent again."""
    seed(backend)

    (put,), _ = lose_the_request(
        connection, line, lambda: backend.write([Put("/often", b"2")], soon())
    )

    assert (put.version, backend.read([Get("/often")], soon())[0].stat) == (2, put)


def test_what_cannot_hold_any_more_is_refused_when_it_is_sent_again(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, line: Any, other: KazooClient
) -> None:
    """A lost multi that is sent again meets other clients' changes, each operation by itself."""
    seed(backend)
    ops = [Put("/mine", b"1", ABSENT), Put("/theirs", b"1", ABSENT), Put("/there", b"2", 1)]

    answers, straggler = lose_the_request(
        connection,
        line,
        lambda: backend.write(ops, soon()),
        lambda: other.create("/theirs", b"other"),
    )

    assert [type(answer) for answer in answers] == [Stat, BadVersionError, Stat]
    assert backend.read([Get("/theirs")], soon())[0].value == b"other"
    # It arrives after all, when it could hold again: it was shut out before it was refused.
    for path in ("/mine", "/theirs"):
        other.delete(path)
    other.delete("/there")
    other.create("/there", b"")
    other.set("/there", b"")
    connection.exchange([(MULTI, straggler)], soon(), repeat=False)
    assert backend.read([Exists("/mine"), Exists("/theirs")], soon()) == [False, False]


def test_what_others_changed_meanwhile_is_said_to_be_applied(
    backend: ZooKeeperBackend, line: Any, other: KazooClient
) -> None:
    """If a version cannot be read back, the put is known as applied; other outcomes are certain."""
    seed(backend)
    ops = [Put("/often", b"2"), Put("/there", b"2", 1), Put("/gone", b"1"), Put("/new", b"n")]

    def change() -> None:
        other.set("/often", b"later")
        other.set("/there", b"later")
        other.delete("/gone")
        other.delete("/new")

    often, there, gone, new = lose_the_answer(backend, line, ops, change)

    for lost in (often, gone):
        assert isinstance(lost, IndeterminateError)
        assert lost.applied
    assert [type(there), there.version, there.revision] == [Stat, 2, new.revision]
    assert (new.version, new.created) == (0, there.modified)


def test_a_write_that_is_not_wanted_any_more_is_shut_out(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, line: Any
) -> None:
    """After the deadline, a lost multi never takes effect, and its error says so."""
    seed(backend)

    late, straggler = lose_the_request(
        connection, line, lambda: refusal_of(backend, [Put("/late", b"1")], soon(0.2)), late=True
    )

    assert type(late) is OperationTimeoutError
    # The straggler arrives after all: its slot has moved on.
    (reply,) = connection.exchange([(MULTI, straggler)], soon(), repeat=False)
    assert isinstance(reply, tuple)
    assert backend.read([Exists("/late")], soon()) == [False]


def test_a_write_that_was_applied_in_spite_of_its_deadline_has_its_result(
    backend: ZooKeeperBackend, line: Any
) -> None:
    """A write that cannot be shut out, because it was applied, ends with its result."""
    seed(backend)

    # Its deadline passes; then what is to shut it out is swallowed as well.
    def shut_out() -> None:
        until(lambda: backend.tally.counts()["retry"])

    (stat,) = lose_the_answer(backend, line, [Put("/often", b"2")], shut_out, within=1.0)

    assert backend.read([Get("/often")], soon())[0].stat == stat


@pytest.mark.parametrize(
    ("others", "outcome"), [(0, OperationTimeoutError), (2, IndeterminateError)]
)
def test_what_shut_a_write_out_is_told_from_the_write(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    line: Any,
    other: KazooClient,
    others: int,
    outcome: type[MetadataStoreError],
) -> None:
    """If the answer to shutting a write out is lost, too, it is not taken for the write's.

    Where somebody else has set the slot since, nothing is certain any more.
    """
    seed(backend)

    def swallow() -> None:
        line.swallowed.clear()
        line.on_request = swallow_from_void

    def swallow_from_void() -> None:
        line.swallows = line.swallows or any(VOID in sent for sent in line.sent)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(
            lose_the_request,
            connection,
            line,
            lambda: refusal_of(backend, [Put("/late", b"1")], soon(0.2)),
            swallow,
            late=True,
        )
        assert line.swallowed.wait(PATIENCE)
        slots = "/.batchkeeper/slots"
        for slot in other.get_children(slots) * others:
            other.set(f"{slots}/{slot}", b"theirs")
        line.on_request = lambda: None
        line.restore()
        late, _ = writing.result(PATIENCE)

    assert type(late) is outcome
    assert not getattr(late, "applied", False)
    assert backend.read([Exists("/late")], soon()) == [False]


def test_the_leader_says_whether_a_write_was_applied(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    line: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server that the client is connected to next may not know yet."""
    seed(backend)
    exchange, asked = connection.exchange, []

    def exchanged(requests: Any, *args: Any, **more: Any) -> Any:
        asked.append([opcode for opcode, _ in requests])
        return exchange(requests, *args, **more)

    monkeypatch.setattr(connection, "exchange", exchanged)
    (stat,) = lose_the_answer(backend, line, [Put("/there", b"2", 1)])
    assert stat.version == 2
    assert [SYNC, GET_DATA] in asked


def test_a_node_of_another_client_does_not_stamp_a_multi() -> None:
    """Without a slot, a multi is followed by a look, before which others may have been."""
    results = Done([], [])
    node = ZNode(None, 0, 7, 7, 1000, 1000, 0, 0, 0)
    assert _stamped(7, results, node) == Applied(7, 1000, results)
    assert _stamped(6, results, node) == Applied(None, None, results)


def test_a_session_that_ends_takes_the_slots_with_it(
    backend: ZooKeeperBackend, line: Any, zookeeper_server: ZooKeeperServer
) -> None:
    """A write under way is unknown when its session is lost; the next session works on."""
    seed(backend)

    with pytest.raises(IndeterminateError) as unknown:
        lose_the_answer(
            backend,
            line,
            [Put("/open", b"1")],
            lambda: end_session(backend, zookeeper_server.url),
        )
    (after,) = backend.write([Put("/after", b"1", ABSENT)], soon())
    (again,) = lose_the_answer(backend, line, [Put("/again", b"1", ABSENT)])

    assert not unknown.value.applied
    assert [after.version, again.version] == [0, 0]
    # It had been applied, which nobody could know any more.
    assert backend.read([Exists("/open")], soon()) == [True]


@pytest.mark.parametrize("error", [SessionExpiredError, SessionMovedError, UnknownSessionError])
@pytest.mark.parametrize("where", ["new slot", "slot", "operation", "sent again"])
def test_a_session_that_is_ending_refuses_nothing(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    line: Any,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    error: type[ZookeeperError],
    where: str,
) -> None:
    """A leader's error for a multi while the session ends is about the session, not the multi."""
    if where == "new slot":
        with closing(connected(url)) as other:
            seed(other)
    else:
        seed(backend)
    # One for each operation: making a slot is a multi of one.
    codes = {"new slot": [error.code], "operation": [0, error.code]}.get(where, [error.code, -2])
    refusal = b"".join(pack("!i?ii", -1, False, code, code) for code in codes) + END
    begin = connection.begin
    skipped = 1 if where == "sent again" else 0
    multis = count()

    def ending(requests: Any, deadline: float, **how: Any) -> Any:
        if requests[0][0] == MULTI and next(multis) == skipped:
            return lambda _: [(refusal, 0)]
        return begin(requests, deadline, **how)

    monkeypatch.setattr(connection, "begin", ending)
    put = [Put("/there", b"2", 1)]
    (stat,) = lose_the_answer(backend, line, put) if skipped else backend.write(put, soon())
    (again,) = lose_the_answer(backend, line, [Put("/there", b"3", 2)])

    assert (stat.version, again.version) == (2, 3)
    assert next(multis) > skipped


def test_slots_are_hidden_and_refused_as_a_path(
    backend: ZooKeeperBackend, other: KazooClient
) -> None:
    """The client's internal nodes are not listed as children, and are not valid paths."""
    seed(backend)

    assert other.get_children("/.batchkeeper/slots")
    assert backend.read([GetChildren("/")], soon()) == [["gone", "often", "there"]]
    with pytest.raises(InvalidPathError):
        Put("/.batchkeeper/slots", b"")


def test_slots_end_with_the_session(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """A store that is closed leaves no slot behind."""
    backend.write([Put("/a", b"1")], soon())
    assert len(other.get_children("/.batchkeeper/slots")) == 1
    backend.close()

    assert other.get_children("/.batchkeeper/slots") == []


def test_slots_that_somebody_removed_are_made_anew(
    backend: ZooKeeperBackend, other: KazooClient
) -> None:
    """A multi whose slot is gone before it is sent goes with another one."""
    seed(backend)
    other.delete("/.batchkeeper", recursive=True)

    (stat,) = backend.write([Put("/there", b"2", 1)], soon())

    assert stat.version == 2


def test_without_permission_for_slots_writes_work_and_stay_indeterminate(
    backend: ZooKeeperBackend, line: Any, other: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    """If the chroot permits no new nodes, other writes succeed, with one warning."""
    other.create("/open", b"0")
    other.set_acls("/", [make_acl("world", "anyone", read=True, write=True)])
    stats = [backend.write([Put("/open", b"%d" % i)], soon())[0] for i in range(1, 4)]

    with pytest.raises(IndeterminateError):
        lose_the_answer(backend, line, [Put("/open", b"lost")])

    assert [stat.version for stat in stats] == [1, 2, 3]
    assert [r.levelname for r in caplog.records if "slots refused" in r.message] == ["WARNING"]


def test_slots_are_tried_again_where_permissions_may_have_changed(
    backend: ZooKeeperBackend, line: Any, other: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal of slots is not final: once they are permitted, lost writes are settled."""
    monkeypatch.setattr(WriteIds, "reconsider", 0)
    other.create("/open", b"0")
    other.set_acls("/", [make_acl("world", "anyone", read=True, write=True, admin=True)])
    stats = [backend.write([Put("/open", b"%d" % i)], soon())[0] for i in range(1, 3)]
    other.set_acls("/", OPEN_ACL_UNSAFE)

    (settled,) = lose_the_answer(backend, line, [Put("/open", b"lost", 2)])

    assert [stat.version for stat in (*stats, settled)] == [1, 2, 3]
