"""The engine: takes operations in, sends them in batches, and ends each exactly once.

Threads, and what each does:

- A caller's thread submits: it appends the operation to the intake. A sender takes in, under the
  lock, what has arrived there: each operation takes its place in its path's line and in its queue.
  If no sender attends to the intake, the caller takes in itself. If the queue is full, the caller
  waits at the operation's gate, outside the lock.
- A sender takes a batch under the lock, executes it at the back end without the lock, and then,
  under the lock again, decides how its entries end and which may go next. There is one sender for
  each batch in flight, started when it is first needed: it blocks in the back end's call, which
  costs less than every alternative that was measured.
- The timekeeper ends entries whose deadline passes, queued or sent.
- The dispatcher (see ``futures``) runs the callers' done-callbacks.

One lock guards the lines, the lanes, and every entry that has not ended. Nothing that can block,
and no code of a caller or of a back end, runs under it. ``queues`` makes the decisions under the
lock; it never waits, and calls neither callers nor the back end. This module takes the lock, waits
and makes those calls. Only ``submit`` also decides here, because every operation pays for each
call.

Ctrl-C may interrupt a caller's thread at any point. ``restore`` then derives everything again from
the certain facts, before the lock is released.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from logging import DEBUG
from operator import attrgetter
from queue import SimpleQueue
from threading import Lock, RLock, Thread, current_thread, get_ident
from typing import Final, Protocol, TypeVar

from ..ops.capabilities import Capability
from ..ops.errors import MetadataStoreError, StoreClosedError, StoreUnavailableError
from ..ops.log import get_logger
from ..stores.backend import Answer, Backend, to_its_end
from . import lifetime
from .accumulator import Accumulator, Cause
from .attachments import Attachments
from .entry import CANCELLED, QUEUED, ROOM, SENT, Entry, Epoch, common
from .execution import execute, name_close, overdue, shut_out, too_heavy
from .facets import Facets
from .feeds import Feeds
from .hooks import Hook, Hooks
from .lane import Lane, Sender
from .metrics import Metrics
from .queues import Queues, WhenFull
from .reentry import in_back_end, in_the_way, owned, refused
from .restoring import restore
from .senders import Senders
from .settings import BatchingConfig

__all__ = ["Engine", "WhenFull", "engine_of"]

log = get_logger("batchkeeper.engine")

_T = TypeVar("_T")


class Engine:
    """Carries operations to a back end, for the stores that callers hold.

    Args:
        backend: the engine owns it from now on, and closes it.
        config: the settings; the back end's limits cap them.
        name: the store's URL, for messages.
        capabilities: the capabilities of the store kind.
        hooks: the hooks of the application.

    Attributes:
        grace: seconds beyond its deadline that an operation at the back end gets. The back end ends
            its call at the deadline and may know more than the clock: that a write was never sent,
            or was shut out.
        last_wait: seconds that ``close`` waits for calls under way after it has closed the back
            end.
        queues: decides the place of each operation, under the engine's lock.
        usual_get: the mean bytes of a value by the last bulk call; infinite before the first.
    """

    grace: Final = 0.1
    last_wait: Final = 5.0
    look: Final = 1.0  # seconds between two looks whether the store was left behind

    def __init__(
        self,
        backend: Backend,
        config: BatchingConfig,
        name: str,
        capabilities: frozenset[Capability] = frozenset(),
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.limits = limits = backend.limits
        self.max_queued_bytes = config.max_queued_bytes
        self.usual_get = math.inf
        self.name = name
        self.capabilities = capabilities
        self.advisory = backend.tally.advisory
        self._backend = backend
        self.hooks = Hooks(hooks, name)
        self.attachments = Attachments()
        # Reentrant only to tell whether a signal handler or a finalizer has interrupted a change.
        self._lock = lock = RLock()
        self.queues = queues = Queues(lock, config, limits, self._send, backend.session)
        self.reads, self.writes, self.lanes = queues.reads, queues.writes, queues.lanes
        # Local references, because every operation uses them.
        self._lines, self._unstarted = queues.lines, queues.unstarted
        self._intake, self._epochs = queues.intake, queues.epochs
        self.facets = Facets(backend, capabilities, name, self.check_open, self.check_not_forked)
        self.feeds = Feeds()  # of the open watches
        self._closing = False  # new operations are refused
        self._cut_off = False  # the back end is closed under operations without an answer
        self._stopping = False  # threads end when they find nothing to do
        self._closer: int | None = None  # the thread that closes the store
        self._closed = False
        self._open = Lock()  # held until the store is closed; others wait for it in close
        self._open.acquire()
        self._forked = False
        self._orphaned: Callable[[], bool] | None = None  # set by `close_when`
        self._senders = Senders(lock, queues, name)
        self._dropped: SimpleQueue[Entry] = SimpleQueue()  # from abandoned bulk calls
        self._timekeeper = self._thread("deadlines", self._keep_deadlines)
        # Each lane starts with a sender: later, the system may have no thread left.
        lanes = [lane for lane in queues.all_lanes if lane.window]
        try:
            for thread in [self._timekeeper, *map(queues.add_sender, lanes)]:
                thread.start()
        except RuntimeError as error:
            self._stop()
            raise StoreUnavailableError(f"a thread of {name} cannot start: {error}") from error
        lifetime.opened(self)
        log.info("store opened", store=name, in_flight=self.writes.window, enabled=config.enabled)

    # Taking operations in. Runs in callers' threads.

    def submit(self, entry: Entry, when_full: WhenFull = "setting", *, block: bool = True) -> None:
        """Submit an operation. Unless this raises, the operation ends exactly once.

        Args:
            entry: the operation.
            when_full: what to do if the queue is full. ``"setting"`` follows ``on_full``,
                ``"wait"`` waits, and ``"raise"`` raises if the operation would have to wait.
            block: whether the calling thread waits with the operation. If not, the operation ends
                with ``QueueFullError`` if it finds no room by its deadline.

        Raises:
            StoreClosedError: the store is closed.
            QueueFullError: the queue has no room, now or by the deadline.
            ValueTooLargeError: the operation is larger than the store's largest request.
        """
        lane, intake = entry.lane, self._intake
        try:
            if len(intake) >= lane.allowance or entry.weight > lane.light:
                self._enter(entry, when_full, block)
                return
            intake.append(entry)
            # Only now: a sender that stops attending says so before its last look into the intake,
            # and several threads may have found the last place there.
            if len(intake) > lane.allowance or entry.deadline < self.queues.next_deadline:
                self.take_in(entry)
        except MetadataStoreError:
            raise
        except BaseException:  # KeyboardInterrupt
            self.take_back([entry])
            raise

    def _enter(self, entry: Entry, when_full: WhenFull, block: bool) -> None:
        """Submit an operation to a lane that nobody attends to, or that may be full."""
        if entry.weight > self.limits.request_bytes:
            raise too_heavy(entry, self.limits.request_bytes)
        queues = self.queues
        gate: Lock | None = None
        if self._in_the_way_of(entry, block):
            raise refused(entry.path)
        with self._lock:
            if self._closing:
                raise StoreClosedError(self._why_closed(), path=entry.path)
            try:
                queues.take_in()
                queues.watch_deadline(entry)
                if entry.lane.has_room(entry):
                    self._intake.append(entry)
                    queues.take_in()
                else:
                    gate = queues.enter_full(entry, when_full, block)
                    # Last, so that nothing can interrupt between the two.
                    epoch = entry.epoch = queues.epochs.current
                    epoch.pending += 1
            except MetadataStoreError:
                raise
            except BaseException:
                restore(queues, [entry])
                raise
        if self._unstarted:
            self._senders.start()
        if gate is not None:
            gate.acquire()  # the queues open it when they admit or end the operation
            if entry.waits_for & ROOM:
                assert isinstance(entry.answer, MetadataStoreError)
                raise entry.answer

    def take_in(self, entry: Entry) -> None:
        """Give an operation in the intake its place, because nobody else may look in time."""

        def take_in() -> None:
            if self._closing and entry in self._intake:  # It was not taken in before that.
                self._intake.remove(entry)
                raise StoreClosedError(self._why_closed(), path=entry.path)
            self.queues.take_in()
            self.queues.watch_deadline(entry)

        if not owned(self._lock):
            self._change(take_in, entry)
        elif entry in self._intake:
            self._intake.remove(entry)
            raise refused(entry.path)

    def take_back(self, entries: Sequence[Entry]) -> None:
        """Undo a submission that Ctrl-C interrupted, unless the operations were sent."""
        with self._lock:
            lost = [entry for entry in entries if entry.state == QUEUED]
            if lost:
                restore(self.queues, lost)
        if self._unstarted:
            self._senders.start()

    def hasten(self, entry: Entry) -> None:
        """Send an operation for which a thread waits, beside a lone one, if it is alone, too."""

        def hasten() -> None:
            queues, lane, now = self.queues, entry.lane, time.monotonic()
            queues.take_in()
            if entry.state == QUEUED and not entry.waits_for and lane.batches.leaves_beside:
                lane.batches.awaited = True
                queues.wake(lane, now)

        self._change(hasten)

    def submit_all(self, entries: list[Entry]) -> int:
        """Submit operations in order while there is room, and return the number submitted.

        The operations share one deadline, one lock and one wake-up. If ``submit`` would make the
        first one wait, or refuse it, none is submitted.
        """
        queues = self.queues

        def submit() -> int:
            if self._closing:
                return 0
            queues.take_in()
            taken = queues.fitting(entries)
            if taken:
                queues.watch_deadline(entries[0])
                self._intake.extend(entries if taken == len(entries) else entries[:taken])
                queues.take_in()
            return taken

        try:
            return self._change(submit, *entries)
        except MetadataStoreError:
            raise
        except BaseException:  # KeyboardInterrupt
            self.take_back(entries)
            raise

    def _change(self, change: Callable[[], _T], *submitted: Entry) -> _T:
        """Make a change under the lock, start the senders it needs, and return what it returns.

        If Ctrl-C interrupts it, the operations that it submits are cancelled, and everything is
        consistent again before another thread has the lock.

        Raises:
            UnsupportedError: this thread is in the middle of another change.
        """
        if owned(self._lock):
            raise refused()
        try:
            with self._lock:
                try:
                    return change()
                except MetadataStoreError:
                    raise
                except BaseException:
                    restore(self.queues, submitted)
                    raise
        finally:
            if self._unstarted:
                self._senders.start()

    def withdraw(self, entry: Entry) -> bool:
        """Cancel an operation unless it was sent. Say whether this call cancelled it.

        The caller then notifies the operation's waiters and calls :meth:`release`, even if Ctrl-C
        interrupts the call: the operation is then CANCELLED, or as it was.
        """
        withdrawn = False
        # A forked child may have a copy of the queues from the middle of a change.
        if self._forked or owned(self._lock):
            return False
        try:
            with self._lock:
                try:
                    self.queues.take_in()
                    withdrawn = entry.state == QUEUED
                    if withdrawn:
                        self.queues.cancel(entry)
                except BaseException:
                    restore(self.queues, [entry] if withdrawn and entry.state == CANCELLED else ())
                    raise
        finally:
            if self._unstarted:
                self._senders.start()
        return withdrawn

    def release(self, cancelled: Iterable[Entry]) -> None:
        """Release flushes from cancelled operations whose waiters were notified.

        It may be called again, for example because Ctrl-C has interrupted it.
        """
        if owned(self._lock):
            return  # `withdraw` has cancelled none in a handler that has interrupted a change.
        with self._lock:
            for entry in cancelled:
                self._epochs.release(entry)
            self.queues.calm()
        # Ctrl-C may have come as `withdraw` was about to do this.
        if self._unstarted:
            self._senders.start()

    def drop(self, entry: Entry) -> None:
        """Cancel an abandoned operation later, unless it was sent by then.

        This is for finalizers, which may run anywhere, even in a sender or under the lock. So it
        neither locks nor waits. Senders cancel the operation before they look for their next batch.
        """
        self._dropped.put(entry)

    def _withdraw_dropped(self) -> None:
        with self._lock:
            self.queues.take_in()
            # Another sender may do the same; under the lock, only one takes each entry.
            while not self._dropped.empty():
                entry = self._dropped.get()
                if entry.state == QUEUED:
                    self.queues.cancel(entry)
                    self._epochs.release(entry)
                    self.queues.calm()
        # Now, not when the caller has found a batch: nobody else would start them.
        if self._unstarted:
            self._senders.start()

    # Sending. Runs in the senders' threads.

    def _send(self, sender: Sender) -> None:
        if not self._senders.may_send(sender):
            return
        lane = sender.lane
        delivered: Sequence[Entry] | None = None
        hooks = self.hooks if self.hooks.of_batches else None
        while (taken := self._next_batch(lane, delivered)) is not None:
            batch, cause = taken
            sent = None if hooks is None else hooks.sent(lane.name, cause, batch)
            started = time.monotonic()
            answers = execute(self._backend, batch, self._end_unsent)
            if self._cut_off:
                answers = name_close(batch, answers, self.name)
            seconds = time.monotonic() - started
            if log.isEnabledFor(DEBUG):
                log.debug("batch ended", lane=lane.name, operations=len(batch), seconds=seconds)
            if self._backend.limits is not self.limits:
                self._learn_limits()
            delivered = self._finish(lane, batch, answers, seconds)
            self._deliver(delivered)
            # Before the batch counts as ended, so that a flush covers the hooks as well.
            if hooks is not None and sent is not None:
                hooks.ended(sent, delivered, seconds)

    def _end_unsent(self, late: Sequence[Entry], error: MetadataStoreError) -> None:
        """End operations of a batch that could not be sent by their deadlines."""
        self._end(
            lambda: [entry for entry in late if entry.state == SENT],
            lambda entry: error.for_path(entry.path),
        )

    def _learn_limits(self) -> None:
        """Adopt the lower limits that the back end has detected."""
        with self._lock:
            self.limits = limits = self._backend.limits
            self.queues.cap_batches(limits)
        log.info(
            "the store's limits have changed",
            store=self.name,
            write_ops=limits.write_ops,
            read_ops=limits.read_ops,
            request_bytes=limits.request_bytes,
            value_bytes=limits.value_bytes,
        )

    def _next_batch(
        self, lane: Lane, delivered: Sequence[Entry] | None
    ) -> tuple[list[Entry], Cause] | None:
        """Settle the sender's last batch, if any, and wait for the next one, with its cause."""
        batches, queues = lane.batches, self.queues
        if not self._dropped.empty():
            self._withdraw_dropped()
        with self._lock:
            self._count_delivered(batches, delivered)
            queues.take_in(lane)
            while (cause := batches.due(now := time.monotonic())) is None:
                if self._stopping:
                    return None
                if lane.allowance:
                    # Nobody may attend from now on. Earlier arrivals are taken in.
                    lane.allowance = 0
                    queues.take_in(lane)
                    continue
                watch = None if lane.watched else batches.due_in(now)
                lane.watched |= watch is not None
                lane.idle += 1
                lane.allow()
                lane.wakeup.wait(watch)
                lane.idle -= 1
                lane.signalled = False
                if watch is not None:
                    lane.watched = False
                queues.take_in(lane)
            batch = queues.take(lane, cause, now)
        if self._unstarted:
            self._senders.start()
        if log.isEnabledFor(DEBUG):
            log.debug("batch sent", lane=lane.name, cause=cause, operations=len(batch))
        return batch, cause

    def _finish(
        self, lane: Lane, batch: Sequence[Entry], answers: Sequence[Answer], seconds: float
    ) -> Sequence[Entry]:
        """End a batch's operations; return those that had not ended before.

        The metrics count them before callers receive the results, so a caller that has a result
        finds it counted.
        """
        with self._lock:
            ended = self.queues.end_batch(lane, batch, answers, seconds)
        if self._unstarted:
            self._senders.start()
        return ended

    def _end(
        self,
        choose: Callable[[], Sequence[Entry]],
        error: Callable[[Entry], MetadataStoreError],
    ) -> None:
        """End operations before their batch, or without one; ``choose`` runs under the lock."""
        with self._lock:
            entries = choose()
            self.queues.end_all(entries, error)
        if self._unstarted:
            self._senders.start()
        self._deliver(entries)
        self.count_ended(entries)

    def _deliver(self, ended: Sequence[Entry]) -> None:
        sink = common(ended, "sink")
        sinks = {sink} if sink else set(map(attrgetter("sink"), ended))
        for sink in sinks:
            own = ended if len(sinks) == 1 else [e for e in ended if e.sink is sink]
            try:
                sink.deliver(own)
            except Exception:
                log.exception("results could not be delivered", store=self.name)

    def count_ended(self, delivered: Sequence[Entry]) -> None:
        """Release flushes from operations whose outcomes were delivered."""
        with self._lock:
            self._count_ended(delivered)

    def _count_delivered(self, batches: Accumulator, delivered: Sequence[Entry] | None) -> None:
        if delivered is not None:
            batches.delivering -= 1
            self._count_ended(delivered)

    def _count_ended(self, delivered: Sequence[Entry]) -> None:
        if self._epochs.count_ended(delivered):
            self.queues.calm()

    # Deadlines. Runs in the timekeeper's thread.

    def _keep_deadlines(self) -> None:
        queues = self.queues
        while True:
            with self._lock:
                while (wait := queues.next_deadline - time.monotonic()) > 0 and not self._stopping:
                    if (orphaned := self._orphaned) is not None:
                        wait = min(wait, self.look)
                        if orphaned() and not self._closing:
                            break
                    queues.deadline_moved.wait(None if wait == math.inf else wait)
                if self._stopping:
                    return
            if wait > 0:
                self._orphaned = None
                self._thread("orphan", self._close_orphan).start()
                continue
            # Without the lock, because this runs the back end's code.
            connected = self._is_connected()
            self._end(
                lambda: queues.expired(time.monotonic(), self.grace),
                partial(overdue, connected=connected),
            )

    def _close_orphan(self) -> None:
        """Close a store whose loop has ended, so that its session, and with it its locks, end."""
        self.close(lifetime.EXIT_DRAIN)
        warnings.warn(
            f"a store was not closed before its event loop: {self.name}",
            ResourceWarning,
            stacklevel=1,
        )

    def _is_connected(self) -> bool:
        try:
            return self._backend.connected
        except Exception:
            # A fault in a back end must not stop the timekeeper.
            log.exception("the back end failed", store=self.name)
            return True

    # Flushing and closing. Runs in callers' threads.

    def flush(self) -> None:
        """Return when all operations submitted earlier have ended."""
        self.check_not_forked()
        if self.interrupted():
            raise refused()
        self._flush("flush", None)

    def _flush(self, cause: Cause, deadline: float | None) -> bool:
        """Send all queued operations, wait for them, and say whether all have ended."""

        def hurry() -> Sequence[Epoch]:
            self.queues.take_in()
            before = self._epochs.begin()
            for lane in (self.reads, self.writes) if before else ():
                lane.batches.hurry = cause
                self.queues.wake(lane, time.monotonic())
            return before

        before = self._change(hurry)
        return self._change(lambda: self._epochs.wait(before, deadline))

    def sync(self, timeout: float) -> None:
        """Make the back end catch up with the writes of other clients."""
        self.check_open()
        if in_back_end():
            raise refused()
        self._backend.sync(time.monotonic() + timeout)

    def close(self, timeout: float | None = None) -> None:
        """Refuse new operations, send the queued ones, and close the back end.

        After ``timeout`` seconds, queued operations end with ``StoreClosedError``, and writes
        without an answer end with ``IndeterminateError``. Without a timeout, the operations' own
        deadlines are the bound. The first call does the work; others wait for it, no
        longer than their ``timeout``.
        """
        first = drained = False
        me = get_ident()

        def refuse_new_ones() -> None:
            nonlocal first
            if self._closer is None:
                try:
                    self.queues.shut_intake()
                except BaseException:
                    self.queues.open_intake()
                    raise
                self._closer = me
                first = self._closing = True

        try:
            self._change(refuse_new_ones)
            if first:
                deadline = None if timeout is None else time.monotonic() + timeout
                drained = self._flush("close", deadline)
        finally:
            # After an interrupt as well, or other callers would wait for ever.
            if first:
                try:
                    self._shut(drained)
                finally:
                    self._closed = True
                    self._open.release()
        if first:
            log.info("store closed", store=self.name, drained=drained)
        elif (
            not self._closed
            and self._closer != me
            # Bounded at the interpreter's end, too, where a handler may have begun the close.
            and self._open.acquire(timeout=-1 if timeout is None else timeout + self.last_wait)
        ):
            self._open.release()

    def interrupted(self) -> bool:
        """Say whether this thread is in the middle of code that threads of the store may wait for.

        A signal handler or a finalizer has interrupted it, and must not wait for these threads.
        """
        return owned(self._lock) or self._in_the_way()

    def _in_the_way_of(self, entry: Entry, block: bool) -> bool:
        """Say whether an operation cannot be submitted, because it would wait for such code."""
        return owned(self._lock) or (
            block and not entry.lane.has_room(entry) and self._in_the_way()
        )

    def _in_the_way(self) -> bool:
        return self._senders.held() or self.feeds.held() or in_the_way()

    def not_closed_here(self) -> bool:
        """Say whether others close it: the parent process, or code that this has interrupted."""
        return self._forked or (self._closer == get_ident() and not self._closed)

    def refuse_soon(self) -> None:
        """Refuse new operations, without a lock, until ``close`` runs on another thread."""
        for lane in self.queues.all_lanes:
            lane.closing = True
            lane.allowance = 0
        self._closing = True

    def close_when(self, orphaned: Callable[[], bool]) -> None:
        """Close the store soon after ``orphaned`` says that nobody else can; it must not block."""
        with self._lock:
            self._orphaned = orphaned
            self.queues.deadline_moved.notify()

    def _shut(self, drained: bool) -> None:
        # Each step is taken, in the reverse of this order, even if Ctrl-C ends an earlier one.
        with ExitStack() as steps:
            steps.callback(self.attachments.close)
            steps.callback(lifetime.closed, self)
            # After the back end, which may have reported the last writes to watches.
            steps.callback(self.feeds.close)
            steps.callback(self._stop)
            steps.callback(to_its_end, self._backend.close)
            if not drained:
                self._cut_off = True
                self._end_where(lambda entry: entry.state == QUEUED)

    def _stop(self) -> None:
        lanes = self.queues.all_lanes
        with self._lock:
            self._stopping = True
            self.queues.deadline_moved.notify_all()
            for lane in lanes:
                lane.wakeup.notify_all()
        until = time.monotonic() + self.last_wait
        threads = [self._timekeeper, *(thread for lane in lanes for thread in lane.senders)]
        try:
            for thread in threads:
                if thread is not current_thread() and thread.ident is not None:
                    thread.join(max(0.0, until - time.monotonic()))
        finally:
            # The back end's calls for the remaining operations have not returned even now.
            self._end_where(lambda entry: entry.state in (QUEUED, SENT))
            with self._lock:
                for lane in lanes:
                    lane.close()

    def _end_where(self, which: Callable[[Entry], bool]) -> None:
        """End operations, on a thread that Ctrl-C does not reach, or some would never end."""
        with self._lock:
            if not any(which(entry) for entry in self._lines.entries()):
                return

        def end() -> None:
            self._end(
                lambda: [entry for entry in self._lines.entries() if which(entry)],
                partial(shut_out, store=self.name),
            )

        to_its_end(end)

    def abandon(self) -> None:
        """Make the copy of this engine in a forked child refuse everything instead of hanging.

        Its threads run only in the parent, and its lock may be held for ever.
        """
        self._lock = lock = RLock()
        self._senders.abandon(lock)
        for lane in self.queues.all_lanes:
            lane.allowance = 0
        self.feeds = Feeds()
        self._forked = self._closing = self._closed = True
        self._closer = 0
        self.attachments.abandon()

    def check_not_forked(self) -> None:
        """Raise in a forked child, where a wait for the parent's threads would never end.

        Raises:
            StoreClosedError: the store was opened before the fork.
        """
        if self._forked:
            raise StoreClosedError(self._why_closed())

    def check_open(self) -> None:
        """Raise if the store is closed, or was opened before this process was forked.

        Raises:
            StoreClosedError: so it is.
        """
        if self._closing:
            raise StoreClosedError(self._why_closed())

    def _why_closed(self) -> str:
        if self._forked:
            return f"the store was opened before this process was forked; open it here: {self.name}"
        return f"the store is closed: {self.name}"

    # Threads and numbers

    def _thread(self, name: str, target: Callable[[], None]) -> Thread:
        # Daemons, so that a store left open cannot keep the interpreter from ending. `lifetime`
        # drains it at exit.
        return Thread(target=target, name=f"batchkeeper-{name}", daemon=True)

    def metrics(self) -> Metrics:
        """Return a snapshot of the engine's queues, batches, timings, failures and watches."""
        events = self._backend.tally.counts()
        session = self._backend.session
        watches, watch_events, watch_drops = self.feeds.numbers()

        def snapshot() -> Metrics:
            self.queues.take_in()
            return self.queues.metrics(events)

        return replace(
            self._change(snapshot),
            watches=watches,
            watch_events=watch_events,
            watch_drops=watch_drops,
            session_losses=0 if session is None else session.number - 1,
        )


class _Store(Protocol):
    _engine: Engine


def engine_of(store: _Store) -> Engine:
    """Return the engine of a store, for other parts of the package. Callers have no use for it."""
    return store._engine
