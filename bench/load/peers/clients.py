"""Opens the clients that the peers call.

Their packages are imported when needed: importing all of them takes longer than opening a store,
and only the client of the measured store has to be installed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from ....stores.urls import StoreURL

_TIMEOUT: Final = 10.0


@contextmanager
def etcd3_client(url: StoreURL) -> Iterator[Any]:
    """Yield etcd3's client of a store."""
    # This import makes etcd3 importable with current versions of protobuf.
    import_module("....stores.etcd.wire.protos", __package__)
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
