"""Executes one request at the back end, and makes the errors of operations without an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    QueueFullError,
    StoreClosedError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from ..ops.log import get_logger
from ..stores.backend import Answer, Backend, Deadline, RequestRefusedError
from .entry import QUEUED, ROOM, SENT, Entry, deadlines

__all__ = ["execute", "name_close", "overdue", "queue_full", "shut_out", "too_heavy"]

log = get_logger("batchkeeper.engine")

#: Ends entries that were not sent with an error, before their batch has ended.
EndEarly: TypeAlias = Callable[[Sequence[Entry], MetadataStoreError], None]


def too_heavy(entry: Entry, most: int) -> ValueTooLargeError:
    """Return the error of an operation that does not fit into a request of ``most`` bytes.

    A long path can exceed the limit even with a small value.
    """
    return ValueTooLargeError(
        f"the operation has {entry.weight} bytes with its encoding; the store accepts at most "
        f"{most} in one request",
        path=entry.path,
    )


def queue_full(entry: Entry) -> QueueFullError:
    """Return the error of an operation that would have to wait for room."""
    lane = entry.lane
    return QueueFullError(
        f"the queue of {lane.name} is full ({lane.held} of {lane.room} operations, "
        f"{lane.held_bytes} of {lane.bytes_room} bytes)",
        path=entry.path,
    )


def execute(backend: Backend, batch: Sequence[Entry], end: EndEarly) -> Sequence[Answer]:
    """Let the back end execute a batch; return exactly one answer for each entry.

    A batch that is refused as a whole is sent in parts, one after the other, until the operation
    that caused the refusal is alone. If a batch could not be sent by its first deadline, ``end`` is
    called with the late entries, and the others are sent again. Entries that have ended meanwhile
    are no longer sent.
    """
    left = batch
    while isinstance(found := _attempt(backend, left, end), MetadataStoreError):
        now = time.monotonic()
        late = [entry for entry in left if entry.deadline <= now]
        if not found.retriable or len(late) in (0, len(left)):
            return _spread(batch, left, [found.for_path(entry.path) for entry in left])
        end(late, found)
        left = _going(left)
        if not left:
            return _spread(batch, (), ())
    return _spread(batch, left, found)


def _attempt(
    backend: Backend, batch: Sequence[Entry], end: EndEarly
) -> Sequence[Answer] | MetadataStoreError:
    """Return one answer for each entry, or one error for all of them."""
    writes = batch[0].writes
    # A batch comes from one lane, so it contains only writes or only reads.
    call: Callable[[Any, float], Sequence[Answer]] = backend.write if writes else backend.read
    try:
        answers = call(batch, Deadline.of(deadlines(batch)))
        if len(answers) == len(batch):
            return answers
        raise RuntimeError(f"{len(answers)} answers to {len(batch)} operations")
    except RequestRefusedError as refused:
        if len(batch) == 1:
            return [refused.error]
        backend.tally.add("split")
        # Half of the batch, or the back end's limit, which may be lower after the refusal.
        most = backend.limits.write_ops if writes else backend.limits.read_ops
        size = max(1, min(len(batch) // 2, most))
        answers = []
        for start in range(0, len(batch), size):
            part = batch[start : start + size]
            going = _going(part)
            found = execute(backend, going, end) if going else ()
            answers += _spread(part, going, found)
        return answers
    except MetadataStoreError as error:
        return error
    except BaseException as error:
        # A fault in a back end must neither stop a sender nor leave a caller waiting, not even a
        # SystemExit. The back end may have applied something before it.
        log.exception("the back end failed", operations=len(batch))
        kind = IndeterminateError if writes else MetadataStoreError
        fault = kind(f"the back end failed: {error!r}")
        fault.__cause__ = error
        return [fault.for_path(entry.path) for entry in batch]


def _going(entries: Sequence[Entry]) -> Sequence[Entry]:
    # Read without the lock: an entry that ends a moment later is sent, and keeps its outcome.
    return [entry for entry in entries if entry.state == SENT]


def _spread(
    batch: Sequence[Entry], part: Sequence[Entry], answers: Sequence[Answer]
) -> Sequence[Answer]:
    """Return an answer for each entry of a batch; those outside of the part need none."""
    if len(part) == len(batch):
        return answers
    found = dict(zip(part, answers, strict=True))
    return [found.get(entry) for entry in batch]


def overdue(entry: Entry, *, connected: bool) -> MetadataStoreError:
    """Return the error of an operation whose deadline has passed.

    Args:
        entry: the operation.
        connected: whether the back end has a server that could answer.
    """
    seconds = entry.deadline - entry.submitted
    if entry.waits_for & ROOM:
        lane = entry.lane
        return QueueFullError(
            f"the queue of {lane.name} had no room within {seconds:.3g} s "
            f"(it holds at most {lane.room} operations and {lane.bytes_room} bytes)",
            path=entry.path,
        )
    if entry.state == QUEUED:
        kind = OperationTimeoutError if connected else StoreUnavailableError
        return kind(
            f"the operation was not sent within {seconds:.3g} s, and never will be",
            path=entry.path,
        )
    if entry.writes:
        return IndeterminateError(
            f"the write was under way, but got no answer within {seconds:.3g} s", path=entry.path
        )
    if not connected:
        return StoreUnavailableError(f"no server answered within {seconds:.3g} s", path=entry.path)
    return OperationTimeoutError(
        f"the operation got no answer within {seconds:.3g} s", path=entry.path
    )


def shut_out(entry: Entry, store: str) -> MetadataStoreError:
    """Return the error of an operation that the store ended when it closed."""
    if entry.state != QUEUED and entry.writes:
        return IndeterminateError(
            f"the store was closed before the answer arrived: {store}", path=entry.path
        )
    return StoreClosedError(
        f"the store was closed before the operation was executed: {store}", path=entry.path
    )


def name_close(batch: Sequence[Entry], answers: Sequence[Answer], store: str) -> Sequence[Answer]:
    """Replace errors that name only the effects of closing the back end, such as a lost connection.

    Errors at a deadline, and those of an outcome that is known, stay as they are.
    """
    now = time.monotonic()
    return [
        _closed_under(entry, answer, store)
        if isinstance(answer, IndeterminateError | StoreUnavailableError) and now < entry.deadline
        else answer
        for entry, answer in zip(batch, answers, strict=True)
    ]


def _closed_under(
    entry: Entry, error: IndeterminateError | StoreUnavailableError, store: str
) -> MetadataStoreError:
    kind: type[MetadataStoreError] = StoreClosedError
    if isinstance(error, IndeterminateError):
        if error.applied:
            return error
        kind = IndeterminateError
    named = kind(f"the store was closed before the answer arrived: {store}", path=entry.path)
    named.__cause__ = error
    return named
