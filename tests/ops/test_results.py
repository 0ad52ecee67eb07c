"""Pages of scans: results in columns, and back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batchkeeper.ops.results import ScanPage, ScanResult, Stat, StatPage

RESULTS = [
    ScanResult("/a", b"1", Stat("/a", 0, 5, 10, 20, False, False)),
    ScanResult("/b", b"", Stat("/b", 3, 6, 11, None, True, True)),
    ScanResult("/c", b"3", Stat("/c", 1, 7, None, 22, True, False)),
]


@pytest.mark.parametrize("results", [RESULTS, RESULTS[1:], []], ids=len)
def test_a_page_gives_back_its_results(results: Sequence[ScanResult]) -> None:
    """Each field of a stat is a column of a page, under its own name, and comes out unchanged."""
    page = ScanPage.of(results)
    assert [*page] == results
    assert [page[place] for place in range(len(page))] == results
    assert all(type(found) is ScanResult and type(found.stat) is Stat for found in page)
    assert [*page.ephemeral] == [stat.ephemeral for _, _, stat in results]
    assert ScanPage.of(page) is page


@pytest.mark.parametrize("results", [RESULTS, RESULTS[1:], []], ids=len)
def test_a_page_without_values_gives_back_its_stats(results: Sequence[ScanResult]) -> None:
    """Its columns are those of the page with values, and its items are stats."""
    stats = [stat for _, _, stat in results]
    page, full = StatPage.of(stats), ScanPage.of(results)
    assert [*page] == stats
    assert [page[place] for place in range(len(page))] == stats
    assert all(type(stat) is Stat for stat in page)
    assert page.values is None
    for name in ("paths", "versions", "revisions", "ephemeral", "created", "modified", "owned"):
        assert list(getattr(page, name) or ()) == list(getattr(full, name) or ())


def test_what_a_store_keeps_none_of_is_none() -> None:
    """Without times and owners, there are none in the results."""
    assert [*StatPage(["/a"], [2], [9], [True])] == [Stat("/a", 2, 9, None, None, True, False)]
    page = ScanPage(["/a"], [b"x"], [2], [9], [True])
    assert [*page] == [ScanResult("/a", b"x", Stat("/a", 2, 9, None, None, True, False))]
