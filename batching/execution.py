"""One request at the back end, and the errors that operations end with where no answer comes."""

from __future__ import annotations

from collections.abc import Sequence

from ..ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    ValueTooLargeError,
)
from ..ops.log import get_logger
from ..stores.backend import Answer, Backend, RequestRefusedError
from .entry import QUEUED, Entry

__all__ = ["execute", "overdue", "shut_out", "too_heavy"]

log = get_logger("batchkeeper.engine")


def too_heavy(entry: Entry, most: int) -> ValueTooLargeError:
    """Return what refuses an operation that no request of ``most`` bytes has room for.

    With a long path, one with a small value may be one.
    """
    return ValueTooLargeError(
        f"the operation has {entry.weight} bytes with what its encoding adds, the store takes "
        f"{most} in one request",
        path=entry.path,
    )


def execute(backend: Backend, batch: Sequence[Entry]) -> Sequence[Answer]:
    """Let the back end execute a batch; return one answer for each entry, whatever happens.

    A batch that is refused whole is halved until the culprit stands alone.
    """
    writes = batch[0].writes
    call = backend.write if writes else backend.read
    try:
        answers = call(batch, max([entry.deadline for entry in batch]))
        if len(answers) == len(batch):
            return answers
        raise RuntimeError(f"{len(answers)} answers to {len(batch)} operations")
    except RequestRefusedError as refused:
        if len(batch) == 1:
            return [refused.error]
        half = len(batch) // 2
        return [*execute(backend, batch[:half]), *execute(backend, batch[half:])]
    except MetadataStoreError as error:
        return [error.for_path(entry.path) for entry in batch]
    except BaseException as error:
        # A fault in a back end must neither stop a sender nor leave a caller waiting, not even a
        # SystemExit. What the back end did before is not known.
        log.exception("the back end failed", operations=len(batch))
        kind = IndeterminateError if writes else MetadataStoreError
        fault = kind(f"the back end failed: {error!r}")
        fault.__cause__ = error
        return [fault.for_path(entry.path) for entry in batch]


def overdue(entry: Entry) -> MetadataStoreError:
    """Return what an operation ends with whose deadline has passed."""
    seconds = entry.deadline - entry.submitted
    if entry.state == QUEUED:
        return OperationTimeoutError(
            f"not sent within {seconds:.3g} s, and never will be", path=entry.path
        )
    if entry.writes:
        return IndeterminateError(f"sent, but not answered within {seconds:.3g} s", path=entry.path)
    return OperationTimeoutError(f"not answered within {seconds:.3g} s", path=entry.path)


def shut_out(entry: Entry, store: str) -> MetadataStoreError:
    """Return what an operation ends with that a closing store has no time left for."""
    if entry.state != QUEUED and entry.writes:
        return IndeterminateError(
            f"the store was closed before the answer came: {store}", path=entry.path
        )
    return StoreClosedError(
        f"the store was closed before the operation was carried out: {store}", path=entry.path
    )
