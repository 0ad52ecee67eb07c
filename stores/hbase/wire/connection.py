"""One connection to one service of one server, used by any number of threads.

A caller sends its request itself, under a lock, and then waits in a queue of its own, so that
Ctrl-C cannot leave a lock behind. One thread reads the answers. A connection that breaks, or on
which calls wait while the server is silent, ends all its calls; the owner makes another one. With
TLS, ``encryption`` stands in for the socket.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from ...backend import start_thread
from .cells import CODEC, Cell, cells_in
from .encryption import CertificateError, EncryptedSocket, Side
from .fields import varint
from .messages import MESSAGES

__all__ = ["Connection", "LostError", "Pending", "RemoteError", "Reply"]

# "HBas", the version of the protocol, and simple authentication: the server takes the client's word
# for its name.
_PREAMBLE: Final = b"HBas\x00\x50"
_LENGTH: Final = struct.Struct(">I")
# Seconds without a word from a server that owes answers. A write may wait for a full memstore.
_SILENCE: Final = 20.0
# Seconds from one look at that to the next.
_LOOK: Final = 1.0
# Java's time-out of a call is an int of milliseconds.
_MOST_MS: Final = 600_000
_CHUNK: Final = 256 * 1024
# Seconds for the reading thread to find why the server takes no more.
_LAST_WORDS: Final = 1.0
# To a client without a version, answers may be larger than hbase.server.scanner.max.result.size.
_VERSION: Final = MESSAGES.VersionInfo(
    **dict.fromkeys(("version", "url", "revision", "user", "date", "src_checksum"), ""),
    version_major=2,
    version_minor=0,
)


class Reply(NamedTuple):
    """An answer: its message, and the cells beside it."""

    message: Any
    cells: list[Cell]


class RemoteError(Exception):
    """The server answers with an exception.

    Attributes:
        kind: the name of its class, without the package.
        text: its message.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind = kind.rpartition(".")[2].rpartition("$")[2]
        self.text = text

    @classmethod
    def of(cls, kind: str, trace: str) -> RemoteError:
        """Return the error of a class name and a stack trace, whose first line has the message."""
        line = trace.partition("\n")[0].strip()
        return cls(kind, line.removeprefix(f"{kind}:").strip())


class LostError(Exception):
    """There is no answer: the connection broke, or could not be made.

    Attributes:
        sent: whether the server may have received the request.
        refused: whose certificate the other side refuses, if that is the reason.
    """

    def __init__(self, reason: str, *, sent: bool, refused: Side | None = None) -> None:
        super().__init__(reason)
        self.sent = sent
        self.refused = refused


class Pending:
    """A call that was sent."""

    __slots__ = ("_connection", "_ended", "_response")

    def __init__(self, response: type, connection: Connection) -> None:
        self._response = response
        self._ended: SimpleQueue[Reply | Exception] = SimpleQueue()
        self._connection = connection

    def wait(self, deadline: float) -> Reply:
        """Return the answer.

        Raises:
            RemoteError: the server refuses.
            LostError: there is none, or none by the deadline.
        """
        address = self._connection.address
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                ended = self._ended.get(timeout=min(left, _LOOK))
            except Empty:
                if left <= _LOOK:
                    raise LostError(f"{address} did not answer in time", sent=True) from None
                self._connection.broken  # noqa: B018 - it ends the call if the server is silent
                continue
            if isinstance(ended, Exception):
                raise ended
            return ended

    def _take(self, body: memoryview, cells: memoryview) -> None:
        try:
            self._ended.put(Reply(self._response.FromString(bytes(body)), cells_in(cells)))  # type: ignore[attr-defined]
        except (DecodeError, ValueError) as error:
            address = self._connection.address
            self._ended.put(LostError(f"{address} answers unreadably: {error}", sent=True))

    def _fail(self, error: Exception) -> None:
        self._ended.put(error)


class Connection:
    """A connection, open when it is made.

    Args:
        address: ``host:port`` of the server.
        service: the name of the service.
        user: the name of the client.
        timeout: seconds for connecting.
        tls: the settings of TLS; ``None`` without it.

    Raises:
        LostError: there is no connection.
    """

    def __init__(
        self,
        address: str,
        service: str,
        user: str,
        timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self._process = os.getpid()
        self._socket = self._connect(service, user, timeout, tls)
        self._tls = tls is not None
        self._sending = threading.Lock()  # held while a request is sent
        self._lock = threading.Lock()  # guards the following fields; held for moments only
        self._pending: dict[int, Pending] = {}
        self._number = 0
        self._heard = time.monotonic()  # when the server was last heard, or a call began to wait
        self._broken: str | None = None
        self._refused = False  # whether that is because the server refuses the certificate
        self._reader = start_thread(self._read, f"hbase-{address}")

    def _connect(
        self, service: str, user: str, timeout: float, tls: ssl.SSLContext | None
    ) -> socket.socket | EncryptedSocket:
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        header = MESSAGES.ConnectionHeader(
            user_info=MESSAGES.UserInformation(effective_user=user),
            service_name=service,
            cell_block_codec_class=CODEC,
            version_info=_VERSION,
        ).SerializeToString()
        deadline = time.monotonic() + timeout
        made: socket.socket | None = None
        try:
            made = socket.create_connection((host, int(port)), timeout)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = made if tls is None else EncryptedSocket(made, tls, host, deadline)
            try:
                line.sendall(_PREAMBLE + _LENGTH.pack(len(header)) + header)
            except OSError:
                line.recv(1)  # With TLS, this raises what the server says to it.
                raise
            line.settimeout(None)
        except (OSError, ValueError) as error:  # ValueError: a name that no host can have
            if made is not None:
                made.close()
            refused = error.refused if isinstance(error, CertificateError) else None
            reason = f"no connection to {self.address}: {error}"
            raise LostError(reason, sent=False, refused=refused) from error
        return line

    @property
    def broken(self) -> str | None:
        """Why it is of no more use, or ``None``."""
        if os.getpid() != self._process:
            return "the process was forked"
        if self._pending and time.monotonic() > self._heard + _SILENCE:
            self._break(f"{self.address} is silent")
        return self._broken

    def begin(
        self, method: str, request: Any, response: type, deadline: float, *, announced: int = 0
    ) -> Pending:
        """Send a request; with ``announced``, its message seems to be longer by so many bytes.

        Raises:
            LostError: the connection is broken.
        """
        if (broken := self.broken) is not None:
            raise self._lost(broken, sent=False)
        left = max(1, min(_MOST_MS, int((deadline - time.monotonic()) * 1000)))
        body = _delimited(request.SerializeToString())
        pending = Pending(response, self)
        with self._lock:
            if not self._pending:
                self._heard = time.monotonic()
            self._number = number = self._number + 1
            self._pending[number] = pending
        header = _delimited(
            MESSAGES.RequestHeader(
                call_id=number, method_name=method, request_param=True, timeout=left
            ).SerializeToString()
        )
        try:
            with self._sending:
                self._socket.sendall(
                    b"".join((_LENGTH.pack(len(header) + len(body) + announced), header, body))
                )
        except OSError as error:
            # A part of it may have arrived, but no server acts on that.
            try:
                self._reader.join(_LAST_WORDS)  # It knows better why.
            finally:
                self._break(f"{self.address} cannot be reached: {error}")
            with self._lock:
                self._pending.pop(number, None)
            raise self._lost(str(self._broken), sent=False) from error
        except BaseException:  # Ctrl-C: what follows on the connection would be taken for the rest.
            self._break("a request was cut off")
            raise
        if self._broken is not None:  # Before it was among those that the break has ended.
            with self._lock:
                self._pending.pop(number, None)
            raise self._lost(self._broken, sent=True)
        return pending

    def close(self) -> None:
        """End the connection, and all calls. Any thread may call it, more than once."""
        if os.getpid() == self._process:
            self._break("the client was closed")

    def _lost(self, reason: str, *, sent: bool) -> LostError:
        """Return the error of a call on the broken connection."""
        if self._refused:  # The server has not read a word.
            return LostError(reason, sent=False, refused="client")
        return LostError(reason, sent=sent)

    def _break(self, reason: str, *, refused: bool = False) -> None:
        with self._lock:
            if self._broken is None:
                # The latter is read without the lock.
                self._refused, self._broken = refused, reason
            ended, self._pending = [*self._pending.values()], {}
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for pending in ended:
            pending._fail(self._lost(self._broken, sent=True))

    def _read(self) -> None:
        reason = f"{self.address} has closed the connection"
        answered = refused = False
        try:
            buffer = bytearray()
            while True:
                while len(buffer) >= 4 and len(buffer) >= 4 + (
                    size := _LENGTH.unpack_from(buffer)[0]
                ):
                    answered = True
                    self._take(memoryview(bytes(buffer[4 : 4 + size])))
                    del buffer[: 4 + size]
                some = self._socket.recv(_CHUNK)
                if not some:
                    break
                self._heard = time.monotonic()
                buffer += some
        except OSError as error:
            reason = f"the connection to {self.address} broke: {error}"
            refused = isinstance(error, CertificateError)
        except Exception as error:  # Whatever it is: its calls must end.
            reason = f"{self.address} speaks another protocol: {error!r}"
        if not (answered or self._tls):
            reason += " (it may be a port with TLS: hbases:// is with TLS, hbase:// without)"
        self._break(reason, refused=refused)

    def _take(self, frame: memoryview) -> None:
        """Pass an answer on to its call. Its caller may have given up."""
        head, at = _part(frame, 0)
        header = MESSAGES.ResponseHeader.FromString(bytes(head))
        with self._lock:
            pending = self._pending.pop(header.call_id, None)
        if header.HasField("exception"):
            failure = header.exception
            error = RemoteError.of(failure.exception_class_name, failure.stack_trace)
            if pending is not None:
                pending._fail(error)
            elif header.call_id > self._number:  # It is -1: this is about the connection.
                raise ConnectionRefusedError(str(error))
            return
        if pending is None:
            return
        body, at = _part(frame, at)
        pending._take(body, frame[at:])


def _delimited(message: bytes) -> bytes:
    """Return a message with its length as a varint before it."""
    return varint(len(message)) + message


def _part(frame: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the message that begins at a place with its length, and where it ends."""
    size = shift = 0
    while True:
        byte = frame[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if at + size > len(frame):
        raise ValueError("a message is cut off")
    return frame[at : at + size], at + size
