"""Stores and servers for the tests of coordination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import batchkeeper as bk
from batchkeeper.testing import FaultInjector
from batchkeeper.testing.servers import LocalServer

from ..waits import noted_waits
from .held_lines import HeldLine
from .in_line import opened
from .recipes import BEGUN


@pytest.fixture
def faults() -> FaultInjector:
    """Faults of a store that is opened with it, and a view of its requests."""
    return FaultInjector()


@pytest.fixture
def store(store_url: str) -> Iterator[bk.MetadataStore]:
    """An empty store of each kind."""
    with opened(store_url) as made:
        yield made


@pytest.fixture
def another(store: bk.MetadataStore, store_url: str) -> Iterator[Callable[[], bk.MetadataStore]]:
    """Open another client of the same store. It is the store itself if only one can have it."""
    with ExitStack() as stack:
        yield (
            lambda: (
                store
                if bk.store_kind(store_url).local_directory
                else stack.enter_context(opened(store_url))
            )
        )


@pytest.fixture
def stores(fresh_url: Callable[[str], str]) -> Iterator[Callable[..., bk.MetadataStore]]:
    """Open stores in memory that share their values, each with a session of its own."""
    url = fresh_url("memory")
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(bk.open_store(url, **options))


@pytest.fixture
def waits() -> Iterator[Callable[[], int]]:
    """Count the calls of ``begun`` that wait for something now."""
    with noted_waits(BEGUN) as made:
        yield made


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started


@pytest.fixture
def line(server: LocalServer) -> Iterator[HeldLine]:
    """A line to the server that can keep requests back."""
    made = HeldLine(server.address)
    yield made
    made.close()
