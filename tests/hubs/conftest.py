"""Stores for the tests of hubs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import batchkeeper as bk


@pytest.fixture
def store(store_url: str) -> Iterator[bk.MetadataStore]:
    """An empty store of each kind."""
    with bk.open_store(store_url) as made:
        yield made
