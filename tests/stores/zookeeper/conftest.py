"""An empty store on the shared ZooKeeper, and a client of kazoo's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from ..foreign import zookeeper_client


@pytest.fixture
def url(fresh_url: Callable[[str], str], zookeeper_server: object) -> str:
    return fresh_url("zookeeper")


@pytest.fixture
def other(url: str) -> Iterator[KazooClient]:
    """A kazoo client of the same chroot, with a separate connection."""
    with zookeeper_client(url) as client:
        yield client
