"""A minute of locks, and what stands on them, on clusters with one fault after the other."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchkeeper.testing.servers import LocalServer

from ..clusters import three_members
from .checker import explain
from .test_coordination_histories import SESSION, CoordinationRun
from .test_soak_contract import strike

pytestmark = [pytest.mark.soak, pytest.mark.server]

SECONDS = 60.0


@pytest.fixture(params=["etcd", "zookeeper"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalServer]:
    """A cluster of three members of each kind."""
    with three_members(request.param, tmp_path) as running:
        yield running


def strike_process(run: CoordinationRun, dice: random.Random) -> None:
    """Stop a process for a while, or kill it and start another one."""
    member = dice.choice([member for member in run.members if member.running])
    if dice.random() < 0.3:
        member.kill()
        run.add(member.url)
        return
    member.pause()
    time.sleep(dice.uniform(0.1, 3.0) * SESSION)
    member.go_on()


@pytest.mark.parametrize("seed", [1, 2])
def test_processes_and_a_cluster_with_faults_without_end(cluster: LocalServer, seed: int) -> None:
    """Every hold, write, number, read and job can be explained, whatever happens."""
    dice = random.Random(seed)
    with CoordinationRun([cluster.url + "/soak"] * 4, cluster.url + "/soak") as run:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if dice.random() < 0.5:
                strike(cluster, dice)
            else:
                strike_process(run, dice)
            run.progress(dice.randrange(1, 4))
    assert not run.violations, explain(run.violations)
