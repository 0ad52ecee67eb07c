"""What a sweep asks its processes to measure, and in which order."""

from __future__ import annotations

import array
from collections.abc import Callable

import pytest

from batchkeeper.bench.load.callers import Pace
from batchkeeper.bench.load.job import Job
from batchkeeper.bench.load.mixes import Keys, Mix
from batchkeeper.bench.load.parts import Part, encoded
from batchkeeper.bench.load.processes import LocalCrew
from batchkeeper.bench.results.runs import Run
from batchkeeper.bench.sweep import Sweep, batching_variants, measure, planned
from batchkeeper.bench.target import Target
from batchkeeper.stores import parse_url

ROUNDS = 8


class Crew(LocalCrew):
    """Notes the jobs, and measures nothing."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.broken_at: int | None = None

    def measure(self, job: Job) -> list[Part]:
        self.jobs.append(job)
        none = encoded(array.array("q"))
        broken = "no server" if len(self.jobs) == self.broken_at else None
        return [Part(1.0, 9, 0, none, none, 0, {}, 0.1, 1, (), 0, 0, broken=broken)]


def swept(crew: Crew, url: str) -> Run:
    mix = Mix("one", "of one kind", {"get": 1.0}, keys=Keys(count=1))
    variants = batching_variants({"max_ops": [2, 4]})
    sweep = Sweep(mix, variants, Pace(), seed=5, rounds=ROUNDS)
    target = Target("memory", parse_url(url), "/bench", None, 10.0)
    run = planned(sweep, command=(), conditions={})
    measure(target, sweep, crew, lambda *_: None, run)
    return run


@pytest.fixture
def url(fresh_url: Callable[[str], str]) -> str:
    return fresh_url("memory")


def test_each_round_has_its_own_dice_and_order(url: str) -> None:
    """Within a round, all variants get the same operations; none always comes first."""
    crew = Crew()
    run = swept(crew, url)
    count = len(run.variants)
    by_round = [crew.jobs[at : at + count] for at in range(0, ROUNDS * count, count)]
    assert [{job.seed for job in jobs} for jobs in by_round] == [{5 + n} for n in range(ROUNDS)]
    orders = {tuple(job.root.rpartition("-")[2] for job in jobs) for jobs in by_round}
    assert len(orders) > 1
    assert len({job.root for job in crew.jobs}) == len(crew.jobs)


def test_a_measurement_that_ends_early_ends_the_run(url: str) -> None:
    """The earlier measurements stay, and the run says why."""
    crew = Crew()
    crew.broken_at = 6
    run = swept(crew, url)
    assert len(crew.jobs) == 6
    assert sum(len(variant.rounds) for variant in run.variants) == 6
    assert run.broken is not None
    assert run.broken.endswith(", round 2: no server")
