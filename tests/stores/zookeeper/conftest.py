"""An empty store on the ZooKeeper that tests share, and a client that is not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

import batchkeeper as bk

from ..foreign import zookeeper_client


@pytest.fixture
def url(fresh_url: Callable[[str], str], zookeeper_server: object) -> str:
    return fresh_url("zookeeper")


@pytest.fixture
def other(url: str) -> Iterator[KazooClient]:
    """Give a raw client with the same chroot and its own connection."""
    bk.open_store(url).close()  # kazoo warns of a chroot that does not exist
    with zookeeper_client(url) as client:
        yield client
