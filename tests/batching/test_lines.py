"""The order of operations on one path."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from threading import Lock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchkeeper.batching.entry import Entry
from batchkeeper.batching.lane import Lane
from batchkeeper.batching.lines import Lines
from batchkeeper.ops.operations import Check, OrderKey, Put, PutOptions, TransactionOptions

from .interruption import interrupted


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
    return Entry(kind, path, None, None, None, {kind: lane}, None, 0.0, 60.0)  # type: ignore[arg-type]


def with_keys(key: OrderKey, writes: bool = True) -> Entry:
    entry = new_entry("/several", writes)
    entry.options, entry.key = PutOptions(), key
    return entry


def transaction(changed: Sequence[str], checked: Sequence[str]) -> Entry:
    entry = new_entry("/several", writes=True)
    parts = [*[Check(path, 0) for path in checked], *[Put(path, b"") for path in changed]]
    entry.options = TransactionOptions.of(parts)
    entry.key = entry.options.order_key(entry.path)
    return entry


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
        assert lines.would_wait(write(path))
    assert not lines.would_wait(write("/c"))


def test_writes_go_one_after_the_other() -> None:
    """A write may go when the one before it has left, and not earlier."""
    lines = Lines()
    writes = [write() for _ in range(4)]
    assert [lines.enter(entry) for entry in writes] == [True, False, False, False]
    for left, follower in itertools.pairwise(writes):
        assert list(lines.leave(left)) == [follower]
    assert list(lines.leave(writes[-1])) == []
    assert not lines.would_wait(write("/a"))


def test_reads_share() -> None:
    """Reads of a path proceed together, and a write waits for all of them."""
    lines = Lines()
    reads, after = [read() for _ in range(3)], write()
    assert all(lines.enter(entry) for entry in reads)
    assert not lines.enter(after)
    assert list(lines.leave(reads[1])) == []
    assert list(lines.leave(reads[0])) == []
    assert list(lines.leave(reads[2])) == [after]


def test_a_read_does_not_overtake_a_waiting_write() -> None:
    """A read behind a waiting write waits, even if only reads are under way."""
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
    assert not lines.would_wait(write("/a"))


def test_entries_are_all_that_have_a_place() -> None:
    """Iterating gives each operation that has not left, wherever it stands."""
    lines = Lines()
    entries = [write("/a"), write("/a"), read("/a"), read("/b"), read("/b"), write("/c")]
    for entry in entries:
        lines.enter(entry)
    assert set(lines.entries()) == set(entries)
    lines.leave(entries[0])
    assert set(lines.entries()) == set(entries[1:])


def test_without_a_key_nobody_waits() -> None:
    """An operation without an order key proceeds at once, and blocks no other."""
    lines = Lines()
    entries = [with_keys(None) for _ in range(3)]
    assert all(lines.enter(entry) for entry in entries)
    assert set(lines.entries()) == set(entries)
    assert not lines.would_wait(with_keys(None))
    assert list(lines.leave_all(entries)) == []
    assert not list(lines.entries())


def test_with_several_keys_an_operation_waits_for_all_of_them() -> None:
    """An operation in several lines proceeds when the last one before it, in any line, has left."""
    lines = Lines()
    first, second, both = write("/a"), write("/b"), with_keys(("/a", "/b"))
    assert [lines.enter(entry) for entry in (first, second, both)] == [True, True, False]
    assert lines.would_wait(with_keys(("/c", "/b")))
    assert list(lines.leave(second)) == []
    assert list(lines.leave(first)) == [both]


def test_what_stands_in_several_lines_holds_up_each() -> None:
    """An operation that waits in one line keeps its first place in another."""
    lines = Lines()
    before, both = write("/a"), with_keys(("/a", "/b"))
    after_a, after_b = write("/a"), read("/b")
    entries = (before, both, after_a, after_b)
    assert [lines.enter(entry) for entry in entries] == [True, False, False, False]
    assert list(lines.leave(before)) == [both]
    assert set(lines.leave(both)) == {after_a, after_b}


def test_transactions_share_what_they_only_check() -> None:
    """Transactions that check a path go together with its reads; a write waits for all of them."""
    lines = Lines()
    first, second = transaction(["/b"], ["/a"]), transaction(["/c"], ["/a"])
    reading, writing, late = read("/a"), write("/a"), transaction(["/d"], ["/a"])
    assert not lines.would_wait(first)
    assert all(lines.enter(entry) for entry in (first, reading))
    assert not lines.would_wait(second)
    assert lines.enter(second)
    assert [lines.enter(entry) for entry in (writing, late)] == [False, False]
    assert list(lines.leave_all([second, reading])) == []
    assert list(lines.leave(first)) == [writing]
    assert list(lines.leave(writing)) == [late]


def test_a_check_waits_for_a_change() -> None:
    """A transaction that checks a path waits for the writes before it, and changes what it puts."""
    lines = Lines()
    before, checking, other = write("/a"), transaction(["/b"], ["/a"]), transaction(["/b"], [])
    assert [lines.enter(entry) for entry in (before, checking, other)] == [True, False, False]
    assert list(lines.leave(before)) == [checking]
    assert list(lines.leave(checking)) == [other]


def test_an_operation_with_several_keys_may_be_cancelled_while_it_waits() -> None:
    """After a cancellation, the operations behind proceed as if it had never been there."""
    lines = Lines()
    before, both, after = write("/a"), with_keys(("/a", "/b")), write("/b")
    assert [lines.enter(entry) for entry in (before, both, after)] == [True, False, False]
    assert list(lines.leave(both)) == [after]
    assert list(lines.leave_all([before, after])) == []
    assert not list(lines.entries())


def test_an_interrupted_departure_is_completed() -> None:
    """At whatever point it was interrupted: who is behind goes, and keeps others from going."""
    for at in range(1, 100):
        lines = Lines()
        first, second = read("/a"), write("/a")
        lines.enter_all([first, second])
        went_through = not interrupted(at, lambda lines=lines, first=first: lines.leave(first))
        lines.restore([first])
        assert not second.waits_for
        assert not lines.enter(read("/a"))
        if went_through:
            return
    raise AssertionError("it never got through")


def test_an_operation_with_several_keys_outlives_an_interrupt() -> None:
    """It still waits in as many lines as before, or in one less."""
    for at in range(1, 100):
        lines = Lines()
        first, second, both = write("/a"), write("/b"), with_keys(("/a", "/b"))
        lines.enter_all([first, second, both])
        went_through = not interrupted(at, lambda lines=lines, first=first: lines.leave(first))
        lines.restore([first])
        assert both.waits_for
        assert list(lines.leave(second)) == [both]
        if went_through:
            return
    raise AssertionError("it never got through")


PATHS = ["/a", "/b", "/c"]
ORDER_KEYS = st.one_of(
    st.sampled_from(PATHS),
    st.none(),
    st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True).map(tuple),
)
ASKED = st.one_of(
    st.tuples(ORDER_KEYS, st.booleans()).map(lambda asked: with_keys(*asked)),
    st.dictionaries(st.sampled_from(PATHS), st.booleans(), min_size=1).map(
        lambda changes: transaction(
            [path for path in changes if changes[path]],
            [path for path in changes if not changes[path]],
        )
    ),
)


def keys_of(entry: Entry) -> set[str]:
    key = entry.path if entry.options is None else entry.key
    return set() if key is None else {key} if isinstance(key, str) else set(key)


def changes(entry: Entry, path: str) -> bool:
    parts = () if entry.options is None else entry.options.parts
    return entry.writes and not any(part.kind == "check" and part.path == path for part in parts)


class LinesMachine(RuleBasedStateMachine):
    """Lines beside the naive model: one list of all operations, looked through every time."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = Lines()
        self.model: list[Entry] = []  # in the order of their submission
        self.may_go: set[Entry] = set()

    def allowed(self, entry: Entry) -> bool:
        before = self.model[: self.model.index(entry)]
        return not any(
            changes(entry, path) or changes(other, path)
            for other in before
            for path in keys_of(other) & keys_of(entry)
        )

    def freed(self) -> set[Entry]:
        return {e for e in self.model if self.allowed(e) and e not in self.may_go}

    @rule(entries=st.lists(ASKED, max_size=5))
    def enter_together(self, entries: list[Entry]) -> None:
        self.model += entries
        may_go = self.lines.enter_all(entries)
        assert list(may_go) == [entry for entry in entries if self.allowed(entry)]
        assert all(bool(entry.waits_for) == (entry not in may_go) for entry in entries)
        self.may_go.update(may_go)

    @rule(entry=ASKED)
    def enter(self, entry: Entry) -> None:
        waits = self.lines.would_wait(entry)
        self.model.append(entry)
        allowed = self.lines.enter(entry)
        assert allowed == self.allowed(entry)
        assert waits != allowed
        if allowed:
            self.may_go.add(entry)

    @rule(entry=ASKED, at=st.integers(1, 20))
    def enter_interrupted(self, entry: Entry, at: int) -> None:
        interrupted(at, lambda: self.lines.enter_all([entry]))
        self.restored([entry])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), at=st.integers(1, 20))
    def leave_interrupted(self, data: st.DataObject, at: int) -> None:
        leaving = data.draw(st.sampled_from(self.model))
        self.model.remove(leaving)
        interrupted(at, lambda: self.lines.leave(leaving))
        self.restored([leaving])

    def restored(self, lost: list[Entry]) -> None:
        """Without the lost entries, all is as if they had never entered."""
        self.lines.restore(lost)
        self.may_go = self.freed() | (self.may_go & {*self.model})
        assert all(bool(entry.waits_for) != self.allowed(entry) for entry in self.model)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        leaving = data.draw(st.lists(st.sampled_from(self.model), min_size=1, unique=True))
        for entry in leaving:
            self.model.remove(entry)
            self.may_go.discard(entry)
        one = leaving[0] if len(leaving) == 1 else None
        freed = self.lines.leave(one) if one else self.lines.leave_all(leaving)
        # Of those that leave together, some may have been freed by others before they left.
        assert set(freed) - set(leaving) == self.freed()
        assert len(freed) == len(set(freed))
        self.may_go.update(self.freed())

    @invariant()
    def all_stand_in_a_line(self) -> None:
        entries = list(self.lines.entries())
        assert len(entries) == len(self.model)
        assert set(entries) == set(self.model)
        for path in PATHS:
            taken = any(path in keys_of(entry) for entry in self.model)
            assert self.lines.would_wait(write(path)) == taken

    @invariant()
    def no_path_is_changed_twice_at_a_time(self) -> None:
        for path in PATHS:
            going = [entry for entry in self.may_go if path in keys_of(entry)]
            assert len(going) <= 1 or not any(changes(entry, path) for entry in going)


LinesMachine.TestCase.settings = settings(stateful_step_count=50, deadline=None)
TestLinesKeepTheOrder = LinesMachine.TestCase
TestLinesKeepTheOrder.__doc__ = "Whatever enters and leaves, in any order."
