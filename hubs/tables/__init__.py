"""Tables of keys with named fields, with the semantics of BookKeeper's MetaStore.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``versions``: versions of values
- ``errors``: the error of a record that cannot be read
- ``results``: the results of tables, and the types of arguments
- ``records``: values as bytes
- ``async_generations``: conditional changes of a key on ZooKeeper
- ``async_states``: conditional changes of a key on any store
- ``async_watchers``: one-shot watchers of keys
- ``rows``: the location of a key's record, its changes, and the errors that name the key
- ``async_writes``: executes changes of records
- ``async_shelves``: reads, merges and writes records, singly or in batches
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
