# async:
# `_sync/conflicts.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The attempts of a call at a change, while other clients are faster."""

from __future__ import annotations

import asyncio
from typing import Final

from ..ops.backoff import Backoff
from ..ops.errors import MetadataStoreError, OperationTimeoutError, check_conflict
from .deadlines import Deadline

__all__ = ["AsyncConflicts"]

_BACKOFF: Final = Backoff(first=0.002, longest=0.2)


class AsyncConflicts:
    """The pauses of one call between its attempts.

    Args:
        timeout: seconds for all attempts, such as the store's ``operation_timeout``; or the
            deadline of the call.
        path: what the call changes, for errors.

    Attributes:
        attempts: the attempts that have ended with a pause.
    """

    def __init__(self, timeout: float | Deadline, path: str) -> None:
        self._deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
        self._path = path
        self.attempts = 0

    async def pause(self, error: MetadataStoreError | None = None) -> None:
        """Return when it is time for another attempt.

        Args:
            error: the error of this attempt: a conflict, or of unknown outcome; ``None`` if it was
                another sign that the attempt has seen an old state.

        Raises:
            MetadataStoreError: the store has refused the change for another reason.
            OperationTimeoutError: no time is left.
        """
        if error is not None and error.outcome != "unknown":
            check_conflict(error)
        self.attempts += 1
        if self._deadline.passed:
            raise OperationTimeoutError(
                f"other clients were faster in {self.attempts} attempts to change {self._path}",
                path=self._path,
            ) from error
        await asyncio.sleep(self._deadline.within(_BACKOFF.pause(self.attempts - 1)))
