"""The contents of a view: which events count, and what lies below a path. No store."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as some

import batchkeeper as bk
from batchkeeper.batching.table import OVERHEAD, Table
from batchkeeper.ops.results import ScanPage, ValueEvent

PATHS: Final = ("/", "/a", "/a/b", "/a/b/c", "/a/d", "/e/f/g")
PLENTY: Final = 1 << 30


def put(path: str, revision: int, value: bytes) -> bk.WatchEvent:
    found = bk.GetResult(value, bk.Stat(path, 0, revision))
    return ValueEvent.of(bk.WatchEvent("modified", path, None, revision), found)


def gone(path: str, revision: int | None) -> bk.WatchEvent:
    return bk.WatchEvent("deleted", path, None, revision)


def names_below(path: str, paths: Any) -> list[str]:
    below = path if path == "/" else path + "/"
    return sorted({one.removeprefix(below).split("/")[0] for one in paths if one.startswith(below)})


@given(
    some.lists(
        some.tuples(some.sampled_from(PATHS[1:]), some.none() | some.binary(max_size=3)),
        max_size=12,
    ),
    some.integers(0, 12),
)
def test_events_in_order(changes: list[tuple[str, bytes | None]], asked: int) -> None:
    """The table equals a dict, whenever the children are first asked for; its size is theirs."""
    table, model = Table("/", PLENTY), dict[str, bytes]()
    for place, (path, value) in enumerate(changes):
        if place == asked:
            table.children("/")
        if value is None:
            table.apply([gone(path, place)])
            model.pop(path, None)
        else:
            table.apply([put(path, place, value)])
            model[path] = value
    assert {path: entry[0] for path, entry in table.entries.items()} == model
    for path in PATHS:
        assert table.children(path) == names_below(path, model)
    assert table.bytes == sum(len(p) + len(v) + OVERHEAD for p, v in model.items())


def test_a_broken_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first look at children leaves nothing half done."""
    table = Table("/", PLENTY)
    table.apply([put(path, 1, b"") for path in ("/a", "/b")])

    def parent(path: str) -> str:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("batchkeeper.batching.table.parent", parent)
    with pytest.raises(KeyboardInterrupt):
        table.children("/")
    assert table.children("/") == ["a", "b"]


def test_older_events() -> None:
    """They change nothing; a deletion of an unknown revision counts, and what follows corrects."""
    table = Table("/a", PLENTY)
    table.fill(ScanPage(["/a/b"], [b"5"], [0], [5], [False]))
    assert table.apply([put("/a/b", 4, b"4"), gone("/a/b", 4), put("/a/b", 5, b"5")]) == []
    new = (b"6", 0, 6, None, None, False, False)
    assert table.apply([put("/a/b", 6, b"6"), gone("/a/b", None)]) == [
        ("/a/b", (b"5", 0, 5, None, None, False, False), new),
        ("/a/b", new, None),
    ]
    assert (table.entries, table.bytes) == ({}, 0)


def test_differences() -> None:
    """What was read again is told apart from what was known, also at the same revision."""
    before, after = Table("/", PLENTY), Table("/", PLENTY)
    before.apply([put("/a", 1, b"1"), put("/b", 2, b"2"), put("/c", 3, b"3")])
    after.apply([put("/b", 2, b"2"), put("/c", 3, b"other"), put("/d", 4, b"4")])
    told = {path: (old and old[0], new and new[0]) for path, old, new in before.updates_to(after)}
    assert told == {"/a": (b"1", None), "/c": (b"3", b"other"), "/d": (None, b"4")}


def test_the_limit() -> None:
    """It holds for a scan and for events, and the message has the numbers."""
    table = Table("/a", 2 * OVERHEAD)
    table.apply([put("/a/b", 1, b"")])
    with pytest.raises(bk.ValueTooLargeError, match=r"/a takes more than its 600 bytes: 2 values"):
        table.apply([put("/a/c", 2, b"")])
    with pytest.raises(bk.ValueTooLargeError):
        Table("/a", OVERHEAD).fill(ScanPage(["/a/b"], [b"5"], [0], [5], [False]))
