"""Bulk work: many operations in, their outcomes out, in the same order, with no future each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from threading import Condition

from ..ops.errors import MetadataStoreError
from ..ops.operations import Operation
from ..ops.results import Outcome
from .checks import check_operation
from .engine import Engine
from .entry import Entry

__all__ = ["ReadAhead", "apply", "apply_stream"]


def apply(engine: Engine, ops: Iterable[Operation], timeout: float) -> list[Outcome]:
    """Execute operations and return their outcomes, in the order given."""
    return list(apply_stream(engine, ops, timeout))


def apply_stream(engine: Engine, ops: Iterable[Operation], timeout: float) -> Iterator[Outcome]:
    """Execute operations as they come, and yield their outcomes in the order given.

    It reads ahead by no more operations and bytes than the queues hold; a full queue makes it wait.
    """
    sink = _BulkSink()
    ahead = ReadAhead(engine)
    # Operations whose outcome has not been yielded, with what holds it or will.
    open_ops: deque[tuple[Operation, _BulkEntry | MetadataStoreError]] = deque()
    source_error: Exception | None = None
    source = iter(ops)
    try:
        while True:
            try:
                op = next(source)
            except StopIteration:
                break
            except Exception as error:
                source_error = error
                break
            entry = _submit(engine, op, sink, timeout)
            open_ops.append((op, entry))
            ahead.enter(entry)
            # A look at the head alone is cheap; when it has ended, so have most of its batch.
            while open_ops and (ahead.full() or _has_ended(open_ops[0][1])):
                sink.wait_for(open_ops[0][1])
                ahead.leave(open_ops[0][1])
                yield _outcome(*open_ops.popleft())
        while open_ops:
            sink.wait_for(open_ops[0][1])
            yield _outcome(*open_ops.popleft())
    finally:
        # Reached with operations left only if the caller stops early, or is interrupted.
        _give_up(engine, open_ops, sink)
    if source_error is not None:
        raise source_error


class ReadAhead:
    """How far a bulk call has read ahead of the outcomes that it has yielded."""

    def __init__(self, engine: Engine) -> None:
        # Of the larger queue alone: the batches in flight come on top of what it holds, and more
        # would only lengthen the wait of those that have ended behind one that has not.
        self._room = max(engine.reads.room, engine.writes.room)
        self._bytes_room = engine.max_queued_bytes
        self._count = 0
        self._bytes = 0

    def enter(self, entry: Entry | MetadataStoreError) -> None:
        self._count += 1
        if isinstance(entry, Entry):
            self._bytes += entry.weight

    def leave(self, entry: Entry | MetadataStoreError) -> None:
        self._count -= 1
        if isinstance(entry, Entry):
            self._bytes -= entry.weight

    def full(self) -> bool:
        return self._count >= self._room or self._bytes >= self._bytes_room


class _BulkEntry(Entry):
    """An operation of a bulk call; ``told`` is set when its caller may look at its answer."""

    __slots__ = ("told",)
    told: bool


class _BulkSink:
    """Lets the thread of one bulk call wait for its operations."""

    def __init__(self) -> None:
        self._told = Condition()  # guards the entries' `told`
        self._waited_for: _BulkEntry | None = None

    def deliver(self, entries: Sequence[_BulkEntry]) -> None:
        with self._told:
            for entry in entries:
                entry.told = True
            if self._waited_for is not None and self._waited_for.told:
                self._told.notify()

    def wait_for(self, entry: _BulkEntry | MetadataStoreError) -> None:
        if isinstance(entry, MetadataStoreError) or entry.told:
            return
        with self._told:
            self._waited_for = entry
            try:
                while not entry.told:
                    self._told.wait()
            finally:
                self._waited_for = None


def _submit(
    engine: Engine, op: Operation, sink: _BulkSink, timeout: float
) -> _BulkEntry | MetadataStoreError:
    try:
        check_operation(op, engine.limits.value_bytes, engine.name)
        entry = _BulkEntry(*engine.fields(op), sink, *engine.times(timeout))
        entry.told = False
        engine.submit(entry, when_full="wait")
    except MetadataStoreError as error:
        return error
    return entry


def _has_ended(entry: _BulkEntry | MetadataStoreError) -> bool:
    return isinstance(entry, MetadataStoreError) or entry.told


def _outcome(op: Operation, entry: _BulkEntry | MetadataStoreError) -> Outcome:
    answer = entry if isinstance(entry, MetadataStoreError) else entry.answer
    if isinstance(answer, MetadataStoreError):
        return Outcome(op, None, answer)
    return Outcome(op, answer)


def _give_up(
    engine: Engine,
    open_ops: Iterable[tuple[Operation, _BulkEntry | MetadataStoreError]],
    sink: _BulkSink,
) -> None:
    """Cancel what is queued, and wait for what was sent."""
    entries = [entry for _, entry in open_ops if not isinstance(entry, MetadataStoreError)]
    withdrawn = [entry for entry in entries if engine.withdraw(entry)]
    engine.settle(withdrawn)
    for entry in withdrawn:
        entry.told = True
    for entry in entries:
        sink.wait_for(entry)
