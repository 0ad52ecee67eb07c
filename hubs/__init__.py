"""Message hubs: the metadata of topics, on the public face of a store.

- ``names``: names of topics, subscribers and keys as parts of paths
- ``errors``: the errors that only hubs have
- ``tables``: tables of keys with named fields, as BookKeeper's MetaStore has them
- ``ledgers``: a table of ledgers, as BookKeeper keeps them in a MetaStore
"""

from .errors import (
    IllegalOperationError,
    KeyExistsError,
    LedgerExistsError,
    NoKeyError,
    NoLedgerError,
)
from .ledgers import (
    AsyncLedgerCursor,
    AsyncLedgerListener,
    AsyncLedgerTable,
    Ledger,
    LedgerCallback,
    LedgerCursor,
    LedgerListener,
    LedgerMetadata,
    LedgerTable,
)
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
    "AsyncLedgerCursor",
    "AsyncLedgerListener",
    "AsyncLedgerTable",
    "AsyncMetaStore",
    "AsyncScannableTable",
    "AsyncTable",
    "Cursor",
    "Entry",
    "EventType",
    "IllegalOperationError",
    "KeyExistsError",
    "Ledger",
    "LedgerCallback",
    "LedgerCursor",
    "LedgerExistsError",
    "LedgerListener",
    "LedgerMetadata",
    "LedgerTable",
    "MetaStore",
    "NoKeyError",
    "NoLedgerError",
    "Order",
    "ScannableTable",
    "Table",
    "Version",
    "VersionedValue",
    "Watcher",
]
