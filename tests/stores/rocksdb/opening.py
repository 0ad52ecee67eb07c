"""Opens a back end on RocksDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batchkeeper.stores import ConnectOptions, parse_url
from batchkeeper.stores.rocksdb import connect
from batchkeeper.stores.rocksdb.database import Database


def opened(directory: Path, query: str = "", *, create: bool = True) -> Any:
    backend, _ = recorded(directory, query, create=create)
    return backend


def recorded(directory: Path, query: str = "", *, create: bool = True) -> tuple[Any, Database]:
    """Open a back end, and return it with its database, whose ``db`` a test can replace."""
    made: list[Database] = []

    def open_database(*args: Any) -> Database:
        made.append(Database(*args))
        return made[0]

    url = parse_url(f"rocksdb://{directory}{query}")
    return connect(url, ConnectOptions(create=create), open_database), made[0]
