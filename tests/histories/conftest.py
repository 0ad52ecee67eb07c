"""Servers that the histories may harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchkeeper.testing.servers import LocalServer

from ..idle import no_data_left
from .nemesis import Nemesis, server_to_hurt


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.server) for kind in ("etcd", "zookeeper")],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server of each kind in turn, to which these tests may do harm."""
    server = server_to_hurt(request.param, tmp_path_factory.mktemp(request.param))
    with no_data_left(server) as running:
        yield running


@pytest.fixture
def nemesis(server: LocalServer, proxy: Callable[[str], Any]) -> Nemesis:
    """Faults of the server, and of the connection to it."""
    if not server.running:  # It has crashed in an earlier test, which has failed for that.
        server.restart()
    return Nemesis(server, proxy(server.address))
