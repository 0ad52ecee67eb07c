"""Groups: who is there, under which name, and which incarnation of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination._sync.groups import Group, GroupEvent
from batchkeeper.coordination.members import Member, decode, encode
from batchkeeper.ops.errors import LockBusyError, LockLostError
from batchkeeper.testing import FaultInjector

from ..forks import holds_in_a_child, locked_elsewhere
from ..waiting import PATIENCE, error, result, until
from .recipes import begun

Opens = Callable[[], bk.MetadataStore]


@pytest.fixture
def store(store_url: str) -> Iterator[bk.MetadataStore]:
    """An empty store of each kind."""
    with bk.open_store(store_url) as opened:
        yield opened


@pytest.fixture
def another(store: bk.MetadataStore, store_url: str) -> Iterator[Opens]:
    """Open another client of the same store. It is the store itself if only one can have it."""
    with ExitStack() as stack:

        def open_another() -> bk.MetadataStore:
            if bk.store_kind(store_url).local_directory:
                return store
            return stack.enter_context(bk.open_store(store_url))

        yield open_another


@pytest.fixture
def memory() -> Iterator[bk.MetadataStore]:
    """An empty store in memory, for what is the same on all stores."""
    with bk.open_store("memory://groups") as opened:
        yield opened


class Told:
    """A listener's callback that keeps its events."""

    def __init__(self) -> None:
        self._told: SimpleQueue[tuple[GroupEvent, Member]] = SimpleQueue()

    def __call__(self, event: GroupEvent, member: Member) -> None:
        self._told.put((event, member))

    def next(self) -> tuple[GroupEvent, Member]:
        return self._told.get(timeout=PATIENCE)

    def names(self, number: int) -> list[tuple[GroupEvent, str]]:
        return [(event, member.name) for event, member in (self.next() for _ in range(number))]

    def empty(self) -> bool:
        return self._told.empty()


def in_background(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


# --- joining and leaving


def test_members_are_there_from_join_to_leave(store: bk.MetadataStore, another: Opens) -> None:
    """Everybody sees a member with its name, its data and its incarnation until it leaves."""
    second = another()
    group, other = Group(store, "/hubs"), Group(second, "/hubs")
    one = group.join("hub-1", b"10.0.0.1", PATIENCE)
    two = other.join("hub-2", timeout=PATIENCE)
    assert (one.name, one.data, one.joined) == ("hub-1", b"10.0.0.1", True)
    assert two.incarnation > one.incarnation
    expected = {
        "hub-1": Member("hub-1", b"10.0.0.1", one.incarnation),
        "hub-2": Member("hub-2", b"", two.incarnation),
    }
    for each, session in ((group, store), (other, second)):
        session.sync()
        assert each.members() == expected
    assert one.held_until() == store.session.valid_until()
    one.leave()
    assert one.lost.is_set()
    assert one.held_until() == -math.inf
    second.sync()
    assert list(other.members()) == ["hub-2"]
    one.leave()
    with pytest.raises(LockLostError):
        one.update(b"late")
    two.leave()
    assert group.members() == {}
    assert result(store.get_children("/hubs")) == []


def test_an_update_changes_data_only(store: bk.MetadataStore, another: Opens) -> None:
    """New data is seen by all; the incarnation stays, for those who never saw the first value."""
    member = Group(store, "/hubs").join("hub-1", b"old", PATIENCE)
    before = member.incarnation
    for data in (b"new", b"", b"\n 7\n", b"6f1c0a6e5b2d4c8e 17\nnewer"):
        member.update(data)
        assert (member.data, member.incarnation) == (data, before)
        other = another()
        other.sync()
        assert Group(other, "/hubs").members() == {"hub-1": Member("hub-1", data, before)}


def test_a_later_incarnation_is_greater(store: bk.MetadataStore) -> None:
    """Who joins again under a name has a greater incarnation, also after updates."""
    group = Group(store, "/hubs")
    found = []
    for _ in range(4):
        with group.join("hub-1", timeout=PATIENCE) as member:
            member.update(b"x")
            found.append(member.incarnation)
            assert group.members()["hub-1"].incarnation == member.incarnation
    assert found == sorted(set(found))


def test_a_name_belongs_to_one_member(store: bk.MetadataStore, another: Opens) -> None:
    """A second member of that name is refused at its time-out, with the data of the first."""
    first = Group(store, "/hubs").join("hub-1", b"first", PATIENCE)
    for group in (Group(store, "/hubs"), Group(another(), "/hubs")):
        for timeout in (0.0, 0.2):
            with pytest.raises(LockBusyError) as caught:
                group.join("hub-1", b"second", timeout)
            assert (caught.value.value, caught.value.path) == (b"first", "/hubs/hub-1")
    first.update(b"still")
    assert Group(store, "/hubs").members()["hub-1"].data == b"still"


@pytest.mark.slow
def test_a_timeout_in_an_outage(fresh_url: Callable[[str], str]) -> None:
    """A join that no server answers ends soon after its own time, not after the store's."""
    url, faults = fresh_url("memory"), FaultInjector()
    with (
        bk.open_store(url) as other,
        bk.open_store(url, wrap=faults, operation_timeout=10 * PATIENCE) as store,
    ):
        Group(other, "/hubs").join("hub-1")
        faults.delay("get", skip=1)  # The first one belongs to the attempt.
        joining = begun(Group(store, "/hubs").join, "hub-1", timeout=0.1)
        assert isinstance(error(joining), bk.OperationTimeoutError)


def test_a_name_is_free_after_its_member(store: bk.MetadataStore, another: Opens) -> None:
    """Who waits for a name gets it when its member leaves."""
    first = Group(store, "/hubs").join("hub-1", b"first", PATIENCE)
    got: SimpleQueue[Any] = SimpleQueue()
    other = another()
    waiting = in_background(
        lambda: got.put(Group(other, "/hubs").join("hub-1", b"second", PATIENCE))
    )
    until(lambda: other.metrics().watches == 1)
    first.leave()
    second = got.get(timeout=PATIENCE)
    waiting.join()
    assert second.incarnation > first.incarnation
    assert Group(other, "/hubs").members()["hub-1"].data == b"second"


def test_a_name_is_free_after_the_session_of_its_member(store_url: str) -> None:
    """A process that starts again waits until the store has ended its former session."""
    if bk.store_kind(store_url).local_directory:
        with bk.open_store(store_url) as before:
            Group(before, "/hubs").join("hub-1", b"old", PATIENCE)
        with bk.open_store(store_url) as after:
            assert Group(after, "/hubs").join("hub-1", b"new", PATIENCE).data == b"new"
        return
    before = bk.open_store(store_url)
    with bk.open_store(store_url) as after:
        old = Group(before, "/hubs").join("hub-1", b"old", PATIENCE)
        got: SimpleQueue[Any] = SimpleQueue()
        waiting = in_background(
            lambda: got.put(Group(after, "/hubs").join("hub-1", b"new", PATIENCE))
        )
        until(lambda: after.metrics().watches == 1)
        before.close()
        assert got.get(timeout=PATIENCE).incarnation > old.incarnation
        assert old.lost.wait(PATIENCE)
        waiting.join()


def test_a_member_never_removes_the_value_of_another(store: bk.MetadataStore) -> None:
    """If somebody has deleted a member's value, and another has the name, it touches nothing."""
    group = Group(store, "/hubs")
    for act in ("leave", "update"):
        old = group.join("hub-1", b"old", PATIENCE)
        result(store.delete("/hubs/hub-1"))
        new = Group(store, "/hubs").join("hub-1", b"new", PATIENCE)
        if act == "leave":
            old.leave()
        else:
            old.update(b"mine")
        assert group.members()["hub-1"] == Member("hub-1", b"new", new.incarnation)
        old.leave()
        assert group.members()["hub-1"] == Member("hub-1", b"new", new.incarnation)
        new.leave()
        until(lambda: group.members() == {})


def test_a_change_by_hand_is_survived(store: bk.MetadataStore) -> None:
    """If somebody puts another value over it with its line, updates and the end work on."""
    group = Group(store, "/hubs")
    member = group.join("hub-1", b"1", PATIENCE)
    found = result(store.get("/hubs/hub-1"))
    assert found is not None
    result(store.put("/hubs/hub-1", found.value))
    member.update(b"2")
    assert group.members()["hub-1"].data == b"2"
    found = result(store.get("/hubs/hub-1"))
    assert found is not None
    assert found.stat.ephemeral
    result(store.put("/hubs/hub-1", found.value))
    member.leave()
    assert result(store.get_children("/hubs")) == []


def test_a_member_whose_value_was_deleted_joins_again(store: bk.MetadataStore) -> None:
    """A process that watches the group notices, and joins again with a new incarnation."""
    group = Group(store, "/hubs")
    told = Told()
    with group.add_listener(told):
        member = group.join("hub-1", b"1", PATIENCE)
        assert told.names(1) == [("joined", "hub-1")]
        first, lost = member.incarnation, member.lost
        result(store.delete("/hubs/hub-1"))
        assert lost.wait(PATIENCE)
        assert told.names(2) == [("left", "hub-1"), ("joined", "hub-1")]
        until(lambda: member.joined)
        assert member.incarnation > first
        assert group.members()["hub-1"].incarnation == member.incarnation
        former = member.lost
        result(store.delete("/hubs/hub-1"))
        assert former.wait(PATIENCE)
        member.leave()
    # ZooKeeper has two values for each member.
    until(lambda: result(store.get_children("/hubs")) == [])


@pytest.mark.server
def test_a_member_whose_second_value_is_gone_is_over(fresh_url: Callable[[str], str]) -> None:
    """Without it, a store without expected revisions cannot tell the member's value from others."""
    with bk.open_store(fresh_url("zookeeper")) as store:
        member = Group(store, "/g").join("hub-1", b"1", PATIENCE)
        lost = member.lost
        (second,) = {*result(store.get_children("/g"))} - {"hub-1"}
        result(store.delete(f"/g/{second}"))
        in_background(lambda: member.update(b"2"))
        assert lost.wait(PATIENCE)


def test_foreign_values_are_members_too(memory: bk.MetadataStore) -> None:
    """A value that somebody puts there is data; deeper values and hidden names are no members."""
    for path in ("/hubs/by-hand", "/hubs/by-hand/below", "/hubs/.hidden", "/hubs-2/x", "/hubs"):
        result(memory.put(path, b"data"))
    stat = result(memory.put("/hubs/by-hand", b"data\nmore"))
    group = Group(memory, "/hubs")
    assert group.members() == {"by-hand": Member("by-hand", b"data\nmore", stat.revision)}
    with pytest.raises(LockBusyError) as caught:
        group.join("by-hand", timeout=0)
    assert caught.value.value == b"data\nmore"


@pytest.mark.parametrize("data", [b"", b"x", b"\n", b"a b\nc", b"6f1c0a6e5b2d4c8e\n", b"\xff\n"])
def test_what_a_value_says(data: bytes) -> None:
    """Any data comes back, and the incarnation is that of the line, or else the revision."""
    stat = bk.Stat("/g/n", 3, 99)
    for incarnation, expected in ((None, 99), (17, 17)):
        value = encode("6f1c0a6e5b2d4c8e", incarnation, data)
        assert decode("n", value, stat) == ("6f1c0a6e5b2d4c8e", Member("n", data, expected))
    card = decode("n", data, stat)
    assert card.member.incarnation == 99


# --- listeners


def test_listeners_are_told_of_all_changes(store: bk.MetadataStore, another: Opens) -> None:
    """A listener gets all members, and who joins, changes and leaves, with the data of that
    time."""
    group, other = Group(store, "/hubs"), Group(another(), "/hubs")
    one = other.join("hub-1", b"1", PATIENCE)
    told = Told()
    with group.add_listener(told):
        assert told.next() == ("joined", Member("hub-1", b"1", one.incarnation))
        two = other.join("hub-2", b"2", PATIENCE)
        assert told.next() == ("joined", Member("hub-2", b"2", two.incarnation))
        one.update(b"one")
        assert told.next() == ("changed", Member("hub-1", b"one", one.incarnation))
        second = Told()
        with group.add_listener(second):
            assert sorted(second.names(2)) == [("joined", "hub-1"), ("joined", "hub-2")]
            two.leave()
            assert told.next() == second.next() == ("left", Member("hub-2", b"2", two.incarnation))
            assert told.empty()
    until(lambda: store.metrics().watches == 0)
    one.leave()
    third = Told()
    with group.add_listener(third):
        other.join("hub-3", b"", PATIENCE)
        assert third.names(1) == [("joined", "hub-3")]
    assert told.empty()


def test_a_restart_is_told(store: bk.MetadataStore) -> None:
    """A name that leaves and joins causes both events, even if the listener was busy meanwhile."""
    group = Group(store, "/hubs")
    told, busy = Told(), threading.Event()

    def slow(event: GroupEvent, member: Member) -> None:
        told(event, member)
        assert busy.wait(PATIENCE)

    first = group.join("hub-1", b"a", PATIENCE)
    with group.add_listener(slow):
        assert told.next() == ("joined", Member("hub-1", b"a", first.incarnation))
        first.leave()
        second = group.join("hub-1", b"a", PATIENCE)
        busy.set()
        assert told.next() == ("left", Member("hub-1", b"a", first.incarnation))
        assert told.next() == ("joined", Member("hub-1", b"a", second.incarnation))


def test_a_blocked_listener_stops_nobody_else(memory: bk.MetadataStore) -> None:
    """While it blocks, members join and leave, and others get that; it gets the difference."""
    group = Group(memory, "/hubs")
    told, slow, entered, free = Told(), Told(), threading.Event(), threading.Event()

    def blocked(event: GroupEvent, member: Member) -> None:
        slow(event, member)
        entered.set()
        assert free.wait(PATIENCE)

    with group.add_listener(blocked), group.add_listener(told):
        member = group.join("hub-1", b"1", PATIENCE)
        assert entered.wait(PATIENCE)
        assert told.names(1) == [("joined", "hub-1")]
        for data in (b"2", b"3"):
            member.update(data)
            assert told.names(1) == [("changed", "hub-1")]
        with group.join("hub-2", timeout=PATIENCE):
            assert told.names(1) == [("joined", "hub-2")]
        assert told.names(1) == [("left", "hub-2")]
        free.set()
        assert slow.names(1) == [("joined", "hub-1")]
        assert slow.next() == ("changed", Member("hub-1", b"3", member.incarnation))
        member.leave()
        assert told.names(1) == slow.names(1) == [("left", "hub-1")]


@pytest.mark.slow
def test_a_callback_may_do_anything(memory: bk.MetadataStore) -> None:
    """It may join, leave, update, close its listener and the store; after that it is silent."""
    group = Group(memory, "/hubs")
    told = Told()
    listener: Any = None

    def busy(event: GroupEvent, member: Member) -> None:
        told(event, member)
        if member.name == "hub-1":
            joined = group.join("hub-2", b"2", PATIENCE)
            joined.update(b"two")
            assert group.members()["hub-2"].data == b"two"
            joined.leave()
            listener.close()
            memory.close()

    listener = group.add_listener(busy)
    group.join("hub-1", timeout=PATIENCE)
    assert told.names(1) == [("joined", "hub-1")]
    until(lambda: not any("of /hubs" in thread.name for thread in threading.enumerate()))
    assert told.empty()


# --- users' mistakes, and the end of the store


def test_bad_input_is_refused(memory: bk.MetadataStore) -> None:
    """Bad paths, names, data, time-outs and callbacks are refused by the call."""
    with pytest.raises(bk.InvalidPathError):
        Group(memory, "hubs")
    group = Group(memory, "/hubs")
    for name in ("", ".hub", "a/b", "..", "a\x00", 7):
        with pytest.raises(bk.InvalidPathError):
            group.join(name)  # type: ignore[arg-type]
    with pytest.raises(bk.InvalidSettingError):
        group.join("hub", "text")  # type: ignore[arg-type]
    with pytest.raises(bk.InvalidSettingError):
        group.join("hub", timeout=-1)

    async def coroutine(_event: GroupEvent, _member: Member) -> None: ...

    for callback in (None, coroutine):
        with pytest.raises(bk.InvalidSettingError):
            group.add_listener(callback)  # type: ignore[arg-type]
    member = group.join("hub", timeout=PATIENCE)
    with pytest.raises(bk.InvalidSettingError):
        member.update("text")  # type: ignore[arg-type]
    assert group.members()["hub"].data == b""


def test_a_store_that_lacks_a_capability(
    stores: Callable[..., bk.MetadataStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing capability is named by the constructor."""
    store = stores()
    monkeypatch.setattr(bk.MetadataStore, "capabilities", frozenset({"watches"}))
    with pytest.raises(bk.UnsupportedError, match="ephemerals"):
        Group(store, "/hubs")


@pytest.mark.slow
def test_the_end_of_the_store_ends_everything(store_url: str) -> None:
    """A join that waits raises soon, memberships are lost, and no thread is left."""
    store = bk.open_store(store_url)
    group = Group(store, "/hubs")
    member = group.join("hub-1", timeout=PATIENCE)
    group.add_listener(Told())
    failed: SimpleQueue[BaseException] = SimpleQueue()

    def wait() -> None:
        try:
            group.join("hub-1")
        except BaseException as error:
            failed.put(error)

    waiting = in_background(wait)
    until(lambda: store.metrics().watches == 2)
    store.close()
    assert isinstance(failed.get(timeout=PATIENCE), bk.StoreClosedError)
    waiting.join()
    assert member.held_until() == -math.inf
    assert member.lost.wait(PATIENCE)
    member.leave()
    with pytest.raises(bk.StoreClosedError):
        group.join("hub-2")
    with pytest.raises(bk.StoreClosedError):
        group.members()
    until(lambda: not any("/hubs" in thread.name for thread in threading.enumerate()))


def test_a_forked_child_is_no_member(memory: bk.MetadataStore) -> None:
    """In a forked process, all calls raise, also if threads of the parent were busy."""
    group = Group(memory, "/hubs")
    member = group.join("hub-1", timeout=PATIENCE)
    listener = group.add_listener(Told())

    def refused() -> bool:
        listener.close()
        for call in (
            lambda: group.join("hub-2"),
            group.members,
            lambda: group.add_listener(Told()),
            lambda: member.update(b""),
            member.leave,
        ):
            with pytest.raises(bk.StoreClosedError):
                call()  # type: ignore[no-untyped-call]
        return member.held_until() == -math.inf

    with locked_elsewhere(group, member, listener):
        assert holds_in_a_child(refused)
    member.leave()


def test_many_threads_share_a_group(memory: bk.MetadataStore) -> None:
    """Of threads that join under one name, one at a time is a member."""
    group = Group(memory, "/hubs")
    inside: list[int] = []
    incarnations: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            with group.join("one", b"%d" % number, PATIENCE) as member:
                inside.append(number)
                assert len(inside) == 1
                incarnations.append(member.incarnation)
                inside.remove(number)

    threads = [in_background(lambda number=number: work(number)) for number in range(6)]
    for thread in threads:
        thread.join(PATIENCE)
    assert len(incarnations) == 30
    assert incarnations == sorted(set(incarnations))
    assert result(memory.get_children("/hubs")) == []


def test_the_example_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The first example runs unchanged, without a server."""
    text = (Path(__file__).parents[2] / "docs" / "groups.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    exec(compile(example, "groups.md", "exec"), {})
    assert "hub-1" in capsys.readouterr().out
