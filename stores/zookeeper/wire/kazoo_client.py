"""kazoo's client with fixes for logging, timeouts, stopping, unreadable packets and watch events.

kazoo keeps the session on a thread of its own. It connects, pings, reconnects after growing pauses,
and starts a new session when the server has ended one.
"""

from __future__ import annotations

import logging
import math
import random
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    KazooException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import (
    AUTH_XID,
    CLOSE_RESPONSE,
    PING_XID,
    WATCH_XID,
    ConnectionHandler,
)
from kazoo.protocol.serialization import SASL, CloseInstance, Connect, PingInstance, ReplyHeader
from kazoo.protocol.states import KeeperState
from kazoo.retry import ForceRetryError, KazooRetry

from ....ops.paths import OWN
from ...hosts import lookup_failure
from ...tls import NO_FILES, REFUSED_CERTIFICATE, TlsFiles
from .errors import UnreadableError
from .nodes import SKIPPED

__all__ = [
    "EVENT_PATH",
    "NO_GREETING",
    "CertificateRefusedError",
    "Greeting",
    "Handler",
    "Security",
    "new_client",
]

# Seconds between attempts to connect, with jitter. kazoo's own limit is an hour.
_RECONNECT_DELAY: Final = 0.05
_RECONNECT_MAX_DELAY: Final = 0.5
_RECONNECT_JITTER: Final = 0.5
# The time between two reports of answered requests, as a part of the session's timeout.
_TOUCHES: Final = 0.05
# How long a request may have no answer, as a part of the session's timeout: as long as kazoo waits
# for that of a ping. The rest of the session is left for another server.
_SILENCE: Final = 2 / 3
# Seconds that one attempt may take. After it, a host's name is looked up again: one that has moved
# may leave an address behind that nobody answers at. With TLS, the server has to calculate, too.
_CONNECT: Final = 2.0
_TLS_CONNECT: Final = 5.0
# Seconds that a server has to answer a new connection, doubled each time that one does not.
_FIRST_ANSWER: Final = 1.0
# The most messages of a client in a SASL login; GSSAPI needs three or four.
_SASL_STEPS: Final = 20
_SASL_REFUSALS: Final = (
    AuthFailedError.code,
    SessionClosedRequireSaslError.code,
    UnimplementedError.code,
)

# The most bytes of an answer, and of the pieces in which it is read. Memory is allocated for one
# piece at a time, because the length may be nonsense: a server that speaks HTTP announces 1.2 GB.
_LARGEST: Final = 1 << 30
_PIECE: Final = 1 << 20
_NO_ZOOKEEPER: Final = "the server does not speak ZooKeeper's protocol"
# The limit of bytes received at a time. A thousand events of a watch fit, and all that TLS decrypts
# at a time, so nothing waits in its buffers while `select` waits for the socket.
_CHUNK: Final = 1 << 16

# The states in which requests wait for the connection.
_TAKING: Final = (KeeperState.CONNECTED, KeeperState.CONNECTED_RO, KeeperState.CONNECTING)

# What precedes a packet: its length. What begins an answer: xid, zxid and error.
_length = Struct("!i")
_header = Struct("!iqi")
# The body of an event, up to its path: kind, state and the length of the path.
_event = Struct("!iii")
#: Where the path begins in the packet of an event. It ends with the packet.
EVENT_PATH: Final = _header.size + _event.size
# What all paths of this package's own nodes contain: those of slots, and those by which a multi
# passes a suffix over (`plan`).
_OWN_PART: Final = f"/{OWN}".encode()
_OWN_PARTS: Final = (f"/{OWN}/".encode(), SKIPPED.encode())

# Evaluated here, because in the class below, `select` is the class's own method.
_HAS_POLL: Final = hasattr(select, "poll")


class _QuietLogger(logging.LoggerAdapter[logging.Logger]):
    """Passes kazoo's messages about its connection on as debug events, and its faults as errors.

    While a server is away, kazoo warns about it once a second. kazoo's debug output is dropped: it
    contains every request, and the session's password.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            level = level if level >= logging.ERROR else logging.DEBUG
            with suppress(Exception):  # An application's handler must not end kazoo's thread.
                self.logger.log(level, msg, *args, **kwargs)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  (logging's name)
        if level < logging.INFO:
            return False
        return self.logger.isEnabledFor(level if level >= logging.ERROR else logging.DEBUG)


_logger: Final = logging.getLogger(__name__)
# Without this handler, Python prints kazoo's errors on stderr in programs without logging.
_logger.addHandler(logging.NullHandler())
_log: Final = _QuietLogger(_logger, {})


@dataclass(frozen=True, slots=True)
class Security:
    """The connection's security: TLS and the login.

    ``digest`` returns the credentials for the scheme of this name (``user:password``). ``sasl``
    returns a new SASL client for a host, as ``puresasl.client`` defines it.
    """

    digest: Callable[[], str] | None = None
    sasl: Callable[[str], Any] | None = None
    use_ssl: bool = False
    check_hostname: bool = True
    files: TlsFiles = NO_FILES
    user: str | None = None


class Greeting(NamedTuple):
    """What the server has said to a new connection.

    Attributes:
        session: the number of the session.
        timeout: the timeout of the session in seconds, as the server has set it.
        sent: the time before the client introduced itself, by ``time.monotonic()``.
    """

    session: int
    timeout: float
    sent: float


#: Before the first connection.
NO_GREETING: Final = Greeting(0, 0.0, -math.inf)


class CertificateRefusedError(Exception):
    """The server does not accept the client's certificate, or misses it."""


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, with a limit for connecting, the last failure, and a way to abort.

    ``create_connection``, ``select``, ``on_events`` and ``on_touch`` run on kazoo's connection
    thread, as ``not_greeted``; ``abort`` on any.

    Attributes:
        greeting: the greeting of the last connection.
        on_events: receives the packets with events of watches, in order, without those of nodes
            that this package keeps for itself. It must not block. ``None`` drops them.
        on_untrusted: called when in a round, each server or its client was not trusted.
        on_touch: receives, now and then, the times at which a request was sent and answered. It
            must not block.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self.last_error: Exception | None = None
        #: About the hosts whose names the last attempt could not look up.
        self.lookup_failures: list[str] = []
        self.places = 0
        self.greeting = NO_GREETING
        self.on_events: Callable[[list[bytes]], None] | None = None
        #: Receives the packets with events of nodes that this package keeps for itself.
        self.on_own_event: Callable[[bytes], None] | None = None
        self.on_touch: Callable[[float, float], None] | None = None
        self.on_untrusted: Callable[[], None] = lambda: None
        self._untrusted = 0  # servers in this round whose certificate is not trusted
        self._patience = patience
        self._attempts = 0  # since the last session
        #: Whether there is a connection, but the server has not greeted yet.
        self.greets = False
        self._silences = 0  # servers in a row that did not answer
        self._socket: socket.socket | None = None
        self._aborted = False

    def create_connection(
        self, *args: Any, timeout: float = math.inf, use_ssl: bool = False, **options: Any
    ) -> socket.socket:
        self._attempts += 1
        self.greets = False
        # kazoo would wait a whole session timeout for a host that does not answer at all.
        try:
            if self._aborted:
                raise ConnectionAbortedError("closing")
            connected: socket.socket = super().create_connection(
                *args,
                timeout=min(timeout, self._patience, _TLS_CONNECT if use_ssl else _CONNECT),
                use_ssl=use_ssl,
                **options,
            )
        except (OSError, KazooTimeoutError) as error:
            self.last_error = error
            if isinstance(error, ssl.SSLCertVerificationError):
                self._distrust()
            raise
        except Exception as error:
            self.last_error = error
            raise ConnectionDropped(repr(error)) from error
        self.greets = True  # The reason of the last failure stays until a server has answered.
        self._socket = connected
        if self._aborted:
            self.abort()
        return connected

    def begin_round(self, places: int, failures: list[str]) -> None:
        """Note how many servers are tried next, and the hosts that have no address."""
        self.places, self.lookup_failures, self._untrusted = places, failures, 0

    def failure(self) -> str:
        """Return why there is no connection, with the hosts that have no address; "" if unknown."""
        last = [] if self.last_error is None else [str(self.last_error)]
        return "; ".join([*self.lookup_failures, *last])

    def not_greeted(self, error: Exception, use_ssl: bool) -> None:
        """Note that a server has closed a new connection without a word, if it has."""
        if not self.greets:
            return
        self.last_error = None
        if isinstance(error, ConnectionDropped):
            port = "a port without TLS" if use_ssl else "a TLS port (use_ssl=true)"
            port += ", ask for a certificate (cert, key)" * use_ssl
            self.last_error = error
            if REFUSED_CERTIFICATE.search(str(error)):
                # With TLS 1.3, this comes after the handshake.
                self.last_error = CertificateRefusedError(
                    f"the server refuses the client's certificate, or requires one ({error}); name "
                    "the client's certificate and its key in the options 'cert' and 'key'"
                )
                self._distrust()
            elif _NO_ZOOKEEPER not in str(error):
                self.last_error = ConnectionResetError(
                    f"the server accepted the connection and closed it at once: it may have too "
                    f"many connections from this host (maxClientCnxns), be {port}, or not be "
                    f"serving yet"
                )

    def _distrust(self) -> None:
        self._untrusted += 1
        if self._untrusted == self.places and not self.lookup_failures:
            self.on_untrusted()

    def welcomed(self) -> bool:
        """Note that a server has answered; say whether the first attempt succeeded."""
        self.last_error = None
        at_once = self._attempts <= 1
        self._attempts = self._silences = 0
        self.greets = False
        return at_once

    def select(
        self, readers: Any, writers: Any, _: Any, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        if self.greets and timeout is not None:
            # A server that is just starting accepts connections that it never answers, and kazoo
            # would wait for a whole session timeout.
            timeout = min(timeout, _FIRST_ANSWER * 2**self._silences)
        ready = self._poll(readers, writers, timeout)
        if self.greets and not any(ready):
            self._silences += 1
        return ready

    if _HAS_POLL:

        def _poll(
            self, readers: Any, writers: Any, timeout: float | None
        ) -> tuple[list[Any], list[Any], list[Any]]:
            # kazoo creates and closes an epoll object each time, three times per request. That is a
            # third of the client's cost for a single request.
            poll = select.poll()
            for ready in readers:
                poll.register(ready, select.POLLIN)
            for ready in writers:
                poll.register(ready, select.POLLOUT)
            events = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
            # As with kazoo's own, an error or a hang-up makes both ready; the next call reports it.
            return (
                [ready for ready in readers if ready.fileno() in events],
                [ready for ready in writers if ready.fileno() in events],
                [],
            )

    else:

        def _poll(
            self, readers: Any, writers: Any, timeout: float | None
        ) -> tuple[list[Any], list[Any], list[Any]]:
            ready: tuple[list[Any], list[Any], list[Any]]
            ready = super().select(readers, writers, [], timeout)
            return ready

    def abort(self) -> None:
        """Cut the connection and refuse new ones, so that kazoo's thread notices the end."""
        self._aborted = True
        if self._socket is not None:
            with suppress(OSError):  # The connection is already gone.
                self._socket.shutdown(socket.SHUT_RDWR)


class _Line(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, which survives packets that it cannot read, and passes events on.

    If a packet is not as expected, kazoo's thread ends for good, and so would the store. This class
    drops the connection instead, as if it had broken: requests under way lose their answers, and
    kazoo connects again. Everything runs on kazoo's connection thread.

    kazoo reads one packet at a time, with three system calls for each, and knows only events of
    watches that fire once. Here, one call receives what has arrived, and the packets of events go
    to ``Handler.on_events`` as they are.
    """

    # The number of a request whose answer will be reported to ``Handler.on_touch``, and when it was
    # sent; 0 if there is none.
    _touch: tuple[int, float] = (0, -math.inf)
    # Since when there is no connection; ``None`` while there is one.
    _away_since: float | None = None
    # The zxid that this attempt to connect conceals; see `_connect_anew`.
    _concealed: int | None = None
    # When the first request was sent since the server was last heard; ``None`` if none was.
    _unanswered_since: float | None = None
    # The host of this attempt, and whether a SASL login has succeeded before.
    _host = ""
    _was_in = False

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if xid and xid != AUTH_XID:  # a greeting has none, and logins are answered elsewhere
            pending, last = self._touch
            now = time.monotonic()
            session = self.handler.greeting.timeout
            if not pending and now - last >= _TOUCHES * session:
                self._touch = xid, now
            if self._unanswered_since is None:
                self._unanswered_since = now
            elif now - self._unanswered_since > _SILENCE * session > 0:
                # kazoo waits for the server only while it has nothing to send.
                raise ConnectionDropped("the server has not answered for too long")
        super()._submit(request, timeout, xid)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        sent = time.monotonic()
        result = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            greeting, _ = result
            if greeting.time_out > 0:
                if self.client.sasl is not None:
                    self._log_in(timeout)
                self._check_session(request.session_id, greeting.session_id, timeout)
            self.handler.greeting = Greeting(greeting.session_id, greeting.time_out / 1000.0, sent)
        return result

    def _log_in(self, timeout: float) -> None:
        """Log in with SASL, before kazoo reports the connection and anything else is sent.

        kazoo's own login asks a server without SASL for ever. It also takes a connection that
        breaks meanwhile, and a missing ticket, for a refusal, after which it gives up for good.
        """
        self.handler.greets = False  # the server has answered
        token: bytes | None = None
        try:
            sasl = self.client.sasl(self._host)
            for xid in range(1, _SASL_STEPS):
                answer = sasl.process(token)
                if sasl.complete and not answer:
                    break
                super()._submit(SASL(answer or b""), timeout, xid)
                header, packet, offset = self._read_header(timeout)
                if header.xid != xid or header.err not in (0, *_SASL_REFUSALS):
                    raise ConnectionDropped(f"an unexpected answer to the SASL login: {header}")
                if header.err:
                    raise AuthFailedError("it refuses the SASL login")
                token, _ = SASL.deserialize(packet, offset)
                if sasl.complete:
                    break
                if token is None:
                    raise AuthFailedError("it has no SASL login (authProvider, JAAS)")
            else:
                raise AuthFailedError("its SASL login does not end")
            sasl.dispose()
        except AuthFailedError as error:
            self.handler.last_error = error
            raise
        except (OSError, KazooException, KazooTimeoutError) as error:
            self.handler.last_error = ConnectionDropped(f"during the SASL login: {error}")
            raise
        except Exception as error:  # of the library: no ticket, or a server that proves nothing
            kind = ConnectionDropped if self._was_in else AuthFailedError
            self.handler.last_error = failure = kind(f"the SASL login failed: {error}")
            raise failure from error
        self._was_in = True

    def _check_session(self, asked: int, given: int, timeout: float) -> None:
        """Give up a session that does not continue what this client has seen."""
        if self._concealed is not None:
            zxid = self._invoke(timeout, PingInstance, PING_XID)
            if zxid and zxid >= self._concealed:
                raise ConnectionDropped("the server has caught up")  # the next attempt succeeds
        elif asked in (0, given):  # ClickHouse Keeper begins a new session with each connection.
            return
        self._submit(CloseInstance, timeout, 1)
        raise SessionExpiredError("the server does not continue the session")

    def _connect_loop(self, retry: Any) -> Any:
        try:
            return super()._connect_loop(retry)
        except (ForceRetryError, ConnectionClosedError):
            raise
        except Exception as error:
            # Without this, kazoo's thread would end for good, for example if it has no file
            # descriptor for a moment.
            self.handler.last_error = error
            self.client._session_callback(KeeperState.CONNECTING)
            raise ForceRetryError(repr(error)) from error

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        # kazoo's own logs a host that it cannot look up, and nobody learns which one it was.
        found: list[tuple[str, str, int]] = []
        failures = []
        for host, port in self.client.hosts:
            try:
                places = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)
            except (OSError, UnicodeError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                failures.append(lookup_failure(host, reason))
            else:
                found.extend((host, str(place[0]), int(place[1])) for *_, place in places)
        self.handler.begin_round(len(found), failures)
        if self.client.randomize_hosts:
            random.shuffle(found)
        return found

    def _connect(self, *where: Any) -> Any:
        self._touch = 0, -math.inf
        self._unanswered_since = None
        self._host = where[0]
        if self._away_since is None:
            self._away_since = time.monotonic()
        if self.client.login is not None:
            self.client.auth_data = {("digest", self.client.login())}
        try:
            try:
                timeouts = super()._connect(*where)
            except ConnectionDropped:
                if not self._turned_away():
                    raise
                timeouts = self._connect_anew(*where)
        except (OSError, KazooException, KazooTimeoutError) as error:
            self.handler.not_greeted(error, self.client.use_ssl)
            raise
        except Exception as error:
            # The values that kazoo has taken from such a greeting do not form a session.
            raise SessionExpiredError(f"the server's greeting cannot be read: {error!r}") from error
        self._away_since = None
        return timeouts

    def _turned_away(self) -> bool:
        """Whether the server has closed the connection unheard, for as long as a session lives."""
        assert self._away_since is not None
        away = time.monotonic() - self._away_since
        client, handler = self.client, self.handler
        lived = away >= handler.greeting.timeout
        return bool(handler.greets and client._session_id and lived)

    def _connect_anew(self, *where: Any) -> Any:
        """Ask a server about the session without saying what the client has seen.

        A server that knows less than the client has seen closes the connection without a word. It
        may catch up with the others. If it does not, it was emptied or has an older backup. A
        server that does not serve at all closes the connection this time, too. Otherwise it says
        that the session has ended, or `_check_session` ends it: what the client has seen is gone.
        """
        self._socket.close()
        self._concealed, self.client.last_zxid = self.client.last_zxid, 0
        try:
            return super()._connect(*where)
        finally:
            # If the session has ended, kazoo forgets this, too.
            self.client.last_zxid, self._concealed = self._concealed, None

    def _read_socket(self, read_timeout: float) -> Any:
        try:
            return self._take_packets(self._receive(), read_timeout)
        except (OSError, KazooException, KazooTimeoutError):
            raise
        except Exception as error:
            raise ConnectionDropped(f"a packet cannot be read: {error!r}") from error

    def _receive(self) -> bytes:
        """Return the bytes that have arrived; none if TLS needs more of them."""
        with self._socket_error_handling():
            try:
                received: bytes = self._socket.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return b""
        if not received:
            raise ConnectionDropped("socket connection broken")
        self._unanswered_since = None
        return received

    def _take_packets(self, received: bytes, timeout: float) -> Any:
        """Handle the packets in ``received``, after the rest of the last one has arrived."""
        events: list[bytes] = []
        offset = 0
        try:
            while offset < len(received):
                missing = offset + _length.size - len(received)
                if missing > 0:
                    received += self._read(missing, timeout)
                (size,) = _length.unpack_from(received, offset)
                offset += _length.size
                missing = offset + size - len(received)
                packet = received[offset : offset + size]
                if missing > 0:
                    packet += self._read(missing, timeout)
                offset += size
                xid, zxid, error = _header.unpack_from(packet)
                if xid == WATCH_XID:
                    _, _, path_bytes = _event.unpack_from(packet, _header.size)
                    if len(packet) != EVENT_PATH + path_bytes:
                        raise ValueError(f"an event of {len(packet)} bytes")
                    # Every batch of this package sets a slot: a watch of everything would get
                    # more of these events than of others.
                    if _OWN_PART not in packet or not any(p in packet for p in _OWN_PARTS):
                        events.append(packet)
                    elif self.handler.on_own_event is not None:
                        self.handler.on_own_event(packet)
                    continue
                # An answer must not overtake the events before it.
                self._pass_on(events)
                if xid == self._touch[0]:
                    self._touched()
                if self._take_answer(ReplyHeader(xid, zxid, error), packet) == CLOSE_RESPONSE:
                    return CLOSE_RESPONSE
        finally:
            self._pass_on(events)
        return None

    def _touched(self) -> None:
        sent = self._touch[1]
        self._touch = 0, sent
        if self.handler.on_touch is not None:
            self.handler.on_touch(sent, time.monotonic())

    def _pass_on(self, events: list[bytes]) -> None:
        if events and self.handler.on_events is not None:
            self.handler.on_events([*events])
        events.clear()

    def _take_answer(self, header: Any, packet: bytes) -> Any:
        if header.xid == PING_XID:
            self.ping_outstanding.clear()
        elif header.xid == AUTH_XID:
            # Logins are answered while connecting, so this answers none. As in kazoo, it ends the
            # first request under way, whose own answer then does not fit.
            _, call, _ = self.client._pending.popleft()
            if header.err:
                call.set_exception(AuthFailedError())
                self.client._session_callback(KeeperState.AUTH_FAILED)
            else:
                call.set(True)
        else:
            return self._read_response(header, packet, _header.size)
        return None

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        pending = self.client._pending
        mine = pending and pending[0][1] and pending[0][2] == header.xid
        if mine and header.err not in EXCEPTIONS:
            _, call, _ = pending.popleft()
            call.set_exception(UnreadableError(f"the error code {header.err} is unknown"))
            return None
        return super()._read_response(header, buffer, offset)

    def _write(self, msg: bytes, timeout: float) -> None:
        # kazoo waits with a call of its own until the socket takes more, which it nearly always
        # does at once.
        sent = 0
        if not self.client.use_ssl:
            with self._socket_error_handling(), suppress(BlockingIOError):
                sent = self._socket.send(msg)
        if sent < len(msg):
            super()._write(msg[sent:], timeout)

    def _read(self, length: int, timeout: float) -> bytes:
        if length > _LARGEST:
            raise ConnectionDropped(f"{_NO_ZOOKEEPER}: a packet of {length} bytes")
        if length <= _PIECE:
            piece: bytes = super()._read(length, timeout)
            return piece
        pieces = []
        while length > 0:
            pieces.append(super()._read(min(length, _PIECE), timeout))
            length -= len(pieces[-1])
        return b"".join(pieces)


class _Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, which passes an interrupt on.

    kazoo wakes its connection in a block that catches everything. So Ctrl-C at this moment, in a
    thread that calls a store, would be lost, and the request would fail as if the store had closed.
    """

    #: Returns the login for a new connection.
    login: Callable[[], str] | None = None
    #: Returns a SASL client for a new connection to a host.
    sasl: Callable[[str], Any] | None = None

    def _make_state_change(self, state: Any) -> None:
        if self._state == KeeperState.AUTH_FAILED:
            self.state = None  # kazoo reports no change if there was no session before
        super()._make_state_change(state)

    def _call(self, request: Any, async_object: Any) -> Any:
        if self._state not in _TAKING:
            return super()._call(request, async_object)  # which sets the error
        self._queue.append((request, async_object))
        try:
            self._connection._write_sock.send(b"\0")
        except (OSError, AttributeError):  # There is no socket after the end.
            async_object.set_exception(ConnectionClosedError("Connection has been closed"))
        return None


def new_client(
    addresses: Sequence[str], session_timeout: float, security: Security, handler: Handler
) -> KazooClient:
    """Return a client that has not been started."""
    client = _Client(
        ",".join(addresses),
        timeout=session_timeout,
        handler=handler,
        connection_retry=KazooRetry(
            max_tries=-1,
            delay=_RECONNECT_DELAY,
            max_delay=_RECONNECT_MAX_DELAY,
            max_jitter=_RECONNECT_JITTER,
        ),
        logger=_log,
        use_ssl=security.use_ssl,
        check_hostname=security.check_hostname,
        ca=security.files.ca,
        certfile=security.files.cert,
        keyfile=security.files.key,
        keyfile_password="",  # without one, OpenSSL asks on the terminal for that of a new key
    )
    client.login, client.sasl = security.digest, security.sasl
    client._connection = _Line(client, client._conn_retry.copy(), logger=client.logger)
    return client
