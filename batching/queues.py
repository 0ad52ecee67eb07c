"""Makes the engine's decisions: the place of each operation, and which goes next.

Callers hold the engine's lock. Nothing here waits, or calls a back end or a caller.

Operations arrive in the intake, without the lock, as long as somebody attends to their lane. Each
decision begins with ``take_in``, which gives all of them their places, in the order of arrival.
A sender takes a batch of ready operations, and ends it with its answers. An operation may also end
earlier, at its deadline or when its caller cancels it. Each of these steps frees room and turns,
and passes them to waiting operations.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat, starmap
from threading import Condition, Lock, RLock
from typing import Final, Literal, TypeAlias

from ..ops.acceleration import accelerated
from ..ops.errors import MetadataStoreError
from ..ops.kinds import KINDS
from ..stores.backend import Answer, Event, Limits, Session
from .accumulator import Cause
from .entry import (
    CANCELLED,
    ENDED,
    QUEUED,
    ROOM,
    SENT,
    TURN,
    Entry,
    assign_epoch,
    common,
    move,
    total_weight,
)
from .epochs import Epochs
from .execution import queue_full
from .lane import Lane, Sender
from .lines import Lines
from .metrics import Metrics
from .recording import Record
from .settings import BatchingConfig

__all__ = ["Queues", "WhenFull"]

# Operations of one lane, and their bytes.
_Part: TypeAlias = tuple[Lane, Sequence[Entry], int]
WhenFull: TypeAlias = Literal["setting", "wait", "raise"]

# At least this many seconds pass between two checks of the deadlines, so they cost little.
_TICK: Final = 0.01

# Consumes an iterator in one step, which Ctrl-C cannot interrupt.
_consume = deque[object](maxlen=0).extend


@accelerated
def end_sent(batch: Sequence[Entry], answers: Sequence[Answer]) -> list[Entry]:
    """End the SENT entries with their answers, and return them."""
    ended = []
    for entry, answer in zip(batch, answers, strict=True):
        if entry.state == SENT:
            entry.answer = answer
            ended.append(entry)
    move(ended, ENDED)
    return ended


@accelerated
def forget_contents(batch: Sequence[Entry]) -> None:
    """Let go of what was sent."""
    for entry in batch:
        entry.value = entry.options = None


class Queues:
    """The lines and the lanes of an engine; guarded by its lock.

    Args:
        lock: the engine's lock; the conditions of its threads share it.
        config: the settings.
        limits: the back end's limits.
        send: sends batches on a sender's thread, until the store is closed.

    Attributes:
        intake: the operations that have arrived and have no places yet, oldest first. Any thread
            appends to it, without the lock, if the lane's ``allowance`` permits.
        epochs: counts the operations that a flush waits for.
        lines: the order of operations that share a key.
        reads: the lane of reads.
        writes: the lane of writes.
        all_lanes: the lanes of reads, writes and single executions.
        lanes: for each kind of operation, the lane that it enters: reads or writes.
        unstarted: senders that have not begun; ``Senders`` starts them outside the lock.
        next_deadline: the earliest time at which an operation may be overdue, by
            ``time.monotonic()``.
        deadline_moved: notified when ``next_deadline`` becomes earlier.
    """

    def __init__(
        self,
        lock: RLock,
        config: BatchingConfig,
        limits: Limits,
        send: Callable[[Sender], None],
        session: Session | None = None,
    ) -> None:
        self.intake: deque[Entry] = deque()
        self.epochs = Epochs(lock)
        self.lines = Lines()
        self.unstarted: list[Sender] = []
        self.next_deadline = math.inf
        self.deadline_moved = Condition(lock)
        self._config = config
        self._send = send
        self._record = Record()
        if config.enabled:
            window = config.max_in_flight or limits.in_flight
            reads_window = config.max_in_flight or limits.reads_in_flight or window
        else:
            window = reads_window = config.max_in_flight or max(1, limits.singles)
        # The room for singles equals their window, so none waits in their queue for long.
        singles = min(config.max_singles, limits.singles) if config.on_full == "single" else 0

        def lane(name: str, *, writes: bool, room: int, window: int) -> Lane:
            return Lane(
                name,
                writes,
                lock,
                room=room,
                window=window,
                op_bytes=limits.op_bytes,
                max_ops=1,
                max_bytes=config.max_bytes,
                max_delay=config.max_delay,
                adaptive=config.linger == "adaptive",
                bytes_room=config.max_queued_bytes,
                session=session,
            )

        self.reads = lane("reads", writes=False, room=config.read_queue_size, window=reads_window)
        self.writes = lane("writes", writes=True, room=config.write_queue_size, window=window)
        self._singles = lane("singles", writes=True, room=singles, window=singles)
        self.all_lanes = (self.reads, self.writes, self._singles)
        lanes_by_name = {lane.name: lane for lane in (self.reads, self.writes)}
        self.lanes = {kind: lanes_by_name[row.lane] for kind, row in KINDS.items()}
        self.cap_batches(limits)

    def cap_batches(self, limits: Limits) -> None:
        """Cap the size of batches at the back end's limits."""
        config = self._config
        for lane in (self.reads, self.writes):
            if config.enabled:
                most = limits.write_ops if lane.writes else limits.read_ops
                lane.batches.max_ops = min(config.max_ops, most)
            lane.batches.max_bytes = min(config.max_bytes, limits.request_bytes)
        for lane in self.all_lanes:
            lane.cap_requests(limits.request_bytes)
            if lane.batches.ready:
                self.wake(lane, time.monotonic())
                lane.allow()

    # Entering

    def take_in(self, own: Lane | None = None) -> None:
        """Give the operations in the intake their places.

        ``own`` is the lane of the calling sender, which looks itself whether a batch is due.
        """
        if self.intake and not self.writes.shut:
            self._take_in(own)

    def _take_in(self, own: Lane | None) -> None:
        entries = list(self.intake)  # in one step, so no other thread changes it meanwhile
        if self.reads.waiting or self.writes.waiting:
            for entry in entries:
                self._place_behind(entry)
        else:
            parts = self._by_lane(entries)
            for lane, arrived, size in parts:
                lane.held += len(arrived)
                lane.held_bytes += size
            self._place(entries, parts, own)
        self.reads.allow()
        self.writes.allow()
        epoch = self.epochs.current
        assign_epoch(entries, epoch)
        leaving = starmap(self.intake.popleft, repeat((), len(entries)))
        # Last, and so that nothing can interrupt between the two.
        epoch.pending += len(entries)
        _consume(leaving)

    def _place_behind(self, entry: Entry) -> None:
        """Give an operation its place that arrived at the moment when others began to wait.

        It must not hold room for which an operation before it waits.
        """
        lane = entry.lane
        entry.waits_for = 0 if self.lines.enter(entry) else TURN
        if lane.waiting:
            entry.waits_for |= ROOM
            lane.waiting[entry] = None
            self._record.waits += 1
            return
        lane.held += 1
        lane.held_bytes += entry.weight
        if not entry.waits_for:
            self._ready(entry)

    def fitting(self, entries: Sequence[Entry]) -> int:
        """Return how many operations have room now, in order."""
        if (lane := common(entries, "lane")) and lane.fits(len(entries), total_weight(entries)):
            return len(entries)
        reads, writes = self.reads, self.writes
        held = {lane: lane.held for lane in (reads, writes)}
        held_bytes = {lane: lane.held_bytes for lane in (reads, writes)}
        for count, entry in enumerate(entries):
            lane = entry.lane
            size = held_bytes[lane] + entry.weight
            if lane.waiting or held[lane] >= lane.room or size > lane.bytes_room:
                return count
            held[lane] += 1
            held_bytes[lane] = size
        return len(entries)

    def _place(self, entries: list[Entry], parts: Sequence[_Part], own: Lane | None) -> None:
        """Give operations that have their room places in their lines, and in their queues."""
        may_go = self.lines.enter_all(entries)
        for lane, going, size in parts if may_go is entries else self._by_lane(may_go):
            lane.batches.add_all(going, size)
            if lane is not own:
                self.wake(lane, going[-1].submitted)

    def _by_lane(self, entries: Sequence[Entry]) -> Sequence[_Part]:
        """Return entries by their lanes. Nearly always, there is one."""
        if lane := common(entries, "lane"):
            return ((lane, entries, total_weight(entries)),)
        lanes = (self.reads, self.writes)
        parts = [(lane, [entry for entry in entries if entry.lane is lane]) for lane in lanes]
        return [(lane, own, total_weight(own)) for lane, own in parts if own]

    def open_intake(self) -> None:
        """Undo ``shut_intake``."""
        for lane in self.all_lanes:
            lane.shut = False

    def shut_intake(self) -> None:
        """Take in what has arrived, and let nothing else arrive."""
        for lane in self.all_lanes:
            lane.shut = True
            lane.allow()
        if self.intake:
            self._take_in(None)

    def watch_deadline(self, entry: Entry) -> None:
        """Make sure that the timekeeper looks at an operation's deadline."""
        if entry.deadline < self.next_deadline:
            self.next_deadline = entry.deadline
            self.deadline_moved.notify()

    def enter_full(self, entry: Entry, when_full: WhenFull, block: bool) -> Lock | None:
        """Let an operation enter a lane whose room it exceeds, or for whose room others wait.

        Return the gate that its caller waits at, if any.

        Args:
            entry: the operation.
            when_full: the caller's choice (see ``Engine.submit``).
            block: whether the calling thread waits with it.

        Raises:
            QueueFullError: it would have to wait, and the settings or the caller forbid it.
        """
        if not entry.lane.waiting and entry.lane.hold(entry):
            # Larger than all the room for bytes, and alone.
            if self.lines.enter(entry):
                self._ready(entry)
            else:
                entry.waits_for = TURN
                entry.lane.allow()
            return None
        if when_full != "wait" and self._may_go_singly(entry):
            entry.lane = self._singles
            self._singles.held += 1
            self.lines.enter(entry)
            self._ready(entry)
            return None
        if when_full == "raise" or (when_full != "wait" and self._config.on_full == "raise"):
            raise queue_full(entry)
        entry.waits_for = ROOM if self.lines.enter(entry) else ROOM | TURN
        gate = Lock() if block else None
        if gate is not None:
            gate.acquire()
        entry.lane.waiting[entry] = gate
        entry.lane.allowance = 0
        self._record.waits += 1
        return gate

    def _may_go_singly(self, entry: Entry) -> bool:
        singles = self._singles
        return singles.held < singles.room and not self.lines.would_wait(entry)

    def calm(self) -> None:
        """End the hurry of flushes, if none waits any more."""
        if not self.epochs.open and not self.writes.shut:
            self.reads.batches.hurry = self.writes.batches.hurry = None

    # Batches

    def wake(self, lane: Lane, now: float) -> None:
        """Make sure that a sender takes a batch that is due, or watches for the time when it is."""
        if lane.signalled:
            return
        if lane.idle:
            if not lane.watched or lane.batches.due(now):
                lane.signalled = True
                lane.wakeup.notify()
        elif len(lane.senders) < lane.window:
            lane.signalled = True
            self.unstarted.append(self.add_sender(lane))

    def add_sender(self, lane: Lane) -> Sender:
        """Add a sender to a lane, and return it without starting it."""
        sender = Sender(lane, self._send)
        lane.senders.append(sender)
        return sender

    def take(self, lane: Lane, cause: Cause, now: float) -> list[Entry]:
        """Take a lane's next batch for a sender, and give its room to waiting operations."""
        batches = lane.batches
        before = batches.ready_bytes
        batch = batches.take()
        size = before - batches.ready_bytes
        batches.in_flight += 1
        lane.record.sent(batch, size, cause, now)
        # A single execution is held by its lane until it has ended.
        if lane is not self._singles:
            lane.release(len(batch), size)
            if lane.waiting:
                self.admit()
        if batches.ready:
            self.wake(lane, now)
        lane.allow()
        return batch

    def end_batch(
        self, lane: Lane, batch: Sequence[Entry], answers: Sequence[Answer], seconds: float
    ) -> Sequence[Entry]:
        """End a batch's operations; return those that had not ended before."""
        lane.batches.in_flight -= 1
        lane.batches.delivering += 1
        lane.record.answered(seconds)
        if lane is self._singles:
            lane.release(1, 0)
        ended = end_sent(batch, answers)
        self._record.ended(ended)
        for follower in self.lines.leave_all(batch):
            self._leave_wait(follower, TURN)
        # Callers may keep their futures for long, and these keep the entries.
        forget_contents(batch)
        return ended

    # Cancellation, deadlines, closing

    def cancel(self, entry: Entry) -> None:
        """Cancel an operation that is QUEUED."""
        self._end_queued(entry, CANCELLED)
        self.admit()

    def expired(self, now: float, grace: float) -> list[Entry]:
        """Return the operations whose deadline has passed, and set ``next_deadline``.

        Args:
            now: by ``time.monotonic()``.
            grace: seconds beyond its deadline that an operation at the back end gets.
        """
        expired: list[Entry] = []
        earliest = math.inf
        # In this order: what arrives after the second step has seen the first.
        self.next_deadline = math.inf
        self.take_in()
        for entry in self.lines.entries():
            if entry.state == QUEUED or entry.state == SENT:
                end = entry.deadline if entry.state == QUEUED else entry.deadline + grace
                if end <= now:
                    expired.append(entry)
                else:
                    earliest = min(earliest, end)
        self.next_deadline = max(earliest, now + _TICK)
        return expired

    def end_all(
        self, entries: Sequence[Entry], error: Callable[[Entry], MetadataStoreError]
    ) -> None:
        """End QUEUED or SENT operations, each with its error."""
        for entry in entries:
            entry.answer = error(entry)
            if entry.state == QUEUED:
                self._end_queued(entry, ENDED)
            else:
                # It stays in its path's line: the request may still take effect, and no later
                # operation on the path may go before that.
                move((entry,), ENDED)
        self._record.ended(entries)
        self.admit()

    def _end_queued(self, entry: Entry, state: int) -> None:
        lane = entry.lane
        move((entry,), state)
        entry.value = None
        if entry.waits_for & ROOM:
            gate = lane.waiting.pop(entry)
            if gate is not None:
                gate.release()
        else:
            # A single execution never counts as queued.
            lane.release(1, 0 if lane is self._singles else entry.weight)
            if not entry.waits_for:
                lane.batches.discard(entry)
        for follower in self.lines.leave(entry):
            self._leave_wait(follower, TURN)
        entry.options = None  # With the values of a transaction. The lines needed them.

    def admit(self) -> None:
        """Give free room to waiting operations, oldest first."""
        for lane in (self.reads, self.writes):
            if not lane.waiting:
                continue
            while lane.waiting:
                entry, gate = next(iter(lane.waiting.items()))
                if not lane.hold(entry):
                    break
                self._leave_wait(entry, ROOM)
                if gate is not None:
                    gate.release()
                # Last, so that after an interrupt it is known to whom the gate belongs.
                del lane.waiting[entry]
            lane.allow()

    def _leave_wait(self, entry: Entry, reason: int) -> None:
        entry.waits_for &= ~reason
        if not entry.waits_for:
            self._ready(entry)

    def _ready(self, entry: Entry) -> None:
        entry.lane.batches.add(entry)
        self.wake(entry.lane, entry.submitted)
        entry.lane.allow()

    def metrics(self, events: Mapping[Event, int]) -> Metrics:
        """Return a snapshot of the counts, with the back end's events."""
        return self._record.metrics(
            self.reads.metrics(),
            self.writes.metrics(),
            self._singles.metrics(),
            self.reads.held_bytes + self.writes.held_bytes,
            events,
        )
