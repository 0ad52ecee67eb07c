"""Waits for the deletion of one path, by which contenders of a lock follow each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores.etcd.watches.messages import create_request
from batchkeeper.testing.servers import EtcdServer, LocalServer, ZooKeeperServer

from ..proxy import Proxy
from ..waiting import PATIENCE, result, soon, until
from .foreign import said_by_zookeeper
from .zookeeper.opening import before_exchange, recorded


def begun(store: bk.MetadataStore, path: str) -> bk.Watch:
    """Begin a wait that finds by itself if the path is missing already."""
    watch, looks = store._watch_deletion(path, PATIENCE)
    assert looks
    return watch


def end_of(watch: bk.Watch) -> bk.WatchEvent:
    """Return the first event that ends a wait."""
    while True:
        event = watch.next_event(PATIENCE)
        assert event is not None
        if event.kind in ("deleted", "gap"):
            return event


@pytest.mark.server
@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_a_deletion(kind: str, fresh_url: Callable[[str], str]) -> None:
    """It is reported once the value is gone, not for its changes, and at once if it is missing."""
    with bk.open_store(fresh_url(kind)) as store:
        result(store.put("/line/a", b""))
        result(store.put("/line/b", b""))
        with begun(store, "/line/a") as watch:
            result(store.put("/line/a", b"2"))
            result(store.delete("/line/b"))
            result(store.delete("/line/a"))
            assert end_of(watch)[:2] == ("deleted", "/line/a")
        for path in ("/line/a", "/nothing/at/all"):
            with begun(store, path) as watch:
                assert end_of(watch)[:2] == ("deleted", path)
        assert store.metrics().watches == 0


@pytest.mark.server
@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_a_lost_connection(
    kind: str, request: pytest.FixtureRequest, proxy: Callable[[str], Proxy]
) -> None:
    """A deletion of that time is reported afterwards, or a gap says that it may be missing."""
    server: LocalServer = request.getfixturevalue(f"own_{kind}")()
    line = proxy(server.address)
    with (
        bk.open_store(server.url) as other,
        bk.open_store(f"{kind}://{line.address}") as store,
    ):
        result(other.put("/line/a", b""))
        with begun(store, "/line/a") as watch:
            line.drops = True
            line.cut()
            result(other.delete("/line/a"))
            line.restore()
            assert end_of(watch).kind == ("deleted" if kind == "etcd" else "gap")
        with begun(store, "/line/a") as watch:
            assert end_of(watch).kind == "deleted"


@pytest.mark.server
def test_zookeeper_keeps_no_watch(own_zookeeper: Callable[[], ZooKeeperServer]) -> None:
    """Waits that are given up leave nothing there, and take nothing away from others."""
    server = own_zookeeper()
    backend, connection = recorded(server.url)
    events: list[bk.WatchEvent] = []
    errors: list[bk.MetadataStoreError] = []

    def begin(path: str) -> Any:
        return backend.watches.watch_deletion(path, events.extend, errors.append, soon())

    def kept() -> int:
        lines = said_by_zookeeper(server.address, b"mntr").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("zk_watch_count"))

    with closing(backend), bk.open_store(server.url) as other:
        for name in "abc":
            result(other.put(f"/line/{name}", b""))
        waits = [begin(f"/line/{name}") for name in "aabbbc"]
        assert kept() == 3
        for wait in waits[:5]:
            wait.close()
        until(lambda: kept() == 1)
        result(other.delete("/line/c"))
        until(lambda: [event.kind for event in events] == ["deleted"])
        assert kept() == 0
        # One that begins while the server removes the watch of another has none left, too.
        wait = begin("/line/a")
        before_exchange(connection, lambda: begin("/line/a"))
        wait.close()
        until(lambda: [event.kind for event in events] == ["deleted", "gap"])
        assert kept() == 0


@pytest.mark.server
def test_etcd_chooses_the_beginning(
    own_etcd: Callable[[], EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revision that the client had read before would be in the past after any other's write."""
    starts: list[int] = []

    def noted(first: bytes, stop: bytes, start: int, **options: Any) -> bytes:
        starts.append(start)
        return create_request(first, stop, start, **options)

    monkeypatch.setattr("batchkeeper.stores.etcd.watches.watches.create_request", noted)
    with bk.open_store(own_etcd().url) as store:
        result(store.put("/line/a", b""))
        with begun(store, "/line/a") as watch:
            result(store.delete("/line/a"))
            assert end_of(watch).kind == "deleted"
    assert starts == [0]
