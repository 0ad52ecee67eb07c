"""A minute of 64 threads on each store, with one fault after the other; for `tox -e soak`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk

from .checker import check, explain
from .history import Op
from .nemesis import Nemesis, server_to_hurt
from .recorder import Client, Workers
from .victim import Victim

pytestmark = pytest.mark.soak

SECONDS = 60.0
PATHS = [f"/s/{number}" for number in range(64)]


@pytest.fixture(params=["etcd", "zookeeper"])
def nemesis(
    request: pytest.FixtureRequest, tmp_path: Path, proxy: Callable[[str], Any]
) -> Iterator[Nemesis]:
    """A server of each kind, and what may happen to it."""
    with server_to_hurt(request.param, tmp_path) as server:
        yield Nemesis(server, proxy(server.address))


def strike(nemesis: Nemesis, dice: random.Random) -> None:
    """Let one of all faults happen."""

    def kill(seconds: float) -> None:
        nemesis.kill()
        time.sleep(seconds)
        nemesis.restart()

    dice.choice(
        [
            lambda: kill(0.0),
            lambda: kill(dice.uniform(0.0, 6.0)),
            lambda: nemesis.isolate(dice.uniform(0.5, 6.0)),
            lambda: nemesis.pause(dice.uniform(0.1, 2.0)),
            lambda: nemesis.pause(dice.uniform(5.0, 7.0)),
            nemesis.lose_answers,
            nemesis.lose_requests,
            nemesis.cut,
        ]
    )()


@pytest.mark.parametrize("seed", [1, 2])
def test_faults_without_end(nemesis: Nemesis, seed: int) -> None:
    """Four stores, two of them with short timeouts, and one fault after the other."""
    dice = random.Random(seed)
    history: list[Op] = []
    workers = Workers(history, pace=0.0)
    timeouts = {"a": (60.0, 30.0), "b": (60.0, 2.0), "c": (4.0, 1.0)}
    stores = [
        bk.open_store(nemesis.url, operation_timeout=operation, session_timeout=session)
        for operation, session in timeouts.values()
    ]
    try:
        for store, chain in zip(stores, timeouts, strict=True):
            client = Client(store, chain, history)
            workers.start(client, PATHS, threads=16)
            workers.start(client, PATHS, threads=5, depth=20)
        workers.start_tasks(lambda: bk.open_async_store(nemesis.url), "d", PATHS, tasks=8)
        workers.progress(500)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            strike(nemesis, dice)
            workers.progress(dice.randrange(50, 2000))
    finally:
        workers.stop()
        for store in stores:
            store.close()
    with bk.open_store(nemesis.server.url) as last:
        client = Client(last, "last", history)
        assert all(client.ask(bk.Get(path)).outcome == "done" for path in PATHS)
    violations = check(history)
    assert not violations, explain(violations)
    assert any(op.outcome == "unknown" for op in history if op.chain == "c")


def test_processes_killed_without_end(tmp_path: Path) -> None:
    """RocksDB's process killed for a minute: acknowledged writes are there, and in order."""
    url = f"rocksdb://{tmp_path / 'db'}"
    dice = random.Random(1)
    history: list[Op] = []
    until = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < until:
        number += 1
        with Victim(url, f"v{number}", PATHS) as victim:
            victim.progress(dice.randrange(100, 5000))
            victim.kill()
        history += victim.history
    with bk.open_store(url) as last:
        client = Client(last, "last", history)
        assert all(client.ask(bk.Get(path)).outcome == "done" for path in PATHS)
    violations = check(history)
    assert not violations, explain(violations)
    assert any(op.outcome == "unknown" for op in history)
