"""Bulk work: many operations in, their outcomes out, in the same order, with no future each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from threading import Condition
from typing import Self

from ..ops.errors import MetadataStoreError, StoreClosedError
from ..ops.operations import Operation
from ..ops.results import Outcome
from .checks import check_operation
from .engine import Engine
from .entry import Entry

__all__ = ["OutcomeStream", "ReadAhead"]


class OutcomeStream(Iterator[Outcome]):
    """The outcomes of operations that are executed as they come, in the order given.

    It starts at the first ``next``, and reads ahead by no more operations and bytes than the
    queues hold. For one thread at a time.

    Not a generator: what ends a generator that nobody holds any more may run in any thread at any
    moment, a sender's too, and there it could not wait for what was sent.
    """

    def __init__(self, engine: Engine, ops: Iterable[Operation], timeout: float) -> None:
        self._engine = engine
        self._ops = ops
        self._source: Iterator[Operation] | None = None
        self._timeout = timeout
        self._sink = _BulkSink()
        self._ahead = ReadAhead(engine)
        # Operations whose outcome has not been given, with what holds it or will.
        self._open: deque[tuple[Operation, _BulkEntry | MetadataStoreError]] = deque()
        self._read = False  # the source has no more
        self._source_error: Exception | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Outcome:
        """Return the next outcome; wait for it.

        Raises:
            StoreClosedError: this is a forked child, and the outcome will only reach its parent.
            Exception: of the operations' source, after the outcomes of all that came before it.
        """
        try:
            # A look at the head alone is cheap; when it has ended, so have most of its batch.
            while not self._open or not (
                self._read or self._ahead.full() or _has_ended(self._open[0][1])
            ):
                if self._read:
                    error, self._source_error = self._source_error, None
                    raise error or StopIteration
                self._read_one()
            op, entry = self._open[0]
            if not _has_ended(entry):
                self._engine.check_not_forked()
                self._sink.wait_for(entry)
        except BaseException:  # KeyboardInterrupt, or the end
            self.close()
            raise
        self._open.popleft()
        self._ahead.leave(entry)
        return _outcome(op, entry)

    def close(self) -> None:
        """End early: cancel what is queued, and wait for what was sent."""
        self._read = True
        self._source_error = None
        try:
            self._engine.check_not_forked()
        except StoreClosedError:
            self._open.clear()
        entries = [entry for _, entry in self._open if isinstance(entry, _BulkEntry)]
        withdrawn = [entry for entry in entries if self._engine.withdraw(entry)]
        self._engine.settle(withdrawn)
        for entry in withdrawn:
            entry.told = True
        for entry in entries:
            self._sink.wait_for(entry)
        self._open.clear()

    def __del__(self) -> None:
        for _, entry in self._open:
            if isinstance(entry, _BulkEntry):
                self._engine.drop(entry)

    def _read_one(self) -> None:
        try:
            if self._source is None:
                self._source = iter(self._ops)
            op = next(self._source)
        except StopIteration:
            self._read = True
        except Exception as error:
            self._read = True
            self._source_error = error
        else:
            entry = _submit(self._engine, op, self._sink, self._timeout)
            self._open.append((op, entry))
            self._ahead.enter(entry)


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
