# Made from async_outages.py by `python tools/faces.py`: change that file, and run this command.
"""How the calls of a client wait while a hub does not answer.

When a hub with thousands of topics crashes, its clients find no other hub for them until its
session has ended. If every call kept asking, the remaining hubs would have no time to take the
topics over. So among all calls that wait for the same hub, one keeps asking, and the others wait
for its result.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from ....batching.background import Signal
from ....coordination.deadlines import Deadline
from ....ops.backoff import Backoff
from ..errors import reader_closed

__all__ = ["Outages", "Search"]

_BACKOFF: Final = Backoff(first=0.02, longest=1.0)
# The pauses of the call that asks for all others.
_FOR_ALL: Final = Backoff(first=0.02, longest=0.25)
# Seconds after which a waiting call checks whether its caller has ended.
_POLL: Final = 1.0


class Outages:
    """The owners of topics that do not answer, from the view of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the field
        self._over: dict[str, Signal] = {}

    def join(self, hub: str) -> Signal | None:
        """Return a signal that is set when the outage of a hub may be over.

        ``None`` means that the caller is the first one: it keeps asking, and calls :meth:`end`.
        """
        with self._lock:
            over = self._over.get(hub)
            if over is None:
                self._over[hub] = Signal()
            return over

    def end(self, hub: str) -> None:
        """Wake all calls that wait for a hub."""
        with self._lock:
            over = self._over.pop(hub)
        over.set()


class Search:
    """The pauses of one call that looks for the hub of a topic. Call ``end`` afterwards.

    Args:
        outages: the outages of the client.
        deadline: the deadline of the call.
        ended: set when the result is no longer needed; ``None`` if that cannot happen.
    """

    def __init__(self, outages: Outages, deadline: Deadline, ended: Signal | None) -> None:
        self._outages = outages
        self._deadline = deadline
        self._ended = ended
        self._attempts = 0
        self._for: str | None = None  # the hub that this call keeps asking

    def pause(self, owner: str | None) -> None:
        """Return when it is time to ask again, at the deadline at the latest.

        Args:
            owner: the hub that owns the topic according to others, if it does not answer.

        Raises:
            StoreClosedError: the result is no longer needed.
        """
        if owner != self._for:
            self.end()
        over = None
        if owner is not None and self._for is None:
            over = self._outages.join(owner)
            if over is None:
                self._for = owner
        if over is not None:
            while not self._deadline.passed and not over.wait(self._deadline.within(_POLL)):
                self._check_needed()
            self._attempts = 0
            return
        backoff = _BACKOFF if self._for is None else _FOR_ALL
        seconds = self._deadline.within(backoff.pause(self._attempts))
        self._attempts += 1
        if self._ended is None:
            time.sleep(seconds)
        else:
            self._ended.wait(seconds)
            self._check_needed()

    def end(self) -> None:
        """Wake the others, if this call has asked for them."""
        hub, self._for = self._for, None
        if hub is not None:
            self._outages.end(hub)

    def _check_needed(self) -> None:
        if self._ended is not None and self._ended.is_set():
            raise reader_closed()
