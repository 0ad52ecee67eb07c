"""The state of a session with a server, derived from what was sent and heard.

``SessionMachine`` performs no I/O, starts no threads and reads no clock. The driver of a store
calls it under a lock, with the times at which its requests were *sent*, and afterwards, without the
lock, passes on the events that it returns.

::

            granted                 disconnected
    new ─────────────> connected ─────────────────> suspended
                        ^     │ <─────────────────     │
                granted │     │ ended                  │ ended
                        │     V                        │
                        └─── lost <────────────────────┘

``close`` leads from each state to ``closed``.

Two rules make it safe to act on the session:

- Only the server's word ends a session, never the clock of the client. After the death of a leader,
  servers give all sessions new time, so a client that gives up its session by its own clock may
  leave values behind that it no longer knows.
- ``valid_until`` stands on what the server has confirmed, counted from the time at which the
  client *sent* the confirmed request. The server cannot have counted from an earlier time. So
  whatever is delayed, lost or paused can only make it earlier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..ops.sessions import SessionEvent, SessionState

__all__ = ["SessionMachine"]

_NOTHING: Final[Sequence[SessionEvent]] = ()


@dataclass(slots=True, eq=False, repr=False)
class SessionMachine:
    """The session of one client, and the events that follow from what happens to it.

    Each method that reports something returns the events that it causes, in their order. A report
    about another session than the present one, such as an answer that arrives late, is ignored.
    All times are values of one monotonic clock, in seconds.

    The events follow these rules:

    - ``connection_lost`` and ``reconnected`` alternate, and so do ``session_lost`` and
      ``session_reestablished``.
    - A session that ends during an outage gives all four in that order.
    - If a new session ends before ``session_reestablished``, the two losses are one: wait for that
      event before you put ephemeral values again.
    - Before the first session stands, there are no events.

    Args:
        timeout: the timeout to request.

    Attributes:
        id: the server's name of the session; ``None`` if there is none now.
        timeout: the time without a renewal after which the server ends the session: as granted, or
            as requested while nothing is granted.
        number: the number of the session that new ephemeral values would belong to, from 1. It
            grows by one when a session ends.
    """

    timeout: float
    id: str | None = None
    number: int = 1
    _sent: float = -math.inf  # when the last confirmed request of the session was sent
    _disconnected: float | None = None  # since when there is no connection
    _restoring: bool = False  # whether a loss was reported, and no new session since
    _closed: bool = False

    @property
    def state(self) -> SessionState:
        """The state, as in the drawing above."""
        if self._closed:
            return "closed"
        if self.id is None:
            return "new" if self.number == 1 else "lost"
        return "connected" if self._disconnected is None else "suspended"

    def valid_until(self) -> float:
        """Return the time before which the server cannot have ended the session.

        ``-math.inf`` without a session. It does not account for a session that somebody ends on
        purpose, such as an operator who revokes a lease.
        """
        return -math.inf if self.id is None else self._sent + self.timeout

    def granted(self, session: str, timeout: float, sent: float) -> Sequence[SessionEvent]:
        """Note a new session. If there was another one, that has ended.

        Args:
            session: its name.
            timeout: its timeout, as the server has granted it.
            sent: the time when the request for it was sent, or any earlier time.
        """
        if self._closed or session == self.id:
            return _NOTHING
        before = self.ended(self.id) if self.id is not None else self.connected()
        self.id, self.timeout, self._sent = session, timeout, sent
        return before

    def renewed(self, session: str, timeout: float, sent: float) -> Sequence[SessionEvent]:
        """Note that the server has confirmed the session.

        An answer to a request from before the connection was lost still counts for
        ``valid_until``, but does not prove that there is a connection again.

        Args:
            session: the name of the session.
            timeout: its timeout, which may have changed.
            sent: the time when the confirmed request was sent, or any earlier time.
        """
        if self._closed or session != self.id:
            return _NOTHING
        if sent >= self._sent:
            self._sent, self.timeout = sent, timeout
        if self._disconnected is not None and sent < self._disconnected:
            return _NOTHING
        return self.connected()

    def ended(self, session: str, now: float = -math.inf) -> Sequence[SessionEvent]:
        """Note that the server has ended the session. That also proves that it answers.

        Args:
            session: the name of the session.
            now: when this was found. After ``valid_until``, the session has ended in an outage that
                nothing else showed: this process was stopped, or its requests were held up. Before
                that, somebody has ended it on purpose.
        """
        if self._closed or session != self.id:
            return _NOTHING
        outage = self.disconnected(now) if now >= self.valid_until() else _NOTHING
        self.id = None
        self.number += 1
        events = (*outage, *self.connected())
        if self._restoring:
            return events
        self._restoring = True
        return (*events, "session_lost")

    def disconnected(self, now: float) -> Sequence[SessionEvent]:
        """Note that the connection is lost: it broke, or the server is silent for too long."""
        began = self.id is not None or self.number > 1
        if self._closed or self._disconnected is not None or not began:
            return _NOTHING
        self._disconnected = now
        return ("connection_lost",)

    def connected(self) -> Sequence[SessionEvent]:
        """Note that the server answers, whatever it says about the session."""
        if self._closed or self._disconnected is None:
            return _NOTHING
        self._disconnected = None
        return ("reconnected",)

    def restored(self) -> Sequence[SessionEvent]:
        """Note that all that depends on the connection, such as watches, is back.

        It counts only while a session stands and there is a connection. So report it after each
        new session, and after each reconnect.
        """
        if not self._restoring or self.state != "connected":
            return _NOTHING
        self._restoring = False
        return ("session_reestablished",)

    def close(self) -> None:
        """End the session for good: the store is closed. No event follows."""
        self._closed = True
        self.id = None
