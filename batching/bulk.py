"""Bulk calls: they take many operations and return the outcomes in order, without futures."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final, Generic, Self, TypeGuard, TypeVar

from ..ops.acceleration import accelerated
from ..ops.errors import MetadataStoreError, StoreClosedError
from ..ops.kinds import BRINGS_VALUES
from ..ops.operations import Get, Kind, Operation, Put
from ..ops.results import GetResult, Outcome
from .checks import check_operation
from .engine import Engine
from .entry import (
    CANCELLED,
    ENDED,
    QUEUED,
    Entry,
    Sink,
    ended_at_once,
    entry_of,
    move,
    total_weight,
)
from .execution import too_heavy
from .lane import Lane
from .reentry import midway, refused

__all__ = ["Bulk", "Collector", "OutcomeStream", "lies_ready"]

_T = TypeVar("_T")

# The number of operations submitted together. More would gain little and delay the first ones.
_CHUNK: Final = 256

# Operations that may be open before the first get has shown how large the values are: in a stream,
# which bounds their bytes, and where all are kept in any case. With more, the last of very large
# values would not be there by their deadlines.
_FIRST_GETS: Final = 64
_FIRST_KEPT_GETS: Final = 256
# As many at most, if the values of the last bulk call were small, and the part of the room for
# bytes that they would take up.
_MOST_FIRST_GETS: Final = 1024
_FIRST_BYTES: Final = 1 / 16

# Seconds between reading and submitting operations that do not count as waiting.
_WAITED: Final = 0.001

# Operations that most bulk calls are made of.
_PLAIN: Final = (Put, Get)
# Those of ``get_many``: the paths alone.
_PATHS: Final = (str,)

_new = tuple.__new__


def lies_ready(ops: object) -> TypeGuard[Sequence[Operation]]:
    """Say whether all operations exist already, so that they can be read together.

    The next operation of any other source may come late, or never, or depend on earlier outcomes.
    """
    return type(ops) in (list, tuple)


@accelerated
def plain_entries(
    ops: Sequence[Operation | str],
    start: int,
    end: int,
    plain: tuple[type, ...],
    lanes: Mapping[Kind, Lane],
    sink: Sink,
    now: float,
    timeout: float,
    value_bytes: int,
    request_bytes: int,
    most: int,
    acyclic: bool,
) -> list[Entry]:
    """Return the entries of the next operations, as far as they need no further check.

    Those are operations of one of the ``plain`` types, all of the same, without options, and within
    the limits. They end with the one with which they have ``most`` bytes. A path stands for its
    get.

    ``acyclic`` says that nothing leads from ``sink`` back to the entries: the twin then makes
    entries that are unknown to the garbage collector. The sink of a task leads there after its loop
    was closed.
    """
    made: list[Entry] = []
    cls, size = type(ops[start]), 0
    for place in range(start, end):
        op = ops[place]
        if cls not in plain or type(op) is not cls or size >= most:
            break
        fields: tuple[Kind, str, bytes | None, int | None]
        if isinstance(op, str):
            fields = ("get", op, None, None)
        elif op.options is None and (op.value is None or len(op.value) <= value_bytes):
            fields = (op.kind, op.path, op.value, op.expected_version)
        else:
            break
        entry = Entry(*fields, None, lanes, sink, now, timeout, op)
        if entry.weight > request_bytes:
            break
        made.append(entry)
        size += entry.weight
    return made


@accelerated
def take_outcomes(
    waiting: deque[Entry],
    outcome: type[Outcome] | None,
    error: type[MetadataStoreError],
    got: type[GetResult],
) -> tuple[list[Any], int, int, int]:
    """Take the oldest entries out, as far as they have ended.

    Return their outcomes, the bytes of the operations, the number of gets among them, and the bytes
    of the values that these have brought. Without an ``outcome``, return the results alone, and
    raise the first error.
    """
    taken: list[Any] = []
    size = gets = values = 0
    while waiting and waiting[0].state >= ENDED:
        entry = waiting.popleft()
        size += entry.weight
        answer = entry.answer
        gets += getattr(entry, "kind", None) == "get"  # a refused one may have none
        if type(answer) is got:
            values += len(answer[0])
        if outcome is None:
            if isinstance(answer, error):
                raise answer
            taken.append(answer)
            continue
        failed = isinstance(answer, error)
        made = (entry.caller, None, answer) if failed else (entry.caller, answer, None)
        taken.append(_new(outcome, made))
    return taken, size, gets, values


class Bulk:
    """The operations of one bulk call whose outcomes the caller has not received, in order.

    Args:
        engine: the engine.
        timeout: the seconds that each operation has.
        sink: hears of the end of operations.
        block: whether this thread waits if a queue is full.
        keeps: whether the caller keeps all outcomes, so that it matters less how much the first
            gets bring.
        bare: whether the call is given paths that were checked, and returns what their gets bring,
            or raises the first error.
    """

    def __init__(
        self,
        engine: Engine,
        timeout: float,
        sink: Sink,
        *,
        block: bool,
        keeps: bool,
        bare: bool = False,
    ) -> None:
        self._engine = engine
        self._plain = _PATHS if bare else _PLAIN
        self._outcome = None if bare else Outcome
        self._timeout = timeout
        self._sink = sink
        self._block = block
        self._place = 0  # of the next operation to read, if they exist already
        self._open: deque[Entry] = deque()  # their `caller` is the operation as it was given
        # The size of the larger queue alone. The batches in flight come on top of the queue, and
        # more would only make ended operations wait longer behind one that has not ended.
        self._room = max(engine.reads.room, engine.writes.room)
        self._bytes_room = engine.max_queued_bytes
        self._bytes = 0
        # Only ended gets show how much data gets return, so the call starts with few of them.
        likely = int(self._bytes_room * _FIRST_BYTES / max(1.0, engine.usual_get))
        least = _FIRST_KEPT_GETS if keeps else _FIRST_GETS
        self._gets_room = max(least, min(likely, _MOST_FIRST_GETS))
        self._got = self._got_bytes = 0
        self._gets = False  # whether the call has had a get

    def full(self) -> bool:
        """Say whether the call has read ahead as far as it may."""
        return self._left() <= 0 or self._bytes >= self._bytes_room

    def _left(self) -> int:
        """Return how many operations may be read ahead now."""
        room = min(self._room, self._gets_room) if self._gets else self._room
        return room - len(self._open)

    def head(self) -> Entry | None:
        """Return the oldest operation."""
        return self._open[0] if self._open else None

    def has_ended(self) -> bool:
        """Say whether the oldest operation has ended."""
        # Checking only the head is cheap; once it has ended, so has most of its batch.
        return bool(self._open) and self._open[0].state >= ENDED

    def read_ready(self, ops: Sequence[Operation | str]) -> bool:
        """Submit the next of operations that exist already; say whether there are more.

        If an operation is refused, the error is its outcome.
        """
        engine = self._engine
        limits = engine.limits
        place, end = self._place, min(len(ops), self._place + min(_CHUNK, self._left()))
        now = time.monotonic()
        entries: list[Entry] = []
        while place < end and self._bytes < self._bytes_room:
            more = plain_entries(
                *(ops, place, end, self._plain),
                *(engine.lanes, self._sink, now, self._timeout),
                *(limits.value_bytes, limits.request_bytes, self._bytes_room - self._bytes),
                self._block,  # a thread's sink
            )
            if more:
                self._gets = self._gets or more[0].kind in BRINGS_VALUES
                place += len(more)
                entries += more
                self._bytes += total_weight(more)
                continue
            entry = self._entry(ops[place], now)
            place += 1
            if entry.state == ENDED:
                self._submit(entries)
                entries = []
                self._open.append(entry)
            else:
                entries.append(entry)
                self._bytes += entry.weight
        self._place = place
        self._submit(entries)
        return place < len(ops)

    def read_together(self, source: Iterator[Operation]) -> bool:
        """Submit the next operations together, with one deadline; say whether there may be more.

        If an operation is refused, the error is its outcome.
        """
        left = min(_CHUNK, self._left())
        now = time.monotonic()
        entries: list[Entry] = []
        try:
            for op in source:
                entry = self._entry(op, now)
                if entry.state == ENDED:
                    self._submit(entries)
                    entries = []
                    self._open.append(entry)
                else:
                    entries.append(entry)
                    self._bytes += entry.weight
                left -= 1
                if not left or self._bytes >= self._bytes_room:
                    return True
        finally:  # If the source raises, the operations before the exception are still submitted.
            self._submit(entries)
        return False

    def read_singly(self, source: Iterator[Operation], most: int = _CHUNK) -> bool:
        """Submit each operation before the next is read; say whether there may be more.

        Returns when it has read ``most`` operations or may read no more, or when the oldest
        operation has ended.
        """
        for op in source:
            entry = self._entry(op, time.monotonic())
            if entry.state != ENDED:
                self._submit_one(entry)
            self._open.append(entry)
            self._bytes += entry.weight
            most -= 1
            if not most or self.has_ended() or self.full():
                return True
        return False

    def _entry(self, op: Any, now: float) -> Entry:
        """Return the entry of an operation; an entry that has ended if the operation is refused."""
        engine = self._engine
        if self._outcome is None and isinstance(op, str):
            op = Get(op)
        limits = engine.limits
        try:
            check_operation(op, limits, engine.capabilities, engine.name)
            if op.kind in BRINGS_VALUES:
                self._gets = True
            entry = entry_of(op, engine.lanes, self._sink, now, self._timeout, op)
            if entry.weight > limits.request_bytes:
                raise too_heavy(entry, limits.request_bytes)
        except MetadataStoreError as error:
            return ended_at_once(op, error)
        return entry

    def outcomes(self) -> list[Any]:
        """Remove the oldest operations that have ended, and return their outcomes."""
        ended, size, gets, values = take_outcomes(
            self._open, self._outcome, MetadataStoreError, GetResult
        )
        self._bytes -= size
        if gets:
            self._learn(gets, values)
        return ended

    def _learn(self, gets: int, size: int) -> None:
        """Limit the open gets so that, on average, they return no more bytes than may be queued."""
        self._got += gets
        self._got_bytes += size
        self._engine.usual_get = self._got_bytes / self._got
        self._gets_room = max(1, self._bytes_room * self._got // max(1, self._got_bytes))

    @midway
    def give_up(self) -> list[Entry]:
        """Cancel queued operations; return those that were sent and have not ended."""
        engine = self._engine
        try:
            for entry in self._open:
                engine.withdraw(entry)
        finally:
            engine.release([entry for entry in self._open if entry.state == CANCELLED])
        sent = [entry for entry in self._open if entry.state < ENDED]
        self._open.clear()
        return sent

    def forget(self) -> None:
        """Forget the open operations, without cancelling them."""
        self._open.clear()

    def drop(self) -> None:
        """Cancel queued operations without taking a lock, if no caller waits any more."""
        for entry in self._open:
            if entry.state < ENDED:
                self._engine.drop(entry)

    def _submit(self, entries: list[Entry]) -> None:
        while entries:
            taken = self._engine.submit_all(entries)
            self._open.extend(entries[:taken])
            if taken < len(entries):
                # There is no room for the next one, so it waits, and the others after it.
                self._submit_one(entries[taken])
                self._open.append(entries[taken])
                taken += 1
            entries = entries[taken:]
            self._renew_times(entries)

    def _submit_one(self, entry: Entry) -> None:
        try:
            self._engine.submit(entry, "wait", block=self._block)
        except MetadataStoreError as error:
            if entry.state == QUEUED:  # and not ended at its deadline, with this error
                entry.answer = error
                move((entry,), ENDED)

    def _renew_times(self, entries: list[Entry]) -> None:
        """Start the deadlines of operations now if earlier ones had to wait for room."""
        if entries:
            now = time.monotonic()
            if now - entries[0].submitted > _WAITED:
                for entry in entries:
                    entry.submitted, entry.deadline = now, now + self._timeout


class Collector(Generic[_T]):
    """Executes one bulk call in its caller's thread.

    Args:
        engine: the engine.
        ops: the operations; if ``bare``, paths that were checked.
        timeout: the seconds that each operation has.
        keeps: whether the caller keeps all outcomes. Operations are then also read together that do
            not lie ready.
        bare: whether results are returned alone; see :class:`Bulk`.
    """

    def __init__(
        self,
        engine: Engine,
        ops: Iterable[Any],
        timeout: float,
        *,
        keeps: bool = True,
        bare: bool = False,
    ) -> None:
        self._engine = engine
        self._ops = ops
        self._keeps = keeps
        self._source: Iterator[Operation] | None = None
        self._sink = _ThreadSink()
        self._bulk = Bulk(engine, timeout, self._sink, block=True, keeps=keeps, bare=bare)
        self._read = False  # whether the source is exhausted
        self._source_error: Exception | None = None

    def collect(self) -> list[_T]:
        """Read and submit operations in chunks, and return all outcomes."""
        outcomes: list[_T] = []
        bulk = self._bulk
        try:
            while not self._read:
                if bulk.full():
                    outcomes += self._wait()
                self._read_some()
                outcomes += bulk.outcomes()
            while bulk.head():
                outcomes += self._wait()
            if self._source_error is not None:
                raise self._source_error
        finally:
            self.close()
        return outcomes

    def close(self) -> None:
        """End early: cancel queued operations and wait for sent ones."""
        self._read = True
        self._source_error = None
        try:
            self._engine.check_not_forked()
        except StoreClosedError:
            self._bulk.forget()
        if self._engine.interrupted():  # A wait would never end.
            self._bulk.drop()
            self._bulk.forget()
        for entry in self._bulk.give_up():
            self._sink.wait_for(entry)

    def __del__(self) -> None:
        if hasattr(self, "_bulk"):  # Ctrl-C may have interrupted __init__
            self._bulk.drop()

    def _read_some(self) -> None:
        try:
            if lies_ready(self._ops):
                self._read = not self._bulk.read_ready(self._ops)
                return
            if self._source is None:
                self._source = iter(self._ops)
            if self._keeps:
                self._read = not self._bulk.read_together(self._source)
            else:
                self._read = not self._bulk.read_singly(self._source)
        except Exception as error:
            self._read = True
            self._source_error = error

    def _wait(self) -> list[_T]:
        """Return the next outcomes, at least one; at the end, raise the error or StopIteration."""
        head = self._bulk.head()
        if head is None:
            error, self._source_error = self._source_error, None
            raise error or StopIteration
        if head.state < ENDED:
            self._engine.check_not_forked()
            if self._engine.interrupted():
                raise refused()
            self._sink.wait_for(head)
        return self._bulk.outcomes()


class OutcomeStream(Collector[Outcome], Iterator[Outcome]):
    """The outcomes of operations, executed as they arrive, in the order given.

    The stream starts at the first ``next``, and reads ahead at most as many operations and bytes as
    the queues hold. Only one thread at a time may use it.

    It is not a generator: the garbage collector closes a generator in any thread, also in a
    sender's, where it could not wait for operations that were sent.
    """

    def __init__(self, engine: Engine, ops: Iterable[Operation], timeout: float) -> None:
        super().__init__(engine, ops, timeout, keeps=False)
        self._outcomes: deque[Outcome] = deque()  # removed from the bulk, not yet returned

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Outcome:
        """Wait for the next outcome and return it.

        Raises:
            StoreClosedError: this is a forked child, and only its parent receives the outcome.
            Exception: an exception of ``ops``, after the outcomes of all operations before it.
        """
        if not self._outcomes:
            bulk = self._bulk
            try:
                while not (self._read or bulk.full() or bulk.has_ended()):
                    self._read_some()
                self._outcomes.extend(self._wait())
            except BaseException:  # KeyboardInterrupt, or the end of the stream
                self.close()
                raise
        return self._outcomes.popleft()

    def close(self) -> None:
        """End early: cancel queued operations and wait for sent ones."""
        self._outcomes.clear()
        super().close()


class _ThreadSink:
    """Lets the thread of one bulk call wait for its operations."""

    def __init__(self) -> None:
        # The thread sets this before it looks at the entry's state, and a sender the state before
        # it looks at this. So one of them sees the other, without a lock that both would take.
        self._waits: tuple[Entry, Lock] | None = None

    def deliver(self, entries: object) -> None:
        """Wake the thread if the entry that it waits for has ended."""
        waits = self._waits
        if waits is not None and waits[0].state >= ENDED:
            with suppress(RuntimeError):  # Another sender has opened the gate.
                waits[1].release()

    def wait_for(self, entry: Entry) -> None:
        gate = Lock()
        gate.acquire()
        self._waits = entry, gate
        try:
            if entry.state < ENDED:
                gate.acquire()
        finally:
            self._waits = None
