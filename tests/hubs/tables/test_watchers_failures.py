"""One-shot watchers on real servers: lost connections and sessions, and compactions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

import batchkeeper as bk
from batchkeeper.hubs.tables import MetaStore, Version
from batchkeeper.testing.servers import EtcdServer, LocalServer, ZooKeeperServer

from ...proxy import Proxy
from ...stores.etcd.live import other_client
from ...waiting import result, until
from .watching import CHANGED, REMOVED, Calls, arm, settle

NEW, ANY = Version.NEW, Version.ANY


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started


@pytest.fixture
def other(server: LocalServer) -> Iterator[MetaStore]:
    """The tables of another client, which keeps its connection."""
    with bk.open_store(server.url, session_timeout=30.0) as store, MetaStore(store) as made:
        yield made


def behind(server: LocalServer, line: Proxy) -> str:
    """Return the URL of a server behind a proxy."""
    return server.url.replace(server.address, line.address)


KEYS = ("changed", "removed", "replaced", "created")


def prepare(other: MetaStore) -> None:
    """Put the keys that must exist."""
    for key in (*KEYS[:3], "same"):
        other.create_table("t").put(key, {"f": b"1"}, NEW)


def change(other: MetaStore) -> None:
    """Change all keys but two."""
    table = other.create_table("t")
    table.put("changed", {"f": b"2"}, ANY)
    table.remove("removed", ANY)
    table.remove("replaced", ANY)
    table.put("replaced", {"f": b"2"}, NEW)
    table.put("created", {}, NEW)
    table.put("for a moment", {}, NEW)
    table.remove("for a moment", ANY)


def check(calls: Calls, *, history: bool) -> None:
    """Wait for all calls. With the history of the store, each first change is reported."""
    until(lambda: len(calls) >= (5 if history else 4))
    assert sorted(calls) == sorted(
        [
            ("changed", CHANGED),
            ("created", CHANGED),
            ("removed", REMOVED),
            ("replaced", REMOVED if history else CHANGED),
            *([("for a moment", CHANGED)] if history else []),
        ]
    )


def test_a_cut_connection(
    server: LocalServer, other: MetaStore, proxy: Callable[[str], Proxy]
) -> None:
    """Changes while the connection is away are reported afterwards, and nothing else."""
    prepare(other)
    line = proxy(server.address)
    with (
        bk.open_store(behind(server, line), session_timeout=30.0) as store,
        MetaStore(store) as tables,
    ):
        table, calls = tables.create_table("t"), Calls()
        for key in (*KEYS, "for a moment", "same", "missing"):
            arm(table, key, calls)
        line.drops = True
        line.cut()
        change(other)
        line.restore()
        check(calls, history="history" in store.capabilities)
        told = len(calls)
        settle(table)
        other.create_table("t").remove("same", ANY)
        until(lambda: len(calls) > told)
        assert calls[told:] == [("same", REMOVED)]


def test_a_lost_session(
    own_zookeeper: Callable[..., ZooKeeperServer], proxy: Callable[[str], Proxy]
) -> None:
    """Armed watchers stay armed when ZooKeeper ends the session, and get the missed changes."""
    server = own_zookeeper()
    line = proxy(server.address)
    with (
        bk.open_store(server.url, session_timeout=30.0) as steady,
        bk.open_store(behind(server, line), session_timeout=2.0) as store,
        MetaStore(steady) as other,
        MetaStore(store) as tables,
    ):
        prepare(other)
        table, calls = tables.create_table("t"), Calls()
        events: list[str] = []
        store.add_session_listener(events.append)
        result(store.put("/mine", b"", ephemeral=True))
        for key in (*KEYS, "for a moment", "same", "missing"):
            arm(table, key, calls)
        line.drops = line.swallows = True
        until(lambda: not result(steady.exists("/mine")))
        change(other)
        line.restore()
        until(lambda: "session_lost" in events)
        check(calls, history=False)
        until(lambda: "session_reestablished" in events)
        other.create_table("t").remove("same", ANY)
        until(lambda: len(calls) == 5)
        assert calls[4] == ("same", REMOVED)


def test_a_compaction_during_an_outage(
    own_etcd: Callable[..., EtcdServer], proxy: Callable[[str], Proxy]
) -> None:
    """If etcd does not keep what was missed, the keys are compared."""
    server = own_etcd()
    line = proxy(server.address)
    with (
        other_client(server.address) as direct,
        bk.open_store(server.url, session_timeout=30.0) as steady,
        bk.open_store(behind(server, line), session_timeout=30.0) as store,
        MetaStore(steady) as other,
        MetaStore(store) as tables,
    ):
        prepare(other)
        table, calls = tables.create_table("t"), Calls()
        for key in (*KEYS, "for a moment", "same", "missing"):
            arm(table, key, calls)
        line.drops = True
        line.cut()
        change(other)
        direct.compact(steady.revision())
        line.restore()
        check(calls, history=False)
        other.create_table("t").remove("same", ANY)
        until(lambda: len(calls) == 5)
        assert calls[4] == ("same", REMOVED)


def test_a_restored_etcd(own_etcd: Callable[..., EtcdServer]) -> None:
    """Its revisions run back, and what happens at them again is news."""
    server = own_etcd()
    data, backup = server.directory / "data", server.directory / "backup"
    with bk.open_store(server.url) as store, MetaStore(store) as tables:
        prepare(tables)
        table, calls = tables.create_table("t"), Calls()
        server.pause()
        shutil.copytree(data, backup)
        server.resume()
        change(tables)
        for key in ("changed", "missing"):
            arm(table, key, calls)
        server.kill()
        shutil.rmtree(data)
        backup.rename(data)
        server.start()
        calls.wait(("changed", CHANGED))
        table.put("missing", {}, NEW)
        calls.wait(("changed", CHANGED), ("missing", CHANGED))


def test_an_outage(server: LocalServer, other: MetaStore, proxy: Callable[[str], Proxy]) -> None:
    """In an outage, a get with a watcher ends with an error, and arms nothing; later ones work."""
    line = proxy(server.address)
    with (
        bk.open_store(behind(server, line), session_timeout=30.0, operation_timeout=1.0) as store,
        MetaStore(store) as tables,
    ):
        tables.create_table("u").open_cursor()  # so that the connection is there
        line.drops = line.swallows = True
        table, lost, calls = tables.create_table("t"), Calls(), Calls()
        with pytest.raises((bk.OperationTimeoutError, bk.StoreUnavailableError)):
            table.get("k", watcher=lost)
        line.restore()

        def armed() -> bool:
            try:
                arm(table, "k", calls)
            except bk.MetadataStoreError:
                return False
            return True

        until(armed)
        other.create_table("t").put("k", {}, NEW)
        calls.wait(("k", CHANGED))
        assert lost == []
