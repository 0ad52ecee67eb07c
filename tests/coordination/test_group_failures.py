"""Groups in outages, pauses and lost sessions, on real servers, and other failures."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Final

import pytest

import batchkeeper as bk
from batchkeeper.coordination._sync import groups
from batchkeeper.coordination._sync.groups import Group, GroupEvent
from batchkeeper.coordination._sync.memberships import Membership
from batchkeeper.coordination.members import Member
from batchkeeper.testing import FaultInjector
from batchkeeper.testing.servers import LocalServer

from ..waiting import PATIENCE, error, result, until
from .held_lines import HeldLine, child
from .recipes import begun

# Seconds: sessions that must end, and sessions that must not.
SHORT: Final = 2.0
LONG: Final = 60.0


Opens = Callable[[float], bk.MetadataStore]


@pytest.fixture
def open_direct(server: LocalServer) -> Iterator[Opens]:
    """Open stores on the server, and close them without patience."""
    yield from opener(server.url)


@pytest.fixture
def open_through(server: LocalServer, line: HeldLine) -> Iterator[Opens]:
    """Open stores by the line, and close them without patience."""
    yield from opener(f"{server.name}://{line.address}")


def opener(url: str) -> Iterator[Opens]:
    opened: list[bk.MetadataStore] = []

    def open_one(session_timeout: float) -> bk.MetadataStore:
        opened.append(bk.open_store(url, session_timeout=session_timeout))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close(0)


def members(group: Group) -> dict[str, Member]:
    group._store.sync()
    return group.members()


def test_a_lost_session_is_followed_by_a_new_incarnation(
    line: HeldLine, open_direct: Opens, open_through: Opens
) -> None:
    """After it, the member joins again, with a greater incarnation, and others get that event."""
    group, others = Group(open_through(SHORT), "/hubs"), Group(open_direct(LONG), "/hubs")
    told: list[tuple[GroupEvent, Member]] = []
    others.add_listener(lambda event, member: told.append((event, member)))
    member = group.join("hub-1", b"1", PATIENCE)
    first, lost = member.incarnation, member.lost
    until(lambda: told)
    line.hold()
    until(lambda: told[-1][0] == "left")
    line.release()
    line.cut()
    assert lost.wait(PATIENCE)
    until(lambda: member.joined and told[-1] == ("joined", ("hub-1", b"1", member.incarnation)))
    assert member.incarnation > first
    assert [event for event, _ in told] == ["joined", "left"] * (len(told) // 2) + ["joined"]
    incarnations = [each.incarnation for event, each in told if event == "joined"]
    assert incarnations == sorted(set(incarnations))
    member.leave()


def test_an_update_while_it_is_out_is_not_lost(
    line: HeldLine, open_direct: Opens, open_through: Opens
) -> None:
    """A member that waits for its name takes new data, which others see when it is back."""
    group, others = Group(open_through(SHORT), "/hubs"), Group(open_direct(LONG), "/hubs")
    member = group.join("hub-1", b"old", PATIENCE)
    lost = member.lost
    line.hold()
    rival = others.join("hub-1", b"rival", PATIENCE)
    line.release()
    line.cut()
    assert lost.wait(PATIENCE)
    member.update(b"new")
    assert not member.joined
    assert members(others)["hub-1"].data == b"rival"
    rival.leave()
    until(lambda: members(others).get("hub-1", ("", b"", 0))[1] == b"new")
    until(lambda: member.joined)
    assert member.incarnation > rival.incarnation
    member.leave()
    assert members(others) == {}


def test_a_late_request_touches_no_successor(
    line: HeldLine, open_direct: Opens, open_through: Opens
) -> None:
    """A leave or an update that arrives when another has the name changes nothing."""
    for act in ("leave", "update"):
        store, others = open_through(SHORT), Group(open_direct(LONG), "/hubs")
        member = Group(store, "/hubs").join("hub-1", b"old", PATIENCE)
        lost = member.lost
        line.hold()

        def late(member: Any = member, act: str = act) -> None:
            try:
                member.leave() if act == "leave" else member.update(b"late")
            except bk.MetadataStoreError:
                assert act == "update"

        acting = threading.Thread(target=late)
        acting.start()
        assert line.held.wait(PATIENCE)
        successor = others.join("hub-1", b"successor", PATIENCE)
        line.release()
        acting.join(PATIENCE)
        assert not acting.is_alive()
        assert lost.wait(PATIENCE)
        assert member.lost.is_set()
        result(store.get("/hubs/hub-1"))
        store.flush()
        expected = Member("hub-1", b"successor", successor.incarnation)
        assert members(others) == {"hub-1": expected}
        store.close(0)
        successor.leave()


class SlowToWrite:
    """A store whose transactions wait until the test lets them go."""

    def __init__(self, store: bk.MetadataStore) -> None:
        self._store = store
        self.reached, self.free = threading.Event(), threading.Event()
        self.free.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transaction(self, ops: Any, *, timeout: float | None = None) -> Any:
        self.reached.set()
        assert self.free.wait(PATIENCE)
        return self._store.transaction(ops, timeout=timeout)


@pytest.mark.parametrize("act", ["leave", "update"])
def test_a_write_of_an_earlier_session_touches_no_successor(
    line: HeldLine, open_direct: Opens, open_through: Opens, act: str
) -> None:
    """Also if the member has looked before, and both values have the same version."""
    store, others = open_through(SHORT), Group(open_direct(LONG), "/hubs")
    slow: Any = SlowToWrite(store)
    member = Group(slow, "/hubs").join("hub-1", b"old", PATIENCE)
    lost = member.lost
    slow.free.clear()
    slow.reached.clear()
    acting = threading.Thread(target=member.leave if act == "leave" else lambda: member.update(b""))
    acting.start()
    assert slow.reached.wait(PATIENCE)
    line.hold()
    successor = others.join("hub-1", b"successor", PATIENCE)
    line.release()
    line.cut()
    assert lost.wait(PATIENCE)
    until(lambda: store.session.state == "connected")
    slow.free.set()
    acting.join(PATIENCE)
    assert not acting.is_alive()
    expected = Member("hub-1", b"successor", successor.incarnation)
    assert members(others) == {"hub-1": expected}


STOPPED: Final = """
import sys
import batchkeeper as bk
from batchkeeper.coordination._sync import groups
from batchkeeper.coordination import Group

store = bk.open_store(sys.argv[1], session_timeout=float(sys.argv[2]))
member = Group(store, "/hubs").join("hub-1", b"stopped")
print(member.incarnation, flush=True)
sys.stdin.readline()
member.leave()
store.close(5)
print("left", flush=True)
"""


def test_a_process_that_was_stopped_removes_no_successor(
    server: LocalServer, open_direct: Opens
) -> None:
    """After a pause longer than its session, its first act is to leave: the name stays taken."""
    others = Group(open_direct(LONG), "/hubs")
    with child(STOPPED, server.url, str(SHORT)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        first = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)
        successor = others.join("hub-1", b"successor", PATIENCE)
        assert successor.incarnation > first
        process.stdin.write("\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "left\n"
    expected = Member("hub-1", b"successor", successor.incarnation)
    assert members(others) == {"hub-1": expected}


def test_a_killed_process_is_gone_with_its_session(server: LocalServer, open_direct: Opens) -> None:
    """The next process of that name waits for the end of the session, and then joins."""
    others = Group(open_direct(LONG), "/hubs")
    with child(STOPPED, server.url, str(SHORT)) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline())
        process.kill()
        again = others.join("hub-1", b"again", PATIENCE)
    assert again.incarnation > first
    assert members(others) == {"hub-1": Member("hub-1", b"again", again.incarnation)}


def test_a_short_outage_ends_no_membership(
    line: HeldLine, open_direct: Opens, open_through: Opens
) -> None:
    """After lost connections within the session, the incarnation is the same, and nobody left."""
    group, others = Group(open_through(LONG), "/hubs"), Group(open_direct(LONG), "/hubs")
    told: SimpleQueue[tuple[GroupEvent, str]] = SimpleQueue()
    member = group.join("hub-1", b"1", PATIENCE)
    with group.add_listener(lambda event, each: told.put((event, each.name))):
        assert told.get(timeout=PATIENCE) == ("joined", "hub-1")
        line.cut()
        other = others.join("hub-2", b"", PATIENCE)
        assert told.get(timeout=PATIENCE) == ("joined", "hub-2")
        line.cut()
        other.leave()
        assert told.get(timeout=PATIENCE) == ("left", "hub-2")
    assert not member.lost.is_set()
    member.update(b"2")
    assert members(others) == {"hub-1": Member("hub-1", b"2", member.incarnation)}


def test_a_join_without_an_answer_is_found(
    line: HeldLine, open_direct: Opens, open_through: Opens
) -> None:
    """If the answer to the creation is lost, the member is there once, and leaves as any other."""
    store, others = open_through(LONG), Group(open_direct(LONG), "/hubs")
    group = Group(store, "/hubs")
    group.join("hub-0", timeout=PATIENCE)  # The session stands.
    joined: SimpleQueue[Any] = SimpleQueue()
    line.swallowed.clear()
    line.swallows = True
    joining = threading.Thread(target=lambda: joined.put(group.join("hub-1", b"1", PATIENCE)))
    joining.start()
    line.lose_an_answer(PATIENCE)
    member = joined.get(timeout=PATIENCE)
    joining.join()
    assert members(others)["hub-1"] == Member("hub-1", b"1", member.incarnation)
    member.leave()
    assert list(members(others)) == ["hub-0"]


def test_a_leave_in_an_outage_takes_effect_after_it(
    server: LocalServer, open_direct: Opens
) -> None:
    """The call returns at the store's time-out at the latest, and the value goes when it can."""
    others = Group(open_direct(LONG), "/hubs")
    with bk.open_store(server.url, session_timeout=LONG, operation_timeout=0.3) as store:
        group = Group(store, "/hubs")
        member = until(lambda: joined(group))
        assert member is not None
        server.pause()
        member.leave()
        server.resume()
        until(lambda: members(others) == {})


def joined(group: Group) -> Membership | None:
    """Join with the short time-outs of the store, as often as it takes."""
    try:
        return group.join("hub-1", b"1", PATIENCE)
    except bk.MetadataStoreError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [0, 0.1])
def test_a_server_that_never_answers(fresh_url: Callable[[str], str], timeout: float) -> None:
    """A join without much time, or without any, does not take the store's own time-out."""
    faults = FaultInjector()
    options: Any = {"wrap": faults, "operation_timeout": 10 * PATIENCE}
    with bk.open_store(fresh_url("memory"), **options) as store:
        faults.cut()
        joining = begun(Group(store, "/hubs").join, "hub-1", timeout=timeout)
        assert isinstance(error(joining), bk.MetadataStoreError)
        faults.restore()


def test_no_thread_for_the_keeper(
    fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The join fails and leaves nothing behind, and the next one begins the keeper."""
    faults = FaultInjector()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with bk.open_store(fresh_url("memory"), wrap=faults) as store:
        group = Group(store, "/hubs")
        monkeypatch.setattr(groups, "spawn", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            group.join("hub-1")
        with pytest.raises(RuntimeError, match="new thread"):
            group.add_listener(lambda *_: None)
        monkeypatch.undo()
        assert group.members() == {}
        heard: list[str] = []
        group.add_listener(lambda kind, _: heard.append(kind))
        member = group.join("hub-1", timeout=PATIENCE)
        until(lambda: heard)
        first = member.incarnation
        faults.lose_session()
        until(lambda: member.incarnation > first and member.joined)


def test_a_session_that_ends_beside_the_creation(
    fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member joins in the new session, and its own value never keeps it from its name."""
    faults = FaultInjector()
    with bk.open_store(fresh_url("memory"), wrap=faults) as store:
        transaction = store.transaction

        def lose() -> None:
            before = store.session.id
            faults.lose_session()
            until(lambda: store.session.id not in {None, before})

        def lost_before(parts: Any, **options: Any) -> Any:
            monkeypatch.undo()
            lose()
            return transaction(parts, **options)

        def lost_after(parts: Any, **options: Any) -> Any:
            monkeypatch.undo()
            made = transaction(parts, **options)
            result(made)
            lose()
            return made

        for beside in (lost_before, lost_after):
            group = Group(store, f"/{beside.__name__}")
            monkeypatch.setattr(store, "transaction", beside)
            member = group.join("hub-1", timeout=PATIENCE)
            until(lambda: member.joined)  # noqa: B023 - called at once
            assert group.members()["hub-1"].incarnation == member.incarnation
            member.leave()
            assert group.members() == {}
