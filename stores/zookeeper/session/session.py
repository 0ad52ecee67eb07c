"""The session with ZooKeeper as its users see it: its events, and until when it is certain to live.

kazoo keeps the session alive, notices its end and begins the next one. This module derives the
events from the changes of kazoo's connection, and proves until when the session lives.

How long does a session live? The leader ends it when it has heard nothing of it for the timeout.
But a client that is connected to a follower learns nothing about the leader from the answers to its
pings: the follower answers them by itself, even while it is cut off. It reports the sessions of its
clients to the leader only when it answers the leader's own pings, which the leader sends every half
tick. So a request proves something only in this chain:

1. A *touch*: any request or ping, sent at ``t`` and answered at ``a``. The follower has noted the
   session.
2. A ``sync``, sent at ``a + hold`` or later, and answered. ``hold`` is longer than half a tick, so
   the leader has sent a ping since the touch. Leader and follower exchange everything in order over
   one connection, so the follower had answered that ping when it received the answer to the sync.
3. An empty multi, sent after that answer, and answered. The leader has read the follower's answer
   to the ping, which was ahead of the multi, and so counted the touch, at ``t`` or later. An empty
   multi changes nothing, but is committed by a majority. So the leader was still the leader after
   ``t``. A sync does not show that: a deposed leader may answer it until it notices.

Then the session lives at least until ``t + timeout``. If another leader follows, it gives every
session a whole timeout from its own beginning, which is later than ``t``.

A new connection to a session that lives on is itself a touch that the leader has counted, because
the follower asks the leader for the session. It needs only the third step. A new session needs no
proof: it was committed by a majority before the server said so.

The times are read at the moment of sending. So a client that was paused, or an answer that is late
or lost, can only make the proof older. The chain holds on one connection only.

``hold`` is a little more than a quarter of the timeout, because a server grants no timeout under
two ticks, unless its ``minSessionTimeout`` was set lower.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ....ops.log import get_logger
from ....ops.sessions import SessionEvent, SessionState
from ...backend import start_thread
from ...session import SessionMachine
from ..wire.jute import EMPTY_MULTI, MULTI, SYNC, SYNC_ROOT

if TYPE_CHECKING:
    from ..wire.exchanges import Trip
    from .connection import Moment, ZooKeeperConnection

__all__ = ["Proofs", "ZooKeeperSession"]

log = get_logger(__name__)

# After a fault, the number of attempts that the pause is as long as after.
_FAULTS: Final = 7
# Parts of the timeout: `hold` as above, and the time between two proofs. A proof is then three or
# four of these old when it is complete, and one more when the next one is.
_HOLD: Final = 0.275
_PERIOD: Final = 0.1
# The most touches to remember. At most one comes in a twentieth of the timeout, so the oldest of
# them is older than `hold`.
_MOST_TOUCHES: Final = 32


class Proofs:
    """Finds the touches that the leader has counted. Pure; not thread-safe.

    Args:
        timeout: the timeout of the session, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._hold = _HOLD * timeout
        self._connection = 0
        self._counted = -math.inf
        self._touches: deque[Trip] = deque(maxlen=_MOST_TOUCHES)

    def begin(self, connection: int, timeout: float, greeted: float) -> None:
        """Begin on a new connection, for which the client introduced itself at ``greeted``."""
        self._hold = _HOLD * timeout
        self._connection = connection
        self._counted = greeted
        self._touches.clear()

    def touch(self, trip: Trip) -> None:
        """Note a request that was answered."""
        if trip.connection == self._connection:
            self._touches.append(trip)

    def prove(self, sync: Trip, write: Trip) -> float | None:
        """Note a sync and the empty multi after it; return when the proven touch was sent.

        ``None`` if they prove nothing.
        """
        if not sync.connection == write.connection == self._connection:
            return None
        while self._touches and self._touches[0].answered + self._hold <= sync.sent:
            self._counted = self._touches.popleft().sent
        return self._counted


class ZooKeeperSession:
    """The session of one client; see ``stores.backend.Session``.

    Threads: changes of the connection arrive on kazoo's thread. The proofs are made on a thread of
    their own, which begins when somebody needs the session: with the first ephemeral value,
    listener or call of ``valid_until``. Watches report on theirs that they are back.

    ``_lock`` guards the state. ``_order`` is held from a change of the state until the listener has
    its events, so that they come in order; the listener never blocks.
    """

    def __init__(self, connection: ZooKeeperConnection, timeout: float) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._order = threading.Lock()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._machine = SessionMachine(timeout)
        self._proofs = Proofs(timeout)
        # The number of the connection that stands, 0 for none; the timeout as it was granted to it.
        self._standing = 0
        self._granted = timeout
        self._prover: threading.Thread | None = None
        self._listener: Callable[[SessionEvent], None] | None = None
        self._note(connection.attach(self._note))
        connection.receive_touches(self._touched)

    @property
    def id(self) -> str | None:
        """The number of the session as ZooKeeper's own tools show it."""
        return self._machine.id

    @property
    def timeout(self) -> float:
        """The timeout that the server has set, in seconds."""
        return self._machine.timeout

    @property
    def number(self) -> int:
        return self._connection.sessions

    @property
    def state(self) -> SessionState:
        return self._machine.state

    def valid_until(self) -> float:
        """Return a time before which the servers cannot have ended the session.

        The first call begins to keep that time up to date, unless a listener or an ephemeral value
        has done so. Until the first proof, it is the time that the beginning of the session or of
        the connection proves. The first proof takes two requests, because the client remembers when
        its last requests and pings were answered.
        """
        if self._pid != os.getpid():
            return -math.inf  # In a forked child, the lock may be held for ever.
        self.need()
        with self._lock:
            return self._machine.valid_until()

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        with self._order:
            self._listener = callback
        self.need()

    def restored(self) -> None:
        """Note that all watches are back."""
        self._tell(self._machine.restored)

    def close(self) -> None:
        """End everything but the session itself, which the connection ends."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._machine.close()
            self._changed.notify_all()

    def _tell(self, change: Callable[[], Sequence[SessionEvent]]) -> None:
        with self._order:
            with self._lock:
                events = change()
                self._changed.notify_all()
            if self._listener is not None:
                for event in events:
                    self._listener(event)

    def _touched(self, trip: Trip) -> None:
        """Note a request that was answered. This runs on kazoo's thread."""
        with self._lock:
            self._proofs.touch(trip)

    def _note(self, moment: Moment) -> None:
        """Note a change of the connection. This runs on kazoo's thread."""
        self._tell(partial(self._events_of, moment))

    def _events_of(self, moment: Moment) -> Sequence[SessionEvent]:
        machine = self._machine
        self._standing = 0
        if moment.state == "expired":
            return machine.ended(machine.id) if machine.id is not None else ()
        if moment.state != "connected":
            return machine.disconnected(time.monotonic())
        name, timeout, sent = moment.greeting
        session = f"{name & (1 << 64) - 1:#x}"
        self._standing, self._granted = moment.connection, timeout
        self._proofs.begin(moment.connection, timeout, sent)
        if session != machine.id:
            return machine.granted(session, timeout, sent)
        if timeout < machine.timeout:
            # From now on, the leader counts with the shorter timeout.
            machine.renewed(session, timeout, machine.valid_until() - machine.timeout)
        return machine.connected()

    def need(self) -> None:
        """Begin to keep ``valid_until`` up to date, unless that has begun."""
        if self._prover is not None or self._pid != os.getpid():
            return
        with self._lock:
            if self._prover is None and self._machine.state != "closed":
                self._prover = start_thread(self._prove, "zookeeper-session")

    def _prove(self) -> None:
        while True:
            try:
                self._keep_proving()
            except Exception:
                # Whatever it is: without proofs, the session would seem to end.
                log.exception("zookeeper session: proofs were interrupted")
                self._connection.pause(_FAULTS, math.inf)
            else:
                return

    def _keep_proving(self) -> None:
        due = -math.inf
        proven = 0  # the connection of the last attempt
        while True:
            with self._lock:
                while True:
                    if self._machine.state == "closed":
                        return
                    # A new connection is proven at once.
                    now = time.monotonic()
                    wait = due - now if self._standing == proven else 0.0
                    if self._standing and wait <= 0:
                        break
                    self._changed.wait(max(wait, 0.0) if self._standing else None)
                proven = self._standing
                timeout = self._machine.timeout
            due = now + _PERIOD * timeout
            sync = self._connection.round_trip(SYNC, SYNC_ROOT, now + timeout)
            if sync is None:
                continue
            write = self._connection.round_trip(MULTI, EMPTY_MULTI, now + timeout)
            if write is not None:
                self._tell(partial(self._counted, sync, write))

    def _counted(self, sync: Trip, write: Trip) -> Sequence[SessionEvent]:
        machine = self._machine
        sent = self._proofs.prove(sync, write)
        if sent is None or write.connection != self._standing or machine.id is None:
            return ()
        return machine.renewed(machine.id, self._granted, sent)
