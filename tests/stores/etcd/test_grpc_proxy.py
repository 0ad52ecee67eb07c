"""Stores behind ``etcd grpc-proxy``, which answers otherwise than etcd itself."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator

import pytest

from batchkeeper import InvalidSettingError, MetadataStore, open_store
from batchkeeper.testing.servers import EtcdServer
from batchkeeper.testing.servers.processes import ServerProcess, free_ports
from batchkeeper.testing.servers.releases import find_etcd

from ...waiting import until


@pytest.fixture(scope="module")
def store(
    etcd_server: EtcdServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MetadataStore]:
    """A store behind a proxy of etcd's own."""
    folder = tmp_path_factory.mktemp("proxy")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    flags = ("--endpoints", etcd_server.address, "--listen-addr", address)
    proxy = ServerProcess("grpc-proxy", folder)
    proxy.launch([str(find_etcd()), "grpc-proxy", "start", *flags], {})
    try:
        until(lambda: _listens(address))
        with open_store(f"etcd://{address}/{uuid.uuid4().hex}") as store:
            yield store
    finally:
        proxy.kill()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_each_watch_gets_its_own_events(store: MetadataStore) -> None:
    """The proxy names watches itself, from 0 on, and answers in any order."""
    seen: dict[str, list[str]] = {name: [] for name in "abcdefgh"}
    watches = {
        name: store.watch(f"/{name}", callback=lambda event, to=to: to.append(event.path))
        for name, to in seen.items()
    }
    watches["a"].close()
    watches["b"].close()
    for name in seen:
        store.put(f"/{name}", b"").result()
    until(lambda: all(seen[name] for name in "cdefgh"))
    assert seen == {name: [] if name in "ab" else [f"/{name}"] for name in seen}


def test_changes_end_although_no_progress_is_reported(store: MetadataStore) -> None:
    """The last change below the prefix is followed by others elsewhere."""
    first = store.put("/a/b", b"").result()
    last = store.put("/c", b"").result()
    pages = store.changes("/a", first.revision - 1, last.revision, timeout=10)
    assert [change.path for change in pages] == ["/a/b"]


def test_refusals_that_arrive_without_their_code_are_understood(store: MetadataStore) -> None:
    """They would be taken for lost answers, and the request repeated until its deadline."""
    with pytest.raises(InvalidSettingError, match="does not exist yet"):
        next(store.scan("/", revision=store.revision() + 1_000_000, timeout=10))
