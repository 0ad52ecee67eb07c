"""Lines, lanes and accumulators together, as an engine uses them, but without threads."""

from __future__ import annotations

from threading import Lock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchkeeper.batching.entry import CANCELLED, QUEUED, SENT, Entry
from batchkeeper.batching.lane import Lane
from batchkeeper.batching.lines import Lines

MAX_DELAY = 1.0

#: Path, whether it is a write, bytes beside the path. Some paths are asked for more often.
WISHES = st.tuples(
    st.sampled_from(["/a", "/a", "/a", "/b", "/b", "/c", "/d", "/e"]),
    st.booleans(),
    st.integers(0, 30),
)


class PartsMachine(RuleBasedStateMachine):
    """Operations enter and leave, beside a model that has one list of all of them."""

    @initialize(
        max_ops=st.integers(1, 5),
        max_bytes=st.sampled_from([10, 40, 1000]),
        room=st.integers(1, 30),
        adaptive=st.booleans(),
    )
    def begin(self, max_ops: int, max_bytes: int, room: int, adaptive: bool) -> None:
        self.max_ops, self.max_bytes, self.room, self.adaptive = max_ops, max_bytes, room, adaptive
        self.lines = Lines()
        self.lanes = {
            writes: Lane(
                "writes" if writes else "reads",
                writes,
                Lock(),
                room=room,
                window=9,
                op_bytes=0,
                max_ops=max_ops,
                max_bytes=max_bytes,
                max_delay=MAX_DELAY,
                adaptive=adaptive,
            )
            for writes in (False, True)
        }
        self.now = 0.0
        self.all: list[Entry] = []  # that have a place, in the order of submission
        self.ready: dict[bool, list[Entry]] = {False: [], True: []}  # in the order of their turns
        self.under_way: list[list[Entry]] = []
        self.sent: set[Entry] = set()
        self.ended = 0

    # The model

    def has_turn(self, entry: Entry) -> bool:
        """Say whether no earlier operation blocks this one, by looking at all of them."""
        before = self.all[: self.all.index(entry)]
        same = [other for other in before if other.path == entry.path]
        return not any(other.writes or entry.writes for other in same)

    def depart(self, gone: list[Entry]) -> list[Entry]:
        """Take operations out of the model; return those whose turn has come, by path."""
        had = {entry for entry in self.all if self.has_turn(entry)}
        for entry in gone:
            self.all.remove(entry)
        return [entry for entry in self.all if self.has_turn(entry) and entry not in had]

    # What an engine does

    def make(self, path: str, writes: bool, size: int) -> Entry:
        lane = self.lanes[writes]
        kind = "put" if writes else "get"
        value = bytes(size) if writes else None
        # Without a sink: nobody waits for it.
        return Entry(kind, path, value, None, None, {kind: lane}, None, self.now, 60)  # type: ignore[arg-type]

    @rule(wish=WISHES)
    def submit(self, wish: tuple[str, bool, int]) -> None:
        entry = self.make(*wish)
        held = [other for other in self.all if other.state == QUEUED and other.lane is entry.lane]
        taken = entry.lane.hold(entry)
        assert taken == (len(held) < self.room)
        if not taken:
            return
        self.all.append(entry)
        may_go = self.lines.enter(entry)
        assert may_go == self.has_turn(entry)
        if may_go:
            entry.lane.batches.add(entry)
            self.ready[entry.writes].append(entry)

    @rule(wishes=st.lists(WISHES, max_size=8), writes=st.booleans())
    def submit_many(self, wishes: list[tuple[str, bool, int]], writes: bool) -> None:
        lane = self.lanes[writes]
        made = [self.make(path, writes, size) for path, _, size in wishes]
        entries = [entry for entry in made if lane.hold(entry)]
        self.all += entries
        may_go = list(self.lines.enter_all(entries))
        assert may_go == [entry for entry in entries if self.has_turn(entry)]
        if may_go:
            lane.batches.add_all(may_go, sum(entry.weight for entry in may_go))
            self.ready[writes] += may_go

    @precondition(lambda self: any(entry.state == QUEUED for entry in self.all))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from([entry for entry in self.all if entry.state == QUEUED]))
        had_turn = self.has_turn(entry)
        entry.state = CANCELLED
        entry.lane.release(1, entry.weight)
        if had_turn:
            entry.lane.batches.discard(entry)
            self.ready[entry.writes].remove(entry)
        self.leave([entry], list(self.lines.leave(entry)))

    @rule(writes=st.booleans())
    def take(self, writes: bool) -> None:
        lane = self.lanes[writes]
        ready = self.ready[writes]
        if lane.batches.due(self.now) is None:
            return
        expected = ready[:1]
        for entry in ready[1 : self.max_ops]:
            if sum(other.weight for other in expected) + entry.weight > self.max_bytes:
                break
            expected.append(entry)
        batch = lane.batches.take()
        assert batch == expected
        assert all(entry.state == SENT for entry in batch)
        assert not self.sent.intersection(batch), "sent twice"
        self.sent.update(batch)
        del ready[: len(batch)]
        lane.release(len(batch), sum(entry.weight for entry in batch))
        lane.batches.in_flight += 1
        self.under_way.append(batch)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(batch)
        batch[0].lane.batches.in_flight -= 1
        self.ended += len(batch)
        self.leave(batch, list(self.lines.leave_all(batch)))

    def leave(self, gone: list[Entry], may_go: list[Entry]) -> None:
        expected = self.depart(gone)
        assert sorted(map(id, may_go)) == sorted(map(id, expected))
        for path in {entry.path for entry in may_go}:
            in_order = [entry for entry in expected if entry.path == path]
            assert [entry for entry in may_go if entry.path == path] == in_order
        for entry in may_go:
            entry.lane.batches.add(entry)
            self.ready[entry.writes].append(entry)

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(hurry=st.sampled_from(["flush", "close", None]))
    def set_hurry(self, hurry: str | None) -> None:
        for lane in self.lanes.values():
            lane.batches.hurry = hurry  # type: ignore[assignment]

    # What has to hold

    @invariant()
    def batches_leave_for_the_right_reasons(self) -> None:
        for writes, lane in self.lanes.items():
            ready, batches = self.ready[writes], lane.batches
            expected = None
            if len(ready) >= self.max_ops:
                expected = "ops"
            elif ready and sum(entry.weight for entry in ready) >= self.max_bytes:
                expected = "bytes"
            elif ready and batches.hurry is not None:
                expected = batches.hurry
            elif ready and self.adaptive and not batches.in_flight:
                expected = "idle"
            elif ready and self.now >= ready[0].submitted + MAX_DELAY:
                expected = "delay"
            assert batches.due(self.now) == expected

    @invariant()
    def no_path_is_changed_twice_at_a_time(self) -> None:
        under_way = [entry for batch in self.under_way for entry in batch]
        for entry in under_way:
            beside = [other for other in under_way if other.path == entry.path]
            assert len(beside) == 1 or not any(other.writes for other in beside)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert set(self.lines.entries()) == set(self.all)
        for writes, lane in self.lanes.items():
            queued = [e for e in self.all if e.state == QUEUED and e.writes == writes]
            assert (lane.held, lane.held_bytes) == (len(queued), sum(e.weight for e in queued))
            assert set(self.ready[writes]) == {entry for entry in queued if self.has_turn(entry)}

    def teardown(self) -> None:
        """With a close, every operation that is not cancelled leaves and ends."""
        self.set_hurry("close")
        while self.all:
            left = len(self.all)
            for writes in (False, True):
                self.take(writes)
            for batch in list(self.under_way):
                self.under_way.remove(batch)
                batch[0].lane.batches.in_flight -= 1
                self.ended += len(batch)
                self.leave(batch, list(self.lines.leave_all(batch)))
            assert len(self.all) < left, "nothing goes any more"
        assert self.ended == len(self.sent)
        for lane in self.lanes.values():
            assert (lane.held, lane.held_bytes, lane.batches.ready) == (0, 0, 0)
            lane.close()


PartsMachine.TestCase.settings = settings(stateful_step_count=50, deadline=None)
TestThePartsFit = PartsMachine.TestCase
TestThePartsFit.__doc__ = "Whatever enters, is cancelled, is taken and ends, in any order."
