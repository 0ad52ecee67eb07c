"""The session of a client: a lease of its own, kept alive by a thread of its own.

The lease is apart from that of the write ids, which outlives sessions. Beside it stands a *session
key*, bound to the lease. Whoever writes a value that belongs to the session compares that the
session key exists. So a session that has ended refuses its own values one by one, while a lease
that does not exist would refuse a whole batch.

The thread holds one stream of keep-alives at the member in use. It sends one request in each third
of the timeout, and the next one only after the answer, so each answer belongs to the last request.
The stream also shows at once when the member dies. After that, the thread continues at any member.

A session costs nothing until it is needed: for the first ephemeral value, or for a listener.

Source for the time that a keep-alive grants: etcd's ``lease/lessor.go``. ``Renew`` counts the TTL
from the moment at which the leader executes it, and ``Promote`` gives every lease its whole TTL,
and a bit more, under a new leader. A leader that no longer is one could confirm leases, and end
them, before 3.5.12 (etcd #15247).
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, NamedTuple, Protocol

import grpc

from ....ops.backoff import Backoff
from ....ops.errors import (
    MetadataStoreError,
    OperationTimeoutError,
    SessionLostError,
    StoreClosedError,
    StoreUnavailableError,
)
from ....ops.log import get_logger
from ....ops.paths import OWN
from ....ops.sessions import SessionEvent, SessionState
from ...backend import send_by, start_thread
from ...session import SessionMachine
from ..wire.connection import EtcdConnection
from ..wire.errors import EtcdRefusedError, Reason, failure_of
from ..wire.lineage import Lineage
from ..wire.members import Link
from ..wire.protos import messages
from .keep_alives import KeepAlives

__all__ = ["EtcdSession", "SessionLease"]

_log = get_logger(__name__)

# Seconds. A search for a member, or a request, is given up and begun again after this time.
_ATTEMPT: Final = 5.0
# Pauses after etcd has refused to grant a session, for example because of a wrong password.
_REFUSED: Final = Backoff(first=1.0, longest=10.0)
# Seconds for a read that shows whether the lease still exists.
_LOOK: Final = 2.0
# Seconds for which closing waits for the thread.
_JOIN: Final = 1.0


class SessionLease(NamedTuple):
    """The session as writes need it.

    Attributes:
        lease: the lease to which its values are bound.
        key: the session key, which exists as long as the lease.
        number: the number of the session.
    """

    lease: int
    key: bytes
    number: int


class Dependants(Protocol):
    """The parts that must recover, besides the session, before a loss of the session is over."""

    def interrupt(self) -> None:
        """Note that the connection was lost."""

    def back(self) -> bool:
        """Say whether everything goes on as before the last interruption."""
        ...


class EtcdSession:
    """The session of one client. See :class:`stores.backend.Session`.

    Args:
        connection: the calls to the cluster.
        prefix: the prefix of all keys. The session key lies below it, where the client has
            permissions.
        timeout: the timeout in seconds; etcd counts whole ones, and may grant more.
        watches: the watches that have to be back before ``"session_reestablished"``.
        lineage: the history that the client has seen.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        prefix: str,
        timeout: float,
        watches: Dependants,
        lineage: Lineage,
    ) -> None:
        self._connection = connection
        self._place = f"{prefix}/{OWN}/sessions/"
        self._ttl = max(1, math.ceil(timeout))
        self._watches = watches
        self._lineage = lineage
        self._history = 0  # the number of the history in which the session began
        self._process = os.getpid()
        self._changed = threading.Condition()  # guards the fields below
        self._machine = SessionMachine(float(self._ttl))
        self._lease: SessionLease | None = None  # set exactly while the machine has a session
        self._refusal: MetadataStoreError | None = None  # why the last attempt granted none
        self._beats: KeepAlives | None = None
        self._thread: threading.Thread | None = None
        self._granting = False  # whether the thread requests a lease
        self._closed = False
        self._callback: Callable[[SessionEvent], None] | None = None
        self._events: deque[SessionEvent] = deque()
        self._telling = False  # whether a thread delivers events
        self._looking = threading.Lock()  # held by the thread that looks at the lease

    @property
    def id(self) -> str | None:
        """The lease in hexadecimal, as ``etcdctl`` shows it; ``None`` if there is none now."""
        return self._machine.id

    @property
    def timeout(self) -> float:
        """The TTL that etcd has granted, or the requested one, in seconds."""
        return self._machine.timeout

    @property
    def number(self) -> int:
        """The number of the session that new ephemeral values would belong to."""
        return self._machine.number

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        with self._changed:
            return self._machine.state

    def valid_until(self) -> float:
        """Return the time before which etcd cannot have ended the session by itself."""
        with self._changed:
            return self._machine.valid_until()

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        """Call a function at each event, and begin a session. See ``stores.backend.Session``."""
        with self._changed:
            self._callback = callback
            self._begin()

    def take(self, number: int, deadline: float) -> SessionLease:
        """Return what a write in the session needs; wait for a session if there is none yet.

        Args:
            number: the number of the session in which the write must take effect.
            deadline: by ``time.monotonic()``.

        Raises:
            SessionLostError: that session has ended.
            StoreClosedError: the store is closed.
            AuthenticationError: etcd refuses the login, or the user may not write the session key.
            MetadataStoreError: etcd has granted no session in time; nothing was sent.
        """
        patience = send_by(deadline)
        with self._changed:
            self._begin()
            while True:
                if self._closed:
                    raise StoreClosedError("the store is closed")
                if number != self._machine.number:
                    raise SessionLostError("the session of the operation has ended")
                if self._lease is not None:
                    return self._lease
                if self._refusal is not None:
                    raise copy.copy(self._refusal)
                if not self._changed.wait(patience - time.monotonic()):
                    raise self._connection.late("there is no session yet; nothing was sent")

    def owns(self, lease: int) -> bool:
        """Say whether a key with this lease belongs to the present session."""
        mine = self._lease
        return mine is not None and mine.lease == lease

    def doubt(self, number: int) -> None:
        """Look whether the session still exists, because its key was found missing.

        If it does not, it has ended when the call returns. If only the session key is missing,
        because somebody has removed it, the call puts it again.
        """
        with self._looking:
            with self._changed:
                mine = self._lease
            if mine is None or mine.number != number:
                return
            deadline = time.monotonic() + _LOOK
            try:
                request = messages.LeaseTimeToLiveRequest(ID=mine.lease)
                answer = self._connection.call("time_to_live", request, deadline, write=False)
                gone = answer.TTL < 0
                if not gone:
                    self._put_key(mine, deadline)
            except EtcdRefusedError as refusal:
                gone = refusal.reason is Reason.LEASE_GONE
            except MetadataStoreError:
                return  # The next keep-alive shows it.
            if gone:
                self._note(lambda machine: machine.ended(_name(mine.lease)))
                self._tell()
                self._wake()

    def watches_are_back(self) -> None:
        """Note that the watches go on as before the last interruption."""
        self._note(SessionMachine.restored)
        self._tell()

    def close(self, deadline: float) -> None:
        """Revoke the lease, and with it all values of the session, if a member is connected.

        In a child that was forked after the session had begun, do nothing.
        """
        if os.getpid() != self._process:
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            mine, self._lease = self._lease, None
            self._machine.close()
            self._changed.notify_all()
            # The thread revokes a lease that comes too late, as long as there is a connection.
            self._changed.wait_for(lambda: not self._granting, deadline - time.monotonic())
        self._wake()
        if mine is not None and self._connection.in_use:
            self._revoke(mine.lease, deadline)

    def join(self) -> None:
        """Wait until the thread has ended, after everything was closed, but not for long."""
        thread = self._thread
        if thread not in (None, threading.current_thread()) and os.getpid() == self._process:
            thread.join(_JOIN)

    # Events

    def _note(self, report: Callable[[SessionMachine], Sequence[SessionEvent]]) -> None:
        """Report something to the machine, and keep the events for ``_tell``."""
        with self._changed:
            events = report(self._machine)
            if self._machine.id is None:
                self._lease = None
            if self._callback is not None:
                self._events += events
            self._changed.notify_all()

    def _tell(self) -> None:
        """Deliver the events, without the lock, one at a time, and in order."""
        while True:
            with self._changed:
                if self._telling or not self._events or self._callback is None:
                    return
                self._telling = True
                event, callback = self._events.popleft(), self._callback
            try:
                callback(event)
            except Exception:
                _log.exception("session listener failed", session_event=event)
            finally:
                with self._changed:
                    self._telling = False

    # The thread

    def _begin(self) -> None:
        """Start the thread, once. The caller holds the lock."""
        if self._thread is None and not self._closed:
            self._thread = start_thread(self._run, "batchkeeper-etcd-session")

    def _wake(self) -> None:
        """End the stream of keep-alives, so that the thread looks around."""
        with self._changed:
            beats = self._beats
        if beats is not None:
            beats.close()

    def _run(self) -> None:
        failures = 0
        while not self._closed:
            try:
                link = self._connection.open(time.monotonic() + _ATTEMPT)
                mine = self._lease or self._begin_session()
                self._check_history(mine)
                failures = 0 if self._keep_alive(link, mine, failures) else failures + 1
            except StoreClosedError:
                return
            except MetadataStoreError as error:
                self._failed(error, failures)
                failures += 1
            except Exception:
                # Whatever it is: a thread that ended here would let the session end.
                _log.exception("etcd session interrupted")
                self._failed(MetadataStoreError("the session was interrupted"), failures)
                failures += 1

    def _check_history(self, mine: SessionLease) -> None:
        """End a session that a restored etcd has kept: values of it may have gone meanwhile.

        Raises:
            MetadataStoreError: as for a read.
        """
        self._lineage.check(time.monotonic() + _LOOK)
        if self._history != self._lineage.number:
            self._history = self._lineage.number
            self._revoke(mine.lease, time.monotonic() + _LOOK)

    def _begin_session(self) -> SessionLease:
        """Request a lease, unless the store is closed.

        Raises:
            MetadataStoreError: there is no session.
        """
        with self._changed:
            if self._closed:
                raise StoreClosedError("the store is closed")
            self._granting = True
        try:
            mine = self._grant()
        finally:
            with self._changed:
                self._granting = False
                self._changed.notify_all()
        self._tell()
        self._check_watches()
        return mine

    def _grant(self) -> SessionLease:
        """Request a lease and put its session key.

        Raises:
            MetadataStoreError: there is no session.
        """
        deadline = time.monotonic() + _ATTEMPT
        while True:
            self._history = self._lineage.number
            # A request that is sent again grants another lease; the first one ends by itself.
            sent = time.monotonic()
            request = messages.LeaseGrantRequest(TTL=self._ttl)
            granted = self._connection.call("grant", request, deadline, write=False)
            key = f"{self._place}{_name(granted.ID)}".encode()
            mine = SessionLease(granted.ID, key, self._machine.number)
            try:
                self._put_key(mine, deadline)
            except EtcdRefusedError as refusal:
                if refusal.reason is Reason.LEASE_GONE:  # it took too long
                    continue
                self._revoke(mine.lease, deadline)
                raise refusal.at(key.decode()) from refusal
            break
        with self._changed:
            closed = self._closed
            if not closed:
                events = self._machine.granted(_name(mine.lease), float(granted.TTL), sent)
                if self._callback is not None:
                    self._events += events
                self._lease, self._refusal = mine, None
                self._changed.notify_all()
        if closed:
            self._revoke(mine.lease, deadline)
            raise StoreClosedError("the store is closed")
        _log.debug("etcd session granted", session=_name(mine.lease), ttl=granted.TTL)
        return mine

    def _put_key(self, mine: SessionLease, deadline: float) -> None:
        request = messages.TxnRequest()
        put = request.success.add().request_put
        put.key, put.lease = mine.key, mine.lease
        # Repeating it does no harm: without the lease, it is refused.
        self._connection.call("txn", request.SerializeToString(), deadline, write=False)

    def _keep_alive(self, link: Link, mine: SessionLease, failures: int) -> bool:
        """Keep the session alive at one member, until the stream or the session ends.

        Returns:
            Whether the stream was of use.

        Raises:
            MetadataStoreError: the stream broke, and there is no use in another attempt now.
        """
        cause: grpc.RpcError | None = None
        heard = False
        beats = KeepAlives(link, mine.lease, self._machine.timeout)
        with closing(beats):
            with self._changed:
                if self._closed or self._lease is not mine:
                    return True
                self._beats = beats
            try:
                for sent, ttl in beats:
                    heard = True
                    self._heard(mine, sent, ttl)
                    if self._lease is not mine:
                        return True
            except grpc.RpcError as error:
                cause = error
            finally:
                with self._changed:
                    self._beats = None
        if beats.closed_early:
            return True
        if not (heard and _login_expired(cause)):
            self._lost_connection()
        said = "it does not answer keep-alives" if beats.silent else None
        until = time.monotonic() + _ATTEMPT
        self._connection.broken(link, cause, 0 if heard else failures, until, said=said)
        return heard

    def _heard(self, mine: SessionLease, sent: float, ttl: int) -> None:
        """Process the answer to a keep-alive."""
        session = _name(mine.lease)
        if ttl > 0:
            self._note(lambda machine: machine.renewed(session, float(ttl), sent))
        else:
            _log.warning("etcd session lost", session=session)
            now = time.monotonic()
            self._note(lambda machine: machine.ended(session, now))
        self._tell()
        self._check_watches()

    def _check_watches(self) -> None:
        if self._watches.back():
            self.watches_are_back()

    def _lost_connection(self) -> None:
        now = time.monotonic()
        # The order matters: from here on, only watches that were placed again count as back.
        self._watches.interrupt()
        self._note(lambda machine: machine.disconnected(now))
        self._tell()

    def _failed(self, error: MetadataStoreError, failures: int) -> None:
        """Process a failed attempt to connect, or to get a session."""
        silent = isinstance(error, StoreUnavailableError | OperationTimeoutError)
        if silent or self._lease is not None:
            self._lost_connection()
        if silent:
            self._refusal = None
            return  # The connection has paused between its attempts.
        _log.warning("etcd grants no session", reason=str(error))
        if isinstance(error, EtcdRefusedError):
            error = error.error
        with self._changed:
            self._refusal = error
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed, _REFUSED.pause(failures))

    def _revoke(self, lease: int, deadline: float) -> None:
        try:
            request = messages.LeaseRevokeRequest(ID=lease)
            self._connection.call("revoke", request, deadline, write=False)
        except MetadataStoreError as error:
            _log.info("etcd session left to expire", reason=str(error))


def _login_expired(cause: grpc.RpcError | None) -> bool:
    """Say whether a stream ended because etcd no longer accepts the login."""
    return cause is not None and failure_of(cause, write=False)[0].reason is Reason.LOGIN_EXPIRED


def _name(lease: int) -> str:
    return f"{lease:016x}"
