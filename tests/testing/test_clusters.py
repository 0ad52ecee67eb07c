"""The throw-away clusters of the bench and the tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import EtcdServer, LocalServer, ServerStartError
from batchkeeper.testing.servers import local as servers

from ..clusters import three_members
from ..stores.foreign import zookeeper_client
from ..waiting import PATIENCE, until


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.server) for kind in ("etcd", "zookeeper")]
)
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., LocalServer]]:
    """Start a cluster of three members, of each kind in turn, and stop it after the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> LocalServer:
            return stack.enter_context(three_members(request.param, tmp_path, **options))

        yield start


def served(address: str, kind: str, timeout: float) -> bool:
    """Say whether the member at an address takes part in a majority."""
    try:
        with bk.open_store(f"{kind}://{address}", connect_timeout=timeout) as store:
            store.put("/x", b"", timeout=timeout).result()
            store.sync(timeout)
    except bk.MetadataStoreError:
        return False
    return True


@pytest.mark.full
def test_a_cluster_outlives_its_leader(started: Callable[..., LocalServer]) -> None:
    """A killed leader is replaced; started again, it has what was written meanwhile."""
    cluster = started(proxied=False)
    assert cluster.url == f"{cluster.name}://{','.join(cluster.addresses)}"
    assert len(set(cluster.addresses)) == 3
    with bk.open_store(cluster.url) as store:
        store.put("/x", b"1").result(PATIENCE)
        dead = cluster.kill_leader()
        assert not cluster.members[dead].process.running
        assert cluster.leader() != dead
        store.put("/x", b"2").result(PATIENCE)
    cluster.start(dead)
    with bk.open_store(f"{cluster.name}://{cluster.addresses[dead]}") as store:
        store.sync(PATIENCE)
        found = store.get("/x").result(PATIENCE)
    assert found is not None
    assert found.value == b"2"


def test_an_isolated_leader_is_replaced_and_serves_nobody(
    started: Callable[..., LocalServer],
) -> None:
    """Without the others a member neither writes nor reads; when it is back, it does."""
    cluster = started()
    alone = cluster.leader()
    assert served(cluster.addresses[alone], cluster.name, PATIENCE)
    cluster.isolate(alone)
    assert cluster.leader() != alone
    assert not served(cluster.addresses[alone], cluster.name, 1.0)
    assert served(cluster.addresses[cluster.leader()], cluster.name, PATIENCE)
    cluster.rejoin(alone)
    assert served(cluster.addresses[alone], cluster.name, PATIENCE)


@pytest.mark.full
@pytest.mark.server
def test_an_isolated_zookeeper_takes_no_part_in_elections(tmp_path: Path) -> None:
    """It has the longest log, so it would win, with nobody who can follow it."""
    with three_members("zookeeper", tmp_path) as cluster:
        # The others, which have lesser ids, connect to it, and it calls them back.
        for member in (1, 0):
            cluster.restart(member)
        assert cluster.leader() == 2
        log = cluster.members[2].process.log
        before = log.stat().st_size

        def states() -> set[str]:
            since = log.read_bytes()[before:].decode()
            return set(re.findall(r"\b(LOOKING|LEADING|FOLLOWING)$", since, re.MULTILINE))

        with zookeeper_client(f"zookeeper://{cluster.addresses[2]}") as client:
            cluster.isolate(2)
            client.create_async("/logged", b"")
            # They begin their election when it has given up, and holds its own.
            for member in (0, 1):
                cluster.pause(member)
            until(lambda: "LOOKING" in states())
            for member in (0, 1):
                cluster.resume(member)
            assert cluster.leader() in {0, 1}
        assert states() == {"LOOKING"}


@pytest.mark.full
def test_a_member_can_be_cut_off_from_clients_too(started: Callable[..., LocalServer]) -> None:
    """A connection to such a member is accepted, and nothing answers."""
    cluster = started()
    cluster.isolate(0, clients=True)
    with pytest.raises(bk.StoreUnavailableError):
        bk.open_store(f"{cluster.name}://{cluster.addresses[0]}", connect_timeout=1.0)
    with bk.open_store(cluster.url, connect_timeout=PATIENCE) as store:
        store.put("/y", b"").result(PATIENCE)
    cluster.rejoin(0)
    assert served(cluster.addresses[0], cluster.name, PATIENCE)


@pytest.mark.full
def test_members_are_paused_and_restarted_one_by_one(
    started: Callable[..., LocalServer],
) -> None:
    """A paused leader is replaced; each member can be restarted, and keeps its address."""
    cluster = started()
    addresses = cluster.addresses
    paused = cluster.leader()
    cluster.pause(paused)
    assert cluster.leader() != paused
    cluster.resume(paused)
    for member in range(3):
        pid = cluster.members[member].process.pid
        cluster.restart(member)
        assert cluster.members[member].process.pid != pid
        assert served(addresses[member], cluster.name, PATIENCE)
    assert cluster.addresses == addresses


@pytest.mark.full
def test_all_members_can_be_killed_and_started_again(
    started: Callable[..., LocalServer],
) -> None:
    """Without a number, kill and start mean all members; a dead member refuses connections."""
    cluster = started()
    with bk.open_store(cluster.url) as store:
        store.put("/x", b"1").result(PATIENCE)
    cluster.kill()
    assert not cluster.running
    with pytest.raises(bk.StoreUnavailableError, match=r"(?i)refused"):
        bk.open_store(cluster.url, connect_timeout=1.0)
    cluster.start()
    with bk.open_store(cluster.url) as store:
        assert store.exists("/x").result(PATIENCE)
    with pytest.raises(RuntimeError, match="running already"):
        cluster.start()


@pytest.mark.server
def test_a_taken_port_is_replaced_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process takes a port of a cluster before its start, all members try new ones."""
    find = servers.free_ports
    tries: list[int] = []

    def offer(count: int) -> tuple[int, ...]:
        ports = find(count)
        tries.append(count)
        # The same port twice is as good as one that somebody else has.
        return (*ports[:-1], ports[0]) if len(tries) == 1 else ports

    monkeypatch.setattr(servers, "free_ports", offer)
    with EtcdServer(tmp_path / "cluster", members=3, proxied=False) as cluster:
        assert len(tries) == 2
        assert served(cluster.addresses[2], "etcd", PATIENCE)


@pytest.mark.server
def test_a_cluster_needs_an_empty_directory(tmp_path: Path) -> None:
    """The data of an earlier cluster names other ports, so it is refused, and kept."""
    with EtcdServer(tmp_path / "cluster", members=3):
        pass
    with pytest.raises(ServerStartError, match="needs an empty directory"):
        EtcdServer(tmp_path / "cluster", members=3).start()
    assert (tmp_path / "cluster" / "member-0" / "data").is_dir()


@pytest.mark.parametrize("members", [0, 2, -3, 9])
def test_sizes_that_no_cluster_should_have(members: int, tmp_path: Path) -> None:
    """An even number tolerates no more failures than the odd one below: it is refused."""
    with pytest.raises(bk.InvalidSettingError, match=rf"must be 1, 3, 5 or 7, not {members}$"):
        EtcdServer(tmp_path, members=members)


def test_a_single_server_has_nobody_to_be_isolated_from(tmp_path: Path) -> None:
    """Without proxies, isolation is an error, and not silently nothing."""
    with pytest.raises(RuntimeError, match="has no proxies"):
        EtcdServer(tmp_path).isolate(0)


@pytest.mark.full
@pytest.mark.server
def test_the_proxies_of_a_stopped_cluster_are_gone(tmp_path: Path) -> None:
    """After `stop` no thread and no port is left, and a later start has them again."""
    cluster = EtcdServer(tmp_path / "cluster", members=3)
    cluster.start()
    cluster.isolate(1)
    cluster.stop()
    assert cluster._proxies is None
    cluster.start()
    until(lambda: served(cluster.addresses[1], "etcd", 5.0))
    cluster.stop()
