"""The HBase store on a real server. It takes minutes, and installs the server's jars first."""

from __future__ import annotations

import faulthandler
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores.backend import Tally
from batchkeeper.stores.hbase.cluster import Cluster
from batchkeeper.stores.hbase.sequences import Entry
from batchkeeper.stores.hbase.wire.connection import Connection, LostError
from batchkeeper.stores.hbase.wire.messages import MESSAGES
from batchkeeper.stores.hbase.writes import Writer
from batchkeeper.testing.servers import HBaseServer
from batchkeeper.testing.servers.installing import install
from batchkeeper.testing.servers.releases import parse_release

from ...programs import run_python
from ...waiting import PATIENCE, error, result, soon, until

pytestmark = [pytest.mark.soak, pytest.mark.server]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseServer]:
    """An HBase for the tests of this module."""
    install(parse_release("hbase@2.6"))
    with HBaseServer(tmp_path_factory.mktemp("hbase")) as made:
        yield made


def test_the_contract(server: HBaseServer, tmp_path: Path) -> None:
    """It passes the suite that every store has to pass."""
    # It takes longer than one test may. pytest sets the timer anew for the next test.
    faulthandler.cancel_dump_traceback_later()
    done = run_python(
        *("-m", "pytest", "-q", "-p", "batchkeeper.testing", "-p", "no:cacheprovider"),
        *("--batchkeeper-store", f"{server.url}/contract"),
        cwd=tmp_path,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-5000:]


def test_a_server_that_is_killed_applies_each_write_once(server: HBaseServer) -> None:
    """Each acknowledged put has its version, none is applied twice, and few stay unknown."""
    number = 20
    with bk.open_store(f"{server.url}/kills", connect_timeout=PATIENCE) as store:
        put: dict[str, list[int]] = {f"/{path}": [] for path in range(number)}
        unknown: dict[str, int] = dict.fromkeys(put, 0)
        over = threading.Event()

        def write(path: str) -> None:
            while not over.is_set():
                try:
                    put[path].append(result(store.put(path, b"x")).version)
                except bk.MetadataStoreError as error:
                    unknown[path] += error.outcome == "unknown"

        writers = [threading.Thread(target=write, args=(path,)) for path in put]
        for writer in writers:
            writer.start()
        for _ in range(2):
            time.sleep(2.0)
            server.kill()
            server.restart()
        time.sleep(5.0)
        over.set()
        for writer in writers:
            writer.join()
        for path, versions in put.items():
            assert versions == sorted(set(versions))
            found = result(store.get(path))
            assert found is not None
            assert len(versions) <= found.stat.version + 1 <= len(versions) + unknown[path]


def test_a_server_that_stays_away(server: HBaseServer) -> None:
    """Calls end by their own deadlines, while an earlier write still waits for its outcome."""
    url = f"{server.url}/away"
    with bk.open_store(url, connect_timeout=PATIENCE, operation_timeout=1.0) as store:
        until(lambda: store.put("/a", b"").exception(PATIENCE) is None)
        server.pause()
        assert error(store.put("/a", b"")).outcome == "unknown"
        server.kill()
        for _ in range(3):
            assert error(store.put("/b", b"")).outcome == "not_applied"
        with ThreadPoolExecutor(1) as pool:
            scanned = pool.submit(lambda: list(store.scan("/")))
            assert isinstance(scanned.exception(PATIENCE), bk.StoreUnavailableError)
        server.restart()
        until(lambda: store.put("/b", b"").exception(PATIENCE) is None)


def test_numbers_appear_in_their_order(
    server: HBaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four clients put beside each other, and one stops after it has taken numbers."""
    url = f"{server.url}/numbers"
    with ExitStack() as stack:
        stores = [
            stack.enter_context(bk.open_store(url, connect_timeout=PATIENCE)) for _ in range(5)
        ]
        create = Writer._create

        def stop(writer: Writer, entries: Sequence[Entry], deadline: float) -> list[Any]:
            if any(entry.value == b"stopped" for entry in entries):
                monkeypatch.undo()
                raise bk.StoreClosedError("stopped")
            return create(writer, entries, deadline)

        monkeypatch.setattr(Writer, "_create", stop)
        assert isinstance(
            error(stores[0].put("/n/x-", b"stopped", sequential=True)), bk.MetadataStoreError
        )
        assert result(stores[1].exists("/n/x-0000000000")) is False

        def put(store: bk.MetadataStore) -> None:
            for _ in range(100):
                result(store.put("/n/x-", b"", sequential=True))

        seen: set[str] = set()
        writers = [threading.Thread(target=put, args=(store,)) for store in stores[:4]]
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers):
            names = set(result(stores[4].get_children("/n")))
            assert not seen or not names - seen or min(names - seen) > max(seen)
            seen = names
        for writer in writers:
            writer.join()
        found = result(stores[4].get_children("/n"))
        assert found == [f"x-{number:010}" for number in range(401)]
        stopped = result(stores[4].get("/n/x-0000000000"))
        assert stopped is not None
        assert stopped.value == b"stopped"


HOLDER = """
import sys, time
import batchkeeper as bk

store = bk.open_store(sys.argv[1], connect_timeout=60.0, session_timeout=2.0)
events = []
store.add_session_listener(events.append)
stat = store.put("/e/x", b"1", ephemeral=True).result(60)
assert stat.ephemeral and stat.owned, stat
print("holds", flush=True)
sys.stdin.readline()
while "session_reestablished" not in events:
    time.sleep(0.01)
assert "session_lost" in events, events
assert store.get("/e/x").result(60) is None
print(store.put("/e/x", b"2", ephemeral=True).result(60).version, flush=True)
sys.stdin.readline()
"""


def test_a_client_that_stops_or_dies_loses_its_values(server: HBaseServer) -> None:
    """Another client ends its session; it learns that, and has a new one, which a kill ends."""
    url = f"{server.url}/sessions"
    command = [sys.executable, "-c", HOLDER, url]
    with (
        # It looks as often as the shortest timeout asks; by its own, it would look too late.
        bk.open_store(url, connect_timeout=PATIENCE, session_timeout=1000.0) as store,
        subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as holder,
    ):
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert result(store.put("/mine", b"", ephemeral=True)).owned
        try:
            assert holder.stdout.readline() == "holds\n"
            found = result(store.get("/e/x"))
            assert found is not None
            assert (found.stat.ephemeral, found.stat.owned) == (True, False)
            holder.send_signal(signal.SIGSTOP)
            until(lambda: result(store.get("/e/x")) is None)
            assert result(store.get_children("/e")) == []
            assert list(store.scan("/e")) == []
            assert result(store.put("/e/x", b"of another", bk.ABSENT)).version == 0
            result(store.delete("/e/x"))
            holder.send_signal(signal.SIGCONT)
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "0\n"
            assert result(store.exists("/e/x"))
        finally:
            holder.kill()
        until(lambda: not result(store.exists("/e/x")))


def test_another_table_is_refused(server: HBaseServer) -> None:
    """A missing table with create=False, and one with other properties."""
    with pytest.raises(bk.StoreUnavailableError, match="no table default:none"):
        bk.open_store(f"{server.url}/none", create=False, connect_timeout=PATIENCE)
    with pytest.raises(bk.StoreUnavailableError, match="create_namespace 'none'"):
        bk.open_store(f"{server.url}/none:table", connect_timeout=PATIENCE)
    with pytest.raises(bk.InvalidSettingError, match="not one of batchkeeper's: it has no family"):
        bk.open_store(f"{server.url}/hbase:namespace", connect_timeout=PATIENCE)
    for number, (key, value) in enumerate(
        {
            "VERSIONS": "2",
            "MIN_VERSIONS": "1",
            "TTL": "100",
            "KEEP_DELETED_CELLS": "TRUE",
            "NEW_VERSION_BEHAVIOR": "true",
        }.items()
    ):
        pair = MESSAGES.BytesBytesPair(first=key.encode(), second=value.encode())
        family = MESSAGES.ColumnFamilySchema(name=b"f", attributes=[pair])
        name = MESSAGES.TableName(namespace=b"default", qualifier=b"other%d" % number)
        schema = MESSAGES.TableSchema(table_name=name, column_families=[family])
        cluster = Cluster([server.address], (b"default", name.qualifier), "other", 10.0, Tally())
        with closing(cluster):
            request = MESSAGES.CreateTableRequest(table_schema=schema)
            cluster.ask_master("CreateTable", request, MESSAGES.CreateTableResponse, soon())
        with pytest.raises(bk.InvalidSettingError, match=f"f has {key} {value}, not "):
            bk.open_store(f"{server.url}/other{number}", connect_timeout=PATIENCE)


def test_a_store_is_opened_without_a_master(
    server: HBaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table must be there: its properties are not checked, and none is created."""
    url = f"{server.url}/without"
    bk.open_store(url, connect_timeout=PATIENCE).close()
    connection = Cluster._connection

    def without(cluster: Cluster, address: str, service: str, by: float) -> Connection:
        if service == "MasterService":
            raise LostError("there is no master", sent=False)
        return connection(cluster, address, service, by)

    monkeypatch.setattr(Cluster, "_connection", without)
    with bk.open_store(url, connect_timeout=2.0) as store:
        assert result(store.put("/a", b"")).version == 0
    with pytest.raises(bk.StoreUnavailableError, match="there is no master"):
        bk.open_store(f"{server.url}/none", connect_timeout=2.0)


def test_tls_on_the_client_alone(server: HBaseServer) -> None:
    """The message names both schemes, and nothing waits beyond the time-out."""
    began = time.monotonic()
    with pytest.raises(bk.StoreUnavailableError, match="hbases:// is with TLS, hbase:// without"):
        bk.open_store(server.url.replace("hbase:", "hbases:"), connect_timeout=2.0)
    assert time.monotonic() - began < 10.0
