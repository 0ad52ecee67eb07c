"""Clients of etcd for the tests of this folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.testing.servers import EtcdServer

from .opening import Pair, opened, recorded


@pytest.fixture(params=["nested", "flat"])
def flat_only(request: pytest.FixtureRequest) -> bool:
    """Whether transactions are flat, as with a login on an old etcd."""
    return bool(request.param == "flat")


@pytest.fixture
def url(etcd_server: EtcdServer) -> str:
    """The URL of a store of its own."""
    return f"{etcd_server.url}/{uuid.uuid4().hex}"


@pytest.fixture
def pair(url: str, flat_only: bool) -> Iterator[Pair]:
    """A client and its connection."""
    with recorded(url, flat_only=flat_only) as pair:
        yield pair


@pytest.fixture
def backend(pair: Pair) -> EtcdBackend:
    """The client of the pair."""
    return pair[0]


@pytest.fixture
def connection(pair: Pair) -> EtcdConnection:
    """The connection of the pair."""
    return pair[1]


@pytest.fixture
def other(url: str, flat_only: bool) -> Iterator[EtcdBackend]:
    """Another client of the same store."""
    with opened(url, flat_only=flat_only) as backend:
        yield backend
