"""The order of operations on one path."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from threading import Lock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchkeeper.batching.entry import Entry
from batchkeeper.batching.lane import Lane
from batchkeeper.batching.lines import Lines


def new_lane(writes: bool) -> Lane:
    return Lane(
        "writes" if writes else "reads",
        writes,
        Lock(),
        room=10,
        window=1,
        op_bytes=0,
        max_ops=10,
        max_bytes=1000,
        max_delay=1.0,
        adaptive=True,
    )


READS, WRITES = new_lane(writes=False), new_lane(writes=True)


def new_entry(path: str, writes: bool) -> Entry:
    lane = WRITES if writes else READS
    kind = "put" if writes else "get"
    return Entry(kind, path, None, None, lane, None, 0.0, 60.0)  # type: ignore[arg-type]


def read(path: str = "/a") -> Entry:
    return new_entry(path, writes=False)


def write(path: str = "/a") -> Entry:
    return new_entry(path, writes=True)


@pytest.mark.parametrize("first", [read, write])
def test_alone_on_its_path_an_operation_may_go(first: Callable[..., Entry]) -> None:
    """Operations on different paths do not wait for each other."""
    lines = Lines()
    for path in ("/a", "/b", "/a/b"):
        assert lines.enter(first(path))
        assert lines.busy(path)
    assert not lines.busy("/c")


def test_writes_go_one_after_the_other() -> None:
    """A write may go when the one before it has left, and not earlier."""
    lines = Lines()
    writes = [write() for _ in range(4)]
    assert [lines.enter(entry) for entry in writes] == [True, False, False, False]
    for left, follower in itertools.pairwise(writes):
        assert list(lines.leave(left)) == [follower]
    assert list(lines.leave(writes[-1])) == []
    assert not lines.busy("/a")


def test_reads_share() -> None:
    """Reads of a path go together, and together they hold up a write."""
    lines = Lines()
    reads, after = [read() for _ in range(3)], write()
    assert all(lines.enter(entry) for entry in reads)
    assert not lines.enter(after)
    assert list(lines.leave(reads[1])) == []
    assert list(lines.leave(reads[0])) == []
    assert list(lines.leave(reads[2])) == [after]


def test_a_read_does_not_overtake_a_waiting_write() -> None:
    """A read behind a waiting write waits, although the operations that go are reads."""
    lines = Lines()
    going, waiting, late = read(), write(), read()
    assert lines.enter(going)
    assert not lines.enter(waiting)
    assert not lines.enter(late)
    assert list(lines.leave(going)) == [waiting]
    assert list(lines.leave(waiting)) == [late]


def test_all_reads_up_to_the_next_write_go_together() -> None:
    """When a write leaves, the reads behind it go, up to the next write."""
    lines = Lines()
    first, second = write(), write()
    early, late = [read(), read()], [read()]
    for entry in (first, *early, second, *late):
        lines.enter(entry)
    assert list(lines.leave(first)) == early
    assert list(lines.leave(early[1])) == []
    assert list(lines.leave(early[0])) == [second]
    assert list(lines.leave(second)) == late


def test_one_may_leave_from_the_middle() -> None:
    """A write that is cancelled while it waits lets the reads on both sides of it go together."""
    lines = Lines()
    going, cancelled, behind, last = read(), write(), read(), write()
    for entry in (going, cancelled, behind, last):
        lines.enter(entry)
    assert list(lines.leave(cancelled)) == [behind]
    assert list(lines.leave(going)) == []
    assert list(lines.leave(behind)) == [last]


def test_one_may_leave_from_the_end() -> None:
    """A waiting operation that is cancelled changes nothing for those before it."""
    lines = Lines()
    going, waiting, cancelled = write(), write(), write()
    for entry in (going, waiting, cancelled):
        lines.enter(entry)
    assert list(lines.leave(cancelled)) == []
    assert list(lines.leave(going)) == [waiting]
    assert list(lines.leave(waiting)) == []
    assert not lines.busy("/a")


def test_entries_are_all_that_have_a_place() -> None:
    """Iterating gives each operation that has not left, wherever it stands."""
    lines = Lines()
    entries = [write("/a"), write("/a"), read("/a"), read("/b"), read("/b"), write("/c")]
    for entry in entries:
        lines.enter(entry)
    assert set(lines.entries()) == set(entries)
    lines.leave(entries[0])
    assert set(lines.entries()) == set(entries[1:])


class LinesMachine(RuleBasedStateMachine):
    """Lines beside the naive model: one list for each path, looked through every time."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = Lines()
        self.model: dict[str, list[Entry]] = {"/a": [], "/b": []}
        self.may_go: set[Entry] = set()

    def allowed(self, entry: Entry) -> bool:
        line = self.model[entry.path]
        before = line[: line.index(entry)]
        return not before if entry.writes else not any(other.writes for other in before)

    @rule(path=st.sampled_from(["/a", "/b"]), writes=st.booleans())
    def enter(self, path: str, writes: bool) -> None:
        entry = new_entry(path, writes)
        self.model[path].append(entry)
        allowed = self.lines.enter(entry)
        assert allowed == self.allowed(entry)
        if allowed:
            self.may_go.add(entry)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        present = [entry for line in self.model.values() for entry in line]
        entry = data.draw(st.sampled_from(present))
        line = self.model[entry.path]
        line.remove(entry)
        self.may_go.discard(entry)
        freed = list(self.lines.leave(entry))
        assert freed == [e for e in line if self.allowed(e) and e not in self.may_go]
        self.may_go.update(freed)

    @invariant()
    def all_stand_in_a_line(self) -> None:
        present = {entry for line in self.model.values() for entry in line}
        assert set(self.lines.entries()) == present
        for path, line in self.model.items():
            assert self.lines.busy(path) == bool(line)

    @invariant()
    def no_path_is_changed_twice_at_a_time(self) -> None:
        for line in self.model.values():
            going = [entry for entry in line if entry in self.may_go]
            assert len(going) <= 1 or not any(entry.writes for entry in going)


LinesMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestLinesKeepTheOrder = LinesMachine.TestCase
TestLinesKeepTheOrder.__doc__ = "Whatever enters and leaves, in any order."
