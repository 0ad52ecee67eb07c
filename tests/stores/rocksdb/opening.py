"""Opens a back end on RocksDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batchkeeper.stores import ConnectOptions, connect


def opened(directory: Path, query: str = "", *, create: bool = True) -> Any:
    return connect(f"rocksdb://{directory}{query}", ConnectOptions(create=create))
