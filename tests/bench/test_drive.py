"""Callers in a closed loop."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.bench.drive import Duration, drive
from batchkeeper.bench.readback import read_back
from batchkeeper.bench.workload import Workload, WrongAnswerError, hub_chains, put_chains

WORK = Workload(hubs=3, outstanding=10, topics=60)


@pytest.fixture
def url() -> Iterator[str]:
    name = f"memory://{uuid.uuid4().hex}"
    with bk.open_store(name):
        yield name


@pytest.mark.parametrize("threads", [1, 3])
def test_samples_are_of_the_timed_part_only(url: str, threads: int) -> None:
    """Each thread ends after its number of operations; the warm-up is in none of the figures."""
    with bk.open_store(url) as store:
        chains = hub_chains(WORK, "/hub")
        samples = drive(store, chains, Duration(60.0, 0.0, operations=200), threads)
    count = len(samples.reads) + len(samples.writes)
    # A turn takes in all that has ended, so the last one may bring more than was needed.
    assert 200 * threads <= count < 200 * threads + WORK.chains
    assert samples.rate > 0
    assert min(*samples.reads, *samples.writes) > 0
    ended = samples.after.reads.operations + samples.after.writes.operations
    before = samples.before.reads.operations + samples.before.writes.operations
    assert before >= WORK.chains
    assert ended - before >= count - WORK.chains


def test_the_time_ends_it(url: str) -> None:
    """Without a number of operations the timed part ends with its time."""
    with bk.open_store(url) as store:
        samples = drive(store, put_chains(WORK, "/p"), Duration(0.05, 0.0))
    assert samples.writes
    assert not samples.reads


@pytest.mark.parametrize("threads", [1, 3])
def test_afterwards_the_chains_know_what_the_store_holds(url: str, threads: int) -> None:
    """Queued operations are cancelled and sent ones waited for, so the read-back finds all right.

    One operation at a time is sent, so at the end nearly all of them are queued.
    """
    batching = bk.BatchingConfig(enabled=False, max_in_flight=1)
    chains = [*hub_chains(WORK, "/hub"), *put_chains(WORK, "/puts")]
    with bk.open_store(url, batching=batching) as store:
        drive(store, chains, Duration(60.0, 0.0, operations=20), threads)
        after = store.metrics()
        assert after.reads.queued == after.writes.queued == 0
    with bk.open_store(url) as store:
        assert read_back(store, chains, "/r") > WORK.topics


class FailingChain:
    """Gets a path a few times, and then says that the answer is wrong."""

    reading = True

    def __init__(self, good: int) -> None:
        self._left = good

    def submit(self, store: bk.MetadataStore) -> Future[Any]:
        return store.get("/x")

    def ended(self, future: Future[Any]) -> None:
        self._left -= 1
        if self._left < 0:
            raise WrongAnswerError("wrong: /x")

    def expected(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize("good", [0, 50])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_wrong_answer_ends_all_threads(url: str, threads: int, good: int) -> None:
    """One caller's failure, in the warm-up or later, ends the measurement with its own error."""
    chains = [FailingChain(10**9), FailingChain(10**9), FailingChain(good)]
    with bk.open_store(url) as store, pytest.raises(WrongAnswerError, match="wrong: /x"):
        drive(store, chains, Duration(0.2, 0.0), threads)
