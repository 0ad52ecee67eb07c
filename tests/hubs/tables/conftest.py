"""Tables for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import batchkeeper as bk
from batchkeeper.hubs.tables import MetaStore, ScannableTable


@pytest.fixture
def tables(store: bk.MetadataStore) -> Iterator[MetaStore]:
    """An empty store of tables, on each kind of store."""
    with MetaStore(store) as made:
        yield made


@pytest.fixture
def table(tables: MetaStore) -> ScannableTable:
    """An empty table, on each kind of store."""
    return tables.create_scannable_table("t")
