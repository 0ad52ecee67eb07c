"""Groups with a leaf: members are one level deeper, beside values that outlive them."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

import pytest

import batchkeeper as bk
from batchkeeper.coordination._sync.groups import Group, GroupEvent
from batchkeeper.coordination.members import Member, check_name, member_name, member_path
from batchkeeper.testing.servers import LocalServer

from ..waiting import PATIENCE, result, until
from .held_lines import HeldLine

# Seconds: a session that is to end.
SHORT = 2.0


def test_names_and_paths() -> None:
    """The path of a name gives the name back, and no other path gives one."""
    for leaf in ("", "alive"):
        assert member_name("/g", member_path("/g", "hub-1", leaf), leaf) == "hub-1"
        for path in ("/g", "/g/", "/g2/hub-1", "/g2/hub-1/alive", "/g/hub-1/alive/x", "/"):
            assert member_name("/g", path, leaf) is None, path
    assert member_path("/g", "hub-1", "") == "/g/hub-1"
    assert member_path("/g", "hub-1", "alive") == "/g/hub-1/alive"
    assert member_name("/g", "/g/hub-1", "alive") is None
    assert member_name("/g", "/g/hub-1/load", "alive") is None
    assert member_name("/g", "/g/hub-1/alive", "") is None
    assert member_name("/g", "/g/.id", "") is None
    assert member_name("/g", "/g/.id", "alive") is None
    assert member_name("/g", "/g/.hub/alive", "alive") == ".hub"


def test_names_with_dots_need_a_leaf(store: bk.MetadataStore) -> None:
    """With a leaf, a name with a dot is no second value of a member; without one, it could be."""
    assert check_name(".hub", "alive") == ".hub"
    with Group(store, "/g", "alive").join(".hub", b"1", PATIENCE) as member:
        assert list(Group(store, "/g", "alive").members()) == [".hub"]
        assert member.path == "/g/.hub/alive"
    with pytest.raises(bk.InvalidPathError, match="no dot"):
        Group(store, "/g").join(".hub")
    for name in ("", "a/b", "."):
        with pytest.raises(bk.InvalidPathError):
            Group(store, "/g", "alive").join(name)
    for leaf in ("a/b", "/", ".", ".."):
        with pytest.raises(bk.InvalidPathError):
            Group(store, "/g", leaf)


def test_a_persistent_value_is_no_member(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Values at and below a member's name are neither members nor touched by them."""
    second = another()
    group, other = Group(store, "/g", "alive"), Group(second, "/g", "alive")
    kept = {
        "/g/hub-1": b"one",
        "/g/hub-2": b"two",
        "/g/hub-1/alive2": b"x",
        "/g/hub-2/a/alive": b"",
    }
    for path, value in kept.items():
        result(store.put(path, value))
    assert group.members() == {}
    member = group.join("hub-1", b"1", PATIENCE)
    assert member.path == "/g/hub-1/alive"
    found = result(store.get(member.path))
    assert found is not None
    assert found.stat.ephemeral
    second.sync()
    assert other.members() == {"hub-1": Member("hub-1", b"1", member.incarnation)}
    member.update(b"2")
    second.sync()
    assert other.members() == {"hub-1": Member("hub-1", b"2", member.incarnation)}
    with pytest.raises(bk.LockBusyError) as caught:
        other.join("hub-1", timeout=0)
    assert caught.value.value == b"2"
    member.leave()
    second.sync()
    assert other.members() == {}
    assert {path: value for path, value, _ in store.scan("/g")} == kept


def test_listeners_hear_of_members_only(store: bk.MetadataStore) -> None:
    """A listener gets changes of members, and no changes of other paths."""
    group = Group(store, "/g", "alive")
    told: SimpleQueue[tuple[GroupEvent, Member]] = SimpleQueue()
    result(store.put("/g/hub-1", b"kept"))
    with group.add_listener(lambda event, member: told.put((event, member))):
        member = group.join("hub-1", b"1", PATIENCE)
        one = Member("hub-1", b"1", member.incarnation)
        assert told.get(timeout=PATIENCE) == ("joined", one)
        result(store.put("/g/hub-1", b"changed"))
        result(store.put("/g/hub-2", b"new"))
        member.update(b"2")
        assert told.get(timeout=PATIENCE) == ("changed", one._replace(data=b"2"))
        result(store.delete("/g/hub-2"))
        member.leave()
        assert told.get(timeout=PATIENCE) == ("left", one._replace(data=b"2"))
    assert told.empty()


def test_a_deleted_member_joins_again(store: bk.MetadataStore) -> None:
    """A member whose value somebody has deleted is back at the same path."""
    group = Group(store, "/g", "alive")
    result(store.put("/g/hub-1", b"kept"))
    with group.add_listener(lambda event, member: None):
        member = group.join("hub-1", b"1", PATIENCE)
        first, lost = member.incarnation, member.lost
        result(store.delete("/g/hub-1/alive"))
        assert lost.wait(PATIENCE)
        until(lambda: member.joined)
        assert member.incarnation > first
        assert group.members() == {"hub-1": Member("hub-1", b"1", member.incarnation)}
        member.leave()
    until(lambda: [path for path, _, _ in store.scan("/g")] == ["/g/hub-1"])


def test_a_lost_session(server: LocalServer, line: HeldLine) -> None:
    """After it, the member joins again, below the value that has outlived it."""
    url = server.url.replace(server.address, line.address)
    with (
        bk.open_store(server.url, session_timeout=30.0) as steady,
        bk.open_store(url, session_timeout=SHORT) as store,
    ):
        result(store.put("/g/hub-1", b"kept"))
        others = Group(steady, "/g", "alive")
        member = Group(store, "/g", "alive").join("hub-1", b"1", PATIENCE)
        first, lost = member.incarnation, member.lost
        line.drops = line.swallows = True
        until(lambda: others.members() == {})
        assert {path for path, _, _ in steady.scan("/g")} == {"/g/hub-1"}
        line.restore()
        assert lost.wait(PATIENCE)
        until(lambda: member.joined)
        assert member.incarnation > first
        steady.sync()
        assert others.members() == {"hub-1": Member("hub-1", b"1", member.incarnation)}
        member.leave()
