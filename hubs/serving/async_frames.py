"""Frames over TCP, for tasks; ``frames.py`` does the same for threads.

Both are written by hand, because sockets and streams differ in more than ``async`` and ``await``.
They find the boundaries of frames, and know nothing of the contents.
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
            ConnectionError: there are no more frames, or the frame is too long.
            OSError: the connection has failed.
        """
        try:
            length = length_in(await self._reader.readexactly(HEAD))
            return await self._reader.readexactly(length)
        except EOFError as error:
            raise ConnectionResetError("the connection was closed") from error

    async def write(self, frame: bytes) -> None:
        """Send a frame, with its length. A failure ends the connection.

        Raises:
            OSError: it cannot be sent in time.
        """
        if self._writer.is_closing():
            raise ConnectionResetError("the connection was closed")
        # The whole frame is buffered at once, so a cancelled call never leaves half of a frame.
        self._writer.write(frame)
        try:
            async with asyncio.timeout(self._timeout):
                await self._writer.drain()
        except TimeoutError as error:
            self.cut()
            raise TimeoutError("the other side takes no data") from error

    def end(self) -> None:
        """Make :meth:`read` fail after the frames that have arrived. Writing still works."""
        self._shut(socket.SHUT_RD)

    def cut(self) -> None:
        """End the connection: reads and writes fail."""
        self._shut(socket.SHUT_RDWR)
        self._writer.transport.abort()

    def close(self) -> None:
        """End the connection after all written frames are sent, and free its socket."""
        # This ends the stream even if a forked child has a copy of the socket.
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()
        self._writer.close()

    def _shut(self, how: int) -> None:
        # Unlike a close, this ends the connection even if a forked child has a copy of the socket.
        with suppress(OSError):
            self._socket.shutdown(how)


async def async_connect(address: str, timeout: float | None) -> AsyncFrames:
    """Connect to an address.

    Args:
        address: the address, such as ``"hub-1:4080"``.
        timeout: seconds to connect, and for each write.

    Raises:
        OSError: the address cannot be reached in time.
    """
    seconds = WRITE_TIMEOUT if timeout is None else timeout
    try:
        async with asyncio.timeout(seconds):
            return AsyncFrames(*await asyncio.open_connection(*place(address)), seconds)
    except ValueError as error:  # The host is not a valid name.
        raise bad_address(address) from error


class AsyncPort:
    """A listening port of a server.

    Attributes:
        address: the host and the port.
    """

    def __init__(self, server: asyncio.Server) -> None:
        self.address = address_of(server.sockets[0].getsockname())
        self._server = server

    async def close(self) -> None:
        """Stop listening. When this returns, the port is free."""
        # When its server closes, asyncio forgets a connection that it has accepted and does not
        # serve yet. It would stay open until its garbage is collected. So accepting ends first, and
        # what was accepted gets the time to begin.
        loop = asyncio.get_running_loop()
        try:
            for listening in self._server.sockets:
                with suppress(NotImplementedError, RuntimeError):  # Other loops accept otherwise.
                    loop.remove_reader(listening)
            await asyncio.sleep(0)
        finally:
            self._server.close()


async def async_listen(host: str, port: int, accept: Callable[[AsyncFrames], None]) -> AsyncPort:
    """Listen on a port, and call a function for each connection.

    Raises:
        OSError: listening on the port failed.
    """

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accept(AsyncFrames(reader, writer, WRITE_TIMEOUT))

    return AsyncPort(await asyncio.start_server(accepted, host, port))
