"""TLS over a socket on which one thread receives while others send.

OpenSSL's object of a connection is not safe for two threads at a time, and a socket of ``ssl``
waits for the network inside of it. So this keeps OpenSSL off the network: it reads and writes
memory, under a lock that is held for moments, and the socket is used without that lock.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from ...tls import REFUSED_CERTIFICATE

__all__ = ["CertificateError", "EncryptedSocket", "Side"]

Side: TypeAlias = Literal["client", "server"]

# Bytes that are encrypted in one go. The receiving thread waits for that, about 0.1 ms.
_PIECE: Final = 64 * 1024
# The most that one record of TLS holds.
_RECORD: Final = 16 * 1024
# OpenSSL's codes of a certificate for other names or addresses.
_OF_ANOTHER: Final = (62, 64)


class CertificateError(ConnectionError):
    """One side refuses the certificate of the other.

    Attributes:
        refused: whose it is.
    """

    def __init__(self, reason: str, refused: Side) -> None:
        super().__init__(reason)
        self.refused: Side = refused


class EncryptedSocket:
    """What a connection needs of a socket, with TLS.

    One thread may receive, and one at a time may send: records must leave in the order in which
    they were encrypted. Its end is that of the socket, without TLS's word for it: the lengths of
    HBase's messages show where one is cut off.

    Args:
        plain: the socket, connected.
        context: the settings.
        host: the name of the server, for its certificate.
        deadline: for the handshake, by ``time.monotonic()``.

    Raises:
        CertificateError: the server's certificate is not trusted, or it refuses the client's. With
            TLS 1.3, the latter comes only after the handshake, when something is received.
        OSError: the handshake fails.
    """

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, host: str, deadline: float
    ) -> None:
        self.settimeout = plain.settimeout
        self.shutdown = plain.shutdown
        self.close = plain.close
        self._plain = plain
        self._lock = threading.Lock()  # guards the following fields; never held during I/O
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = host.removesuffix(".")  # No certificate has the dot.
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=name)
        try:
            self._shake_hands(deadline)
        except CertificateError:
            raise
        except OSError as error:
            raise ConnectionError(
                f"the TLS handshake fails: {error} (it may be a port without TLS: hbases:// is "
                "with TLS, hbase:// without; or ask for a certificate: options 'cert' and 'key')"
            ) from error

    def _shake_hands(self, deadline: float) -> None:
        ended = False
        while not ended:
            try:
                self._tls.do_handshake()
                ended = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                with suppress(OSError):
                    self._plain.sendall(self._leaving.read())  # It tells the server why.
                _check(error)
                raise
            self._plain.sendall(self._leaving.read())
            if not ended:
                self._plain.settimeout(max(0.001, deadline - time.monotonic()))
                if not (some := self._plain.recv(_PIECE)):
                    raise ConnectionResetError("the server has closed the connection")
                self._arrived.write(some)

    def sendall(self, data: bytes) -> None:
        """Send data.

        Raises:
            OSError: the connection broke.
        """
        left = memoryview(data)
        while left:
            with self._lock:
                done = self._tls.write(left[:_PIECE])
                # It may begin with what `recv` had to say to the server, such as new keys. That
                # does not send itself: it would wait for a server that waits for it to receive.
                records = self._leaving.read()
            left = left[done:]
            self._plain.sendall(records)

    def recv(self, size: int) -> bytes:
        """Return what has arrived, about ``size`` bytes at most; nothing after the end.

        Raises:
            CertificateError: the server refuses the client's certificate.
            OSError: the connection broke.
        """
        some = b""  # Something may have arrived with the handshake.
        while True:
            parts = []
            try:
                with self._lock:
                    self._arrived.write(some)
                    while part := self._tls.read(_RECORD):
                        parts.append(part)
                return b"".join(parts)  # The server has ended TLS.
            except ssl.SSLWantReadError:
                if parts:
                    return b"".join(parts)
            except ssl.SSLError as error:
                _check(error)
                raise
            if not (some := self._plain.recv(size)):
                return b""


def _check(error: ssl.SSLError) -> None:
    """Raise another error, with what to do, if one is about a certificate."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = (
            "name the host as the certificate does, or set check_hostname=false"
            if error.verify_code in _OF_ANOTHER
            else "the option 'ca' names the authorities to trust"
        )
        fault = error.verify_message.rstrip(".")
        reason = f"its certificate is not trusted: {fault}; {remedy}"
        raise CertificateError(reason, "server") from error
    if REFUSED_CERTIFICATE.search(error.reason or ""):
        raise CertificateError(
            f"it refuses the client's certificate, or requires one ({error.reason}); name the "
            "client's certificate and its key in the options 'cert' and 'key'",
            "client",
        ) from error
