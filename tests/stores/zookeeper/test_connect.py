"""Opening a store on ZooKeeper: addresses, options, credentials, and the errors."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from kazoo.client import KazooClient

from batchkeeper.ops import (
    AuthenticationError,
    Delete,
    Exists,
    Get,
    GetChildren,
    InvalidPathError,
    InvalidSettingError,
    NotFoundError,
    Put,
    Range,
    Stat,
    StoreUnavailableError,
    UnsupportedError,
)
from batchkeeper.stores import ConnectOptions, connect, parse_url
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.wire.errors import CONNECTION_LOSS, NO_NODE
from batchkeeper.stores.zookeeper.wire.jute import (
    GET_DATA,
    MULTI,
    MULTI_READ,
    NO_DATA,
    header_and_length,
)
from batchkeeper.testing.servers import ZooKeeperServer

from ...waiting import soon, until
from ..foreign import zookeeper_client, zookeeper_password
from .altering import BODY, Alter, Altering
from .opening import Requests, connected


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def refusing() -> str:
    """An address without a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.slow
def test_nobody_listens(refusing: str) -> None:
    """The error names every address and the reason, and no thread stays behind."""
    threads = set(threading.enumerate())

    with pytest.raises(StoreUnavailableError) as raised:
        connect(f"zookeeper://{refusing},localhost:1/a", ConnectOptions(connect_timeout=0.5))

    assert refusing in str(raised.value)
    assert "localhost:1" in str(raised.value)
    assert "refused" in str(raised.value)
    assert set(threading.enumerate()) <= threads


@pytest.mark.slow
def test_a_server_that_says_nothing(silent: socket.socket) -> None:
    """A server that takes the connection and never answers is given up in time."""
    threads = set(threading.enumerate())
    address = f"127.0.0.1:{silent.getsockname()[1]}"

    with pytest.raises(StoreUnavailableError, match=address):
        connect(f"zk://{address}", ConnectOptions(connect_timeout=0.5))

    assert set(threading.enumerate()) <= threads


def test_one_of_several_addresses_is_enough(
    zookeeper_server: ZooKeeperServer, refusing: str, silent: socket.socket
) -> None:
    """Servers that refuse or are silent do not keep the store from one that answers."""
    quiet = f"127.0.0.1:{silent.getsockname()[1]}"
    url = f"zookeeper://{refusing},{quiet},{zookeeper_server.address}"

    store = connect(url, ConnectOptions(connect_timeout=30, session_timeout=4))
    try:
        assert isinstance(store.read([GetChildren("/")], soon())[0], list)  # type: ignore[list-item]
    finally:
        store.close()


def test_the_chroot_is_made(
    fresh_url: Callable[[str], str], zookeeper_server: ZooKeeperServer
) -> None:
    """A chroot of several parts is made at connect, with null data, and found the next time."""
    url = fresh_url("zookeeper") + "/deep/er"

    connect(url, ConnectOptions()).close()
    connect(url, ConnectOptions()).close()

    with zookeeper_client(url) as raw:
        value, node = raw.get("/")
    assert (value, node.version, node.ephemeralOwner) == (None, 0, 0)


def test_without_create_reading_makes_no_node(
    fresh_url: Callable[[str], str], zookeeper_server: ZooKeeperServer
) -> None:
    """A missing chroot reads as empty, for deletes too, and the first put creates it."""
    url = fresh_url("zookeeper") + "/deep/er"
    chroot = parse_url(url).prefix()
    raw = KazooClient(zookeeper_server.address)
    raw.start()
    before = set(raw.get_children("/"))
    store = connect(url, ConnectOptions(create=False))
    assert isinstance(store, ZooKeeperBackend)
    far = soon()

    assert store.read([Get("/a"), Exists("/a"), GetChildren("/")], far) == [None, False, []]
    assert list(store.scans.scan("/", Range(), None, 60)) == []
    assert list(store.scans.scan_stats("/a", Range(), None, 60)) == []
    assert store.scans.split("/", 4, 60) == [Range()]
    assert store.scans.revision(60) > 0
    store.sync(far)
    deletes = store.write([Delete("/a"), Delete("/a", 3)], far)
    assert [type(answer) for answer in deletes] == [NotFoundError, NotFoundError]
    assert store.scans.delete_recursive("/a", 60) == 0
    assert set(raw.get_children("/")) == before
    (made,) = store.write([Put("/a", b"1")], far)

    assert isinstance(made, Stat)
    assert made.version == 0
    assert raw.get(f"{chroot}/a")[0] == b"1"
    store.close()
    raw.stop()
    raw.close()


@pytest.mark.parametrize("applied", [True, False])
def test_a_chroot_whose_making_was_not_answered(
    fresh_url: Callable[[str], str],
    zookeeper_server: ZooKeeperServer,
    monkeypatch: pytest.MonkeyPatch,
    applied: bool,
) -> None:
    """A connection that breaks while the chroot is made costs another attempt, and no error."""
    url = fresh_url("zookeeper")
    raw = KazooClient(zookeeper_server.address)
    raw.start()
    begin = ZooKeeperConnection.begin
    lost: list[Requests] = []

    def lose_first_multi(
        connection: ZooKeeperConnection, requests: Requests, *args: Any, **options: Any
    ) -> Any:
        if requests[0][0] != MULTI or lost:
            return begin(connection, requests, *args, **options)
        lost.append(requests)
        if applied:
            raw.create(parse_url(url).prefix(), None)
        return lambda _: [CONNECTION_LOSS]

    monkeypatch.setattr(ZooKeeperConnection, "begin", lose_first_multi)

    connect(url, ConnectOptions()).close()

    assert raw.exists(parse_url(url).prefix())
    assert len(lost) == 1
    raw.stop()
    raw.close()


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("zookeeper://h?colour=red", {}, "no option 'colour'"),
        ("zookeeper://h?acl=none", {}, "one of open, creator-all, read-all, or"),
        ("zookeeper://h?acl=digest:me:secret:r", {}, "must not contain the hash"),
        ("zookeeper://h", {"acl": "digest:me:secret:r"}, "digest:user:HASH:permissions"),
        ("zookeeper://h?acl=creator-all", {}, "username"),
        ("zookeeper://h?jute_maxbuffer=1", {}, "at least 1024"),
        ("zookeeper://h?use_ssl=maybe", {}, "true or false"),
        ("zookeeper://h?use_ssl=true&ca=/no/such.pem", {}, "must name a file"),
        (f"zookeeper://h?use_ssl=true&key={__file__}", {}, "both be given"),
        (f"zookeeper://h?ca={__file__}", {}, "require use_ssl=true"),
        ("zookeeper://h:port", {}, "host and port"),
        ("zookeeper://", {}, "at least one host"),
        ("zookeeper://h", {"username": "anna"}, "or neither"),
        ("zookeeper://h", {"password": "secret"}, "or neither"),
        ("zookeeper://h", {"username": "an:na", "password": "secret"}, "not contain ':'"),
        ("zookeeper://h", {"username": "anna", "sasl": "digest-md5"}, "needs both"),
        ("zookeeper://h", {"username": "a", "password": "€", "sasl": "digest-md5"}, "Latin-1"),
    ],
)
def test_settings_that_cannot_be_used(url: str, options: dict[str, str], message: str) -> None:
    """A wrong setting is refused before anything is connected, with the rule, without secrets."""
    with pytest.raises(InvalidSettingError, match=message) as raised:
        connect(url, ConnectOptions(**options))  # type: ignore[arg-type]

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("chroot", ["/zookeeper", "/a//b", "/a/../b"])
def test_a_chroot_that_is_no_path(chroot: str) -> None:
    """A chroot follows the path rule."""
    with pytest.raises(InvalidPathError):
        connect(f"zookeeper://h{chroot}", ConnectOptions())


def test_a_login_that_the_server_refuses(own_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """If the scheme is disabled, the login fails at once, and no thread stays behind."""
    # ZooKeeper 3.6 cannot switch it off, and refuses clients without a SASL login.
    server = own_zookeeper(
        "-Dzookeeper.DigestAuthenticationProvider.enabled=false",
        "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "-Dzookeeper.sessionRequireClientSASLAuth=true",
    )
    threads = set(threading.enumerate())

    with pytest.raises(AuthenticationError, match=server.address):
        connect(server.url, ConnectOptions(username="anna", password="secret"))

    assert set(threading.enumerate()) <= threads


def test_a_password_file_is_read_again_for_each_connection(
    fresh_url: Callable[[str], str],
    zookeeper_server: ZooKeeperServer,
    proxy: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    """The login after a reconnection is the one that the file holds then."""
    line = proxy(zookeeper_server.address)
    file = tmp_path / "password"
    url = fresh_url("zookeeper").replace(zookeeper_server.address, line.address)
    login = ConnectOptions(username="anna", password="first", password_file=str(file))
    file.write_text("first")
    with closing(connect(f"{url}?acl=creator-all", login)) as backend:
        backend.write([Put("/a", b"1")], soon())
        for password, kind in (("second", AuthenticationError), ("first", Stat)):
            file.write_text(password)
            line.cut()
            until(lambda: type(backend.write([Put("/a", b"2")], soon())[0]) is kind)  # noqa: B023


@pytest.mark.parametrize(
    ("said", "reason"),
    [(b"", "closed it at once: .*maxClientCnxns.*TLS"), (b"HTTP", "does not speak ZooKeeper's")],
)
def test_a_connection_that_is_closed_at_once_is_told_apart(said: bytes, reason: str) -> None:
    """The message says what such a server may be, also if the next attempt is still waiting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                accepted, _ = listener.accept()
                accepted.sendall(said)
                accepted.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(StoreUnavailableError, match=reason):
            connect(
                f"zk://127.0.0.1:{listener.getsockname()[1]}", ConnectOptions(connect_timeout=0.9)
            )


@pytest.mark.server
def test_secrets_stay_out_of_the_log(
    fresh_url: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """At the lowest level of logging there is no password, session password or value."""
    caplog.set_level(1)
    logging.getLogger("batchkeeper").setLevel(1)
    options = ConnectOptions(username="anna", password="s3cret")
    store = connect(fresh_url("zookeeper"), options)
    assert isinstance(store, ZooKeeperBackend)
    assert store.session.id is not None
    session_password = zookeeper_password(int(store.session.id, 16))
    store.write([Put("/a", b"a value")], soon())
    store.close()
    logging.getLogger("batchkeeper").setLevel(logging.NOTSET)

    assert "Connecting to" in caplog.text
    for secret in ("s3cret", "a value", session_password.hex(), repr(session_password)):
        assert secret not in caplog.text
    assert "s3cret" not in repr(options)


def _null_as_empty(opcode: int, packet: bytes) -> bytes:
    """Answer as ClickHouse Keeper does: null data reads as empty."""
    if opcode == GET_DATA and packet[BODY : BODY + 4] == NO_DATA:
        return packet[:BODY] + bytes(4) + packet[BODY + 4 :]
    if opcode == MULTI_READ:
        return packet.replace(header_and_length(GET_DATA, -1)[:5] + bytes(4) + NO_DATA, bytes(13))
    return packet


def _failures_in_place(opcode: int, packet: bytes) -> bytes:
    """Answer as ClickHouse Keeper does: a failed part of a multi-read keeps its opcode."""
    code = pack("!i", NO_NODE)
    if opcode == MULTI_READ:
        body = packet[4:].replace(
            pack("!i?", -1, False) + code * 2, pack("!i?", GET_DATA, False) + code
        )
        return pack("!i", len(body)) + body
    return packet


def _events_of_the_watch(opcode: int, packet: bytes) -> bytes:
    """Report as ClickHouse Keeper does: a recursive watch reports its own path."""
    if opcode != -1 or not packet.endswith(b"/below"):
        return packet
    body = packet[4 : BODY + 8]
    path = packet[BODY + 12 : -len("/below")]
    return pack("!i", len(body) + 4 + len(path)) + body + pack("!i", len(path)) + path


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (_null_as_empty, "null data"),
        (_failures_in_place, "multi-reads"),
        (_events_of_the_watch, "recursive watches"),
    ],
)
def test_a_server_that_only_looks_like_zookeeper(
    zookeeper_server: ZooKeeperServer, fresh_url: Callable[[str], str], alter: Alter, reason: str
) -> None:
    """What would give wrong answers is refused when the store is opened, and nothing stays."""
    url = fresh_url("zookeeper")
    connect(url, ConnectOptions()).close()  # It makes the chroot.
    with closing(Altering(zookeeper_server.address)) as line, zookeeper_client(url) as other:
        line.alter = alter
        with pytest.raises(UnsupportedError, match=reason):
            connect(url.replace(zookeeper_server.address, line.address), ConnectOptions())
        assert other.get_children("/") == []


@pytest.mark.server
@pytest.mark.parametrize("session_timeout", [1e-9, 31_000_000])
def test_a_session_timeout_that_zookeeper_cannot_express(
    fresh_url: Callable[[str], str], session_timeout: float
) -> None:
    """The server gets the nearest that it can read, and answers with its own limit."""
    options = ConnectOptions(session_timeout=session_timeout)
    with closing(connect(fresh_url("zookeeper"), options)) as backend:
        assert backend.read([Exists("/a")], soon()) == [False]


@pytest.mark.server
def test_limits_follow_the_setting(fresh_url: Callable[[str], str]) -> None:
    """With another jute.maxbuffer named, requests and values are bounded by it."""
    small = connect(fresh_url("zookeeper") + "?jute_maxbuffer=16384", ConnectOptions())
    small.close()

    assert small.limits.request_bytes < 16_384
    assert 16_384 - 256 < small.limits.value_bytes < small.limits.request_bytes


def test_a_server_that_does_not_answer_at_first(
    fresh_url: Callable[[str], str],
    zookeeper_server: ZooKeeperServer,
    proxy: Callable[[str], Any],
) -> None:
    """A connection that is taken and never answered is given up long before the session ends."""
    line = proxy(zookeeper_server.address)
    chroot = parse_url(fresh_url("zookeeper")).prefix()
    line.swallows = True
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(
            connect, f"zookeeper://{line.address}{chroot}", ConnectOptions(session_timeout=600)
        )
        assert line.swallowed.wait(60)
        line.swallows = False
        opening.result().close()


def test_an_interrupt_as_a_request_is_sent_is_not_lost(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes out of the call, and the store goes on."""
    send = socket.socket.send

    def interrupted(self: socket.socket, data: bytes, *flags: int) -> int:
        sent = send(self, data, *flags)
        if data == b"\0":  # which wakes kazoo's thread
            monkeypatch.undo()
            raise KeyboardInterrupt
        return sent

    with closing(connected(url)) as backend:
        monkeypatch.setattr(socket.socket, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.read([Exists("/a")], soon())
        assert isinstance(backend.write([Put("/a", b"1")], soon())[0], Stat)
