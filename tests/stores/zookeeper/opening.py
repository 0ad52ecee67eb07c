"""Opens a back end on ZooKeeper."""

from __future__ import annotations

from typing import Any

from batchkeeper.stores import ConnectOptions, parse_url
from batchkeeper.stores.zookeeper import connect
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend


def connected(url: str, **options: Any) -> ZooKeeperBackend:
    backend = connect(parse_url(url), ConnectOptions(**options))
    assert isinstance(backend, ZooKeeperBackend)
    return backend
