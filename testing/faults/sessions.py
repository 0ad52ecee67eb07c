"""The session of a back end with faults: it can be suspended, and lost."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from ...ops.errors import MetadataStoreError
from ...ops.sessions import SessionEvent, SessionState
from ...stores.backend import PlainWrite, Session, WriteRequest
from ...stores.refusals import session_lost

__all__ = ["FaultySession"]


class FaultySession:
    """A session that passes on what happens to ``session``, and what a test makes happen.

    After each loss that a test has made, its number is one greater than that of ``session``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # Guards the following fields and the order of the events. Listeners never block, so they
        # are called under the lock.
        self._lock = threading.Lock()
        self._losses = 0
        self._state: SessionState | None = None
        self._valid_until: float | None = None
        self._listener: Callable[[SessionEvent], None] | None = None

    @property
    def id(self) -> str | None:
        found = self._session.id
        if found is None or self._state == "lost":
            return None
        return found if not self._losses else f"{found}-{self._losses}"

    @property
    def timeout(self) -> float:
        return self._session.timeout

    @property
    def number(self) -> int:
        return self._session.number + self._losses

    @property
    def state(self) -> SessionState:
        state = self._session.state
        return state if self._state is None or state == "closed" else self._state

    def valid_until(self) -> float:
        found = self._session.valid_until()
        limit = self._valid_until
        return found if limit is None else min(found, limit)

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        with self._lock:
            self._listener = callback
        self._session.listen(self._tell)

    def suspend(self) -> None:
        """Let the connection be lost."""
        with self._lock:
            self._state = "suspended"
            # No keep-alive arrives from now on.
            self._valid_until = self._session.valid_until()
            self._call("connection_lost")

    def resume(self) -> None:
        """Let the connection be back, with the same session."""
        with self._lock:
            self._state = self._valid_until = None
            self._call("reconnected")

    def begin_loss(self) -> None:
        """Let the server end the session. The client does not know yet."""
        with self._lock:
            self._losses += 1
            self._valid_until = -math.inf

    def end_loss(self, *, reconnected: bool) -> None:
        """Let the client learn that the session has ended, and begin the next one."""
        with self._lock:
            if reconnected:
                self._call("reconnected")
            self._state = "lost"
            self._call("session_lost")
            self._state = self._valid_until = None
            self._call("session_reestablished")

    def ended(self, requests: Sequence[WriteRequest]) -> dict[int, MetadataStoreError]:
        """Return the errors of ephemeral writes whose session has ended, by their places."""
        if not self._losses:
            return {}
        return {
            place: session_lost(request)
            for place, request in enumerate(requests)
            if _is_ephemeral(request) and request.session not in (None, self.number)
        }

    def translated(self, requests: Sequence[WriteRequest]) -> Sequence[WriteRequest]:
        """Return requests with the numbers that ``session`` gives to its sessions."""
        losses = self._losses
        if not losses:
            return requests
        return [
            PlainWrite(
                request.kind,
                request.path,
                request.value,
                request.expected_version,
                request.options,
                None if request.session is None else request.session - losses,
            )
            if _is_ephemeral(request)
            else request
            for request in requests
        ]

    def _tell(self, event: SessionEvent) -> None:
        with self._lock:
            self._call(event)

    def _call(self, event: SessionEvent) -> None:
        if self._listener is not None:
            self._listener(event)


def _is_ephemeral(request: WriteRequest) -> bool:
    return request.options is not None and request.options.ephemeral
