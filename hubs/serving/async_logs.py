# async:
# `_sync/logs.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""What a hub needs of the logs that hold the messages of its topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..topics.region import Claim
from .messages import Message

__all__ = ["AsyncLogs"]


class AsyncLogs(Protocol):
    """The logs of topics. BookKeeper is one, ``FileLogs`` another.

    A log knows one thing about owners: once a greater epoch has begun, it takes nothing of a
    smaller one. So the late message of a hub that was paused is refused, whatever the clocks say.

    A hub makes one call of ``append`` for a topic at a time.
    """

    async def begin(self, claim: Claim) -> int:
        """Open the log of a topic for its new owner, and shut out all owners before.

        Returns:
            the number of the last message, 0 if there is none.

        Raises:
            StaleEpochError: a greater epoch has begun.
        """

    async def append(self, claim: Claim, bodies: Sequence[bytes]) -> int:
        """Add messages, and return the number of the last one when they are stored.

        Raises:
            StaleEpochError: a greater epoch has begun. None of the messages is in the log.
        """

    async def read(self, topic: str, after: int, most: int) -> list[Message]:
        """Return the messages after a number, in order, at most so many.

        It may return fewer, so that large messages do not fill the memory, but one at least if
        there is one.
        """

    async def end(self, claim: Claim) -> None:
        """Free what the log of a topic takes in memory: its owner has lost it or gives it up."""
