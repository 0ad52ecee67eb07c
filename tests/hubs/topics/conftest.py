"""Stores and servers for the tests of topic management."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import LocalServer


@pytest.fixture
def another(store: bk.MetadataStore, store_url: str) -> Iterator[Callable[[], bk.MetadataStore]]:
    """Open another client of the same store. It is the store itself if only one can have it."""
    with ExitStack() as stack:
        yield (
            lambda: (
                store
                if bk.store_kind(store_url).local_directory
                else stack.enter_context(bk.open_store(store_url))
            )
        )


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started
