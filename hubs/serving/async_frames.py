"""Frames over TCP, for tasks; ``frames.py`` does the same for threads.

Both are written by hand, because sockets and streams differ in more than ``async`` and ``await``.
They know where a frame begins and ends, and nothing of what it says.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from .errors import bad_address
from .frames import WRITE_TIMEOUT, address_of, place, prepare
from .protocol import HEAD, length_in

__all__ = ["AsyncFrames", "AsyncPort", "async_connect", "async_listen"]


class AsyncFrames:
    """A connection that carries frames. One task reads, and closes it; any number write.

    Args:
        reader: the stream that is read.
        writer: the stream that is written.
        timeout: seconds for one write.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout: float
    ) -> None:
        self._socket: socket.socket = writer.get_extra_info("socket")
        prepare(self._socket)
        self._reader = reader
        self._writer = writer
        self._timeout = timeout

    async def read(self) -> bytes:
        """Return the next frame, without its length.

        Raises:
            ConnectionError: there is none any more, or it is too long.
            OSError: the connection has failed.
        """
        try:
            length = length_in(await self._reader.readexactly(HEAD))
            return await self._reader.readexactly(length)
        except EOFError as error:
            raise ConnectionResetError("the connection was closed") from error

    async def write(self, frame: bytes) -> None:
        """Send a frame, with its length. If that fails, the connection is at its end.

        Raises:
            OSError: it cannot be sent in time.
        """
        if self._writer.is_closing():
            raise ConnectionResetError("the connection was closed")
        # All of it is in the buffer at once, so a cancelled call leaves no half of a frame.
        self._writer.write(frame)
        try:
            async with asyncio.timeout(self._timeout):
                await self._writer.drain()
        except TimeoutError as error:
            self.cut()
            raise TimeoutError("the other side takes no data") from error

    def end(self) -> None:
        """Let :meth:`read` fail when it has returned what has arrived. Frames can be written."""
        self._shut(socket.SHUT_RD)

    def cut(self) -> None:
        """End the connection: reads and writes fail."""
        self._shut(socket.SHUT_RDWR)
        self._writer.transport.abort()

    def close(self) -> None:
        """End the connection when all that was written is sent, and free its socket."""
        # The end of the stream is sent also where a forked child has a copy of the socket.
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()
        self._writer.close()

    def _shut(self, how: int) -> None:
        # Unlike a close, it ends the connection also where a forked child has a copy of the socket.
        with suppress(OSError):
            self._socket.shutdown(how)


async def async_connect(address: str, timeout: float | None) -> AsyncFrames:
    """Connect to an address.

    Args:
        address: the address, such as ``"hub-1:4080"``.
        timeout: seconds to connect, and for each write.

    Raises:
        OSError: nobody can be reached there in time.
    """
    seconds = WRITE_TIMEOUT if timeout is None else timeout
    try:
        async with asyncio.timeout(seconds):
            return AsyncFrames(*await asyncio.open_connection(*place(address)), seconds)
    except ValueError as error:  # Of a host that is no name.
        raise bad_address(address) from error


class AsyncPort:
    """Where a server listens.

    Attributes:
        address: the host and the port.
    """

    def __init__(self, server: asyncio.Server) -> None:
        self.address = address_of(server.sockets[0].getsockname())
        self._server = server

    def close(self) -> None:
        """Listen no more. When it returns, the port is free."""
        self._server.close()


async def async_listen(host: str, port: int, accept: Callable[[AsyncFrames], None]) -> AsyncPort:
    """Listen on a port, and call a function for each connection.

    Raises:
        OSError: it cannot be listened there.
    """

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accept(AsyncFrames(reader, writer, WRITE_TIMEOUT))

    return AsyncPort(await asyncio.start_server(accepted, host, port))
