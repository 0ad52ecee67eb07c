"""Tables of keys with named fields, with the semantics of BookKeeper's MetaStore.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``versions``: versions of values
- ``errors``: the error of a record that cannot be read
- ``results``: what tables return, and what callers give them
- ``records``: values as bytes
- ``async_generations``: how a key is changed on ZooKeeper only as long as nobody else has
- ``async_states``: how a key is changed, on any store, only as long as nobody else has
- ``async_watchers``: watchers of keys, each called once
- ``rows``: the place of a key's record, how it is changed, and the errors that name the key
- ``async_writes``: executes changes of records
- ``async_shelves``: records read, merged and written, one by one or many together
- ``async_cursors``: the keys and values of a table, page by page
- ``async_tables``: tables, and the store of tables
"""

from ._sync.cursors import Cursor
from ._sync.tables import MetaStore, ScannableTable, Table
from .async_cursors import AsyncCursor
from .async_tables import AsyncMetaStore, AsyncScannableTable, AsyncTable
from .errors import DamagedRecordError
from .results import Entry, EventType, Order, VersionedValue, Watcher
from .versions import Version

__all__ = [
    "AsyncCursor",
    "AsyncMetaStore",
    "AsyncScannableTable",
    "AsyncTable",
    "Cursor",
    "DamagedRecordError",
    "Entry",
    "EventType",
    "MetaStore",
    "Order",
    "ScannableTable",
    "Table",
    "Version",
    "VersionedValue",
    "Watcher",
]
