"""Tables for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import batchkeeper as bk
from batchkeeper.hubs.tables import MetaStore, ScannableTable, Table
from batchkeeper.testing import FaultInjector


@pytest.fixture
def tables(store: bk.MetadataStore) -> Iterator[MetaStore]:
    """An empty store of tables, on each kind of store."""
    with MetaStore(store) as made:
        yield made


@pytest.fixture
def table(tables: MetaStore) -> ScannableTable:
    """An empty table, on each kind of store."""
    return tables.create_scannable_table("t")


@pytest.fixture
def faults() -> FaultInjector:
    """Faults of the store in memory, and a view of its requests."""
    return FaultInjector()


@pytest.fixture
def memory(fresh_url: Callable[[str], str], faults: FaultInjector) -> Iterator[bk.MetadataStore]:
    """An empty store in memory, with faults, whose operations have little time."""
    with bk.open_store(fresh_url("memory"), wrap=faults, operation_timeout=2.0) as store:
        yield store


@pytest.fixture
def tables_in_memory(memory: bk.MetadataStore) -> Iterator[MetaStore]:
    """An empty store of tables in memory."""
    with MetaStore(memory) as made:
        yield made


@pytest.fixture
def watched(tables_in_memory: MetaStore) -> Table:
    """An empty table in memory."""
    return tables_in_memory.create_table("t")
