"""Requests and answers over one ZooKeeper session. Each has a deadline and a certain outcome.

kazoo keeps the session: its connection thread connects, pings, reconnects, sends queued requests
and reads answers. It does not report whether a failed request had been sent. So every request here
is an object that kazoo's thread asks for its bytes. The object notes that moment: the *sent mark*.
A request whose caller has given up before is no longer sent.

Threads: any number of threads may call ``exchange`` at once. ``serialize``, ``set`` and
``set_exception`` of a call and the state listener run on kazoo's connection thread and never
block. One lock guards everything and is never held during a call to kazoo.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, NamedTuple

from kazoo.exceptions import ConnectionLoss, ThrottledOpError
from kazoo.protocol.states import KeeperState

from ....ops.backoff import Backoff
from ....ops.errors import (
    AuthenticationError,
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    SessionLostError,
    StoreClosedError,
    StoreUnavailableError,
)
from ....ops.log import get_logger
from ...backend import Tally, remaining, send_by
from ...urls import Abandonment
from ..wire.errors import (
    CONNECTION_LOSS,
    NO_NODE,
    Fate,
    UnreadableError,
    code,
    denial,
    refused,
    unreadable,
)
from ..wire.exchanges import DeadlineError, Exchange, Reply, TimedExchange, Trip
from ..wire.kazoo_client import (
    NO_GREETING,
    CertificateRefusedError,
    Greeting,
    Handler,
    Security,
    new_client,
)

__all__ = ["Moment", "ZooKeeperConnection"]

log = get_logger(__name__)

# kazoo wakes its thread with one byte a request through a socket pair, which blocks the caller
# when it is full (kazoo #577). Linux takes 278 bytes sent one by one.
_MAX_UNSENT: Final = 128

# The pauses before a request is sent again.
_BACKOFF: Final = Backoff(first=0.01, longest=1.0, least=0.0)

# The loss of a connection that lasted fewer seconds is logged at level debug.
_STEADY: Final = 5.0

# A read that was sent this often and never answered may be too large to be answered.
_MAX_LOSSES: Final = 2

_MOMENTS: Final[Mapping[str, Literal["connected", "lost", "expired", "over"]]] = {
    KeeperState.CONNECTED: "connected",
    KeeperState.EXPIRED_SESSION: "expired",
    KeeperState.AUTH_FAILED: "over",
    KeeperState.CLOSED: "over",
}

# Seconds that kazoo can ask for; the server has closer limits of its own.
_SHORTEST: Final = 0.1
_LONGEST: Final = 2_000_000.0

# Seconds that `close` gives the server to answer, and then kazoo to end its threads.
_CLOSE_GRACE: Final = 2.0
_STOP_GRACE: Final = 5.0


class Moment(NamedTuple):
    """A change of the connection, as seen by kazoo's thread.

    ``over`` means that kazoo has given up for good. ``connection`` is the number of the last
    connection, and ``greeting`` what the server said to it.
    """

    state: Literal["connected", "lost", "expired", "over"]
    connection: int
    greeting: Greeting


class ZooKeeperConnection:
    """A session with a ZooKeeper ensemble."""

    def __init__(
        self,
        addresses: Sequence[str],
        connect_timeout: float,
        session_timeout: float,
        security: Security,
        tally: Tally,
        abandonment: Abandonment,
    ) -> None:
        """Connect. The caller may give up meanwhile.

        Raises:
            StoreUnavailableError: no server answered within ``connect_timeout`` seconds.
            AuthenticationError: a server refuses the login, or all of them refuse the client's
                certificate, or ask for one.
        """
        self.addresses = ",".join(addresses)
        #: Returns the error for a server's code and a path. It names the user.
        self.refused = partial(refused, user=security.user)
        self.lock = threading.Lock()
        # Notified when the state changes, when the queue has room again, and on close.
        self._changed = threading.Condition(self.lock)
        self._pid = os.getpid()
        self._closed = False  # guarded by lock
        # Guarded by lock: the reason why kazoo has given up, if it has.
        self._end: tuple[type[MetadataStoreError], str] | None = None
        self._open: set[Exchange] = set()  # guarded by lock: calls that have not ended
        self._queued: set[Exchange] = set()  # guarded by lock: calls in kazoo's queue
        self._tally = tally
        session_timeout = min(max(session_timeout, _SHORTEST), _LONGEST)
        self._handler = Handler(min(connect_timeout, session_timeout) / len(addresses))
        self._client = new_client(addresses, session_timeout, security, self._handler)
        # kazoo's thread sets the following under the lock, and any thread reads it without: a
        # connection may end at any time anyway.
        #: The number of the connection, and of the session, counted from the start.
        self.number = 0
        self.sessions = 1
        #: Whether the first attempt succeeded after the last loss of a connection, and the number
        #: of connections that took more than one attempt.
        self.came_at_once = True
        self.delayed = 0
        # For kazoo's thread alone: the time of the last connection, and whether its events are
        # logged above debug.
        self._connected_at = -math.inf
        self._loud = True
        # Guarded by lock: the last change of the connection, and the listeners for later ones.
        self._moment = Moment("lost", 0, NO_GREETING)
        self._listeners: list[Callable[[Moment], None]] = []
        self._client.add_listener(self._on_state)
        untrusted = False

        def give_up() -> None:
            nonlocal untrusted
            with self.lock:
                untrusted = True
                self._changed.notify_all()

        self._handler.on_untrusted = give_up
        abandonment.ends_with(self.close)
        try:
            try:
                self._client.start_async()
            except (OSError, RuntimeError) as error:  # There is no file descriptor or no thread.
                self._handler.stop()
                raise StoreUnavailableError(
                    f"a client of ZooKeeper cannot start: {error}"
                ) from error
            with self.lock:
                # Credentials are sent after kazoo reports the connection, so only the first request
                # shows whether they are accepted.
                self._changed.wait_for(
                    lambda: self._end or self.connected or untrusted or self._closed,
                    connect_timeout,
                )
                answered = self._end or self.connected
        except BaseException:  # an interrupt
            self.close()
            raise
        if not answered:
            reason, cause = self._handler.failure(), self._handler.last_error
            self.close()
            within = "" if untrusted else f" within {connect_timeout:g} s"
            refused_us = untrusted and isinstance(cause, CertificateRefusedError)
            raise (AuthenticationError if refused_us else StoreUnavailableError)(
                f"no ZooKeeper answered at {self.addresses}{within}"
                + (f": {reason}" if reason else "")
            ) from cause

    @property
    def session_id(self) -> int | None:
        """The session's number; ``None`` without a session. It outlives the connection."""
        return self._client._session_id or None  # kazoo's `client_id` is None while it connects

    @property
    def zxid(self) -> int:
        """The zxid of the last answer; 0 if there was none in this session."""
        return int(self._client.last_zxid)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a server that has answered."""
        return bool(self._client.client_state == KeeperState.CONNECTED)

    @property
    def stopped(self) -> bool:
        """Whether nothing is sent any more: the store was closed, or kazoo has given up."""
        return self._closed or self._end is not None

    def attach(self, listener: Callable[[Moment], None]) -> Moment:
        """Call a function at each change of the connection; return the last change until now.

        It is called on kazoo's connection thread, and must not block.
        """
        with self.lock:
            self._listeners.append(listener)
            return self._moment

    def receive_events(self, receiver: Callable[[list[bytes]], None]) -> None:
        """Give the packets with events of watches to a function, as :class:`Handler` says."""
        self._handler.on_events = receiver

    @contextmanager
    def own_events(self) -> Iterator[list[bytes]]:
        """Collect the packets with events of this package's own nodes for a block."""
        packets: list[bytes] = []
        self._handler.on_own_event = packets.append
        try:
            yield packets
        finally:
            self._handler.on_own_event = None

    def receive_touches(self, receiver: Callable[[Trip], None]) -> None:
        """Report requests that were answered to a function, as :class:`Handler` says."""
        self._handler.on_touch = lambda sent, came: receiver(Trip(self.number, sent, came))

    def end(self) -> MetadataStoreError | None:
        """Return the reason why nothing is sent any more; ``None`` while requests are sent."""
        with self.lock:
            return self._refusal()

    def round_trip(self, opcode: int, body: bytes, deadline: float) -> Trip | None:
        """Send a request once, and wait for its answer; ``None`` if there was none, or an error."""
        call = self._send(opcode, body, deadline, deadline, None, TimedExchange)
        if not isinstance(call, TimedExchange):
            return None
        call.wait(deadline)
        if call.error is not None:
            return None
        return Trip(call.connection, call.sent_at, time.monotonic())

    def late(self, what: str) -> MetadataStoreError:
        """Return the error at the deadline of a request that was a read, or never sent.

        Args:
            what: the beginning of the message, such as ``"no answer from"``.
        """
        if self.connected:
            return OperationTimeoutError(f"{what} ZooKeeper at {self.addresses} in time")
        reason = self._handler.failure()
        return StoreUnavailableError(
            f"{what} ZooKeeper at {self.addresses} in time: there is no connection"
            + (f" ({reason})" if reason else "")
        )

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that has connected."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raise in a forked child, where locks may be held for ever.

        Raises:
            StoreClosedError: the store was opened before the fork.
        """
        if self._pid != os.getpid():
            raise _forked()

    def exchange(
        self,
        requests: Sequence[tuple[int, bytes]],
        deadline: float,
        *,
        repeat: bool,
        session: int | None = None,
    ) -> list[Reply]:
        """Send requests one after the other, and return their replies in the same order.

        The reply to a read that was sent twice and lost is ``CONNECTION_LOSS``: its answer may be
        too large. The reply to a write that was not sent because its session has ended is a
        ``SessionLostError``.

        Args:
            requests: opcode and body of each; writes are multis. They are applied in this order.
            deadline: by ``time.monotonic()``.
            repeat: whether they may be sent again after they were sent: true for reads. A write is
                sent again only while it certainly was not sent, and until it should have been.
            session: the number of the only session in which multis may be sent; ``None`` for any.
        """
        return self.begin(requests, deadline, repeat=repeat, session=session)(deadline)

    def begin(
        self,
        requests: Sequence[tuple[int, bytes]],
        deadline: float,
        *,
        repeat: bool,
        session: int | None = None,
    ) -> Callable[[float], list[Reply]]:
        """Send requests without waiting; return a function that does the rest of ``exchange``.

        Call the function at most once, with its own deadline.
        """
        if self._pid != os.getpid():
            # Before taking the lock, which a thread of the parent may have held at the fork.
            forked: list[Reply] = [_forked() for _ in requests]
            return lambda _: forked
        patience = deadline if repeat else send_by(deadline)
        calls = [
            (i, self._send(*request, deadline, patience, session))
            for i, request in enumerate(requests)
        ]
        return partial(self._finish, requests, calls, repeat, session)

    def _finish(
        self,
        requests: Sequence[tuple[int, bytes]],
        calls: Sequence[tuple[int, Exchange | MetadataStoreError]],
        repeat: bool,
        session: int | None,
        deadline: float,
    ) -> list[Reply]:
        replies: list[Reply] = [CONNECTION_LOSS] * len(requests)
        losses = 0
        attempt = 0
        while True:
            again = []
            resent = 0
            lost = False
            for i, call in calls:
                if isinstance(call, Exchange):
                    call.wait(deadline)
                    reply = self._judge(call, repeat)
                    if reply is None:
                        if isinstance(call.error, ThrottledOpError):
                            self._tally.on_busy()
                        again.append(i)
                        resent += call.sent
                        lost = lost or (call.sent and call.fate is Fate.LOST)
                    else:
                        replies[i] = reply
                else:
                    replies[i] = call
            losses += lost
            if not again or losses >= _MAX_LOSSES:
                return replies
            self._tally.add("retry", resent)
            patience = deadline if repeat else send_by(deadline)
            self.pause(attempt, patience)
            attempt += 1
            calls = [(i, self._send(*requests[i], deadline, patience, session)) for i in again]

    def _send(
        self,
        opcode: int,
        body: bytes,
        deadline: float,
        patience: float,
        session: int | None,
        kind: type[Exchange] = Exchange,
    ) -> Exchange | MetadataStoreError:
        """Hand a request to kazoo as soon as it is connected, or return the reason why not.

        ``patience`` is the time until which to wait for a connection.
        """
        client = self._client
        with self.lock:
            while True:
                if refusal := self._refusal():
                    return refusal
                if remaining(deadline) <= 0:
                    return self.late("the request could not be sent to")
                if client.client_state == KeeperState.CONNECTED and len(self._queued) < _MAX_UNSENT:
                    break
                left = remaining(patience)
                if left <= 0:
                    return self.late("the request could not be sent to")
                self._changed.wait(left)
            call = kind(self, opcode, body, session)
            self._open.add(call)
            self._queued.add(call)
        client._call(call, call)
        return call

    def _refusal(self) -> MetadataStoreError | None:
        if self._closed:
            return StoreClosedError("the store is closed")
        if self._end is not None:
            kind, message = self._end
            refusal = kind(message)
            refusal.retriable = False  # kazoo has given up for good; only a new store can succeed
            return refusal
        return None

    def _judge(self, call: Exchange, repeat: bool) -> Reply | None:
        """Return the reply of a call that has ended, or ``None`` if it may be sent again."""
        error = call.error
        if call.outlived:
            return SessionLostError("the session ended before the write was sent")
        if error is None:
            if call.answer is None:
                return NO_NODE  # kazoo's special case for exists
            # For a multi, kazoo has made a list of the answer.
            buffer, offset = call.answer
            return bytes(buffer), int(offset)
        known = call.fate
        if known is Fate.REFUSED:
            return code(error)
        if isinstance(error, UnreadableError):
            return unreadable(error, write=not repeat)
        if known is Fate.LOCKED_OUT:
            return self._denied(self._handler.failure() or denial(error))
        sent = call.sent and known is Fate.LOST
        if isinstance(error, DeadlineError):
            if sent and not repeat:
                return self._indeterminate("no answer came in time", error)
            return self.late("no answer from")
        if sent and not repeat:
            return self._indeterminate("the connection was lost", error)
        return None

    def _denied(self, reason: str) -> AuthenticationError:
        return AuthenticationError(
            f"ZooKeeper at {self.addresses} refuses the credentials" + (reason and f": {reason}")
        )

    def _indeterminate(self, reason: str, error: Exception) -> IndeterminateError:
        unknown = IndeterminateError(
            f"{reason} after the request was sent to ZooKeeper at {self.addresses}: "
            "it may have been applied"
        )
        unknown.__cause__ = error
        return unknown

    def pause(self, attempt: int, deadline: float) -> None:
        """Wait before another attempt: longer each time, with jitter, but not beyond a close."""
        delay = min(_BACKOFF.pause(attempt), remaining(deadline))
        with self.lock:
            self._changed.wait_for(lambda: self._closed, delay)

    def taken(self, call: Exchange) -> None:
        """Note that kazoo has taken a call from its queue. The caller holds the lock."""
        self._queued.discard(call)
        if len(self._queued) == _MAX_UNSENT - 1:
            self._changed.notify_all()

    def ended(self, call: Exchange) -> None:
        """Note that a call has ended. The caller holds the lock."""
        self._open.discard(call)

    def _on_state(self, _: object) -> None:
        # This runs on kazoo's connection thread, which must not wait for anything here.
        state = self._client.client_state
        unsent: list[Exchange] = []
        with self.lock:
            if state == KeeperState.CONNECTED:
                self._note_connection()
            elif state == KeeperState.EXPIRED_SESSION:
                self.sessions += 1
            if state != KeeperState.CONNECTED:
                # kazoo has failed the calls in its queue. But it forgets a call that arrives at
                # this very moment, or keeps it for the next connection. Callers send these again.
                unsent = list(self._queued)
                self._queued.clear()
            if state == KeeperState.AUTH_FAILED:
                self._end = AuthenticationError, str(self._denied(self._handler.failure()))
            elif state == KeeperState.CLOSED and self._end is None:
                reason = self._handler.failure()
                self._end = (
                    StoreUnavailableError,
                    f"the client of ZooKeeper at {self.addresses} has stopped; open a new store"
                    + (f": {reason}" if reason else ""),
                )
            self._moment = moment = Moment(
                _MOMENTS.get(state, "lost"), self.number, self._handler.greeting
            )
            listeners = [*self._listeners]
            self._changed.notify_all()
        for call in unsent:
            call.end(None, ConnectionLoss())
        self._report(state)
        for listener in listeners:
            listener(moment)

    def _note_connection(self) -> None:
        self.came_at_once = self._handler.welcomed()
        self.number += 1
        self.delayed += not self.came_at_once
        if self.number > 1:
            self._tally.add("reconnect")

    def _report(self, state: str) -> None:
        # A connection that comes and goes, as during the search for a limit, is reported once.
        now = time.monotonic()
        if state == KeeperState.CONNECTED:
            self._connected_at = now
            say = log.info if self._loud else log.debug
            say("zookeeper connected", addresses=self.addresses, connection=self.number)
        elif state == KeeperState.EXPIRED_SESSION:
            log.warning("zookeeper session lost", addresses=self.addresses)
        elif state == KeeperState.AUTH_FAILED:
            log.error("zookeeper refuses the credentials", addresses=self.addresses)
        elif state == KeeperState.CONNECTING:
            self._loud = now - self._connected_at > _STEADY
            say = log.warning if self._loud else log.debug
            say("zookeeper connection lost", addresses=self.addresses)

    def close(self) -> None:
        """End the session. The server has two seconds left to answer requests that were sent."""
        if self._pid != os.getpid():
            return  # In a forked child: the session is the parent's.
        with self.lock:
            if self._closed:
                return
            self._closed = True
            unsent = list(self._queued)
            self._changed.notify_all()
        for call in unsent:
            call.end(None, ConnectionLoss())
        connected = self._client.client_state == KeeperState.CONNECTED
        stopper = threading.Thread(target=self._stop, name="zookeeper-close", daemon=True)
        try:
            stopper.start()
        except RuntimeError:  # No thread is left.
            if not connected:
                self._handler.abort()
            self._stop()
        else:
            stopper.join(_CLOSE_GRACE if connected else 0)
            if stopper.is_alive():
                self._handler.abort()
                stopper.join(_STOP_GRACE)
        with self.lock:
            still_open = list(self._open)
        for call in still_open:
            call.end(None, ConnectionLoss())

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:  # kazoo raises bare Exceptions here
            log.warning("kazoo did not stop", reason=repr(error))


def _forked() -> StoreClosedError:
    return StoreClosedError("the store was opened by the parent process; open one in this process")
