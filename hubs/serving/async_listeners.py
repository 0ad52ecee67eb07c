# async:
# `_sync/listeners.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The callbacks for topics that a hub gets and loses.

All of them are awaited. The caller gets an error of ``acquired``, and undoes the claim; an error of
``lost`` is logged. No function is called under the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ...ops.log import get_logger
from ..topics.region import Claim

__all__ = ["AsyncListeners", "TopicCallback"]

#: Called with the claim of a topic that the hub has acquired, or is about to release.
TopicCallback: TypeAlias = Callable[[Claim], Awaitable[object]]

log = get_logger("batchkeeper.hubs")


class AsyncListeners:
    """The listeners of one hub, in the order in which they were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards changes of the following field
        self._listeners: tuple[tuple[TopicCallback | None, TopicCallback | None], ...] = ()

    def add(self, acquired: TopicCallback | None, lost: TopicCallback | None) -> None:
        """Add a pair of functions. Running calls do not include it."""
        with self._lock:
            self._listeners = (*self._listeners, (acquired, lost))

    async def notify_acquired(self, claim: Claim, notified: list[TopicCallback]) -> None:
        """Call all ``acquired`` functions. The first error ends this, and is raised.

        Args:
            claim: the claim of the topic.
            notified: receives the ``lost`` of each listener whose ``acquired`` was called, so that
                the caller can undo the claim. The listener that raises is included.
        """
        for acquired, lost in self._listeners:
            if lost is not None:
                notified.append(lost)
            if acquired is not None:
                await acquired(claim)

    async def notify_lost(self, claim: Claim, notified: list[TopicCallback] | None = None) -> None:
        """Call all ``lost`` functions, or the given ones, before the hub releases a topic."""
        if notified is None:
            notified = [lost for _, lost in self._listeners if lost is not None]
        for lost in notified:
            try:
                await lost(claim)
            except Exception:
                log.exception("a listener has failed", topic=claim.topic)
