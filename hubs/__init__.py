"""Message hubs: the metadata of topics, on the public face of a store.

- ``names``: names of topics, subscribers and keys as parts of paths
- ``errors``: the errors that only hubs have
- ``tables``: tables of keys with named fields, as BookKeeper's MetaStore has them
"""

from .errors import IllegalOperationError, KeyExistsError, NoKeyError
from .tables import (
    AsyncCursor,
    AsyncMetaStore,
    AsyncScannableTable,
    AsyncTable,
    Cursor,
    Entry,
    EventType,
    MetaStore,
    Order,
    ScannableTable,
    Table,
    Version,
    VersionedValue,
    Watcher,
)

__all__ = [
    "AsyncCursor",
    "AsyncMetaStore",
    "AsyncScannableTable",
    "AsyncTable",
    "Cursor",
    "Entry",
    "EventType",
    "IllegalOperationError",
    "KeyExistsError",
    "MetaStore",
    "NoKeyError",
    "Order",
    "ScannableTable",
    "Table",
    "Version",
    "VersionedValue",
    "Watcher",
]
