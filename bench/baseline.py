"""The baseline: each store's plain client puts values in a loop, one after the other.

This is the usual code without batches: ``etcd3``'s ``put``, ``kazoo``'s ``create`` and
``rocksdict``'s ``put`` with a sync. The paths are fresh, and as long as those of the compared puts.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeAlias

from ..stores.urls import StoreURL

__all__ = [
    "PLAIN_CLIENTS",
    "PlainClient",
    "Put",
    "etcd3_client",
    "kazoo_client",
    "rocksdict_client",
    "synced",
]

_TIMEOUT: Final = 10.0

#: Puts a value at a path, and returns when the store has acknowledged it.
Put: TypeAlias = Callable[[str, bytes], object]


@dataclass(frozen=True, slots=True)
class PlainClient:
    """A plain client, with which a store is compared.

    Attributes:
        call: the function that the loop calls, for users.
        connect: opens the client on the store of a URL, for paths below a new folder.
    """

    call: str
    connect: Callable[[StoreURL, str], AbstractContextManager[Put]]


# The clients' packages are imported when needed: importing all of them takes longer than opening a
# store, and only the client of the measured store has to be installed.


@contextmanager
def etcd3_client(url: StoreURL) -> Iterator[Any]:
    """Yield etcd3's client of a store."""
    # This import makes etcd3 importable with current versions of protobuf.
    import_module("..stores.etcd.protos", __package__)
    host, _, port = url.addresses(2379)[0].rpartition(":")
    client = import_module("etcd3").client(host=host, port=int(port), timeout=_TIMEOUT)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def kazoo_client(url: StoreURL) -> Iterator[Any]:
    """Yield kazoo's client of a store, which has started."""
    client = import_module("kazoo.client").KazooClient(
        hosts=",".join(url.addresses(2181)), timeout=_TIMEOUT
    )
    client.start(_TIMEOUT)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def _etcd3(url: StoreURL, _root: str) -> Iterator[Put]:
    prefix = url.prefix()
    with etcd3_client(url) as client:
        yield lambda path, value: client.put(prefix + path, value)


@contextmanager
def _kazoo(url: StoreURL, root: str) -> Iterator[Put]:
    prefix = url.prefix()
    with kazoo_client(url) as client:
        client.ensure_path(prefix + root)
        yield lambda path, value: client.create(prefix + path, value)


@contextmanager
def rocksdict_client(url: StoreURL, name: str) -> Iterator[Any]:
    """Yield rocksdict's client of a new directory, which is removed afterwards.

    It lies beside the store's own directory, which has another form, and so on the same disk.
    """
    directory = f"{url.path.rstrip('/')}.plain-{name}"
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    rocksdict = import_module("rocksdict")
    try:
        client = rocksdict.Rdict(directory, rocksdict.Options(raw_mode=True))
        try:
            yield client
        finally:
            client.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def synced() -> Any:
    """Return rocksdict's options for a write that is synced."""
    options = import_module("rocksdict").WriteOptions()
    options.sync = True
    return options


@contextmanager
def _rocksdict(url: StoreURL, _root: str) -> Iterator[Put]:
    options = synced()
    with rocksdict_client(url, uuid.uuid4().hex[:8]) as client:
        yield lambda path, value: client.put(path.encode(), value, options)


#: The plain clients by the kind of store. Other kinds are compared with nothing.
PLAIN_CLIENTS: Final = {
    "etcd": PlainClient("etcd3's put", _etcd3),
    "zookeeper": PlainClient("kazoo's create", _kazoo),
    "rocksdb": PlainClient("rocksdict's put with sync", _rocksdict),
}
