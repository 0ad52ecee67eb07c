# async:
# `_sync/outages.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""How the calls of a client wait while hubs do not answer.

When a hub with thousands of topics crashes, its clients find no other hub for them until its
session has ended. If each call asked again and again meanwhile, the hubs that are left would have
no time to take the topics over. So of all calls that wait for one hub, one asks on, and the others
wait for it: what it finds out holds for them, too.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from ...coordination.async_background import AsyncSignal
from ...coordination.deadlines import Deadline
from ...ops.backoff import Backoff
from .errors import reader_closed

__all__ = ["AsyncOutages", "AsyncSearch"]

_BACKOFF: Final = Backoff(first=0.02, longest=1.0)
# For the call that asks on for all others.
_FOR_ALL: Final = Backoff(first=0.02, longest=0.25)
# Seconds after which a call that waits looks whether its caller has ended.
_POLL: Final = 1.0


class AsyncOutages:
    """The hubs that own topics and do not answer, as one client sees them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the field
        self._over: dict[str, AsyncSignal] = {}

    def join(self, hub: str) -> AsyncSignal | None:
        """Return what is set when the outage of a hub may be over.

        ``None`` says that the caller is the first one: it asks on, and calls :meth:`end`.
        """
        with self._lock:
            over = self._over.get(hub)
            if over is None:
                self._over[hub] = AsyncSignal()
            return over

    def end(self, hub: str) -> None:
        """Let all calls that wait for a hub ask again."""
        with self._lock:
            over = self._over.pop(hub)
        over.set()


class AsyncSearch:
    """The pauses of one call that looks for the hub of a topic. End it.

    Args:
        outages: those of the client.
        deadline: the deadline of the call.
        ended: is set when nobody needs the result any more; ``None`` if that does not happen.
    """

    def __init__(
        self, outages: AsyncOutages, deadline: Deadline, ended: AsyncSignal | None
    ) -> None:
        self._outages = outages
        self._deadline = deadline
        self._ended = ended
        self._attempts = 0
        self._for: str | None = None  # the hub for which this call asks on

    async def pause(self, owner: str | None) -> None:
        """Return when the call is to ask again, at its deadline at the latest.

        Args:
            owner: the hub that is said to own the topic, if it does not answer.

        Raises:
            StoreClosedError: nobody needs the result any more.
        """
        if owner != self._for:
            self.end()
        over = None
        if owner is not None and self._for is None:
            over = self._outages.join(owner)
            if over is None:
                self._for = owner
        if over is not None:
            while not self._deadline.passed and not await over.wait(self._deadline.within(_POLL)):
                self._check_needed()
            self._attempts = 0
            return
        backoff = _BACKOFF if self._for is None else _FOR_ALL
        seconds = self._deadline.within(backoff.pause(self._attempts))
        self._attempts += 1
        if self._ended is None:
            await asyncio.sleep(seconds)
        else:
            await self._ended.wait(seconds)
            self._check_needed()

    def end(self) -> None:
        """Let the others ask, too, if this call has asked for them."""
        hub, self._for = self._for, None
        if hub is not None:
            self._outages.end(hub)

    def _check_needed(self) -> None:
        if self._ended is not None and self._ended.is_set():
            raise reader_closed()
