"""A back end on RocksDB, and its directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .opening import opened


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(directory: Path) -> Iterator[Any]:
    store = opened(directory)
    yield store
    store.close()
