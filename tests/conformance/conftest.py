"""The contract, stated once: every test here runs on all stores, with batching on and off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import batchkeeper as bk


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
