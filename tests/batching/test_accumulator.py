"""Which operations the next batch contains and when it leaves, exactly and without a clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from threading import Lock

import janus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchkeeper.batching.accumulator import Accumulator
from batchkeeper.batching.entry import CANCELLED, QUEUED, SENT, Entry
from batchkeeper.batching.lane import Lane

MakeLane = Callable[..., Lane]
MakeEntry = Callable[..., Entry]


def fill(lane: Lane, make_entry: MakeEntry, *submitted: float, size: int = 10) -> list[Entry]:
    """Add one entry for each time at which one is submitted."""
    entries = [make_entry(lane, now, size=size) for now in submitted]
    for entry in entries:
        lane.batches.add(entry)
    return entries


def cancel(batches: Accumulator, entry: Entry) -> None:
    """Cancel an entry the way the engine does."""
    entry.state = CANCELLED
    batches.discard(entry)


def test_nothing_is_due_while_nothing_is_ready(make_lane: MakeLane) -> None:
    """An empty accumulator has no batch to send, even during a flush, and no time to wait for."""
    batches = make_lane(adaptive=True).batches
    assert batches.due(1e9) is None
    assert batches.due_in(1e9) is None
    for hurry in ("flush", "close"):
        batches.hurry = hurry
        assert batches.due(1e9) is None


def test_cancelled_operations_that_came_together_make_room(
    make_lane: MakeLane, make_entry: MakeEntry
) -> None:
    """While nothing is sent, any number of operations may come together and be cancelled."""
    lane = make_lane(room=4)
    for _ in range(20):
        entry = make_entry(lane)
        lane.batches.add_all([entry], entry.weight)
        cancel(lane.batches, entry)
    assert lane.batches.ready == 0


def test_count_fires_at_max_ops(make_lane: MakeLane, make_entry: MakeEntry) -> None:
    """The operation that makes max_ops full makes a batch due, and the one before does not."""
    lane = make_lane(max_ops=3)
    fill(lane, make_entry, 0.0, 0.0)
    assert lane.batches.due(0.0) is None
    fill(lane, make_entry, 0.0)
    assert lane.batches.due(0.0) == "ops"


def test_a_batch_has_at_most_max_ops_the_oldest_first(
    make_lane: MakeLane, make_entry: MakeEntry
) -> None:
    """Batches take max_ops operations each, in the order in which they were added."""
    lane = make_lane(max_ops=3)
    entries = fill(lane, make_entry, *[0.0] * 7)
    assert [lane.batches.take() for _ in range(3)] == [entries[:3], entries[3:6], entries[6:]]
    assert lane.batches.ready == 0
    assert lane.batches.ready_bytes == 0


def test_bytes_fire_at_max_bytes(make_lane: MakeLane, make_entry: MakeEntry) -> None:
    """The operation that brings the bytes to max_bytes makes a batch due."""
    lane = make_lane(max_bytes=30)
    fill(lane, make_entry, 0.0, 0.0)
    assert lane.batches.due(0.0) is None
    fill(lane, make_entry, 0.0)
    assert lane.batches.due(0.0) == "bytes"


def test_a_batch_never_exceeds_max_bytes(make_lane: MakeLane, make_entry: MakeEntry) -> None:
    """An operation that no longer fits heads the next batch; nothing overtakes it."""
    lane = make_lane(max_bytes=30)
    large, small = make_entry(lane, size=25), make_entry(lane, size=5)
    first = make_entry(lane, size=10)
    for entry in (first, large, small):
        lane.batches.add(entry)
    assert lane.batches.take() == [first]
    assert (lane.batches.ready, lane.batches.ready_bytes) == (2, 30)
    assert lane.batches.take() == [large, small]


def test_an_operation_larger_than_max_bytes_goes_alone(
    make_lane: MakeLane, make_entry: MakeEntry
) -> None:
    """An operation that is larger than a batch may be is a batch of its own, due at once."""
    lane = make_lane(max_bytes=30)
    giant, after = make_entry(lane, size=500), make_entry(lane, size=5)
    lane.batches.add(giant)
    assert lane.batches.due(0.0) == "bytes"
    lane.batches.add(after)
    assert lane.batches.take() == [giant]
    assert lane.batches.due(0.0) is None
    assert lane.batches.take() == [after]


def test_age_fires_when_the_oldest_has_waited_max_delay(
    make_lane: MakeLane, make_entry: MakeEntry
) -> None:
    """A batch is due max_delay after the submission of its oldest operation, not before."""
    lane = make_lane(max_delay=2.0)
    fill(lane, make_entry, 10.0, 11.5)
    assert lane.batches.due(11.99) is None
    assert lane.batches.due_in(11.5) == 0.5
    assert lane.batches.due(12.0) == "delay"
    assert lane.batches.due_in(99.0) == 0.0


def test_what_stays_behind_ages_from_its_own_submission(
    make_lane: MakeLane, make_entry: MakeEntry
) -> None:
    """After a batch has left, the next one is due by the age of the oldest that is left."""
    lane = make_lane(max_ops=2, max_delay=1.0)
    fill(lane, make_entry, 0.0, 0.125, 0.5)
    lane.batches.take()
    assert lane.batches.due_in(0.5) == 1.0
    assert lane.batches.due(1.49) is None
    assert lane.batches.due(1.5) == "delay"


def test_without_delay_a_batch_is_due_at_once(make_lane: MakeLane, make_entry: MakeEntry) -> None:
    """With max_delay 0 no operation waits for company."""
    lane = make_lane(max_delay=0.0)
    fill(lane, make_entry, 5.0)
    assert lane.batches.due(5.0) == "delay"


def test_adaptive_fires_when_nothing_is_in_flight(
    make_lane: MakeLane, make_entry: MakeEntry
) -> None:
    """An adaptive batch leaves at once while nothing is in flight, and gathers while something is.

    A fixed one gathers in both cases.
    """
    adaptive, fixed = make_lane(adaptive=True), make_lane(adaptive=False)
    for lane in (adaptive, fixed):
        fill(lane, make_entry, 0.0)
    assert adaptive.batches.due(0.0) == "idle"
    assert fixed.batches.due(0.0) is None
    adaptive.batches.in_flight = 1
    assert adaptive.batches.due(0.0) is None
    assert adaptive.batches.due(1.0) == "delay"
    # The callers of a batch that is back may come with more: that leaves together.
    adaptive.batches.in_flight, adaptive.batches.delivering = 0, 1
    assert adaptive.batches.due(0.0) is None
    adaptive.batches.delivering = 0
    assert adaptive.batches.due(0.0) == "idle"


def test_what_a_thread_waits_for_leaves_beside_a_lone_one(
    make_lane: MakeLane, make_entry: MakeEntry
) -> None:
    """Neither has company, and no caller is being informed, who could come with more."""
    lane = make_lane(adaptive=True)
    batches = lane.batches
    for alone in (True, False):
        fill(lane, make_entry, *[0.0] * (1 if alone else 2))
        batches.take()
        batches.in_flight = 1
        fill(lane, make_entry, 0.0)
        assert batches.due(0.0) is None
        batches.awaited = True
        assert (batches.due(0.0) == "idle") is alone
        batches.delivering = 1
        assert batches.due(0.0) is None
        batches.delivering = 0
        fill(lane, make_entry, 0.0)
        assert batches.due(0.0) is None
        batches.take()


@pytest.mark.parametrize("hurry", ["flush", "close"])
def test_a_hurry_fires_at_once_until_it_ends(
    make_lane: MakeLane, make_entry: MakeEntry, hurry: str
) -> None:
    """During a flush or a close, ready operations are due, and the cause names which of the two."""
    lane = make_lane()
    fill(lane, make_entry, 0.0)
    lane.batches.in_flight = 3
    lane.batches.hurry = hurry  # type: ignore[assignment]
    assert lane.batches.due(0.0) == hurry
    lane.batches.hurry = None
    assert lane.batches.due(0.0) is None


def test_a_cancelled_operation_is_passed_over(make_lane: MakeLane, make_entry: MakeEntry) -> None:
    """Cancelled operations are in no batch and count neither as operations nor as bytes."""
    lane = make_lane(max_ops=3, max_bytes=30)
    entries = fill(lane, make_entry, *[0.0] * 5)
    for entry in (entries[0], entries[3]):
        cancel(lane.batches, entry)
    assert (lane.batches.ready, lane.batches.ready_bytes) == (3, 30)
    assert lane.batches.take() == [entries[1], entries[2], entries[4]]
    assert lane.batches.due(1e9) is None


def test_a_cancelled_head_is_passed_over(make_lane: MakeLane, make_entry: MakeEntry) -> None:
    """An operation that did not fit into the last batch can be cancelled before the next one."""
    lane = make_lane(max_bytes=30)
    first, second = make_entry(lane, size=20), make_entry(lane, size=20)
    third = make_entry(lane, 0.5)
    for entry in (first, second, third):
        lane.batches.add(entry)
    assert lane.batches.take() == [first]
    cancel(lane.batches, second)
    assert lane.batches.due_in(0.5) == 1.0
    assert lane.batches.take() == [third]


def test_a_ghost_does_not_make_younger_ones_leave_early(
    make_lane: MakeLane, make_entry: MakeEntry
) -> None:
    """The age of the oldest operation that is not cancelled counts."""
    lane = make_lane(max_delay=1.0)
    old, young = fill(lane, make_entry, 0.0, 0.9)
    cancel(lane.batches, old)
    assert lane.batches.due(1.0) is None
    assert lane.batches.due(1.9) == "delay"
    assert lane.batches.take() == [young]


def test_ghosts_never_fill_the_queue(make_lane: MakeLane, make_entry: MakeEntry) -> None:
    """Cancelled operations give their room back, whatever their number."""
    lane = make_lane(room=3)
    kept = fill(lane, make_entry, 0.0, 0.0)
    for _ in range(50):
        (entry,) = fill(lane, make_entry, 0.0)
        cancel(lane.batches, entry)
    kept += fill(lane, make_entry, 0.0)
    assert lane.batches.take() == kept


class AccumulatorMachine(RuleBasedStateMachine):
    """Drives an accumulator with everything that an engine does, beside a plain list."""

    ROOM, MAX_OPS, MAX_BYTES, MAX_DELAY = 5, 3, 40, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane(
            "writes",
            True,
            Lock(),
            room=self.ROOM,
            window=1,
            op_bytes=0,
            max_ops=self.MAX_OPS,
            max_bytes=self.MAX_BYTES,
            max_delay=self.MAX_DELAY,
            adaptive=True,
        )
        self.batches = self.lane.batches
        self.model: list[Entry] = []
        self.now = 0.0
        self.names = itertools.count()

    @precondition(lambda self: len(self.model) < self.ROOM)
    @rule(size=st.integers(0, 60), age=st.floats(0, 2))
    def add(self, size: int, age: float) -> None:
        entry = Entry(
            "put",
            f"/{next(self.names)}",
            bytes(size),
            None,
            None,
            {"put": self.lane},
            None,  # type: ignore[arg-type]
            self.now - age,
            60,
        )
        self.batches.add(entry)
        self.model.append(entry)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model))
        cancel(self.batches, entry)
        self.model.remove(entry)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(hurry=st.sampled_from(["flush", "close", None]))
    def set_hurry(self, hurry: str | None) -> None:
        self.batches.hurry = hurry  # type: ignore[assignment]

    @rule(in_flight=st.integers(0, 2))
    def set_in_flight(self, in_flight: int) -> None:
        self.batches.in_flight = in_flight

    @precondition(lambda self: self.model)
    @rule()
    def take(self) -> None:
        expected = [self.model[0]]
        for entry in self.model[1 : self.MAX_OPS]:
            if sum(e.weight for e in expected) + entry.weight > self.MAX_BYTES:
                break
            expected.append(entry)
        batch = self.batches.take()
        assert batch == expected
        assert all(entry.state == SENT for entry in batch)
        assert all(entry.state == QUEUED for entry in self.model[len(batch) :])
        del self.model[: len(batch)]

    @rule()
    def ask(self) -> None:
        """Whether and why a batch is due follows from what is ready, the time and the hurry."""
        expected = None
        if self.model:
            if len(self.model) >= self.MAX_OPS:
                expected = "ops"
            elif sum(entry.weight for entry in self.model) >= self.MAX_BYTES:
                expected = "bytes"
            elif self.batches.hurry is not None:
                expected = self.batches.hurry
            elif not self.batches.in_flight:
                expected = "idle"
            elif self.now >= self.model[0].submitted + self.MAX_DELAY:
                expected = "delay"
        assert self.batches.due(self.now) == expected

    @rule()
    def ask_when(self) -> None:
        wait = self.batches.due_in(self.now)
        if not self.model:
            assert wait is None
        else:
            assert wait == max(0.0, self.model[0].submitted + self.MAX_DELAY - self.now)

    @invariant()
    def counts_hold(self) -> None:
        assert self.batches.ready == len(self.model)
        assert self.batches.ready_bytes == sum(entry.weight for entry in self.model)

    def teardown(self) -> None:
        """The remaining operations come out once, in order."""
        left = []
        while self.model:
            before = list(self.model)
            self.take()
            left += before[: len(before) - len(self.model)]
        assert self.batches.ready == 0
        self.lane.close()


AccumulatorMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestNothingIsLostOrDoubled = AccumulatorMachine.TestCase
TestNothingIsLostOrDoubled.__doc__ = "Whatever is added, cancelled, asked and taken, in any order."


@given(sizes=st.lists(st.integers(0, 100), max_size=60), max_ops=st.integers(1, 10))
def test_batches_cut_what_was_added_and_lose_nothing(sizes: list[int], max_ops: int) -> None:
    """Together, the batches contain all added operations, and each keeps its bounds."""
    queue: janus.Queue[list[Entry]] = janus.Queue(maxsize=200)
    batches = Accumulator(
        queue.sync_q, 100, max_ops=max_ops, max_bytes=90, max_delay=0.0, adaptive=False
    )
    lane = AccumulatorMachine().lane
    entries = [
        Entry("put", "/", bytes(size), None, None, {"put": lane}, None, 0.0, 1.0)  # type: ignore[arg-type]
        for size in sizes
    ]
    for entry in entries:
        batches.add(entry)
    taken: list[Entry] = []
    while batches.due(0.0):
        batch = batches.take()
        assert 1 <= len(batch) <= max_ops
        assert len(batch) == 1 or sum(entry.weight for entry in batch) <= 90
        taken += batch
    assert taken == entries
