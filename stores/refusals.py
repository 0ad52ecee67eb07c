"""The errors of writes that the state of their path forbids. All stores take them from here."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from ..ops.errors import (
    BadVersionError,
    IndeterminateError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    SessionLostError,
    TransactionRefusedError,
)
from ..ops.operations import ABSENT
from ..ops.steps import At, Condition, PartRequest, PutNext, PutValue, Step

__all__ = [
    "NO_VALUE",
    "State",
    "decide",
    "not_ours",
    "partly_removed",
    "session_lost",
    "transaction_refused",
]


class State(NamedTuple):
    """The state of a path.

    Attributes:
        version: the version of its value, ``ABSENT`` if it has none.
        revision: the revision of its value (matters only if one is expected).
        occupied: whether there are values below it (matters only for a delete).
    """

    version: int
    revision: int | None = None
    occupied: bool = False


#: The state of a path without a value.
NO_VALUE = State(ABSENT)


def decide(step: Step, state: State) -> MetadataStoreError | None:
    """Return the error of a step that the state of its path forbids; ``None`` if it may go.

    Only this function decides which error takes precedence, so all stores answer alike: first the
    version of an existing value, then its revision, then values below the path, then absence.
    """
    path, condition, effect = step
    error = None if condition == "any" else _unexpected(path, condition, state)
    match effect:
        case PutValue() | PutNext() | "nothing":
            return error
        case "delete":
            missing = state.version == ABSENT
            if state.occupied and (missing or error is None):
                return NotEmptyError(f"{path!r} has values below it", path=path)
            if missing:
                return NotFoundError(f"nothing to delete at {path!r}", path=path)
        case _:
            assert_never(effect)
    return error


def _unexpected(path: str, condition: Condition, state: State) -> MetadataStoreError | None:
    """Return the error of a condition that a state does not meet."""
    actual, revision, _ = state
    expected: int | None
    match condition:
        case At():
            expected, wanted = condition
        case "any":
            return None
        case "exists":
            if actual != ABSENT:
                return None
            return NotFoundError(f"{path!r} holds no value, expected one", path=path)
        case "absent":
            expected, wanted = ABSENT, None
        case _:
            assert_never(condition)
    if expected is not None and expected != actual:
        return BadVersionError(
            f"{path!r} {_describe(actual)}, expected {_expectation(expected)}",
            path=path,
            expected=expected,
            actual=actual,
        )
    if wanted is None or (actual != ABSENT and wanted == revision):
        return None
    found = None if actual == ABSENT else revision
    found_at = "holds no value" if found is None else f"is at revision {found}"
    return BadVersionError(
        f"{path!r} {found_at}, expected revision {wanted}",
        path=path,
        expected=expected,
        actual=actual,
        expected_revision=wanted,
        actual_revision=found,
    )


def _describe(actual: int) -> str:
    return "holds no value" if actual == ABSENT else f"is at version {actual}"


def _expectation(expected: int) -> str:
    return "no value (ABSENT)" if expected == ABSENT else f"version {expected}"


def not_ours(path: str) -> MetadataStoreError:
    """Return the error of a path whose value another program wrote, or which is damaged."""
    return MetadataStoreError(
        f"batchkeeper did not write the value at {path!r}: another program did, or the value is "
        "damaged (delete_recursive removes it)",
        path=path,
    )


def partly_removed(
    removed: int, path: str, error: MetadataStoreError, *, perhaps: bool = False
) -> MetadataStoreError:
    """Return the error of a ``delete_recursive`` that failed after it had removed something.

    Args:
        removed: the number of values certainly removed.
        path: the root of the tree.
        error: the error of the call.
        perhaps: whether more values may be gone.
    """
    if not removed and not perhaps:
        return error.for_path(path)
    return IndeterminateError(
        f"removing {path!r} failed after at least {removed:,} values were removed: {error}",
        path=path,
    )


def transaction_refused(index: int, error: MetadataStoreError) -> TransactionRefusedError:
    """Return the error of a transaction, one operation of which does not hold."""
    return TransactionRefusedError(
        f"nothing was applied, because operation {index} does not hold: {error}",
        path=error.path,
        index=index,
        error=error,
    )


def session_lost(request: PartRequest) -> SessionLostError:
    """Return the error of an ephemeral put, or of a transaction with one, after its session."""
    parts = () if request.options is None else request.options.parts
    ephemeral = (part for part in parts if part.options is not None and part.options.ephemeral)
    path = next((part.path for part in ephemeral), request.path)
    return SessionLostError(
        f"the session in which {path!r} was to be created has ended; put it again in the new one",
        path=path,
    )
