"""Figures out of samples."""

from __future__ import annotations

import math
from array import array

import pytest

from batchkeeper import LaneMetrics, Metrics
from batchkeeper.bench.figures import (
    Batches,
    Figure,
    batches_between,
    histogram,
    percentiles,
    ratio,
)


def test_percentiles_are_those_of_the_samples() -> None:
    """Of 1 to 10,000 microseconds p50 is 5,000 and p99 9,900, within HdrHistogram's 0.1 %."""
    found = histogram(
        array("q", range(1_000, 5_000_001, 1_000)), array("q", range(5_001_000, 10_000_001, 1_000))
    )
    assert found.get_total_count() == 10_000
    assert percentiles(found) == {
        "p50": pytest.approx(0.005, rel=0.001),
        "p95": pytest.approx(0.0095, rel=0.001),
        "p99": pytest.approx(0.0099, rel=0.001),
        "max": pytest.approx(0.01, rel=0.001),
    }


def test_extreme_latencies_are_counted() -> None:
    """Less than a microsecond counts as one, and more than an hour as an hour: none gets lost."""
    found = histogram(array("q", [0, 999, 7200 * 10**9]))
    assert found.get_total_count() == 3
    assert percentiles(found)["p50"] == pytest.approx(1e-6)
    assert percentiles(found)["max"] == pytest.approx(3600, rel=0.001)


def test_no_samples_give_zeros() -> None:
    """A phase without reads has percentiles of 0, and no error."""
    assert set(percentiles(histogram()).values()) == {0.0}


def test_a_figure_has_its_median_and_its_ends() -> None:
    """The median of the rounds is reported with the least and the greatest."""
    figure = Figure((3.0, 1.0, 8.0))
    assert (figure.median, figure.low, figure.high) == (3.0, 1.0, 8.0)


def test_ratios_compare_medians_and_rounds() -> None:
    """The ratio is that of the medians; its range is of ratios within one round."""
    found = ratio(Figure((10.0, 40.0, 30.0)), Figure((1.0, 2.0, 10.0)))
    assert (found.median, found.low, found.high) == (15.0, 3.0, 20.0)


def test_a_ratio_to_nothing_is_infinite() -> None:
    """A ratio to a base of zero is infinite, and no division by zero."""
    assert ratio(Figure((1.0,)), Figure((0.0,))).median == math.inf


def lane(batches: int, operations: int, **causes: int) -> LaneMetrics:
    return LaneMetrics(0, 0, 0, batches, operations, 0, causes)


def test_batches_between_snapshots_are_of_all_lanes() -> None:
    """Reads, writes and singles are added up, less what was there before."""
    before = Metrics(lane(1, 5, idle=1), lane(2, 20, ops=2), lane(0, 0), 0, 0, {})
    after = Metrics(lane(2, 9, idle=2), lane(5, 50, ops=3, delay=2), lane(4, 4, ops=4), 0, 0, {})
    found = batches_between(before, after)
    assert (found.batches, found.operations) == (8, 38)
    assert found.causes == {"idle": 1, "ops": 5, "delay": 2}
    assert found.size == 38 / 8


def test_batches_of_rounds_add_up() -> None:
    """The size of a batch over several rounds is the average of all their batches."""
    total = Batches.total([Batches(1, 10, {"ops": 1}), Batches(3, 2, {"ops": 1, "idle": 2})])
    assert total == Batches(4, 12, {"ops": 2, "idle": 2})
    assert Batches.total([]).size == 0.0
