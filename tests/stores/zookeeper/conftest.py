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
from .opening import RecordingConnection, recorded


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
def backend_url(line: Any, url: str) -> str:
    """Where the back end is opened: behind the line, unless a module says otherwise."""
    return f"zookeeper://{line.address}{parse_url(url).prefix()}"


@pytest.fixture
def pair(backend_url: str) -> Iterator[tuple[ZooKeeperBackend, RecordingConnection]]:
    """A back end and its connection."""
    pair = recorded(backend_url)
    with closing(pair[0]):
        yield pair


@pytest.fixture
def backend(pair: tuple[ZooKeeperBackend, RecordingConnection]) -> ZooKeeperBackend:
    """The back end of the pair."""
    return pair[0]


@pytest.fixture
def connection(pair: tuple[ZooKeeperBackend, RecordingConnection]) -> RecordingConnection:
    """The connection of the pair."""
    return pair[1]
