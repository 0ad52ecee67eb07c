"""A lane: a bounded queue, the batches taken from it, and the threads that send them.

An engine has three lanes: reads, writes, and single executions.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Lock, RLock, Thread
from typing import Final

import janus

from ..stores.backend import Session
from .accumulator import Accumulator
from .entry import QUEUED, ROOM, Entry
from .metrics import LaneMetrics
from .recording import LaneRecord

__all__ = ["Lane", "Sender"]

# The most bytes of an operation in the intake, so that the bytes there are bounded, too.
_LIGHT: Final = 4096
# The limit of operations in the intake: at this number, the lock's cost for each is negligible.
# None on a Python without the global lock, where others could append to it while it is read.
_MOST: Final = 0 if "t" in sys.abiflags else 128
# So many threads may submit at the same moment without the queue being fuller than its bound.
_AT_ONCE: Final = 64


class Sender(Thread):
    """A thread that sends batches of a lane.

    It is a daemon, so that a store left open cannot keep the interpreter from ending; ``lifetime``
    drains it at exit.

    Args:
        lane: the lane.
        send: what the thread does.
    """

    def __init__(self, lane: Lane, send: Callable[[Sender], None]) -> None:
        name = f"batchkeeper-{lane.name}-{len(lane.senders)}"
        super().__init__(target=send, args=(self,), name=name, daemon=True)
        self.lane = lane


class Lane:
    """A queue with its bound, its batches and its senders; guarded by the engine's lock.

    Args:
        name: the lane's name, for threads and metrics.
        writes: whether its operations are writes.
        lock: the engine's lock.
        room: operations that may be held, in the queue and in the lines of their paths.
        bytes_room: the bytes that may be held there.
        window: batches that may be in flight at the same time; each has one sender thread.
        op_bytes: the bytes that the encoding adds to an operation.
        session: the store's session, to which ephemeral writes belong.
    """

    def __init__(
        self,
        name: str,
        writes: bool,
        lock: RLock,
        *,
        room: int,
        window: int,
        op_bytes: int,
        max_ops: int,
        max_bytes: int,
        max_delay: float,
        adaptive: bool,
        bytes_room: float = math.inf,
        session: Session | None = None,
    ) -> None:
        self.name = name
        self.writes = writes
        self.room = room
        self.bytes_room = bytes_room
        self.window = window
        self.op_bytes = op_bytes
        self.light = 0  # the most bytes of an operation that may lie in the intake
        self.session = session
        # Only the thread side of the queue is used, and never to wait: entries that wait for room
        # are in `waiting`, in order of arrival, for threads and tasks alike. An event loop on the
        # other side measured slower (1.6 times an idle put's latency against 1.4). The queue has
        # twice the room, because of the ghosts (see Accumulator).
        self._queue = self._new_queue()
        self.batches = Accumulator(
            self._queue.sync_q,
            room,
            max_ops=max_ops,
            max_bytes=max_bytes,
            max_delay=max_delay,
            adaptive=adaptive,
        )
        self.held = 0  # operations that count against `room`
        self.held_bytes = 0  # the bytes of these operations
        # Entries without room, oldest first, each with the gate of its caller's thread, if any.
        self.waiting: OrderedDict[Entry, Lock | None] = OrderedDict()
        self.wakeup = Condition(lock)  # senders wait here for a batch that is due
        self.shut = False  # nothing may arrive in the intake any more
        self.closing = False  # a close will soon say so
        # So many operations may lie in the intake; see `allow`. A caller reads it without the
        # lock before it appends one, and again afterwards: 0 says that nobody will look.
        self.allowance = 0
        self.idle = 0  # senders that wait
        self.signalled = False  # a sender was woken, and has not run yet
        self.watched = False  # a sender wakes by itself when the oldest entry is due
        self.senders: list[Sender] = []
        self.record = LaneRecord()

    def _new_queue(self) -> janus.Queue[Sequence[Entry]]:
        return janus.Queue(maxsize=2 * self.room)

    def cap_requests(self, request_bytes: int) -> None:
        """Adopt the size of the largest request that the store accepts."""
        self.light = min(_LIGHT, request_bytes)

    def has_room(self, entry: Entry) -> bool:
        """Say whether an entry need not wait for room, or for those that do."""
        return self.fits(1, entry.weight)

    def fits(self, operations: int, size: int) -> bool:
        """Return whether the operations fit, and no others wait for room."""
        return (
            not self.waiting
            and self.held + operations <= self.room
            and self.held_bytes + size <= self.bytes_room
        )

    def hold(self, entry: Entry) -> bool:
        """Count an entry against the room, if there is any; say whether there was.

        Each lane bounds its own bytes. With one bound for both, an operation could wait for bytes
        of an operation behind it in its path's line, in the other lane. With separate bounds,
        every wait is for an operation that was submitted earlier.
        """
        held_bytes = self.held_bytes + entry.weight
        # An operation that is larger than the bound itself goes alone.
        if self.held < self.room and (held_bytes <= self.bytes_room or not self.held_bytes):
            self.held += 1
            self.held_bytes = held_bytes
            return True
        return False

    def release(self, operations: int, size: int) -> None:
        """Give back the room of finished operations."""
        self.held -= operations
        self.held_bytes -= size

    def allow(self) -> None:
        """Say how many operations may lie in the intake, after a change of what decides it.

        None, unless somebody attends to it: a sender that was just woken, one that waits for
        the time when a batch is due, or all senders, if they are under way. Each looks into the
        intake when it comes back.
        """
        batches = self.batches
        most = 0
        if self.shut or self.closing or self.waiting:
            pass
        elif self.signalled or (not self.idle and len(self.senders) >= self.window):
            most = _MOST
        elif self.watched and not batches.leaves_at_once:
            # The operation that makes a batch due is not left to a sender that waits.
            left = (batches.max_bytes - batches.ready_bytes) // self.light
            most = min(_MOST, batches.max_ops - batches.ready - 1, left)
        if most:
            # All that may lie there has room.
            left = int(self.bytes_room - self.held_bytes) // self.light
            most = max(0, min(most, self.room - self.held - _AT_ONCE, left - _AT_ONCE))
        self.allowance = most

    def recount(self, entries: Iterable[Entry]) -> None:
        """Count the held operations again, from all entries that have a place in a line.

        The queue is replaced, because an interrupted put may have left the old one's lock locked.
        """
        own = [entry for entry in entries if entry.lane is self]
        queued = [entry for entry in own if entry.state == QUEUED]
        if self.name == "singles":
            # Singles hold their room until their calls have ended, and hold no bytes.
            self.held, self.held_bytes = len(own), 0
        else:
            held = [entry for entry in queued if not entry.waits_for & ROOM]
            self.held, self.held_bytes = len(held), sum(entry.weight for entry in held)
        self._queue = self._new_queue()
        ready = [entry for entry in queued if not entry.waits_for]
        self.batches.restart(self._queue.sync_q, ready)

    def metrics(self) -> LaneMetrics:
        """Return the metrics of the lane."""
        return self.record.metrics(self.held, len(self.waiting), self.batches.in_flight)

    def close(self) -> None:
        """Close the queue, after its last use, and let go of what was cancelled in it."""
        self.batches.restart(self._queue.sync_q, ())
        self._queue.close()
