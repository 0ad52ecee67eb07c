"""Reads past changes from a store's history, in the caller's thread, beside the queues."""

from __future__ import annotations

from ..ops.errors import InvalidSettingError
from ..ops.operations import check_revision
from ..ops.paths import check_parent
from ..ops.results import Change
from ..stores.backend import History
from .scans import AsyncResultStream, ResultStream

__all__ = ["changes_of", "changes_of_async", "check_changes"]


def check_changes(prefix: str, after: int, until: int) -> tuple[str, int, int]:
    """Return the arguments of a call for changes, if they are valid.

    Raises:
        InvalidPathError: the prefix is not a valid path.
        InvalidSettingError: a revision is invalid, or ``after`` is greater than ``until``.
    """
    check_parent(prefix)
    for name, revision in (("after", after), ("until", until)):
        check_revision(name, revision)
    if after > until:
        raise InvalidSettingError(f"after ({after}) must not be greater than until ({until})")
    return prefix, after, until


def changes_of(
    historian: History, prefix: str, after: int, until: int, timeout: float
) -> ResultStream[Change]:
    """Yield changes one by one. Closing the iterator ends the reading."""
    return ResultStream(lambda: historian.changes(prefix, after, until, timeout))


def changes_of_async(
    historian: History, prefix: str, after: int, until: int, timeout: float
) -> AsyncResultStream[Change]:
    """Yield changes one by one, and read them on other threads."""
    return AsyncResultStream(lambda: historian.changes(prefix, after, until, timeout))
