"""A back end on RocksDB, and its directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchkeeper.stores.rocksdb.database import Database

from .opening import recorded


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def pair(directory: Path) -> Iterator[tuple[Any, Database]]:
    """A back end and its database."""
    pair = recorded(directory)
    yield pair
    pair[0].close()


@pytest.fixture
def backend(pair: tuple[Any, Database]) -> Any:
    """The back end of the pair."""
    return pair[0]


@pytest.fixture
def database(pair: tuple[Any, Database]) -> Database:
    """The database of the pair."""
    return pair[1]
