"""Regions of the HBase store that are split and moved, and a server of them that is killed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, Self

import pytest

import batchkeeper as bk
from batchkeeper.stores.backend import Tally
from batchkeeper.stores.hbase.cluster import Cluster, Region
from batchkeeper.stores.hbase.wire.messages import MESSAGES
from batchkeeper.testing.servers import HBaseServer
from batchkeeper.testing.servers.installing import install
from batchkeeper.testing.servers.releases import parse_release

from ...histories.test_histories import Run
from ...waiting import PATIENCE, error, result, soon, until

pytestmark = [pytest.mark.soak, pytest.mark.server]

_BY_ENCODED_NAME: Final = 2
# A server's name in the master's status: its host, its port and its start code.
_SERVER: Final = re.compile(
    rb"\x0a.127\.0\.0\.1\x10(?P<port>[\x80-\xff]*[\x00-\x7f])\x18(?P<code>[\x80-\xff]+[\x00-\x7f])",
    re.DOTALL,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseServer]:
    """An HBase that notices the death of a region server, and ends a compaction, within seconds."""
    install(parse_release("hbase@2.6"))
    settings = {
        "zookeeper.session.timeout": "4000",
        "hbase.zookeeper.property.tickTime": "500",
        "hbase.hfile.compaction.discharger.interval": "1000",
    }
    with HBaseServer(tmp_path_factory.mktemp("hbase"), settings=settings) as made:
        yield made


class Admin:
    """Asks the master to split and to move regions.

    The requests have the form of a message that the client knows: two fields that are messages or
    bytes.
    """

    def __init__(self, server: HBaseServer, table: str) -> None:
        name = b"default", table.encode()
        self.cluster = Cluster([server.address], name, "tests", 10.0, Tally())

    def regions(self) -> list[Region]:
        """Return the regions as they are now."""
        self.cluster.moved(soon())
        return self.cluster.regions(soon())

    def addresses(self) -> list[str]:
        """Return the address of each region's server."""
        return [region.address for region in self.regions()]

    def split(self, key: bytes) -> None:
        """Split the region of a key there. One that was just split has to be compacted first."""
        before = len(self.regions())

        def ask() -> bool:
            region = self.cluster.region_of(key, soon())
            namespace, qualifier = self.cluster.table
            info = MESSAGES.RegionInfo(
                region_id=int(region.name.rpartition(b",")[2].partition(b".")[0]),
                table_name=MESSAGES.TableName(namespace=namespace, qualifier=qualifier),
                start_key=region.start,
                end_key=region.end,
                offline=False,
                split=False,
                replica_id=0,
            )
            try:
                self._ask("SplitRegion", info.SerializeToString(), key)
            except bk.UnsupportedError as refused:
                if "NOT splittable" in str(refused):
                    return False
                raise
            return True

        until(ask)
        until(lambda: len(self.regions()) == before + 1)

    def move(self, region: Region, port: int) -> None:
        """Move a region to the server with a port, and return when it is there."""
        code = until(lambda: self._start_codes().get(port))  # It may just have joined.
        to = MESSAGES.ServerName(host_name="127.0.0.1", port=port, start_code=code)
        encoded = region.name.split(b".")[-2]
        which = MESSAGES.RegionSpecifier(type=_BY_ENCODED_NAME, value=encoded)
        there = region._replace(address=f"127.0.0.1:{port}")

        def ask() -> bool:
            # The master passes over a move to a server that has just joined.
            self._ask("MoveRegion", which.SerializeToString(), to.SerializeToString())
            give_up = soon(5.0)
            while there not in self.regions() and time.monotonic() < give_up:
                time.sleep(0.1)
            return there in self.regions()

        until(ask)

    def change(self, method: str) -> None:
        """Disable, enable or delete the table, when it is in the state for that."""
        namespace, qualifier = self.cluster.table
        table = MESSAGES.TableName(namespace=namespace, qualifier=qualifier)
        request = MESSAGES.BytesBytesPair(first=table.SerializeToString())

        def ask() -> bool:
            try:
                self.cluster.ask_master(method, request, MESSAGES.CreateTableResponse, soon())
            except bk.UnsupportedError as refused:
                if "TableNotDisabledException" in str(refused):
                    return False
                raise
            return True

        until(ask)

    def _start_codes(self) -> dict[int, int]:
        """Return what tells the present life of a server from earlier ones, by its port."""
        status = self.cluster.ask_master(
            "GetClusterStatus", MESSAGES.Empty(), MESSAGES.Empty, soon()
        ).SerializeToString()
        return {
            _varint(found["port"]): _varint(found["code"]) for found in _SERVER.finditer(status)
        }

    def _ask(self, method: str, first: bytes, second: bytes) -> Any:
        request = MESSAGES.BytesBytesPair(first=first, second=second)
        return self.cluster.ask_master(method, request, MESSAGES.CreateTableResponse, soon())


def _varint(raw: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(raw))


class Load:
    """Writers, each of a path of its own, and a reader of all; a context manager."""

    def __init__(self, store: bk.MetadataStore) -> None:
        self._store = store
        self.put = {
            path: [result(store.put(path, b"x")).version]
            for path in (f"/{letter}/x" for letter in "abcdefghij")
        }
        self._unknown = dict.fromkeys(self.put, 0)
        self._over = threading.Event()
        self._scans: list[list[str]] = []
        self._threads = [
            threading.Thread(target=self._write, args=(path,)) for path in self.put
        ] + [threading.Thread(target=self._read)]

    @property
    def count(self) -> int:
        """The number of puts that were acknowledged."""
        return sum(map(len, self.put.values()))

    def _write(self, path: str) -> None:
        while not self._over.is_set():
            try:
                self.put[path].append(self._store.put(path, b"x").result().version)
            except bk.MetadataStoreError as error:
                self._unknown[path] += error.outcome == "unknown"

    def _read(self) -> None:
        while not self._over.is_set():
            self._scans.append([path for path, _, _ in self._store.scan("/")])
            time.sleep(0.05)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Check that each put has its version, and that each scan has all paths."""
        for path, versions in self.put.items():
            assert versions == sorted(set(versions))
            found = result(self._store.get(path))
            assert found is not None
            assert len(versions) <= found.stat.version + 1 <= len(versions) + self._unknown[path]
        assert len(self._scans) > 10
        assert all(scan == [*self.put] for scan in self._scans)


def test_regions_are_split_and_moved_and_a_server_of_them_is_killed(server: HBaseServer) -> None:
    """Ten writers and a reader go on; each put has its version, and a scan misses nothing."""
    with (
        server.region_server() as other,
        bk.open_store(f"{server.url}/load", connect_timeout=PATIENCE) as store,
    ):
        admin = Admin(server, "load")
        load = Load(store)
        with closing(admin.cluster), load:
            for key in (b"/e", b"/c"):
                admin.split(key)
            stays, dies = server.members[0].ports[1], other.ports[0]
            for port in (dies, stays, dies):
                for region in admin.regions():
                    admin.move(region, port)
            other.process.kill()
            until(lambda: {*admin.addresses()} == {f"127.0.0.1:{stays}"})
            before = load.count
            until(lambda: load.count > before + 1000)
        load.check()


def test_a_table_that_is_disabled_deleted_and_created_again(server: HBaseServer) -> None:
    """Each call says at once what is the matter; nothing is left of the table that was deleted."""
    url = f"{server.url}/gone"
    # Only a wait until the deadline would end otherwise.
    options: Any = {"connect_timeout": PATIENCE, "operation_timeout": 10 * PATIENCE}
    admin = Admin(server, "gone")

    def ends(store: bk.MetadataStore, first: bk.MetadataStore, why: str) -> None:
        until(lambda: why in str(store.get("/a").exception(PATIENCE)))
        for refused in (
            store.put("/a", b""),
            store.put("/new", b"", bk.ABSENT),
            store.delete("/b"),
            store.put("/n/", b"", sequential=True),
            store.put("/e", b"", ephemeral=True),
            first.put("/e", b"", ephemeral=True),
            store.get_children("/"),
        ):
            found = error(refused)
            assert (type(found), found.outcome) == (bk.StoreUnavailableError, "not_applied")
            assert why in str(found)

    with (
        bk.open_store(url, **options) as store,
        bk.open_store(url, **options) as first,  # It has no session.
        closing(admin.cluster),
    ):
        for path in ("/a", "/b", "/n/"):
            result(store.put(path, b"x", sequential=path == "/n/"))
        assert result(store.put("/e", b"", ephemeral=True)).owned  # Otherwise, it waits for that.
        admin.change("DisableTable")
        ends(store, first, "the table gone is disabled")
        with pytest.raises(bk.StoreUnavailableError, match="enable 'gone'"):
            bk.open_store(url, **options)
        admin.change("EnableTable")
        until(lambda: store.get("/a").exception(PATIENCE) is None)
        assert result(store.put("/a", b"x")).version == 1
        admin.change("DisableTable")
        admin.change("DeleteTable")
        ends(store, first, "the table gone was deleted")
        with bk.open_store(url, **options) as other:
            assert result(other.put("/other", b"")).version == 0
        assert isinstance(error(store.put("/a", b"", 1)), bk.BadVersionError)
        assert result(store.put("/b", b"")).version == 0
        assert result(store.put("/n/", b"", sequential=True)).path == "/n/0000000000"
        assert result(first.put("/e", b"", ephemeral=True)).owned
        first.close()
        assert [path for path, _, _ in store.scan("/")] == ["/b", "/n/0000000000", "/other"]


def test_histories_over_moves_and_kills_of_regions(server: HBaseServer) -> None:
    """What 14 clients see while regions are split, moved and lost is what one store may show."""
    with Run(f"{server.url}/history", operation_timeout=60.0) as run:
        admin = Admin(server, "history")
        stays = server.members[0].ports[1]
        with closing(admin.cluster):
            admin.split(b"/h/4")
            for _ in range(2):
                with server.region_server() as other:
                    for region in admin.regions():
                        admin.move(region, other.ports[0])
                        run.workers.progress(100)
                    other.process.kill()
                    until(lambda: {*admin.addresses()} == {f"127.0.0.1:{stays}"})
                run.workers.progress(300)
    assert not [op for op in run.history if op.outcome in {"unknown", "not_applied"}]
