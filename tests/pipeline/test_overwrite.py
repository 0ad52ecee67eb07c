"""Which values an overwrite deletes, and which it keeps, on every store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchkeeper import MetadataStore, StoreUnavailableError, open_store
from batchkeeper.pipeline import overwrite
from batchkeeper.pipeline.overwrite import await_revision, delete_older
from batchkeeper.pipeline.row_report import RowsFailedError


@pytest.fixture
def store(store_url: str) -> Iterator[MetadataStore]:
    with open_store(store_url) as opened:
        yield opened


def paths(store: MetadataStore) -> list[str]:
    return [found.path for found in store.scan("/")]


def put(store: MetadataStore, *paths: str) -> None:
    for future in [store.put(path, b"value") for path in paths]:
        future.result()


def test_what_is_older_goes_and_what_is_newer_stays(store: MetadataStore) -> None:
    """Only values under the prefix that have not changed since the revision are deleted."""
    put(store, "/t/gone", "/t/kept", "/t/deep/er", "/to", "/other")
    before = store.revision()
    put(store, "/t/kept", "/t/new", "/other/new")
    assert delete_older(store, "/t", before) == 2
    assert paths(store) == ["/other", "/other/new", "/t/kept", "/t/new", "/to"]


def test_values_above_others_go_after_them(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values above other values are deleted, too, at any depth and in any group of deletes."""
    monkeypatch.setattr(overwrite, "_TOGETHER", 2)
    put(store, "/t", "/t/a", "/t/a/b", "/t/a/b/c", "/t/a-b", "/t/a-b/c", "/t/z")
    assert delete_older(store, "/t", store.revision()) == 7
    assert paths(store) == []


def test_an_older_value_above_newer_ones_is_an_error(store: MetadataStore) -> None:
    """No store deletes a path with values below it: the error says so, and the rest is deleted."""
    put(store, "/t/a", "/t/b", "/t/b/old")
    before = store.revision()
    put(store, "/t/a/new")
    with pytest.raises(RowsFailedError, match="'/t/a': there are newer values below it") as caught:
        delete_older(store, "/t", before)
    assert "1 older values could not be deleted" in str(caught.value)
    assert paths(store) == ["/t/a", "/t/a/new"]


def test_what_others_change_meanwhile_stays(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that changes between the read and the delete stays as it is."""
    put(store, "/t/a", "/t/b", "/t/c")
    before = store.revision()
    scan = store.scan_pages

    def scan_then_change(prefix: str, **more: Any) -> Iterator[object]:
        yield from scan(prefix, **more)
        put(store, "/t/a")
        store.delete("/t/b").result()

    monkeypatch.setattr(store, "scan_pages", scan_then_change)
    delete_older(store, "/t", before)
    monkeypatch.undo()
    assert paths(store) == ["/t/a"]


def test_a_task_whose_clock_is_behind_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits until its values count as newer, or writes nothing."""
    with open_store("memory://behind") as store:
        await_revision(store, store.revision(), 0.0)
        revisions = iter([7, 8, 9])
        monkeypatch.setattr(store, "revision", lambda: next(revisions))
        await_revision(store, 9, 60.0)
        monkeypatch.setattr(store, "revision", lambda: 4)
        with pytest.raises(StoreUnavailableError, match="is 5 behind"):
            await_revision(store, 9, 0.0)
