"""What callers hold for a store's session, and the listeners of its events."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from typing import Self, TypeAlias

from ..ops.errors import StoreClosedError
from ..ops.log import get_logger
from ..ops.sessions import SessionEvent, SessionState
from ..stores.backend import Session as Facet
from .engine import Engine
from .reentry import in_back_end, refused

__all__ = ["Listeners", "Session", "SessionCallback", "SessionListener", "listen_for_hooks"]

log = get_logger("batchkeeper.sessions")

#: Receives the events of a session.
SessionCallback: TypeAlias = Callable[[SessionEvent], object]


class Session:
    """The session of a store, to which its ephemeral values belong.

    A store has one session at a time. If the server ends it, the store gets a new one by itself,
    and this object shows the new one. Nothing that belonged to the old one is made again. No
    attribute or method blocks.
    """

    __slots__ = ("_facet", "_process")

    def __init__(self, facet: Facet) -> None:
        self._facet = facet
        self._process = os.getpid()

    @property
    def id(self) -> str | None:
        """The server's name of the session, or ``None`` if there is none now."""
        return self._here().id

    @property
    def timeout(self) -> float:
        """Seconds of silence after which the server ends the session; infinite without a server."""
        return self._here().timeout

    @property
    def state(self) -> SessionState:
        """The state of the session.

        ``"new"``: nothing has needed a session yet. ``"connected"``: it stands. ``"suspended"``:
        the connection is lost, and the server may keep the session or end it. ``"lost"``: the
        server has ended it, and there is no new one yet. ``"closed"``: the store is closed.
        """
        return self._here().state

    def valid_until(self) -> float:
        """Return a time before which the server cannot have ended the session.

        It is a value of ``time.monotonic()``: the time at which the last confirmed keep-alive was
        sent, plus the timeout. It is ``-math.inf`` if there is no session, and ``math.inf`` if the
        session lasts as long as the store is open (memory and RocksDB).
        """
        return self._here().valid_until()

    def __repr__(self) -> str:
        if os.getpid() != self._process:
            return "<Session of another process>"
        facet = self._facet
        return f"<Session {facet.id or 'without id'} {facet.state} timeout={facet.timeout:g}>"

    def _here(self) -> Facet:
        if os.getpid() != self._process:
            raise StoreClosedError(
                "the store was opened before this process was forked; open it here"
            )
        return self._facet


class SessionListener:
    """A listener of a session's events. Close it to get no more of them.

    It is also a context manager.
    """

    __slots__ = ("_callback", "_listeners")

    def __init__(self, listeners: Listeners, callback: SessionCallback) -> None:
        self._listeners = listeners
        self._callback: SessionCallback | None = callback

    def close(self) -> None:
        """End the listener. Any thread may call it, also its own callback; twice does no harm."""
        self._callback = None
        self._listeners.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, event: SessionEvent, caught: type[BaseException]) -> None:
        callback = self._callback
        if callback is None:
            return
        try:
            callback(event)
        except caught:
            log.exception("a session listener failed", session_event=event)


class Notice:
    """One event for one listener, until the dispatcher or the loop runs the callback."""

    __slots__ = ("_caught", "_event", "_listener")

    def __init__(
        self, listener: SessionListener, event: SessionEvent, caught: type[BaseException]
    ) -> None:
        self._listener = listener
        self._event = event
        self._caught = caught

    def run_callbacks(self) -> None:
        self._listener._call(self._event, self._caught)


class Listeners:
    """The listeners of one store's session.

    Args:
        dispatch: runs a notice's ``run_callbacks`` soon, on the dispatcher's thread or on the loop,
            in the order of the calls.
        caught: the exceptions of callbacks to log. Others are raised where the callback runs.
    """

    def __init__(self, dispatch: Callable[[Notice], None], caught: type[BaseException]) -> None:
        self._dispatch = dispatch
        self._caught = caught
        self._process = os.getpid()
        self.lock = RLock()  # guards the following fields
        self._listeners: list[SessionListener] = []
        self._listening = False

    def add(self, facet: Facet, callback: SessionCallback) -> SessionListener:
        """Call a function at each event from now on. The first listener may begin the session."""
        if in_back_end():
            raise refused()
        listener = SessionListener(self, callback)
        with self.lock:
            self._listeners.append(listener)
            first, self._listening = not self._listening, True
        if first:
            try:
                facet.listen(self._deliver)
            except BaseException:
                with self.lock:
                    self._listeners.remove(listener)
                    self._listening = False
                raise
        return listener

    def remove(self, listener: SessionListener) -> None:
        """Forget a listener."""
        if os.getpid() != self._process:
            return  # A thread of the parent may have held the lock at the fork.
        with self.lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def _deliver(self, event: SessionEvent) -> None:
        # Runs on a thread of the back end, one call at a time.
        with self.lock:
            listeners = tuple(self._listeners)
        for listener in listeners:
            self._dispatch(Notice(listener, event, self._caught))


def listen_for_hooks(engine: Engine, listeners: Listeners) -> None:
    """Tell the hooks of a new store of its session's events, if it has a session."""
    if engine.hooks.of_sessions and "ephemerals" in engine.capabilities:
        try:
            listeners.add(engine.facets.session(), engine.hooks.session)
        except BaseException:
            engine.close(0)
            raise
