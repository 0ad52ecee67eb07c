"""A minute of the whole contract on clusters of three members, with one fault after the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchkeeper.testing.servers import LocalServer

from ..clusters import three_members
from .test_contract_histories import ContractRun

pytestmark = [pytest.mark.soak, pytest.mark.server]

SECONDS = 60.0


@pytest.fixture(params=["etcd", "zookeeper"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalServer]:
    """A cluster of three members of each kind."""
    with three_members(request.param, tmp_path) as running:
        yield running


def strike(cluster: LocalServer, dice: random.Random) -> None:
    """Let one fault happen to one member, and end it."""

    def kill() -> None:
        dead = cluster.kill_leader()
        time.sleep(dice.uniform(0.0, 4.0))
        cluster.start(dead)

    def for_a_while(begin: Callable[[int], Any], end: Callable[[int], Any], member: int) -> None:
        begin(member)
        try:
            time.sleep(dice.uniform(0.1, 6.0))
        finally:
            end(member)

    leader = cluster.leader()
    member = dice.choice([leader, dice.randrange(len(cluster.members))])
    dice.choice(
        [
            kill,
            lambda: cluster.restart(member),
            lambda: for_a_while(cluster.pause, cluster.resume, member),
            lambda: for_a_while(cluster.isolate, cluster.rejoin, member),
            lambda: for_a_while(
                lambda member: cluster.isolate(member, clients=True), cluster.rejoin, member
            ),
        ]
    )()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_cluster_with_faults_without_end(cluster: LocalServer, seed: int) -> None:
    """Every answer, event, suffix and ephemeral value can be explained, whatever happens."""
    dice = random.Random(seed)
    url = f"{cluster.url}/soak"
    with ContractRun(url, url, session_timeout=4.0, pace=0.0) as run:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            strike(cluster, dice)
            run.progress(dice.randrange(50, 500))
