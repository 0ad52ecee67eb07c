"""The engine: takes operations in, sends them in batches, and ends each exactly once.

Threads, and what each does:

- A caller's thread submits: under the lock the operation takes its place in its path's line and in
  its queue. If the queue is full, the caller waits at the operation's gate, outside the lock.
- A sender takes a batch under the lock, executes it at the back end without the lock, and then,
  under the lock again, decides how its entries end and which may go next. There is one sender for
  each batch in flight, started when it is first needed: it blocks in the back end's call, which
  costs less than every other way to wait for it that was measured.
- The timekeeper ends entries whose deadline passes, queued or sent.
- The teller (see ``futures``) runs the callers' done-callbacks.

The one lock guards the lines, the lanes, and every entry that has not ended. Nothing that can
block, and no code of a caller or of a back end, runs under it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from logging import DEBUG
from operator import attrgetter
from queue import SimpleQueue
from threading import Condition, Event, Lock, Thread, current_thread
from typing import Literal, TypeAlias

from ..ops.capabilities import Capability
from ..ops.errors import (
    MetadataStoreError,
    QueueFullError,
    StoreClosedError,
    UnsupportedError,
)
from ..ops.kinds import KINDS
from ..ops.log import get_logger
from ..stores.backend import Answer, Backend, History, Scans
from . import lifetime
from .accumulator import Accumulator, Cause
from .checks import check_capability
from .entry import CANCELLED, ENDED, QUEUED, ROOM, SENT, TURN, Entry, move
from .epochs import Epochs
from .execution import execute, overdue, shut_out, too_heavy
from .lane import Lane
from .lines import Lines
from .metrics import Metrics
from .recording import Record
from .settings import BatchingConfig

__all__ = ["Engine", "WhenFull"]

WhenFull: TypeAlias = Literal["setting", "wait", "raise"]

log = get_logger("batchkeeper.engine")

# Seconds that close() waits for calls under way after the back end was closed under them.
_LAST_WAIT = 5.0
# Deadlines are looked after in steps of this many seconds, so that many different ones cost little.
_TICK = 0.01
# Seconds after its deadline that an operation at the back end is given to end: the back end, which
# ends its call at the deadline, knows more than the clock, as that the write has never left.
_GRACE = 0.1


class Engine:
    """Carries operations to a back end; the stores that callers hold stand on it.

    Args:
        backend: owned from now on, and closed with the engine.
        config: the settings, capped by the back end's limits.
        name: the store's URL, for messages.
        capabilities: what the store's kind states.
    """

    def __init__(
        self,
        backend: Backend,
        config: BatchingConfig,
        name: str,
        capabilities: frozenset[Capability] = frozenset(),
    ) -> None:
        self.limits = limits = backend.limits
        self.max_queued_bytes = config.max_queued_bytes
        self.name = name
        self.capabilities = capabilities
        self._config = config
        self._backend = backend
        self._lock = lock = Lock()
        self._lines = Lines()
        self._record = Record()
        self._epochs = Epochs(lock)
        self._next_deadline = math.inf
        self._deadline_moved = Condition(lock)
        self._closing = False  # nothing is taken in any more
        self._stopping = False  # threads end when they find nothing to do
        self._closed = Event()
        self._forked = False
        self._dropped: SimpleQueue[Entry] = SimpleQueue()  # of bulk calls that were not finished
        self._unstarted: list[Thread] = []  # senders to be started once the lock is released
        if config.enabled:
            window = config.max_in_flight or limits.in_flight
            reads_window = config.max_in_flight or limits.reads_in_flight or window
        else:
            window = reads_window = config.max_in_flight or max(1, limits.singles)
        # The singles' room is what may be under way: nothing ever waits in their queue for long.
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
            )

        self.reads = lane("reads", writes=False, room=config.read_queue_size, window=reads_window)
        self.writes = lane("writes", writes=True, room=config.write_queue_size, window=window)
        self._singles = lane("singles", writes=True, room=singles, window=singles)
        lanes_by_name = {lane.name: lane for lane in (self.reads, self.writes)}
        self.lanes = {kind: lanes_by_name[row.lane] for kind, row in KINDS.items()}
        self._cap_batches()
        self._timekeeper = self._thread("deadlines", self._keep_deadlines)
        # Every lane has a sender from the beginning: later ones may not be had when needed.
        lanes = [self.reads, self.writes, *([self._singles] if singles else [])]
        for thread in [self._timekeeper, *map(self._add_sender, lanes)]:
            thread.start()
        lifetime.opened(self)
        log.info("store opened", store=name, in_flight=window, enabled=config.enabled)

    def _cap_batches(self) -> None:
        """Make batches no larger than the back end takes them."""
        config, limits = self._config, self.limits
        for lane in (self.reads, self.writes):
            if config.enabled:
                most = limits.write_ops if lane.writes else limits.read_ops
                lane.batches.max_ops = min(config.max_ops, most)
            lane.batches.max_bytes = min(config.max_bytes, limits.request_bytes)

    # Taking operations in. Runs in callers' threads.

    def submit(  # noqa: C901 - in one piece: every operation pays for each call
        self, entry: Entry, when_full: WhenFull = "setting", *, block: bool = True
    ) -> None:
        """Take an operation in: unless this raises, it ends exactly once from now on.

        Args:
            entry: the operation.
            when_full: what to do without room in the queue: ``"setting"`` follows ``on_full``,
                ``"wait"`` waits, and ``"raise"`` raises where the operation would have to wait.
            block: whether the calling thread waits with the operation. If not, the operation ends
                with ``QueueFullError`` where it finds no room until its deadline.

        Raises:
            StoreClosedError: the store is closed.
            QueueFullError: no room: at once, or until the deadline.
            ValueTooLargeError: larger than the store's largest request.
        """
        if entry.weight > self.limits.request_bytes:
            raise too_heavy(entry, self.limits.request_bytes)
        lane = entry.lane
        gate: Lock | None = None
        with self._lock:
            try:
                if self._closing:
                    raise StoreClosedError(self._why_closed(), path=entry.path)
                if lane.waiting or not lane.hold(entry):
                    gate = self._submit_to_full(entry, when_full, block)
                elif self._lines.enter(entry):
                    lane.batches.add(entry)
                    if not lane.signalled:
                        self._wake(lane, entry.submitted)
                else:
                    entry.waits_for = TURN
                if entry.deadline < self._next_deadline:
                    self._next_deadline = entry.deadline
                    self._deadline_moved.notify()
            except BaseException as error:
                if not isinstance(error, MetadataStoreError):
                    self._take_back([entry])
                raise
            # Last, and where nothing can come between.
            epoch = entry.epoch = self._epochs.current
            epoch.pending += 1
        if self._unstarted:
            self._start_senders()
        if gate is not None:
            self._wait_at(gate, entry)

    def submit_all(self, entries: list[Entry]) -> int:
        """Take in as many operations as there is room for, in their order; say how many.

        One lock and one wake-up for all of them, which have one deadline. None is taken in where
        ``submit`` would make the first one wait, or refuse it.
        """
        with self._lock:
            try:
                taken = 0 if self._closing else self._hold_all(entries)
                if not taken:
                    return 0
                if taken < len(entries):
                    entries = entries[:taken]
                first, epoch = entries[0], self._epochs.current
                for entry in entries:
                    entry.epoch = epoch
                may_go = self._lines.enter_all(entries)
                for lane in (self.reads, self.writes):
                    if going := [entry for entry in may_go if entry.lane is lane]:
                        lane.batches.add_all(going)
                        self._wake(lane, first.submitted)
                if first.deadline < self._next_deadline:
                    self._next_deadline = first.deadline
                    self._deadline_moved.notify()
            except BaseException:
                self._take_back(entries)
                raise
            epoch.pending += taken
        if self._unstarted:
            self._start_senders()
        return taken

    def _take_back(self, entries: Sequence[Entry]) -> None:
        """Undo a submission that was interrupted, by Ctrl-C, at any point of it.

        Nobody but this thread has seen the operations yet, for it still holds the lock.
        """
        move(entries, CANCELLED)
        for entry in entries:
            entry.lane.waiting.pop(entry, None)
            self._lines.remove(entry)
        for lane in (self.reads, self.writes, self._singles):
            lane.recount(self._lines.entries())
            # Whether the sender was woken that is said to be cannot be known.
            lane.signalled = False
            lane.wakeup.notify_all()
        self._deadline_moved.notify_all()

    def _hold_all(self, entries: Sequence[Entry]) -> int:
        """Hold operations, in their order, as far as there is room; say how many."""
        for count, entry in enumerate(entries):
            lane = entry.lane
            if lane.waiting or not lane.hold(entry):
                return count
        return len(entries)

    def _submit_to_full(self, entry: Entry, when_full: WhenFull, block: bool) -> Lock | None:
        """Do what ``submit`` says for want of room; return what the caller waits at, if it does."""
        if when_full != "wait" and self._may_go_singly(entry):
            entry.lane = self._singles
            self._singles.held += 1
            self._lines.enter(entry)
            self._ready(entry)
            return None
        if when_full == "raise" or (when_full != "wait" and self._config.on_full == "raise"):
            raise self._queue_full(entry)
        entry.waits_for = ROOM if self._lines.enter(entry) else ROOM | TURN
        gate = Lock() if block else None
        if gate is not None:
            gate.acquire()
        entry.lane.waiting[entry] = gate
        self._record.waits += 1
        return gate

    def _wait_at(self, gate: Lock, entry: Entry) -> None:
        try:
            gate.acquire()  # opened by _admit, or by _end_queued
        except BaseException:  # KeyboardInterrupt: the caller will never see the operation's future
            if self.withdraw(entry):
                self.settle([entry])
            raise
        if entry.waits_for & ROOM:
            assert isinstance(entry.answer, MetadataStoreError)
            raise entry.answer

    def withdraw(self, entry: Entry) -> bool:
        """Cancel an operation that has not been sent; say whether this call has cancelled it.

        Who cancels tells the operation's waiters, and then calls :meth:`settle`.
        """
        with self._lock:
            # In a forked child nothing works that could be left in the middle of something.
            withdrawn = entry.state == QUEUED and not self._forked
            if withdrawn:
                self._end_queued(entry, CANCELLED)
                self._admit()
        if self._unstarted:
            self._start_senders()
        return withdrawn

    # Decisions under the lock. A sender that it takes another thread for is started after it.

    def _may_go_singly(self, entry: Entry) -> bool:
        singles = self._singles
        return singles.held < singles.room and not self._lines.busy(entry)

    def _ready(self, entry: Entry) -> None:
        entry.lane.batches.add(entry)
        self._wake(entry.lane, entry.submitted)

    def _wake(self, lane: Lane, now: float) -> None:
        """See to it that a sender takes what is due, or watches for the time when it is."""
        if lane.signalled:
            return
        if lane.idle:
            if not lane.watched or lane.batches.due(now):
                lane.signalled = True
                lane.wakeup.notify()
        elif len(lane.senders) < lane.window:
            lane.signalled = True
            self._unstarted.append(self._add_sender(lane))

    def _admit(self) -> None:
        """Give room that has become free to the operations that wait for it, oldest first."""
        for lane in (self.reads, self.writes):
            while lane.waiting:
                entry, gate = next(iter(lane.waiting.items()))
                if not lane.hold(entry):
                    break
                del lane.waiting[entry]
                self._leave_wait(entry, ROOM)
                if gate is not None:
                    gate.release()

    def _leave_wait(self, entry: Entry, reason: int) -> None:
        entry.waits_for &= ~reason
        if not entry.waits_for:
            self._ready(entry)

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
        for follower in self._lines.leave(entry):
            self._leave_wait(follower, TURN)

    def drop(self, entry: Entry) -> None:
        """Cancel an operation of which nobody will hear, if it has not been sent by then.

        For finalizers, which may run anywhere, in a sender or under the lock as well: this neither
        locks nor waits. Senders see to it before they look for their next batch.
        """
        self._dropped.put(entry)

    def _withdraw_dropped(self) -> None:
        with self._lock:
            # Another sender may do the same: what is here is taken out by one under the lock.
            while not self._dropped.empty():
                entry = self._dropped.get()
                if entry.state == QUEUED:
                    self._end_queued(entry, CANCELLED)
                    self._admit()
                    self._settle([entry])
        # At once, and not when the caller has found a batch: nobody else would start them.
        if self._unstarted:
            self._start_senders()

    # Sending. Runs in the senders' threads.

    def _send(self, lane: Lane) -> None:
        with self._lock:
            lane.signalled = False
        told: Sequence[Entry] | None = None
        while (batch := self._next_batch(lane, told)) is not None:
            started = time.monotonic()
            answers = execute(self._backend, batch)
            seconds = time.monotonic() - started
            if log.isEnabledFor(DEBUG):
                log.debug("batch ended", lane=lane.name, operations=len(batch), seconds=seconds)
            if self._backend.limits is not self.limits:
                self._learn_limits()
            told = self._finish(lane, batch, answers, seconds)
            self._deliver(told)

    def _learn_limits(self) -> None:
        """Follow a back end that has found out that its server takes less."""
        with self._lock:
            self.limits = limits = self._backend.limits
            self._cap_batches()
        log.info(
            "the store's limits have changed",
            store=self.name,
            write_ops=limits.write_ops,
            read_ops=limits.read_ops,
            request_bytes=limits.request_bytes,
            value_bytes=limits.value_bytes,
        )

    def _next_batch(self, lane: Lane, told: Sequence[Entry] | None) -> list[Entry] | None:
        """Count the last batch's operations as ended, if there was one; wait for the next batch."""
        batches = lane.batches
        if not self._dropped.empty():
            self._withdraw_dropped()
        with self._lock:
            self._count_told(batches, told)
            while (cause := batches.due(now := time.monotonic())) is None:
                if self._stopping:
                    return None
                watch = None if lane.watched else batches.due_in(now)
                lane.watched |= watch is not None
                lane.idle += 1
                lane.wakeup.wait(watch)
                lane.idle -= 1
                lane.signalled = False
                if watch is not None:
                    lane.watched = False
            before = batches.ready_bytes
            batch = batches.take()
            size = before - batches.ready_bytes
            batches.in_flight += 1
            lane.record.sent(batch, size, cause, now)
            # A single execution is held by its lane until it has ended.
            if lane is not self._singles:
                lane.release(len(batch), size)
                if lane.waiting:
                    self._admit()
            if batches.ready:
                self._wake(lane, now)
        if self._unstarted:
            self._start_senders()
        if log.isEnabledFor(DEBUG):
            log.debug("batch sent", lane=lane.name, cause=cause, operations=len(batch))
        return batch

    def _finish(
        self, lane: Lane, batch: Sequence[Entry], answers: Sequence[Answer], seconds: float
    ) -> Sequence[Entry]:
        """End a batch's operations; return those that had not ended before.

        They are counted before anybody is told, so that who has a result finds it in the metrics.
        """
        ended = batch
        late: set[Entry] = set()
        with self._lock:
            lane.batches.in_flight -= 1
            lane.batches.telling += 1
            lane.record.answered(seconds)
            if lane is self._singles:
                lane.release(1, 0)
            for entry, answer in zip(batch, answers, strict=True):
                if entry.state == SENT:
                    entry.answer = answer
                else:
                    late.add(entry)
            if late:
                ended = [entry for entry in batch if entry not in late]
            move(ended, ENDED)
            self._record.ended(ended)
            for follower in self._lines.leave_all(batch):
                self._leave_wait(follower, TURN)
        if self._unstarted:
            self._start_senders()
        return ended

    def _tell(self, ended: Sequence[Entry]) -> None:
        """Tell the callers of operations that were ended how they ended, and count them."""
        self._deliver(ended)
        self.settle(ended)

    def _deliver(self, ended: Sequence[Entry]) -> None:
        sinks = set(map(attrgetter("sink"), ended))
        for sink in sinks:
            own = ended if len(sinks) == 1 else [e for e in ended if e.sink is sink]
            try:
                sink.deliver(own)
            except Exception:
                log.exception("results could not be delivered", store=self.name)

    def settle(self, told: Sequence[Entry]) -> None:
        """Let flushes wait no longer for operations whose callers have been told of their end."""
        with self._lock:
            self._settle(told)

    def _count_told(self, batches: Accumulator, told: Sequence[Entry] | None) -> None:
        if told is not None:
            batches.telling -= 1
            self._settle(told)

    def _settle(self, told: Sequence[Entry]) -> None:
        if self._epochs.settle(told) and not self._closing:
            self.reads.batches.hurry = self.writes.batches.hurry = None

    # Deadlines. Runs in the timekeeper's thread.

    def _keep_deadlines(self) -> None:
        while True:
            with self._lock:
                while (wait := self._next_deadline - time.monotonic()) > 0 and not self._stopping:
                    self._deadline_moved.wait(None if wait == math.inf else wait)
                if self._stopping:
                    return
            # Asked without the lock, because it is code of the back end's.
            connected = self._is_connected()
            with self._lock:
                expired = self._expire(time.monotonic(), connected)
            if self._unstarted:
                self._start_senders()
            self._tell(expired)

    def _is_connected(self) -> bool:
        try:
            return self._backend.connected
        except Exception:
            # A fault in a back end must not stop the timekeeper.
            log.exception("the back end failed", store=self.name)
            return True

    def _expire(self, now: float, connected: bool) -> list[Entry]:
        expired: list[Entry] = []
        earliest = math.inf
        for entry in self._lines.entries():
            if entry.state == QUEUED or entry.state == SENT:
                end = entry.deadline if entry.state == QUEUED else entry.deadline + _GRACE
                if end <= now:
                    expired.append(entry)
                else:
                    earliest = min(earliest, end)
        self._next_deadline = max(earliest, now + _TICK)
        self._end_all(expired, partial(self._overdue, connected=connected))
        return expired

    def _end_all(
        self, entries: Sequence[Entry], error: Callable[[Entry], MetadataStoreError]
    ) -> None:
        for entry in entries:
            entry.answer = error(entry)
            if entry.state == QUEUED:
                self._end_queued(entry, ENDED)
            else:
                # It stays in its path's line: what it may still do must not overtake what follows.
                move((entry,), ENDED)
        self._record.ended(entries)
        self._admit()

    # Flushing and closing. Runs in callers' threads.

    def flush(self) -> None:
        """Return when everything that was submitted before has ended."""
        with self._lock:
            self.check_not_forked()
            self._flush("flush", None)

    def _flush(self, cause: Cause, deadline: float | None) -> bool:
        """Hurry what is queued along, and wait for it; say whether all of it has ended."""
        before = self._epochs.begin()
        if not before:
            return True
        for lane in (self.reads, self.writes):
            lane.batches.hurry = cause
            self._wake(lane, time.monotonic())
        if self._unstarted:
            self._lock.release()
            try:
                self._start_senders()
            finally:
                self._lock.acquire()
        return self._epochs.wait(before, deadline)

    def sync(self, timeout: float) -> None:
        """Have the back end catch up with what others have written."""
        self._check_open()
        self._backend.sync(time.monotonic() + timeout)

    def scanner(self, revision: int | None = None) -> Scans:
        """Return what walks over the back end's paths, in the caller's thread.

        Args:
            revision: the one whose values are asked for, if it is not the newest.

        Raises:
            StoreClosedError: the store is closed.
            UnsupportedError: the back end cannot be scanned, or keeps no old revisions.
        """
        self._check_open()
        if revision is not None:
            check_capability("snapshots", "reading an old revision", self.capabilities, self.name)
        scans = self._backend.scans
        if scans is None:
            raise UnsupportedError(f"the store does not support scans: {self.name}")
        return scans

    def historian(self) -> History:
        """Return what gives the back end's history, in the caller's thread.

        Raises:
            StoreClosedError: the store is closed.
            UnsupportedError: the back end keeps no history.
        """
        self._check_open()
        check_capability("history", "reading changes", self.capabilities, self.name)
        history = self._backend.history
        if history is None:
            raise UnsupportedError(f"the back end does not offer its 'history': {self.name}")
        return history

    def close(self, timeout: float | None = None) -> None:
        """Take nothing in any more, send what is queued, and close the back end.

        After ``timeout`` seconds what is still queued ends with ``StoreClosedError``, and what was
        sent and is not answered yet with ``IndeterminateError`` if it is a write. Without a
        timeout the operations' own deadlines are the bound. Only the first call does this; the
        others wait until it is done.
        """
        with self._lock:
            first, self._closing = not self._closing, True
        if not first:
            self._closed.wait()
            return
        drained = False
        try:
            with self._lock:
                deadline = None if timeout is None else time.monotonic() + timeout
                drained = self._flush("close", deadline)
        finally:
            # After an interrupt as well: nobody may wait for ever for what this call left undone.
            self._shut(drained)
        log.info("store closed", store=self.name, drained=drained)

    def _shut(self, drained: bool) -> None:
        try:
            if not drained:
                self._end_where(lambda entry: entry.state == QUEUED, self._shut_out)
            self._backend.close()
        finally:
            try:
                self._stop()
            finally:
                lifetime.closed(self)
                self._closed.set()

    def _stop(self) -> None:
        lanes = (self.reads, self.writes, self._singles)
        with self._lock:
            self._stopping = True
            self._deadline_moved.notify_all()
            for lane in lanes:
                lane.wakeup.notify_all()
        until = time.monotonic() + _LAST_WAIT
        for thread in [self._timekeeper, *(thread for lane in lanes for thread in lane.senders)]:
            if thread is not current_thread() and thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        # Left are only those whose call at the back end has not returned even now.
        self._end_where(lambda entry: entry.state in (QUEUED, SENT), self._shut_out)
        for lane in lanes:
            lane.close()

    def _end_where(
        self, which: Callable[[Entry], bool], error: Callable[[Entry], MetadataStoreError]
    ) -> None:
        with self._lock:
            entries = [entry for entry in self._lines.entries() if which(entry)]
            self._end_all(entries, error)
        if self._unstarted:
            self._start_senders()
        self._tell(entries)

    def abandon(self) -> None:
        """Make a copy that a fork has left in a child refuse everything, instead of hanging.

        Its threads run in the parent only, and its lock may be held for ever.
        """
        self._lock = Lock()
        self._forked = self._closing = True
        self._closed = Event()
        self._closed.set()

    def check_not_forked(self) -> None:
        """Refuse to wait, in a forked child, for threads that stayed with the parent.

        Raises:
            StoreClosedError: this is such a child.
        """
        if self._forked:
            raise StoreClosedError(self._why_closed())

    def _check_open(self) -> None:
        if self._closing:
            raise StoreClosedError(self._why_closed())

    def _why_closed(self) -> str:
        if self._forked:
            return f"the store was opened before this process was forked; open it here: {self.name}"
        return f"the store is closed: {self.name}"

    def _queue_full(self, entry: Entry) -> QueueFullError:
        lane = entry.lane
        return QueueFullError(
            f"the queue of {lane.name} is full ({lane.held} of {lane.room} operations, "
            f"{lane.held_bytes} of {self.max_queued_bytes} bytes)",
            path=entry.path,
        )

    def _overdue(self, entry: Entry, *, connected: bool) -> MetadataStoreError:
        if not entry.waits_for & ROOM:
            return overdue(entry, connected=connected)
        lane = entry.lane
        return QueueFullError(
            f"the queue of {lane.name} had no room within {entry.deadline - entry.submitted:.3g} s "
            f"(it holds at most {lane.room} operations and {self.max_queued_bytes} bytes)",
            path=entry.path,
        )

    def _shut_out(self, entry: Entry) -> MetadataStoreError:
        return shut_out(entry, self.name)

    # Threads and numbers

    def _thread(self, name: str, target: Callable[[], None]) -> Thread:
        # Daemons, so that a store that nobody closed cannot keep the interpreter from ending; it
        # is drained at exit (see `lifetime`).
        return Thread(target=target, name=f"batchkeeper-{name}", daemon=True)

    def _add_sender(self, lane: Lane) -> Thread:
        thread = self._thread(f"{lane.name}-{len(lane.senders)}", lambda: self._send(lane))
        lane.senders.append(thread)
        return thread

    def _start_senders(self) -> None:
        with self._lock:
            senders, self._unstarted = self._unstarted, []
        for sender in senders:
            try:
                sender.start()
            except RuntimeError:
                # The system has no thread left, or the interpreter is ending: those that run do it.
                log.warning("a sender could not be started", store=self.name, sender=sender.name)
                with self._lock:
                    for lane in (self.reads, self.writes, self._singles):
                        if sender in lane.senders:
                            lane.senders.remove(sender)
                            lane.signalled = False
                            lane.wakeup.notify()

    def metrics(self) -> Metrics:
        """Return what was done so far."""
        events = self._backend.tally.counts()
        with self._lock:
            return self._record.metrics(
                self.reads.metrics(),
                self.writes.metrics(),
                self._singles.metrics(),
                self.reads.held_bytes + self.writes.held_bytes,
                events,
            )
