"""An empty store on the ZooKeeper that tests share, and a client that is not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kazoo.client import KazooClient

import batchkeeper as bk
from batchkeeper.stores import parse_url
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.testing.servers import ZooKeeperServer

from ..foreign import zookeeper_client
from .opening import connected


@pytest.fixture
def url(fresh_url: Callable[[str], str], zookeeper_server: object) -> str:
    return fresh_url("zookeeper")


@pytest.fixture
def other(url: str) -> Iterator[KazooClient]:
    """Give a raw client with the same chroot and its own connection."""
    bk.open_store(url).close()  # kazoo warns of a chroot that does not exist
    with zookeeper_client(url) as client:
        yield client


@pytest.fixture
def line(zookeeper_server: ZooKeeperServer, proxy: Callable[[str], Any]) -> Any:
    """The connection between the store and the server, which can be cut."""
    return proxy(zookeeper_server.address)


@pytest.fixture
def backend(line: Any, url: str) -> Iterator[ZooKeeperBackend]:
    """A back end behind the line."""
    chroot = parse_url(url).prefix()
    with closing(connected(f"zookeeper://{line.address}{chroot}")) as backend:
        yield backend
