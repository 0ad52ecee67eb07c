"""Clusters whose members are killed, paused, cut off and restarted, with clients at work.

The clients count: each put of a path must find the version that the one before has left. So a write
that is lost, or applied twice, is seen at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest

import batchkeeper as bk
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.testing.servers import LocalServer

from ..clusters import three_members
from ..idle import no_data_left
from ..waiting import PATIENCE, soon, until
from .foreign import said_by_zookeeper

# Seconds. ZooKeeper's client gives a silent server up after two thirds of it, and the rest must be
# enough to find another one. Where the leader is lost, the next one gives sessions new time.
SESSION = 6.0
# ZooKeeper allows 20 ticks, here of half a second.
LONG = 10.0


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.server) for kind in ("etcd", "zookeeper")],
)
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A cluster of each kind in turn, to which these tests may do harm."""
    members = three_members(request.param, tmp_path_factory.mktemp(request.param))
    with no_data_left(members) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: LocalServer) -> LocalServer:
    """The cluster, with all members at work."""
    for member in started.members:
        if member.process.running and member.process.paused:
            started.resume(member.number)
        started.rejoin(member.number)
        if not member.process.running:
            started.start(member.number)
    started.leader()
    return started


class Counting:
    """Threads that put numbers, each at paths of its own, through one store.

    Half of them state the version that they expect; the others check the one that they get.
    """

    def __init__(self, store: bk.MetadataStore, place: str, threads: int = 6) -> None:
        self._store = store
        self._place = place
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._counts = [0] * threads
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.progress()
        return self

    def __exit__(self, *caught: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if caught[0] is None:
            self._check()

    def progress(self, puts: int = 20) -> None:
        """Wait until every thread has made some more puts."""
        goals = [count + puts for count in self._counts]
        until(
            lambda: self._failures or all(map(int.__ge__, self._counts, goals)),
            "the clients do not get on",
        )
        assert not self._failures, self._failures

    def _path(self, thread: int) -> str:
        return f"{self._place}/{thread}"

    def _run(self, thread: int) -> None:
        try:
            while not self._stop.is_set():
                self._put(thread, self._counts[thread])
                self._counts[thread] += 1
        except BaseException as error:
            self._failures.append(error)

    def _put(self, thread: int, number: int) -> None:
        expected = number - 1 if thread % 2 else None
        stat = self._store.put(
            self._path(thread), str(number).encode(), expected, timeout=PATIENCE
        ).result()
        assert stat.version == number, f"put {number} of thread {thread} made {stat}"

    def _check(self) -> None:
        assert not self._failures, self._failures
        self._store.sync(PATIENCE)
        for thread, count in enumerate(self._counts):
            found = self._store.get(self._path(thread), timeout=PATIENCE).result()
            assert found is not None
            assert (int(found.value), found.stat.version) == (count - 1, count - 1)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[EtcdConnection]:
    """All connections to etcd that are opened in the test."""
    made: list[EtcdConnection] = []

    class Noted(EtcdConnection):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("batchkeeper.stores.etcd.backend.EtcdConnection", Noted)
    return made


@pytest.fixture
def store(cluster: LocalServer, connections: list[EtcdConnection]) -> Iterator[bk.MetadataStore]:
    """A store on all members."""
    with bk.open_store(
        cluster.url, connect_timeout=PATIENCE, session_timeout=SESSION, operation_timeout=PATIENCE
    ) as opened:
        yield opened


def member_of(
    cluster: LocalServer,
    store: bk.MetadataStore,
    connections: list[EtcdConnection],
    cut: int | None = None,
) -> int:
    """Return the member that a store talks to; a member that is cut off is not asked."""
    if cluster.name == "etcd":
        return cluster.addresses.index(connections[0].open(soon()).address)
    session = f"sid={store.session.id},"
    (member,) = [
        number
        for number, address in enumerate(cluster.addresses)
        if number != cut and session in said_by_zookeeper(address, b"cons")
    ]
    return member


@pytest.fixture
def counting(store: bk.MetadataStore, request: pytest.FixtureRequest) -> Iterator[Counting]:
    """Clients at work, and the check of what they have left."""
    with Counting(store, f"/{request.node.name}") as clients:
        yield clients


def test_the_leader_is_killed(cluster: LocalServer, counting: Counting) -> None:
    """No acknowledged write is lost with the leader, and none is made twice."""
    for _ in range(2):
        dead = cluster.kill_leader()
        counting.progress()
        cluster.start(dead)
        counting.progress()


def test_the_leader_is_paused(
    cluster: LocalServer, store: bk.MetadataStore, counting: Counting
) -> None:
    """What a paused leader has received arrives when it goes on, and then has no effect.

    What it still believes is nothing that its own clients catch up with.
    """
    paused = cluster.leader()
    url = f"{cluster.name}://{cluster.addresses[paused]}"
    with bk.open_store(url, session_timeout=LONG, operation_timeout=PATIENCE) as behind:
        for _ in range(2):
            store.put("/deposed", b"0").result()
        cluster.pause(paused)
        counting.progress()
        store.delete("/deposed").result()
        store.put("/deposed", b"1").result()
        with ThreadPoolExecutor(2) as pool:
            puts = pool.submit(behind.apply, [bk.Put("/deposed", b"2", 0), bk.Put("/beside", b"2")])
            time.sleep(0.2)  # They are on their way.
            synced = pool.submit(behind.sync, PATIENCE)
            time.sleep(0.2)
            cluster.resume(paused)
            synced.result()
            assert [outcome.ok and outcome.result.version for outcome in puts.result()] == [1, 0]
    counting.progress()


@pytest.mark.full
def test_a_rolling_restart(cluster: LocalServer, counting: Counting) -> None:
    """One member after the other is restarted, and no client notices more than a pause."""
    for member in cluster.members:
        cluster.restart(member.number)
        counting.progress()


def test_the_member_of_the_clients_is_cut_off_from_the_others(
    cluster: LocalServer,
    store: bk.MetadataStore,
    counting: Counting,
    connections: list[EtcdConnection],
) -> None:
    """The clients go on with another member, although theirs still accepts connections."""
    cut = member_of(cluster, store, connections)
    cluster.isolate(cut)
    counting.progress()
    assert member_of(cluster, store, connections, cut) != cut
    cluster.rejoin(cut)
    counting.progress()


def test_the_member_of_the_clients_is_cut_off_from_everybody(
    cluster: LocalServer,
    store: bk.MetadataStore,
    counting: Counting,
    connections: list[EtcdConnection],
) -> None:
    """The clients hear nothing more of their member, and go on with another one."""
    cut = member_of(cluster, store, connections)
    cluster.isolate(cut, clients=True)
    counting.progress()
    assert member_of(cluster, store, connections, cut) != cut
    cluster.rejoin(cut)
    counting.progress()


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_member_that_is_cut_off_tells_nothing_stale(
    cluster: LocalServer, store: bk.MetadataStore, role: str
) -> None:
    """A client of it alone gets no answer, where others have written; later it gets theirs."""
    path = f"/stale-{role}"
    store.put(path, b"old").result()
    leader = cluster.leader()
    alone = leader if role == "leader" else (leader + 1) % 3
    with bk.open_store(
        f"{cluster.name}://{cluster.addresses[alone]}",
        connect_timeout=PATIENCE,
        session_timeout=SESSION,
    ) as lone:
        assert read(lone, path, PATIENCE) == b"old"
        cluster.isolate(alone)
        store.put(path, b"new").result()
        for _ in range(3):
            with pytest.raises((bk.OperationTimeoutError, bk.StoreUnavailableError)):
                read(lone, path, 0.5)
        cluster.rejoin(alone)
        assert read(lone, path, PATIENCE) == b"new"


def read(store: bk.MetadataStore, path: str, timeout: float) -> bytes:
    """Return the last value that was acknowledged to anybody."""
    store.sync(timeout)  # for ZooKeeper; reads of etcd are linearizable
    found = store.get(path, timeout=timeout).result()
    assert found is not None
    return found.value


@pytest.mark.parametrize(
    "fault",
    [
        "killed leader",
        pytest.param("isolated member", marks=pytest.mark.full),
        pytest.param("restarted member", marks=pytest.mark.full),
    ],
)
def test_the_session_survives_where_the_cluster_does(
    cluster: LocalServer, fault: str, connections: list[EtcdConnection]
) -> None:
    """Its ephemeral values stay, no listener hears of a loss, and it is valid again in the end."""
    path, heard = f"/mine/{fault}", list[str]()
    with bk.open_store(
        cluster.url, connect_timeout=PATIENCE, session_timeout=LONG, operation_timeout=PATIENCE
    ) as store:
        store.add_session_listener(heard.append)
        store.put(path, b"1", ephemeral=True).result()
        session = store.session.id
        with Counting(store, f"/beside/{fault}") as counting:
            if fault == "killed leader":
                dead = cluster.kill_leader()
                counting.progress()
                cluster.start(dead)
            elif fault == "isolated member":
                cut = member_of(cluster, store, connections)
                cluster.isolate(cut)
                counting.progress()
                cluster.rejoin(cut)
            else:
                cluster.restart(member_of(cluster, store, connections))
            counting.progress()
        until(lambda: store.session.state == "connected")
        until(lambda: store.session.valid_until() > time.monotonic())
        stat = store.put(path, b"2").result()
        assert (store.session.id, stat.ephemeral, stat.owned, stat.version) == (
            session,
            True,
            True,
            1,
        )
        assert set(heard) <= {"connection_lost", "reconnected"}
    with bk.open_store(cluster.url, connect_timeout=PATIENCE) as other:

        def ended() -> bool:
            other.sync(PATIENCE)
            return not other.exists(path).result()

        until(ended, "it does not end with the store", within=LONG / 2)


def test_watches_go_on_with_another_leader(cluster: LocalServer, store: bk.MetadataStore) -> None:
    """Every change made by others is reported once and in order, or a gap stands in its place."""
    with (
        bk.open_store(cluster.url, connect_timeout=PATIENCE, session_timeout=LONG) as watching,
        watching.watch("/watched") as watch,
    ):
        for number in range(30):
            store.put(f"/watched/{number:02}", b"").result()
            if number == 10:
                dead = cluster.kill_leader()
        cluster.start(dead)
        store.put("/watched/last", b"").result()
        seen = []
        for event in watch:
            seen.append(event.path if event.kind == "created" else event.kind)
            if event.path == "/watched/last":
                break
            if event.kind == "gap":
                # A view is read again; later events come again.
                watching.sync(PATIENCE)
                if watching.exists("/watched/last").result():
                    break
    made = [name for name in seen if name != "gap"]
    assert made == sorted(set(made))
    assert "gap" in seen or len(made) == 31
