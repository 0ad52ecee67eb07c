"""Reading back finds every acknowledged write, and removing below a root leaves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import batchkeeper as bk
from batchkeeper.bench.drive import Duration, drive
from batchkeeper.bench.readback import read_back, remove_below
from batchkeeper.bench.workload import (
    Chain,
    Expected,
    Workload,
    WrongAnswerError,
    hub_chains,
    put_chains,
)

WORK = Workload(hubs=2, outstanding=10, topics=40)


def worked_on(store: bk.MetadataStore) -> list[Chain]:
    chains: list[Chain] = [*hub_chains(WORK, "/b/hub"), *put_chains(WORK, "/b/puts")]
    drive(store, chains, Duration(60.0, 0.0, operations=400))
    return chains


def first(chains: list[Chain], which: Callable[[Expected], bool]) -> Expected:
    return next(item for chain in chains for item in chain.expected() if which(item))


def test_what_was_acknowledged_is_found(store_url: str) -> None:
    """On every store, everything that was acknowledged to the chains is there afterwards."""
    with bk.open_store(store_url) as store:
        chains = worked_on(store)
        assert read_back(store, chains, "/b") == sum(
            len(list(chain.expected())) for chain in chains
        )


@pytest.mark.parametrize("below", ["/owners/", "/marks/", "/puts/"])
def test_a_lost_write_is_named(fresh_url: Callable[[str], str], below: str) -> None:
    """One path that is missing among all of them fails the check, by its name."""
    with bk.open_store(fresh_url("memory")) as store:
        chains = worked_on(store)
        lost = first(chains, lambda item: below in item.path and item.value is not None)
        store.delete(lost.path).result()
        with pytest.raises(WrongAnswerError, match=f"but missing: {lost.path}$"):
            read_back(store, chains, "/b")


@pytest.mark.parametrize("below", ["/owners/", "/marks/", "/puts/"])
def test_a_wrong_value_is_named(fresh_url: Callable[[str], str], below: str) -> None:
    """One value that differs from what was acknowledged fails the check."""
    with bk.open_store(fresh_url("memory")) as store:
        chains = worked_on(store)
        wrong = first(chains, lambda item: below in item.path and item.value is not None)
        store.put(wrong.path, b"wrong").result()
        with pytest.raises(WrongAnswerError, match=f"but holds b'wrong': {wrong.path}$"):
            read_back(store, chains, "/b")


def test_a_drop_that_was_undone_is_named(fresh_url: Callable[[str], str]) -> None:
    """An ownership that was dropped and is there again fails the check as well."""
    with bk.open_store(fresh_url("memory")) as store:
        chains = worked_on(store)
        dropped = first(chains, lambda item: "/owners/" in item.path and item.value is None)
        store.put(dropped.path, b"back").result()
        with pytest.raises(WrongAnswerError, match=f"deleted, but still at .*: {dropped.path}$"):
            read_back(store, chains, "/b")


def test_removing_leaves_nothing_of_the_bench(store_url: str) -> None:
    """On every store, all paths below the root are removed, and no others."""
    with bk.open_store(store_url) as store:
        store.put("/bench", b"").result()
        store.put("/kept/x", b"").result()
        worked_on(store)
        remove_below(store, "/b")
        assert store.get_children("/").result() == ["bench", "kept"]
