# async:
# `_sync/writes.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Executes the writes of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ...batching import AsyncMetadataStore
from ...ops.errors import (
    BadVersionError,
    MetadataStoreError,
    NotFoundError,
    TransactionRefusedError,
    is_conflict,
)
from ...ops.operations import Put, Transaction
from ...ops.results import Outcome, Stat
from .async_states import AsyncStates
from .rows import Write
from .versions import Version

__all__ = ["Written", "async_execute", "async_execute_all"]

#: The version of a record after a put; ``None`` after a removal.
Written: TypeAlias = Version | None


async def async_execute(store: AsyncMetadataStore, states: AsyncStates, write: Write) -> Written:
    """Execute a write.

    Raises:
        BadVersionError: another client has changed the row.
        TransactionRefusedError: an operation in ``beside`` was refused.
    """
    op, several = write.op, write.guard is not None or bool(write.row.beside)
    try:
        if several:
            stat = (await store.transaction(write.parts))[-1]
        elif isinstance(op, Put):
            version, revision = op.expected_version, op.expected_revision
            stat = await store.put(op.path, op.value, version, expected_revision=revision)
        else:
            stat = None
            await store.delete(op.path, op.expected_version, expected_revision=op.expected_revision)
    except (TransactionRefusedError, NotFoundError) as error:
        raise _refusal(states, write, error) from error
    return _written(states, write, stat)


async def async_execute_all(
    store: AsyncMetadataStore, states: AsyncStates, writes: Sequence[Write]
) -> list[Written | MetadataStoreError]:
    """Execute writes in batches, and return the result or the error of each."""

    def ended(write: Write, outcome: Outcome) -> Written | MetadataStoreError:
        if outcome.error is not None:
            return _refusal(states, write, outcome.error)
        stat = outcome.result[-1] if isinstance(outcome.result, list) else outcome.result
        return _written(states, write, stat if isinstance(stat, Stat) else None)

    ops = [write.op if len(parts := write.parts) == 1 else Transaction(parts) for write in writes]
    outcomes = await store.apply(ops)
    return [ended(*one) for one in zip(writes, outcomes, strict=True)]


def _written(states: AsyncStates, write: Write, stat: Stat | None) -> Written:
    if stat is None:
        states.removed(write)
        return None
    return states.version(stat, write.life)


def _refusal(states: AsyncStates, write: Write, error: MetadataStoreError) -> MetadataStoreError:
    """Translate the error of an operation or transaction into the error of the write."""
    if isinstance(error, TransactionRefusedError):
        if error.index < len(write.row.beside):
            return error
        if write.parts[error.index] is write.guard:
            states.outdated(write)
        error = error.error or error
    if is_conflict(error):
        return BadVersionError(str(error), path=write.row.path)
    return error
