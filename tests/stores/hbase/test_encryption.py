"""TLS around a socket, with servers that are threads of the test."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchkeeper.stores.hbase.wire.connection import Connection, LostError
from batchkeeper.stores.hbase.wire.encryption import CertificateError, EncryptedSocket
from batchkeeper.stores.hbase.wire.messages import MESSAGES
from batchkeeper.stores.tls import TlsFiles, TlsSettings

from ...waiting import PATIENCE, soon
from ..secured import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Those of a trusted authority, and of another one."""
    return Certificates(tmp_path / "certificates")


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Give the port of a server that serves one client after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listener.accept()
                    accepted.settimeout(PATIENCE)
                    with accepted, suppress(OSError):
                        serve(accepted)

        server = threading.Thread(target=run)
        server.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join(PATIENCE)
            assert not server.is_alive()


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    """Return a server that sends something to whoever connects."""
    return lambda accepted: accepted.sendall(answer)


def encrypting(
    certificates: Certificates, then: Callable[[ssl.SSLSocket], None], *, asks: bool = False
) -> Callable[[socket.socket], None]:
    """Return a server with TLS, which may ask for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue(None))
    if asks:
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED

    def serve(accepted: socket.socket) -> None:
        with context.wrap_socket(accepted, server_side=True) as encrypted:
            then(encrypted)

    return serve


def encrypted(
    port: int, context: ssl.SSLContext, host: str = "127.0.0.1", seconds: float = PATIENCE
) -> EncryptedSocket:
    """Connect to a server."""
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE)
    try:
        made = EncryptedSocket(plain, context, host, soon(seconds))
    except BaseException:
        plain.close()
        raise
    made.settimeout(PATIENCE)
    return made


class Watched:
    """Settings of TLS that note when two threads are in OpenSSL's object of a connection at once.

    OpenSSL itself takes thousands of such moments before one does harm.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._inside = threading.Lock()
        self.calls = 0
        self.overlaps = 0

    def wrap_bio(self, *args: Any, **options: Any) -> Any:
        made = self._context.wrap_bio(*args, **options)
        return SimpleNamespace(
            do_handshake=made.do_handshake,
            read=partial(self._call, made.read),
            write=partial(self._call, made.write),
        )

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        first = self._inside.acquire(blocking=False)
        self.calls += 1
        self.overlaps += not first
        try:
            time.sleep(0)  # another thread's turn
            return method(*args)
        finally:
            if first:
                self._inside.release()


def test_one_thread_receives_while_another_sends(certificates: Certificates) -> None:
    """64 MiB pass each way at once, in order, and OpenSSL sees one thread at a time."""
    block = bytes(range(256)) * 1024
    number = 256

    def echo(peer: ssl.SSLSocket) -> None:
        while some := peer.recv(len(block)):
            peer.sendall(some)

    with serving(encrypting(certificates, echo)) as port:
        watched: Any = Watched(TlsFiles(ca=str(certificates.ca)).context())
        made = encrypted(port, watched)
        blocks = [index.to_bytes(4, "big") + block for index in range(number)]

        def send() -> None:
            for each in blocks:
                made.sendall(each)

        sender = threading.Thread(target=send)
        sender.start()
        found, left = hashlib.sha256(), number * len(blocks[0])
        while left and (some := made.recv(256 * 1024)):
            found.update(some)
            left -= len(some)
        sender.join(PATIENCE)
        made.close()
    assert left == 0
    assert watched.calls > number
    assert watched.overlaps == 0
    assert found.digest() == hashlib.sha256(b"".join(blocks)).digest()


def test_what_ends_a_handshake(certificates: Certificates) -> None:
    """A certificate that is not trusted, and servers that do not speak TLS, or do not speak."""
    right = TlsFiles(ca=str(certificates.ca)).context()
    system = TlsFiles().context()
    serves = encrypting(certificates, lambda peer: None)
    with serving(serves) as port:
        with pytest.raises(CertificateError, match="'ca' names the authorities") as caught:
            encrypted(port, system)
        assert caught.value.refused == "server"
        with pytest.raises(CertificateError, match=r"not valid for 'localhost'; .*check_hostname"):
            encrypted(port, right, "localhost.")
        files = TlsFiles(ca=str(certificates.ca))
        encrypted(port, TlsSettings(files, check_hostname=False).now(), "localhost").close()
    remedy = "hbases:// is with TLS, hbase:// without"
    for answer in (b"", b"HTTP/1.1 400 Bad Request\r\n"):
        with (
            serving(answering(answer)) as port,
            pytest.raises(ConnectionError, match=f"handshake fails: .*{remedy}"),
        ):
            encrypted(port, right)
    over = threading.Event()

    def be_silent(accepted: socket.socket) -> None:
        over.wait(PATIENCE)

    with serving(be_silent) as port:
        began = time.monotonic()
        with pytest.raises(ConnectionError, match=f"timed out .*{remedy}"):
            encrypted(port, right, seconds=0.2)
        assert time.monotonic() - began < PATIENCE / 2
        over.set()


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_refused_certificate(certificates: Certificates, newest: ssl.TLSVersion) -> None:
    """The server asks for one, or trusts another authority; with TLS 1.3, it says so late."""
    serves = encrypting(certificates, lambda peer: None, asks=True)
    cert, key = map(str, certificates.issue("a", "other"))
    with serving(serves) as port:
        for files in (TlsFiles(str(certificates.ca)), TlsFiles(str(certificates.ca), cert, key)):
            context = files.context()
            context.maximum_version = newest
            with (
                pytest.raises(ConnectionError, match="options 'cert' and 'key'") as caught,
                closing(encrypted(port, context)) as made,
            ):
                made.recv(1)
            # For a missing one, OpenSSL's TLS 1.2 does not say that it is about a certificate.
            if files.cert or newest == ssl.TLSVersion.TLSv1_3:
                assert isinstance(caught.value, CertificateError)
                assert caught.value.refused == "client"


def refusing(
    certificates: Certificates, goes_on: threading.Event, closed: threading.Event
) -> Callable[[socket.socket], None]:
    """Return a server that asks for a certificate, and looks at it when it may."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue(None))
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(accepted: socket.socket) -> None:
        arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(arrived, leaving, server_side=True)
        for flight in range(3):
            with suppress(ssl.SSLError):
                tls.do_handshake()
            accepted.sendall(leaving.read())
            if flight < 2:
                arrived.write(accepted.recv(65536))
            if flight == 1:  # the client's certificate, or none
                assert goes_on.wait(PATIENCE)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()  # It takes nothing more, from now on.
        closed.set()

    return refuse


@pytest.mark.parametrize("opens", [True, False])
def test_a_refusal_that_arrives_while_something_is_sent(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    """The server has closed before anybody reads why; the connection, or its calls, say it."""
    goes_on, closed = threading.Event(), threading.Event()
    send, receive = EncryptedSocket.sendall, EncryptedSocket.recv

    def late_send(made: EncryptedSocket, data: bytes) -> None:
        if opens:
            goes_on.set()
            assert closed.wait(PATIENCE)
        send(made, data)

    def late_receive(made: EncryptedSocket, size: int) -> bytes:
        assert closed.wait(PATIENCE)
        time.sleep(0.3 * (not opens))  # The call is sent first.
        return receive(made, size)

    monkeypatch.setattr(EncryptedSocket, "sendall", late_send)
    monkeypatch.setattr(EncryptedSocket, "recv", late_receive)
    tls = TlsFiles(str(certificates.ca)).context()
    made: list[Connection] = []

    def connect(port: int) -> None:
        made.append(Connection(f"127.0.0.1:{port}", "ClientMetaService", "me", PATIENCE, tls))

    def call() -> None:
        made[0].begin("X", MESSAGES.Empty(), MESSAGES.Empty, soon()).wait(soon())

    with serving(refusing(certificates, goes_on, closed)) as port:
        steps = [partial(connect, port)]
        if not opens:
            connect(port)
            goes_on.set()
            assert closed.wait(PATIENCE)
            steps = [call, call]
        for step in steps:
            with pytest.raises(LostError, match="requires one") as caught:
                step()
            assert (caught.value.refused, caught.value.sent) == ("client", False)
