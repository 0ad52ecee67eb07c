"""What the server reports of nodes, as events of values. No server is involved."""

from __future__ import annotations

import struct

import pytest

from batchkeeper.ops.results import WatchEvent
from batchkeeper.stores.zookeeper.watches.events import NodeEvent, Translator, decode
from batchkeeper.stores.zookeeper.wire.jute import CHANGED, CREATED, DELETED, ZNode
from batchkeeper.stores.zookeeper.wire.nodes import ABSENCE_MARK, MARKS, NULL, VALUE_MARK


def node(zxid: int, *, size: int = 1, version: int = 0) -> ZNode:
    return ZNode(None, size, zxid, zxid + version, 0, 0, version, 0, 0)


def translated(
    *events: tuple[int, str, int],
    found: dict[str, object] | None = None,
    bare: dict[str, int] | None = None,
    following: tuple[int, str, int] | None = None,
) -> tuple[list[tuple[str, str, int | None, int | None]], dict[str, int]]:
    """Return the events of values, and the bare nodes afterwards."""
    translator = Translator()
    translator.bare = dict(bare or {})
    after = [NodeEvent(*following, len(events))] if following else []
    numbered = [NodeEvent(*event, number) for number, event in enumerate(events)]
    results = translator.translate(numbered, found or {}, after)
    assert len(results) == len(events)
    return [tuple(result) for result in results if result is not None], translator.bare


def test_the_life_of_a_value() -> None:
    """A node with a value is created, modified and deleted, with the zxid of each change."""
    events, bare = translated(
        (CREATED, "/a", 5), (CHANGED, "/a", 6), (DELETED, "/a", 7), found={"/a": node(5)}
    )
    assert events == [
        ("created", "/a", 0, 5),
        ("modified", "/a", None, 6),
        ("deleted", "/a", None, 7),
    ]
    assert bare == {}


def test_the_life_of_a_parent() -> None:
    """A parent is created with its first value, and has no events before it or without it."""
    events, bare = translated(
        (CREATED, "/a", 5),
        (CREATED, "/b", 5),
        (CHANGED, "/a", 6),
        (CHANGED, "/a", 7),
        (DELETED, "/b", 8),
        found={"/a": node(5, size=NULL), "/b": node(5, size=NULL)},
    )
    assert events == [("created", "/a", 1, 6), ("modified", "/a", None, 7)]
    assert bare == {}


def test_a_parent_from_before_the_watch() -> None:
    """A node that the walk has found to be bare is created with its next change, at its version."""
    events, bare = translated((CHANGED, "/a", 6), bare={"/a": 4, "/b": 0})
    assert events == [("created", "/a", 5, 6)]
    assert bare == {"/b": 0}


def test_an_empty_value_is_a_value() -> None:
    """Only null data means that there is no value."""
    assert translated((CREATED, "/a", 5), found={"/a": node(5, size=0)})[0] == [
        ("created", "/a", 0, 5)
    ]


@pytest.mark.parametrize(
    "found", [{}, {"/a": -101}, {"/a": node(5, version=1)}, {"/a": node(9)}], ids=repr
)
def test_a_creation_that_was_read_too_late(found: dict[str, object]) -> None:
    """A node that has changed since is a parent if its multi created one directly below it next."""
    for below in ((CREATED, "/a/b", 5), (CREATED, "/a/b/c", 5)):
        assert translated((CREATED, "/a", 5), found=found, following=below) == ([], {"/a": 0})
    for other in (
        None,
        (CREATED, "/a/b", 6),
        (CREATED, f"/a{VALUE_MARK}", 5),
        (CREATED, "/ab", 5),
        (CHANGED, "/a/b", 5),
        (CHANGED, "/a", 6),
    ):
        events, bare = translated((CREATED, "/a", 5), found=found, following=other)
        assert (events, bare) == ([("created", "/a", 0, 5)], {})


def test_without_zxids_the_nodes_show_which_multi_has_made_them() -> None:
    """Before 3.9, two nodes of one multi have the same zxid of creation."""
    found = {"/a": node(5, version=1), "/a/b": node(5)}
    events, bare = translated((CREATED, "/a", -1), (CREATED, "/a/b", -1), found=found)
    assert (events, bare) == ([("created", "/a/b", 0, 5)], {"/a": 0})
    found["/a/b"] = node(6)
    events, bare = translated((CREATED, "/a", -1), (CREATED, "/a/b", -1), found=found)
    assert (events, bare) == ([("created", "/a", 0, 5), ("created", "/a/b", 0, 6)], {})


def test_without_zxids_a_node_may_be_a_later_one() -> None:
    """Before 3.9, a node that was read counts only for the last creation of its path."""
    events, bare = translated(
        *[(CREATED, "/a", -1), (DELETED, "/a", -1), (CREATED, "/a", -1), (CREATED, "/a/b", -1)],
        found={"/a": node(7, size=NULL), "/a/b": node(7)},
    )
    assert events == [
        ("created", "/a", 0, None),
        ("deleted", "/a", None, None),
        ("created", "/a/b", 0, 7),
    ]
    assert bare == {"/a": 0}


@pytest.mark.parametrize("zxid", [5, -1])
@pytest.mark.parametrize("found", [{}, {"/p": node(9)}], ids=["gone", "created again"])
def test_a_check_leaves_no_event(zxid: int, found: dict[str, object]) -> None:
    """A node that a multi creates and deletes, to check that there is none, is not reported."""
    mark = f"/p{ABSENCE_MARK}"
    check = [(CREATED, "/p", zxid), (CREATED, mark, zxid), (DELETED, mark, zxid)]
    end = (DELETED, "/p", zxid)
    assert translated(*check, end, found=found) == ([], {})
    assert translated(*check[:1], following=check[1], found=found) == ([], {"/p": 0})
    assert translated(*check[1:], end, bare={"/p": 0}) == ([], {})


def test_a_short_life_is_reported() -> None:
    """A value that was deleted right after its creation has both events."""
    for zxid in (5, -1):
        events, bare = translated((CREATED, "/a", zxid), (DELETED, "/a", zxid))
        assert [event[0] for event in events] == ["created", "deleted"]
        assert bare == {}


def test_without_zxids_a_later_deletion_may_still_wait() -> None:
    """Before 3.9, a node is a later one also if the deletion in between has not been handled."""
    events, bare = translated(
        (CREATED, "/a", -1), found={"/a": node(7, size=NULL)}, following=(DELETED, "/a", -1)
    )
    assert (events, bare) == ([("created", "/a", 0, None)], {})


@pytest.mark.parametrize("zxid", [5, -1])
def test_marks_have_no_events(zxid: int) -> None:
    """A mark between a value and a child created below it causes no event itself."""
    assert all(
        translated((CREATED, mark, zxid), (DELETED, mark, zxid)) == ([], {}) for mark in MARKS
    )
    mark = f"/a{VALUE_MARK}"
    events, bare = translated(
        *[(CREATED, "/a", zxid), (CREATED, mark, zxid), (DELETED, mark, zxid)],
        (CREATED, "/a/b", zxid),
    )
    assert [event[:2] for event in events] == [("created", "/a"), ("created", "/a/b")]
    assert bare == {}


def test_decoding() -> None:
    """Paths lose the chroot; the chroot itself and paths that are not valid have no events."""
    paths = ["/c/a", "/c", "/c/a\x01", "/c/ü"]
    packets = [
        struct.pack("!iqiiii", -1, 9, 0, CREATED, 3, len(raw)) + raw
        for raw in [path.encode() for path in paths] + [b"/c/\xff"]
    ]
    assert decode(packets, 7, len("/c")) == [
        NodeEvent(CREATED, "/a", 9, 7),
        NodeEvent(CREATED, "/ü", 9, 10),
    ]


def test_events_are_small() -> None:
    """Callers get plain tuples of the public class."""
    translator = Translator()
    (event,) = translator.translate([NodeEvent(DELETED, "/a", 5, 0)], {}, [])
    assert type(event) is WatchEvent
