"""Clients of etcd for the tests of this folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.testing.servers import EtcdServer

from .opening import opened


@pytest.fixture(params=["nested", "flat"])
def flat_only(request: pytest.FixtureRequest) -> bool:
    """Whether transactions are flat, as with a login on an old etcd."""
    return bool(request.param == "flat")


@pytest.fixture
def url(etcd_server: EtcdServer) -> str:
    """The URL of a store of its own."""
    return f"{etcd_server.url}/{uuid.uuid4().hex}"


@pytest.fixture
def backend(url: str, flat_only: bool) -> Iterator[EtcdBackend]:
    """A client."""
    with opened(url, flat_only=flat_only) as backend:
        yield backend


@pytest.fixture
def other(url: str, flat_only: bool) -> Iterator[EtcdBackend]:
    """Another client of the same store."""
    with opened(url, flat_only=flat_only) as backend:
        yield backend
