"""kazoo's client with fixes for logging, timeouts, stopping and unreadable packets.

kazoo keeps the session on a thread of its own. It connects, pings, reconnects after growing pauses,
and starts a new session when the server has ended one.
"""

from __future__ import annotations

import logging
import math
import select
import socket
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionDropped, KazooException, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.retry import KazooRetry

from .answers import UnreadableError

__all__ = ["Handler", "Security", "new_client"]

# Seconds between attempts to connect, with jitter. kazoo's own limit is an hour.
_RECONNECT_DELAY: Final = 0.05
_RECONNECT_MAX_DELAY: Final = 0.5
_RECONNECT_JITTER: Final = 0.5
# Seconds that a server has to answer a new connection, doubled each time that one does not.
_FIRST_ANSWER: Final = 1.0

# The most bytes of an answer, and of the pieces in which it is read. Memory is allocated for one
# piece at a time, because the length may be nonsense: a server that speaks HTTP announces 1.2 GB.
_LARGEST: Final = 1 << 30
_PIECE: Final = 1 << 20

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
            self.logger.log(level, msg, *args, **kwargs)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  (logging's name)
        if level < logging.INFO:
            return False
        return self.logger.isEnabledFor(level if level >= logging.ERROR else logging.DEBUG)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


_logger: Final = logging.getLogger(__name__)
# Without this handler, Python prints kazoo's errors on stderr in programs without logging.
_logger.addHandler(logging.NullHandler())
_log: Final = _QuietLogger(_logger, {})


@dataclass(frozen=True, slots=True)
class Security:
    """The connection's security: TLS, and credentials for ``digest`` (``user:password``)."""

    digest: str | None = None
    use_ssl: bool = False
    check_hostname: bool = True
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        return f"Security(digest={'...' if self.digest else None}, use_ssl={self.use_ssl})"


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, with a limit for connecting, the last failure, and a way to abort.

    ``create_connection`` and ``select`` run on kazoo's connection thread, ``abort`` on any.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self.last_error: Exception | None = None
        self._patience = patience
        self._attempts = 0  # since the last session
        self._greeting = False  # connected, but the server has not answered yet
        self._silences = 0  # servers in a row that did not answer
        self._socket: socket.socket | None = None
        self._aborted = False

    def create_connection(
        self, *args: Any, timeout: float = math.inf, **options: Any
    ) -> socket.socket:
        self._attempts += 1
        # kazoo would wait a whole session timeout for a host that does not answer at all.
        try:
            if self._aborted:
                raise ConnectionAbortedError("closing")
            connected: socket.socket = super().create_connection(
                *args, timeout=min(timeout, self._patience), **options
            )
        except Exception as error:
            self.last_error = error
            raise
        self.last_error = None
        self._greeting = True
        self._socket = connected
        if self._aborted:
            self.abort()
        return connected

    def welcomed(self) -> bool:
        """Note that a server has answered; say whether the first attempt succeeded."""
        at_once = self._attempts <= 1
        self._attempts = self._silences = 0
        self._greeting = False
        return at_once

    def select(
        self, readers: Any, writers: Any, _: Any, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        if self._greeting and timeout is not None:
            # A server that is just starting accepts connections that it never answers, and kazoo
            # would wait for a whole session timeout.
            timeout = min(timeout, _FIRST_ANSWER * 2**self._silences)
        ready = self._poll(readers, writers, timeout)
        if self._greeting and not any(ready):
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
    """kazoo's connection, which survives packets that it cannot read.

    If a packet is not as expected, kazoo's thread ends for good, and so would the store. This class
    drops the connection instead, as if it had broken: requests under way lose their answers, and
    kazoo connects again. Everything runs on kazoo's connection thread.
    """

    def _connect(self, *where: Any) -> Any:
        try:
            return super()._connect(*where)
        except (OSError, KazooException, KazooTimeoutError):
            raise
        except Exception as error:
            # The values that kazoo has taken from such a greeting do not form a session.
            raise SessionExpiredError(f"the server's greeting cannot be read: {error!r}") from error

    def _read_socket(self, read_timeout: float) -> Any:
        try:
            return super()._read_socket(read_timeout)
        except (OSError, KazooException, KazooTimeoutError):
            raise
        except Exception as error:
            raise ConnectionDropped(f"a packet cannot be read: {error!r}") from error

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        pending = self.client._pending
        mine = pending and pending[0][1] and pending[0][2] == header.xid
        if mine and header.err not in EXCEPTIONS:
            _, call, _ = pending.popleft()
            call.set_exception(UnreadableError(f"the error code {header.err} is unknown"))
            return None
        return super()._read_response(header, buffer, offset)

    def _read(self, length: int, timeout: float) -> bytes:
        if length > _LARGEST:
            raise ConnectionDropped(f"a packet of {length} bytes")
        if length <= _PIECE:
            piece: bytes = super()._read(length, timeout)
            return piece
        pieces = []
        while length > 0:
            pieces.append(super()._read(min(length, _PIECE), timeout))
            length -= len(pieces[-1])
        return b"".join(pieces)


def new_client(
    addresses: Sequence[str], session_timeout: float, security: Security, handler: Handler
) -> KazooClient:
    """Return a client that has not been started."""
    client = KazooClient(
        ",".join(addresses),
        timeout=session_timeout,
        handler=handler,
        auth_data=[("digest", security.digest)] if security.digest else None,
        connection_retry=KazooRetry(
            max_tries=-1,
            delay=_RECONNECT_DELAY,
            max_delay=_RECONNECT_MAX_DELAY,
            max_jitter=_RECONNECT_JITTER,
        ),
        logger=_log,
        use_ssl=security.use_ssl,
        check_hostname=security.check_hostname,
        ca=security.ca,
        certfile=security.cert,
        keyfile=security.key,
    )
    client._connection = _Line(client, client._conn_retry.copy(), logger=client.logger)
    return client
