"""Reports: their counts, the rows that they name, and the values that they leave out."""

from __future__ import annotations

import pickle

import pytest

from batchkeeper.batching.metrics import OPERATIONS, Distribution
from batchkeeper.pipeline.row_report import Report, RowCounts, RowOutcome, add_histograms


def some(*outcomes: RowOutcome, seconds: list[float], resent: int = 0) -> Report:
    tally = RowCounts()
    tally.add(outcomes, seconds, resent)
    return tally.report()


def test_reports_add_up() -> None:
    """The sum of reports has the counts, times and resent rows of both; order of rows is kept."""
    one = some(
        RowOutcome("/a", "ok", 0),
        RowOutcome("/b", "conflict", None, "at version 3"),
        seconds=[0.001, 0.5],
        resent=1,
    )
    other = some(RowOutcome("/c", "ok", 4), RowOutcome("/d", "not_found"), seconds=[2.0, 0.001])
    total = Report.total([one, other])
    assert total.counts == {"ok": 2, "conflict": 1, "not_found": 1}
    assert (total.rows, total.failed, total.resent) == (4, 1, 1)
    assert total.seconds.count == 4
    assert total.seconds.max == 2.0
    assert total.seconds.sum == pytest.approx(2.502)
    assert [row.path for row in total.failed_rows] == ["/b"]
    assert pickle.loads(pickle.dumps(total)) == total


def test_a_report_names_ten_rows() -> None:
    """Of many failed rows the first ten are named, in a sum of reports too; all are counted."""
    failed = [RowOutcome(f"/{n}", "error", None, "no") for n in range(25)]
    total = some(*failed[:4], seconds=[]) + some(*failed[4:], seconds=[])
    assert [row.path for row in total.failed_rows] == [f"/{n}" for n in range(10)]
    assert total.failed == 25
    assert str(total).splitlines()[1] == "  '/0': error: no"
    assert str(total).splitlines()[-1] == "  and 15 more"


def test_a_report_is_told_in_one_line() -> None:
    """Counts come in the order of the statuses, with the times; an empty report says so."""
    assert str(Report()) == "0 rows"
    told = str(some(RowOutcome("/n", "not_found"), RowOutcome("/a", "ok", 1), seconds=[0.1, 0.1]))
    assert told.startswith("2 rows: 1 ok, 1 not_found; seconds a row: ")
    assert "\n" not in told


def test_histograms_of_other_buckets_do_not_add_up() -> None:
    """Adding histograms with different buckets is an error, not a wrong figure."""
    with pytest.raises(ValueError, match="different buckets"):
        add_histograms(Report().seconds, Distribution(OPERATIONS).snapshot())
