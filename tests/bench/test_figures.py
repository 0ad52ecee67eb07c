"""Histograms of latencies."""

from __future__ import annotations

from array import array

import pytest

from batchkeeper.bench.figures import histogram, percentiles


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
