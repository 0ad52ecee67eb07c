"""What goes into the next batch, and when it leaves.

A pure object: no I/O, no thread and no clock. It is told what is ready to be sent and what is in
flight, and is asked with the time; so it can be tested to the point, without sleeping.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol, TypeAlias, get_args

from .entry import QUEUED, Entry

__all__ = ["CAUSES", "Accumulator", "Cause", "ReadyQueue"]

#: Why a batch left: it had ``max_ops`` operations, or ``max_bytes``; nothing was in flight; its
#: oldest operation had waited ``max_delay``; somebody called ``flush``, or ``close``.
Cause: TypeAlias = Literal["ops", "bytes", "idle", "delay", "flush", "close"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)


class ReadyQueue(Protocol):
    """A first-in, first-out queue; the thread side of a janus queue is one."""

    def put_nowait(self, item: Entry) -> None: ...

    def get_nowait(self) -> Entry: ...


class Accumulator:
    """Gathers entries that are ready to be sent into batches; guarded by the engine's lock.

    Args:
        queue: holds the ready entries. It must have room for twice as many as may be queued:
            a cancelled entry stays in it, as a ghost, until it is passed over or swept out.
        room: how many ready entries there may be.
        max_ops: the most operations in a batch.
        max_bytes: the most bytes in a batch, unless one operation alone has more.
        max_delay: seconds that the oldest entry waits for company at the most.
        adaptive: whether a batch leaves at once when nothing is in flight.
    """

    def __init__(
        self,
        queue: ReadyQueue,
        room: int,
        *,
        max_ops: int,
        max_bytes: int,
        max_delay: float,
        adaptive: bool,
    ) -> None:
        self._queue = queue
        self._room = room
        self._max_ops = max_ops
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._adaptive = adaptive
        self._in_queue = 0  # entries in the queue, ghosts among them
        self._head: Entry | None = None  # taken out of the queue, but not into a batch yet
        self.ready = 0  # entries that can be sent: the head and the queue's, without ghosts
        self.ready_bytes = 0
        self.in_flight = 0  # batches
        self.hurry: Cause | None = None  # set while somebody waits for everything to be sent

    def add(self, entry: Entry) -> None:
        """Take in an entry that waits for nothing any more."""
        if self._in_queue >= 2 * self._room:
            self._sweep()
        self._queue.put_nowait(entry)
        self._in_queue += 1
        self.ready += 1
        self.ready_bytes += entry.weight

    def discard(self, entry: Entry) -> None:
        """Forget an entry that was added and has ended without being taken."""
        self.ready -= 1
        self.ready_bytes -= entry.weight

    def due(self, now: float) -> Cause | None:
        """Say why a batch should leave now, or ``None`` if it should not."""
        if not self.ready:
            return None
        if self.ready >= self._max_ops:
            return "ops"
        if self.ready_bytes >= self._max_bytes:
            return "bytes"
        if self.hurry is not None:
            return self.hurry
        if self._adaptive and not self.in_flight:
            return "idle"
        if now >= self._due_at():
            return "delay"
        return None

    def due_in(self, now: float) -> float | None:
        """Return the seconds until a batch is due by age; ``None`` while nothing is ready."""
        return max(0.0, self._due_at() - now) if self.ready else None

    def take(self) -> list[Entry]:
        """Take the next batch out: the oldest entries up to ``max_ops`` and ``max_bytes``."""
        batch: list[Entry] = []
        size = 0
        max_ops, max_bytes = self._max_ops, self._max_bytes
        get = self._queue.get_nowait
        entry, self._head = self._head, None
        in_queue = self._in_queue
        while True:
            if entry is not None and entry.state == QUEUED:
                size += entry.weight
                if size > max_bytes and batch:
                    size -= entry.weight
                    self._head = entry
                    break
                batch.append(entry)
                if len(batch) == max_ops:
                    break
            if not in_queue:
                break
            entry = get()
            in_queue -= 1
        self._in_queue = in_queue
        self.ready -= len(batch)
        self.ready_bytes -= size
        return batch

    def _due_at(self) -> float:
        head = self._head
        # Ghosts must not make a batch of younger entries leave early.
        while head is None or head.state != QUEUED:
            head = self._queue.get_nowait()
            self._in_queue -= 1
        self._head = head
        return head.submitted + self._max_delay

    def _sweep(self) -> None:
        # At most `room` of the entries are alive, so this frees at least `room` places: swept
        # once for that many cancellations, it costs nothing that grows with the queue.
        alive = [self._queue.get_nowait() for _ in range(self._in_queue)]
        alive = [entry for entry in alive if entry.state == QUEUED]
        for entry in alive:
            self._queue.put_nowait(entry)
        self._in_queue = len(alive)
