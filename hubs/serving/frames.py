"""Frames over TCP, for threads; ``async_frames.py`` does the same for tasks.

Both are written by hand, because sockets and streams differ in more than ``async`` and ``await``.
They find the boundaries of frames, and know nothing of the contents.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...ops.log import get_logger
from .errors import bad_address
from .protocol import HEAD, length_in

__all__ = ["WRITE_TIMEOUT", "Frames", "Port", "address_of", "connect", "listen", "place", "prepare"]

log = get_logger("batchkeeper.hubs")

#: Seconds after which a peer that reads no data is disconnected.
WRITE_TIMEOUT: Final = 30.0

# A peer whose machine or network is down is detected after 15 + 3 * 5 seconds without data.
_OPTIONS: Final = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,
}
_PIECE: Final = 64 * 1024
_BACKLOG: Final = 128
# Seconds before the next accept after a failure, such as a lack of descriptors.
_PAUSE: Final = 0.5


class Frames:
    """A connection that carries frames. One thread reads, and closes it; any number write.

    Args:
        connection: the socket, which this object takes over.
        timeout: seconds for one write.
    """

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        prepare(connection)
        connection.settimeout(timeout)
        self._socket = connection
        self._timeout = timeout
        self._writing = threading.Lock()  # Held while writing.

    def read(self) -> bytes:
        """Return the next frame, without its length.

        Raises:
            ConnectionError: there are no more frames, or the frame is too long.
            OSError: the connection has failed.
        """
        return self._exactly(length_in(self._exactly(HEAD)))

    def write(self, frame: bytes) -> None:
        """Send a frame, with its length. A failure ends the connection.

        Raises:
            OSError: it cannot be sent in time.
        """
        if not self._writing.acquire(timeout=self._timeout):
            self.cut()
            raise TimeoutError("the other side takes no data")
        try:
            self._socket.sendall(frame)
        except OSError:  # A part of the frame may have been sent.
            self.cut()
            raise
        finally:
            self._writing.release()

    def end(self) -> None:
        """Make :meth:`read` fail after the frames that have arrived. Writing still works."""
        self._shut(socket.SHUT_RD)

    def cut(self) -> None:
        """End the connection: reads and writes fail. Any thread may call it."""
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and free its socket. Only the reading thread may call it.

        The descriptor of a closed socket can be reused at once, and a thread that still reads would
        then read from the wrong socket.
        """
        self.cut()
        with self._writing:
            self._socket.close()

    def _exactly(self, count: int) -> bytes:
        pieces: list[bytes] = []
        while count:
            try:
                piece = self._socket.recv(min(count, _PIECE))
            except TimeoutError:  # It is meant for writes.
                continue
            if not piece:
                raise ConnectionResetError("the connection was closed")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def _shut(self, how: int) -> None:
        # Unlike a close, this ends the connection even if a forked child has a copy of the socket.
        with suppress(OSError):
            self._socket.shutdown(how)


def connect(address: str, timeout: float | None) -> Frames:
    """Connect to an address.

    Args:
        address: the address, such as ``"hub-1:4080"``.
        timeout: seconds to connect, and for each write.

    Raises:
        OSError: the address cannot be reached in time.
    """
    seconds = WRITE_TIMEOUT if timeout is None else timeout
    try:
        return Frames(socket.create_connection(place(address), seconds), seconds)
    except ValueError as error:  # The host is not a valid name.
        raise bad_address(address) from error


class Port:
    """A listening port of a server. It calls a function for each connection, on its own thread.

    Attributes:
        address: the host and the port.
    """

    def __init__(self, listening: socket.socket, accept: Callable[[Frames], None]) -> None:
        self.address = address_of(listening.getsockname())
        self._socket = listening
        self._accept = accept
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"batchkeeper-port {self.address}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. When this returns, the port is free."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        with self._socket:
            while not self._closed.is_set():
                try:
                    connection, _ = self._socket.accept()
                except OSError as error:
                    if not self._closed.is_set():
                        log.warning("a connection was not accepted", reason=str(error))
                        self._closed.wait(_PAUSE)
                    continue
                self._accept(Frames(connection, WRITE_TIMEOUT))


def listen(host: str, port: int, accept: Callable[[Frames], None]) -> Port:
    """Listen on a port, and call a function for each connection.

    Raises:
        OSError: listening on the port failed.
    """
    family, _, _, _, where = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return Port(socket.create_server(where[:2], family=family, backlog=_BACKLOG), accept)


def place(address: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    Raises:
        ConnectionAbortedError: the address has no port.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise bad_address(address)
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_of(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """Return the address of a socket's name."""
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def prepare(connection: socket.socket) -> None:
    """Send frames without delay, and make the system detect a dead peer."""
    with suppress(OSError):  # It is closed. The next read fails.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):  # Not all systems have all options.
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
