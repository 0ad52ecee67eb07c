"""Frames over TCP, for threads; ``async_frames.py`` does the same for tasks.

Both are written by hand, because sockets and streams differ in more than ``async`` and ``await``.
They know where a frame begins and ends, and nothing of what it says.
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

#: Seconds after which a peer that takes no data is cut off.
WRITE_TIMEOUT: Final = 30.0

# A peer whose machine or network is gone is noticed after 15 + 3 * 5 seconds without data.
_OPTIONS: Final = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,
}
_PIECE: Final = 64 * 1024
_BACKLOG: Final = 128
# Seconds before the next connection is accepted if that has failed, for want of descriptors.
_PAUSE: Final = 0.5


class Frames:
    """A connection that carries frames. One thread reads, and closes it; any number write.

    Args:
        connection: the socket, which belongs to it from now on.
        timeout: seconds for one write.
    """

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        prepare(connection)
        connection.settimeout(timeout)
        self._socket = connection
        self._timeout = timeout
        self._writing = threading.Lock()  # Whoever writes has it.

    def read(self) -> bytes:
        """Return the next frame, without its length.

        Raises:
            ConnectionError: there is none any more, or it is too long.
            OSError: the connection has failed.
        """
        return self._exactly(length_in(self._exactly(HEAD)))

    def write(self, frame: bytes) -> None:
        """Send a frame, with its length. If that fails, the connection is at its end.

        Raises:
            OSError: it cannot be sent in time.
        """
        if not self._writing.acquire(timeout=self._timeout):
            self.cut()
            raise TimeoutError("the other side takes no data")
        try:
            self._socket.sendall(frame)
        except OSError:  # A part of the frame may be gone.
            self.cut()
            raise
        finally:
            self._writing.release()

    def end(self) -> None:
        """Let :meth:`read` fail when it has returned what has arrived. Frames can be written."""
        self._shut(socket.SHUT_RD)

    def cut(self) -> None:
        """End the connection: reads and writes fail. Any thread may call it."""
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and free its socket. Only who reads may do that.

        The number of a closed socket can be that of another one at once, which a thread that still
        reads would get.
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
        # Unlike a close, it ends the connection also where a forked child has a copy of the socket.
        with suppress(OSError):
            self._socket.shutdown(how)


def connect(address: str, timeout: float | None) -> Frames:
    """Connect to an address.

    Args:
        address: the address, such as ``"hub-1:4080"``.
        timeout: seconds to connect, and for each write.

    Raises:
        OSError: nobody can be reached there in time.
    """
    seconds = WRITE_TIMEOUT if timeout is None else timeout
    try:
        return Frames(socket.create_connection(place(address), seconds), seconds)
    except ValueError as error:  # Of a host that is no name.
        raise bad_address(address) from error


class Port:
    """Where a server listens. It calls a function for each connection, on a thread of its own.

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
        """Listen no more. When it returns, the port is free."""
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
        OSError: it cannot be listened there.
    """
    family, _, _, _, where = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return Port(socket.create_server(where[:2], family=family, backlog=_BACKLOG), accept)


def place(address: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    Raises:
        ConnectionAbortedError: it has none.
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
    """Let frames leave at once, and let the system notice a peer that is gone."""
    with suppress(OSError):  # It is gone already. The next read says so.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):  # Some systems lack some.
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
