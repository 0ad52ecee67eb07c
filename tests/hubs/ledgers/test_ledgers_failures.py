"""Listeners of ledgers on real servers whose connection is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import LedgerTable, MetaStore, Version
from batchkeeper.testing.servers import LocalServer

from ...proxy import Proxy
from ...waiting import until


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started


def test_a_listener_outlives_an_outage(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """However often the connection is cut while others write, it ends with the last state."""
    line = proxy(server.address)
    url = server.url.replace(server.address, line.address)
    with (
        bk.open_store(server.url, session_timeout=30.0) as steady,
        bk.open_store(url, session_timeout=30.0, operation_timeout=2.0) as store,
        MetaStore(steady) as others,
        MetaStore(store) as tables,
    ):
        other, told = LedgerTable(others), []
        other.create(5, b"0")
        note: Any = lambda _, found: told.append(found and int(found.metadata))  # noqa: E731
        with LedgerTable(tables).add_listener(5, note):
            for number in range(1, 30):
                if number % 10 == 5:
                    line.drops = True
                    line.cut()
                other.write(5, b"%d" % number, Version.ANY)
                if number % 10 == 8:
                    line.restore()
            until(lambda: told[-1:] == [29])
            assert told == sorted(set(told))
            other.remove(5, Version.ANY)
            until(lambda: told[-1] is None)
