"""One measurement: keys are made, operations drawn and counted, answers checked, all read back."""

from __future__ import annotations

import dataclasses
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.bench.load.callers import Pace
from batchkeeper.bench.load.job import Job, perform, share
from batchkeeper.bench.load.mixes import KINDS, Keys, Mix, Values, load_mix
from batchkeeper.bench.load.parts import Part, merged
from batchkeeper.bench.load.peers import PEERS, Peer
from batchkeeper.bench.load.processes import opened_crew
from batchkeeper.bench.load.work import Work
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.stores import memory
from batchkeeper.stores.backend import Answer, Backend, PassingBackend, Request
from batchkeeper.stores.registry import ConnectOptions, StoreURL, parse_url, store_kind
from batchkeeper.testing.servers import SERVERS, ZooKeeperServer

from ...proxy import Proxy

pytestmark = pytest.mark.slow

#: All kinds of operations, on few keys.
EVERYTHING = Mix(
    "everything",
    "all kinds of operations",
    dict.fromkeys(KINDS, 0.125),
    keys=Keys(count=60, distribution="zipf", folder=8),
    values=Values(bytes=20),
    conflicts=0.2,
)
SHORT = Pace(in_flight=40, seconds=0.2, warm_up=0.02)
LOOPS = {
    "one thread": SHORT,
    "three threads": dataclasses.replace(SHORT, threads=3),
    "tasks": dataclasses.replace(SHORT, tasks=True),
    "a slow rate": dataclasses.replace(SHORT, rate=1000.0),
    "a fast rate": dataclasses.replace(SHORT, rate=30_000.0, threads=2),
    "a rate of tasks": dataclasses.replace(SHORT, rate=1000.0, tasks=True),
}


def job(url: str, **changes: Any) -> Job:
    defaults: dict[str, Any] = {
        "connect_timeout": 10.0,
        "root": "/bench",
        "batching": bk.BatchingConfig(),
        "peer": None,
        "mix": EVERYTHING,
        "pace": SHORT,
    }
    return Job(url, **{**defaults, **changes})


def measured(found: Job) -> Part:
    return perform(found, lambda: None)


@pytest.fixture
def kept(fresh_url: Callable[[str], str]) -> Any:
    """The URL of a store in memory that lasts as long as the test."""
    url = fresh_url("memory")
    with bk.open_store(url):
        yield url


@pytest.mark.parametrize(
    ("store", "loop"),
    [
        *(("memory", loop) for loop in LOOPS),
        ("rocksdb", "three threads"),
        *(pytest.param(name, "three threads", marks=pytest.mark.server) for name in SERVERS),
    ],
)
def test_every_kind_of_operation_in_every_loop(
    store: str, loop: str, fresh_url: Callable[[str], str]
) -> None:
    """Answers are as predicted, and everything is there afterwards; on every store, too."""
    store_url = fresh_url(store)
    with ExitStack() as stack:
        if store_kind(parse_url(store_url)).in_process:
            stack.enter_context(bk.open_store(store_url))  # It ends with its last client.
        part = measured(job(store_url, pace=LOOPS[loop]))
    assert part.broken is None
    assert part.errors == {}
    assert part.answers_checked > 0
    # The keys of the beginning, at least, and the ephemeral ones, which are gone.
    assert part.paths_read_back >= 60 + 16


@pytest.mark.parametrize("total", [0, 2, 10, 12])
def test_shares_make_the_whole(total: int) -> None:
    """However many share, and though some get one more."""
    shares = [share(total, number, 3) for number in range(3)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_wrong_versions_are_refused_and_counted(kept: str) -> None:
    """Of the conditional operations, the share that the mix asks for; none of the warm-up."""
    mix = dataclasses.replace(EVERYTHING, operations={"get": 0.5, "update": 0.5}, conflicts=0.5)
    # At least a second, so that a slow machine executes enough of them for a share.
    pace = dataclasses.replace(SHORT, seconds=1.0, warm_up=2 * SHORT.seconds)
    part = measured(job(kept, mix=mix, pace=pace))
    assert part.operations > 100
    assert 0.15 < part.conflicts / part.operations < 0.35
    assert part.errors == {}


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_does_the_same(name: str, fresh_url: Callable[[str], str]) -> None:
    """The other clients of a store execute the same load, and what they write is read back."""
    peer: Peer = PEERS[name]
    pace = dataclasses.replace(SHORT, in_flight=peer.in_flight or 200, threads=peer.threads)
    mix = dataclasses.replace(EVERYTHING, keys=Keys(count=640, folder=8))
    part = measured(job(fresh_url(peer.scheme), batching=None, peer=name, pace=pace, mix=mix))
    assert part.errors == {}
    assert part.operations > 0
    assert part.paths_read_back >= 640


def test_the_same_seed_gives_the_same_operations() -> None:
    """Whoever repeats a run submits the same, however fast the store answers."""

    def calls(seed: int) -> list[Any]:
        done: list[Any] = []

        def note(name: str) -> Callable[..., None]:
            return lambda *arguments, **options: done.append((name, arguments, options))

        store = SimpleNamespace(
            **{name: note(name) for name in ("get", "put", "delete", "get_children", "transaction")}
        )
        work = Work(EVERYTHING, "/r", 60, seed)
        list(work.first_puts())
        for _ in range(300):
            _, call, arguments = work.draw(store)
            call(*arguments)
        return done

    assert calls(1) == calls(1)
    assert calls(1) != calls(2)


class Forgetful(PassingBackend):
    """A back end that acknowledges some puts, at a fixed interval, without executing them."""

    every = 1
    seen = 0

    def write(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]:
        answers: list[Answer | None] = []
        kept = []
        for request in requests:
            # The loss of an ephemeral value shows only while its session lasts.
            putting = request.kind == "put" and "/hubs/" not in request.path
            type(self).seen += putting
            if putting and self.seen % self.every == 0:
                version = (request.expected_version or 0) + 1 if request.expected_version else 0
                answers.append(bk.Stat(request.path, version, 1))
            else:
                answers.append(None)
                kept.append(request)
        found = iter(super().write(kept, deadline) if kept else ())
        return [next(found) if answer is None else answer for answer in answers]


@pytest.mark.parametrize("mix", ["hub", "bulk-load", "ledger"])
def test_one_lost_write_in_ten_thousand_fails(
    mix: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is acknowledged and lost is found by a later answer, or at the end."""
    honest = memory.connect

    def connect(url: StoreURL, options: ConnectOptions) -> Backend:
        return Forgetful(honest(url, options))

    monkeypatch.setattr(memory, "connect", connect)
    monkeypatch.setattr(Forgetful, "every", 10_000)
    monkeypatch.setattr(Forgetful, "seen", 4_000)

    def until_it_is_lost() -> None:
        while Forgetful.seen < 10_000:
            measured(job(kept, root=f"/bench/{Forgetful.seen}", mix=load_mix(mix)))

    with pytest.raises(WrongAnswerError, match="/bench/"):
        until_it_is_lost()
    assert Forgetful.seen >= 10_000


def test_an_ephemeral_value_that_stays_is_found(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the client is closed, its ephemeral values must be gone."""
    monkeypatch.setattr("batchkeeper.bench.load.job._GRACE", 0.1)
    put = bk.MetadataStore.put

    def persistent(store: Any, *arguments: Any, **options: Any) -> Any:
        return put(store, *arguments, **{**options, "ephemeral": False})

    monkeypatch.setattr(bk.MetadataStore, "put", persistent)
    with pytest.raises(WrongAnswerError, match=r"deleted, but still at version 0: .*/hubs/"):
        measured(job(kept))


def test_what_a_full_queue_refuses_is_counted(kept: str) -> None:
    """With ``on_full="raise"``, refused calls are errors by kind, and their keys stay known."""
    batching = bk.BatchingConfig(read_queue_size=1, write_queue_size=1, on_full="raise")
    part = measured(job(kept, batching=batching))
    assert part.errors["QueueFullError"] > 0
    assert part.answers_checked > 0
    assert part.broken is None


@pytest.mark.parametrize("loop", ["one thread", "tasks", "a slow rate"])
def test_a_store_that_goes_away_ends_the_measurement(
    loop: str, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with what there was, marked as broken, and with the reason."""
    monkeypatch.setattr("batchkeeper.bench.load.callers._PATIENCE", 0.3)
    monkeypatch.setattr("batchkeeper.bench.load.job._OPERATION_TIMEOUT", 1.0)
    proxy = Proxy(zookeeper_server.address)
    try:
        cut = threading.Timer(0.4, proxy.close)
        pace = dataclasses.replace(LOOPS[loop], seconds=20.0)
        url = f"zookeeper://{proxy.address}/{uuid.uuid4().hex}"
        part = perform(job(url, pace=pace), cut.start)
        cut.join()
    finally:
        proxy.close()
    assert part.broken is not None
    assert part.broken.startswith("the store has gone: ")
    assert part.operations > 0
    assert part.seconds < 20


def test_processes_share_the_load(fresh_url: Callable[[str], str]) -> None:
    """Each has keys of its own; their counts and latencies are those of one measurement."""
    url = fresh_url("etcd")
    assert not store_kind(parse_url(url)).in_process
    with opened_crew(2) as crew:
        first = crew.measure(job(url, root="/bench/1", pace=dataclasses.replace(SHORT, rate=500.0)))
        second = crew.measure(job(url, root="/bench/2"))
    together = merged(first, 3, 500.0)
    assert len(first) == len(second) == 2
    assert together.round == 3
    assert together.latencies["all"].count == sum(part.operations for part in first)
    assert together.latencies["all"].percentiles["p50"] > 0
    assert together.paths_read_back >= 2 * 30


def test_a_failure_in_one_process_ends_all(fresh_url: Callable[[str], str]) -> None:
    """The error of one of them is raised here, and the others stop waiting for it."""
    url = fresh_url("etcd")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"etcd://127.0.0.1:{closed.getsockname()[1]}"
    with opened_crew(2) as crew:
        with pytest.raises(bk.StoreUnavailableError):
            crew.measure(job(nowhere, connect_timeout=0.3))
        assert len(crew.measure(job(url))) == 2


def test_a_rate_that_is_too_high_is_not_reached(kept: str) -> None:
    """Operations due and not started are counted, and latencies count from when it was due."""
    part = measured(job(kept, pace=dataclasses.replace(SHORT, rate=10_000_000.0)))
    assert part.not_started > 0
    found = merged([part], 0, 10_000_000.0)
    assert found.rate < 10_000_000
    assert found.latencies["all"].percentiles["p99"] > 0.02
