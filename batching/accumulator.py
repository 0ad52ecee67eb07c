"""Decides what goes into the next batch, and when the batch is sent.

A pure object without I/O, threads or a clock. Its owner reports which entries are ready and how
many batches are in flight, and passes the time with each question. So tests are exact and never
sleep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, Literal, Protocol, TypeAlias

from ..ops.acceleration import accelerated
from .entry import QUEUED, SENT, Entry, move

__all__ = ["Accumulator", "Cause", "ReadyQueue"]

#: Why a batch left: it had ``max_ops`` operations, or ``max_bytes``; nothing was in flight, or one
#: operation beside which it could leave; its oldest operation had waited ``max_delay``; a caller
#: called ``flush``, or ``close``.
Cause: TypeAlias = Literal["ops", "bytes", "idle", "delay", "flush", "close"]


# The most entries in a run. With this many, the queue's cost per entry is negligible.
_RUN: Final = 256


class ReadyQueue(Protocol):
    """A first-in, first-out queue of runs of entries; the thread side of a janus queue is one."""

    def put_nowait(self, item: Sequence[Entry]) -> None: ...

    def get_nowait(self) -> Sequence[Entry]: ...


@accelerated
def take_entries(
    gathered: deque[Entry], max_ops: int, max_bytes: int
) -> tuple[list[Entry], int, int]:
    """Take the next batch, SENT; return it, its bytes, and how many entries were taken out."""
    batch: list[Entry] = []
    size = passed = 0
    while gathered:
        entry = gathered.popleft()
        passed += 1
        if entry.state != QUEUED:
            continue
        if size + entry.weight > max_bytes and batch:
            gathered.appendleft(entry)
            passed -= 1
            break
        size += entry.weight
        batch.append(entry)
        if len(batch) == max_ops:
            break
    move(batch, SENT)
    return batch, size, passed


class Accumulator:
    """Gathers ready entries into batches; guarded by the engine's lock.

    Args:
        queue: the queue of ready entries, in runs. An entry joins the last run until that is taken
            out. The queue needs room for twice as many entries as may be ready, because a cancelled
            entry stays there, as a ghost, until it is skipped or swept out.
        room: the most ready entries.
        max_ops: the most operations in a batch.
        max_bytes: the most bytes in a batch, unless one operation alone has more.
        max_delay: the longest time, in seconds, that the oldest entry waits for others.
        adaptive: whether a batch is sent at once when nothing is in flight.
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
        self.max_ops = max_ops
        self.max_bytes = max_bytes
        self._max_delay = max_delay
        self._adaptive = adaptive
        self._runs = 0  # in the queue
        self._run: list[Entry] | None = None  # the last of them, while it may grow
        self._gathered: deque[Entry] = deque()  # taken out of the queue
        self._entries = 0  # in the queue or gathered, ghosts among them
        self.ready = 0  # entries that can be sent: gathered or in the queue, without ghosts
        self.ready_bytes = 0
        self.in_flight = 0  # batches
        self.delivering = 0  # batches whose answers are here and whose callers are being informed
        self.hurry: Cause | None = None  # set while a flush waits for everything to be sent
        self.awaited = False  # whether a thread waits for the only entry that is ready
        self._lone = False  # whether the last batch has one operation

    def add(self, entry: Entry) -> None:
        """Add an entry that is ready to be sent."""
        if self._entries >= 2 * self._room:
            self._sweep()
        run = self._run
        if run is None or len(run) >= _RUN:
            run = self._run = []
            self._put(run)
        run.append(entry)
        self._entries += 1
        self.ready += 1
        self.ready_bytes += entry.weight

    def add_all(self, entries: Sequence[Entry], size: int) -> None:
        """Add several ready entries, which have ``size`` bytes together."""
        if self._entries + len(entries) > 2 * self._room:
            self._sweep()
        self._put(entries)
        self._run = None
        self._entries += len(entries)
        self.ready += len(entries)
        self.ready_bytes += size

    def discard(self, entry: Entry) -> None:
        """Forget an entry that was added and has ended without being taken."""
        self.awaited = False
        self.ready -= 1
        self.ready_bytes -= entry.weight

    def restart(self, queue: ReadyQueue, ready: Iterable[Entry]) -> None:
        """Continue with another queue and its ready entries."""
        self._queue = queue
        self._runs = 0
        self._run = None
        self._gathered = deque(sorted(ready, key=attrgetter("submitted")))
        self._entries = self.ready = len(self._gathered)
        self.ready_bytes = sum([entry.weight for entry in self._gathered])

    def due(self, now: float) -> Cause | None:
        """Return the reason to send a batch now, or ``None``."""
        if not self.ready:
            return None
        if self.ready >= self.max_ops:
            return "ops"
        if self.ready_bytes >= self.max_bytes:
            return "bytes"
        if self.hurry is not None:
            return self.hurry
        if self.leaves_at_once or (self.awaited and self.leaves_beside):
            return "idle"
        if now >= self._due_at():
            return "delay"
        return None

    @property
    def leaves_at_once(self) -> bool:
        """Whether an operation that is ready waits for no others."""
        # The callers that get their results now may submit more, which should be sent together.
        return self._adaptive and not self.in_flight and not self.delivering

    @property
    def leaves_beside(self) -> bool:
        """Whether an operation for which a thread waits may leave beside the one in flight.

        Both must be alone. Otherwise, two threads with an operation each would take turns at the
        store.
        """
        alone = self.in_flight == 1 and self._lone and self.ready <= 1
        return alone and self._adaptive and not self.delivering

    def due_in(self, now: float) -> float | None:
        """Return the seconds until a batch is due by age; ``None`` while nothing is ready."""
        return max(0.0, self._due_at() - now) if self.ready else None

    def take(self) -> list[Entry]:
        """Take the next batch out, SENT: the oldest entries up to ``max_ops`` and ``max_bytes``."""
        self._gather()
        batch, size, passed = take_entries(self._gathered, self.max_ops, self.max_bytes)
        self._entries -= passed
        self.awaited, self._lone = False, len(batch) == 1
        self.ready -= len(batch)
        self.ready_bytes -= size
        return batch

    def _due_at(self) -> float:
        # Ghosts must not make a batch of younger entries leave early.
        gathered = self._gathered
        while not gathered or gathered[0].state != QUEUED:
            if gathered:
                gathered.popleft()
                self._entries -= 1
            else:
                self._gather()
        return gathered[0].submitted + self._max_delay

    def _put(self, run: Sequence[Entry]) -> None:
        self._queue.put_nowait(run)
        self._runs += 1

    def _gather(self) -> None:
        """Take all runs out of the queue."""
        for _ in range(self._runs):
            self._gathered.extend(self._queue.get_nowait())
        self._runs = 0
        self._run = None

    def _sweep(self) -> None:
        # At most `room` of the entries are alive, so this frees at least `room` places. It runs
        # once for that many cancellations, so the cost of one does not grow with the queue.
        self._gather()
        self._gathered = deque([entry for entry in self._gathered if entry.state == QUEUED])
        self._entries = len(self._gathered)
