"""A history of clients of a real HBase, with faults, checked for violations.

HBase tells its clients by itself where its regions are. So the clients under test take that address
for the one of the proxy, in which connections lose requests and answers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from batchkeeper.stores.hbase.cluster import Cluster
from batchkeeper.stores.hbase.wire.connection import Connection
from batchkeeper.testing.servers import HBaseServer
from batchkeeper.testing.servers.processes import HOST

from .nemesis import Nemesis
from .test_contract_histories import NEEDED, ContractRun
from .test_histories import under_way

# HBase lacks the others.
_OFFERED = NEEDED - {"transactions", "watches"}


@pytest.fixture
def nemesis(
    hbase_server: HBaseServer, proxy: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Nemesis:
    """Faults of the server, and of the connections of clients that were opened with its URL."""
    regions = f"{HOST}:{hbase_server.members[0].ports[1]}"
    line = proxy(regions)
    connect = Cluster._connection

    def through(cluster: Cluster, address: str, service: str, by: float) -> Connection:
        harmed = address == regions and line.address in cluster.addresses
        return connect(cluster, line.address if harmed else address, service, by)

    monkeypatch.setattr(Cluster, "_connection", through)
    return Nemesis(hbase_server, line)


def test_cut_off_and_killed(nemesis: Nemesis) -> None:
    """Lost requests and answers, and a kill: each write counts once, and answered ones stay."""
    place = f"/{uuid.uuid4().hex}"
    try:
        # The session is renewed every second, and may end before the server is there again.
        with ContractRun(
            nemesis.url + place,
            nemesis.server.url + place,
            session_timeout=4.0,
            needed=_OFFERED,
        ) as run:
            for lose in (nemesis.lose_answers, nemesis.lose_requests, nemesis.cut) * 4:
                lose()
                run.progress(50)
            # The kill also meets writes that were applied and not answered.
            nemesis.line.swallows = True
            since = time.monotonic()
            run.until(
                lambda: any(op.writes and op.invoked > since for op in run.history),
                "nobody writes",
            )
            nemesis.kill()
            nemesis.restart()
            assert under_way(run.history, nemesis.killed)
            run.progress(200)
    finally:
        if not nemesis.server.running:
            nemesis.restart()
