# async:
# `_sync/logs.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The interface of the logs that hold the messages of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..topics.region import Claim
from .messages import Message

__all__ = ["AsyncLogs"]


class AsyncLogs(Protocol):
    """The logs of topics. BookKeeper can be one; ``FileLogs`` is another.

    A log enforces one rule about owners: once a greater epoch has begun, it refuses everything from
        a smaller one. So it refuses the late message of a paused hub, regardless of clocks.

    A hub makes one call of ``append`` for a topic at a time.
    """

    async def begin(self, claim: Claim) -> int:
        """Open the log of a topic for its new owner, and shut out all earlier owners.

        Returns:
            the number of the last message, or 0 if the log is empty.

        Raises:
            StaleEpochError: a greater epoch has begun.
        """

    async def append(self, claim: Claim, bodies: Sequence[bytes]) -> int:
        """Add messages, and return the number of the last one when they are stored.

        Raises:
            StaleEpochError: a greater epoch has begun. None of the messages is in the log.
        """

    async def read(self, topic: str, after: int, most: int) -> list[Message]:
        """Return at most ``most`` messages after a number, in order.

        It may return fewer, so that large messages do not fill the memory, but at least one if
        there is one.
        """

    async def end(self, claim: Claim) -> None:
        """Free the memory of a topic's log: its owner has lost or released the topic."""
