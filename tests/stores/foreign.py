"""Other clients, etcd3 and kazoo, and keys that are not valid paths, written by them."""

from __future__ import annotations

import importlib
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from rocksdict import Options, Rdict

import batchkeeper as bk
from batchkeeper.stores import parse_url

from ..waiting import PATIENCE, until

#: Keys that are not valid paths, in byte order.
KEYS = sorted(
    [
        b"/",
        b"//",
        b"/a/",
        b"/a/./b",
        b"/a//b",
        b"/a/\x01",
        b"/a/b\nc",
        b"/a/c/",
        b"/a/c/..",
        "/a/\U0001f600".encode(),
        b"/a/\xff\xfe",
        b"/a\x7f",
        b"/zookeeper",
        b"/zookeeper/x",
    ]
)
#: The same, but without a leading slash.
OUTSIDE = [b"\0", b"!", b".batch", b"foo", b"zzz", b"\xff" * 12]
#: Keys reserved for this client, even if another client has written them.
OWN = [b"/.batchkeeper/x", b"/a/.batchkeeper", b"/a/.batchkeeper/y"]

# The header of stores.rocksdb.records: format, version, revision, created, modified.
_HEADER = struct.Struct(">BIQQQ")


@contextmanager
def etcd_client(url: str) -> Iterator[tuple[Any, str]]:
    """Yield an etcd3 client of a store's server, and the prefix of the store's keys."""
    # This import makes etcd3 importable with any version of protobuf.
    importlib.import_module("batchkeeper.stores.etcd")
    etcd3: Any = importlib.import_module("etcd3")
    parsed = parse_url(url)
    host, _, port = parsed.hosts[0].partition(":")
    with etcd3.client(host, int(port)) as client:
        yield client, parsed.prefix()


@contextmanager
def zookeeper_client(url: str, **options: Any) -> Iterator[KazooClient]:
    """Yield a kazoo client with a store's chroot."""
    parsed = parse_url(url)
    client = KazooClient(parsed.hosts[0] + parsed.prefix(), **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def end_zookeeper_session(address: str, name: str | None) -> None:
    """Let a server at ``host:port`` end the session with a name, such as ``0x1a``.

    If another connection of the same session is closed, the session ends. But the client connects
    again as soon as the other connection has displaced its own, and may displace that one before
    its close arrives. So this looks at the server's sessions, and repeats the attempt.
    """
    assert name is not None
    number = int(name, 16)
    signed = number - (1 << 64) if number >> 63 else number

    def end() -> bool:
        client_id = signed, zookeeper_password(number)
        with zookeeper_client(f"zookeeper://{address}", client_id=client_id):
            pass
        return f"{name}\n" not in said_by_zookeeper(address, b"dump")

    until(end, "the session does not end")


def zookeeper_password(session: int) -> bytes:
    """Return the password of a session: Java's next 16 random bytes, with a seed that is known.

    Source: ``ZooKeeperServer.generatePasswd``, the same from 3.4 to 3.9.
    """
    state = (session ^ 0xB3415C00 ^ 0x5DEECE66D) & (1 << 48) - 1
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & (1 << 48) - 1
        password += (state >> 16).to_bytes(4, "little")
    return password


def said_by_zookeeper(address: str, word: bytes) -> str:
    """Return the answer of a server at ``host:port`` to a four-letter word."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(word)
        with connection.makefile() as answer:
            return answer.read()


def put_raw(url: str, values: Mapping[bytes, bytes]) -> None:
    """Put keys below the prefix of a store that is not open."""
    parsed = parse_url(url)
    if parsed.scheme == "etcd":
        with etcd_client(url) as (client, prefix):
            puts = [
                client.transactions.put(prefix.encode() + key, value)
                for key, value in values.items()
            ]
            for start in range(0, len(puts), 100):
                client.transaction([], puts[start : start + 100], [])
    elif parsed.scheme == "rocksdb":
        put_records(url, {key: _HEADER.pack(1, 0, 1, 0, 0) + v for key, v in values.items()})
    else:
        with zookeeper_client(f"zookeeper://{parsed.hosts[0]}") as client:
            for key, value in values.items():
                client.create(parsed.prefix() + key.decode(), value, makepath=True)


def put_records(url: str, records: Mapping[bytes, bytes]) -> None:
    """Put records into a RocksDB store, unchanged."""
    with bk.open_store(url):  # This creates the store.
        pass
    db = Rdict(str(Path(parse_url(url).path)), Options(raw_mode=True))
    for key, record in records.items():
        db[key] = record
    db.close()
