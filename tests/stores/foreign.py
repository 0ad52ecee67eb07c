"""Writing keys as other clients do, past the path rule: with etcd3, rocksdict and kazoo."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from rocksdict import Options, Rdict

import batchkeeper as bk
from batchkeeper.stores import parse_url

#: In the order of bytes; no path leads to any of them.
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
#: What this client keeps for itself, whoever has written it.
OWN = [b"/.batchkeeper/x", b"/a/.batchkeeper", b"/a/.batchkeeper/y"]

# As stores.rocksdb.records has it: format, version, revision, created, modified.
_HEADER = struct.Struct(">BIQQQ")


def put_raw(url: str, values: Mapping[bytes, bytes]) -> None:
    """Put keys below the prefix of a store that nobody has open."""
    parsed = parse_url(url)
    if parsed.scheme == "etcd":
        # Imported late: the store's module makes it possible on any protobuf.
        with bk.open_store(url):
            etcd3: Any = importlib.import_module("etcd3")
        host, _, port = parsed.hosts[0].partition(":")
        client = etcd3.client(host, int(port))
        try:
            for key, value in values.items():
                client.put(parsed.prefix().encode() + key, value)
        finally:
            client.close()
    elif parsed.scheme == "rocksdb":
        put_records(url, {key: _HEADER.pack(1, 0, 1, 0, 0) + v for key, v in values.items()})
    else:
        client = KazooClient(parsed.hosts[0])
        client.start()
        try:
            for key, value in values.items():
                client.create(parsed.prefix() + key.decode(), value, makepath=True)
        finally:
            client.stop()
            client.close()


def put_records(url: str, records: Mapping[bytes, bytes]) -> None:
    """Put records into a RocksDB store, as they are."""
    with bk.open_store(url):  # So that there is one.
        pass
    db = Rdict(str(Path(parse_url(url).path)), Options(raw_mode=True))
    for key, record in records.items():
        db[key] = record
    db.close()
