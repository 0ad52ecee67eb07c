"""Tables of keys with named fields, with the semantics of BookKeeper's MetaStore.

Each module ``async_x`` is for tasks, and the source of ``x``, which is for threads.

- ``versions``: versions of values
- ``errors``: the error of a record that cannot be read
- ``results``: what tables return, and what callers give them
- ``records``: values as bytes
- ``async_generations``: how a key is changed on ZooKeeper only as long as nobody else has
- ``generations``: the same for threads, generated
- ``async_states``: how a key is changed, on any store, only as long as nobody else has
- ``states``: the same for threads, generated
- ``async_watchers``: watchers of keys, each called once
- ``watchers``: the same for threads, generated
- ``rows``: the place of a key's record, how it is changed, and the errors that name the key
- ``async_writes``: executes changes of records
- ``writes``: the same for threads, generated
- ``async_shelves``: records read, merged and written, one by one or many together
- ``shelves``: the same for threads, generated
- ``async_cursors``: the keys and values of a table, page by page
- ``cursors``: the same for threads, generated
- ``async_tables``: tables, and the store of tables
- ``tables``: the same for threads, generated
"""

from .async_cursors import AsyncCursor
from .async_tables import AsyncMetaStore, AsyncScannableTable, AsyncTable
from .cursors import Cursor
from .errors import DamagedRecordError
from .results import Entry, EventType, Order, VersionedValue, Watcher
from .tables import MetaStore, ScannableTable, Table
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
