"""The rate limit, on a clock of the test's own."""

from __future__ import annotations

import pytest

from batchkeeper.ops import InvalidSettingError
from batchkeeper.pipeline.options import SourceOptions
from batchkeeper.pipeline.throttle import Throttle, TokenBucket, rate_of


class Clock:
    """A clock that advances only by sleeping on it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_a_rate_is_kept_from_the_first_operation_on() -> None:
    """A hundred operations at fifty a second take two seconds, and come in their order."""
    clock = Clock()
    throttle = Throttle(50.0, clock=clock, sleep=clock.sleep)
    assert list(throttle.pace(range(100))) == list(range(100))
    assert clock.slept == pytest.approx(2.0)


def test_a_rate_below_one_is_kept() -> None:
    """One operation in ten seconds is a rate, too."""
    clock = Clock()
    throttle = Throttle(0.1, clock=clock, sleep=clock.sleep)
    list(throttle.pace(range(3)))
    assert clock.slept == pytest.approx(30.0)


def test_a_pause_is_not_made_up_for() -> None:
    """After an idle hour, only the operations of a tenth of a second go together."""
    clock = Clock()
    throttle = Throttle(100.0, clock=clock, sleep=clock.sleep)
    list(throttle.pace(range(1)))
    clock.now += 3600.0
    before = clock.slept
    list(throttle.pace(range(10)))
    assert clock.slept == before
    list(throttle.pace(range(100)))
    assert clock.slept - before == pytest.approx(1.0)


def test_slow_operations_do_not_wait_on_top() -> None:
    """Operations that come more slowly than the rate do not wait."""
    bucket = TokenBucket(10.0, 0.0)
    assert [bucket.take(now) for now in (1.0, 2.0, 3.0)] == [0.0, 0.0, 0.0]


def test_a_task_takes_its_part_of_the_rate() -> None:
    """The rate of a job is divided by rate_tasks; a directory is written by one task."""
    etcd, rocksdb = "etcd://127.0.0.1", "rocksdb:///somewhere"
    assert rate_of(SourceOptions(url=etcd)) is None
    assert rate_of(SourceOptions(url=etcd, rate_tasks=4)) is None
    assert rate_of(SourceOptions(url=etcd, rate_limit=100.0, rate_tasks=4)) == 25.0
    assert rate_of(SourceOptions(url=rocksdb, rate_limit=100.0)) == 100.0
    assert rate_of(SourceOptions(url=rocksdb, rate_limit=100.0, rate_tasks=4)) == 100.0


def test_a_rate_without_a_number_of_tasks_is_refused() -> None:
    """If the parallelism cannot be read, the error names the missing option."""
    with pytest.raises(InvalidSettingError, match="pass rate_tasks, too"):
        rate_of(SourceOptions(url="etcd://127.0.0.1", rate_limit=100.0))
