"""The contract, stated once: every test here runs on all stores, with batching on and off.

The folder is also the package ``batchkeeper.testing.conformance``. So the modules here import only
helpers that ``batchkeeper.testing`` has, too, and use no fixtures but these and ``store_url``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import batchkeeper as bk


@pytest.hookimpl(trylast=True)  # after the parameters are set
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run a test on the stores that have what it needs, and not twice where once shows the same."""
    # The option is of this project's own runs; those on other stores take everything.
    everything = config.getoption("full", True)
    taken, left_out = [], []
    for item in items:
        wanted = not _lacks(item) and (everything or _shows_more(item))
        (taken if wanted else left_out).append(item)
    if left_out:
        items[:] = taken
        config.hook.pytest_deselected(items=left_out)


def _lacks(item: pytest.Item) -> bool:
    needed = {name for mark in item.iter_markers("needs") for name in mark.args}
    if not needed or "store_url" not in _parameters(item):
        return False
    given = _parameters(item)["store_url"]  # the name of a kind, or a URL
    url = given if "://" in given else f"{given}://"
    return not needed <= bk.store_kind(url).capabilities


def _shows_more(item: pytest.Item) -> bool:
    """Whether a test shows what its runs on the other stores do not.

    The size of a batch changes the engine's work and no store's answer, so single execution runs
    in memory; and what the call decides (``call``) runs there once.
    """
    given = _parameters(item)
    in_memory = given.get("store_url", "memory") == "memory"
    batched: bool = given.get("batching", True)
    if item.get_closest_marker("call"):
        return in_memory and batched
    return in_memory or batched


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


@pytest.fixture(params=[True, False], ids=["batched", "single"])
def batching(request: pytest.FixtureRequest) -> bk.BatchingConfig:
    """The settings with batching on, and with batching off."""
    return bk.BatchingConfig(enabled=request.param)


@pytest.fixture
def store(store_url: str, batching: bk.BatchingConfig) -> Iterator[bk.MetadataStore]:
    """An empty store of each kind."""
    with bk.open_store(store_url, batching=batching) as opened:
        yield opened


@pytest.fixture
def on_zookeeper(store_url: str) -> bool:
    """Whether the store is on ZooKeeper, the kind with the two exceptions."""
    return bk.store_kind(store_url).parents_count


@pytest.fixture
def one_opener(store_url: str) -> bool:
    """Whether only one client at a time can have the store open."""
    return bk.store_kind(store_url).local_directory


@pytest.fixture
def another(
    store: bk.MetadataStore, store_url: str, batching: bk.BatchingConfig, one_opener: bool
) -> Iterator[Callable[[], bk.MetadataStore]]:
    """Open another client of the same store. It is the store itself if only one can have it open.

    Tests of what other clients do then still hold, because they say nothing about who does it.
    """
    with ExitStack() as stack:

        def open_another() -> bk.MetadataStore:
            if one_opener:
                return store
            return stack.enter_context(bk.open_store(store_url, batching=batching))

        yield open_another


@pytest.fixture
def successor(
    store: bk.MetadataStore, store_url: str, batching: bk.BatchingConfig, one_opener: bool
) -> Iterator[Callable[[], bk.MetadataStore]]:
    """Close the store, which ends its session, and return a client that has it open after that."""
    with ExitStack() as stack:

        def open_next() -> bk.MetadataStore:
            if one_opener:
                store.close()
            # Elsewhere, the other is there before: a store in memory ends with its last client.
            opened = stack.enter_context(bk.open_store(store_url, batching=batching))
            store.close()
            return opened

        yield open_next
