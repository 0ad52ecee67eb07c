"""The metadata of ledgers in a table, as BookKeeper keeps it in a MetaStore.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``metadata``: the results, keys and values of the table
- ``async_listening``: listeners of a ledger
- ``async_ledgers``: the table of ledgers
"""

from ._sync.ledgers import LedgerCursor, LedgerTable
from ._sync.listening import LedgerListener
from .async_ledgers import AsyncLedgerCursor, AsyncLedgerTable
from .async_listening import AsyncLedgerListener
from .metadata import Ledger, LedgerCallback, LedgerMetadata

__all__ = [
    "AsyncLedgerCursor",
    "AsyncLedgerListener",
    "AsyncLedgerTable",
    "Ledger",
    "LedgerCallback",
    "LedgerCursor",
    "LedgerListener",
    "LedgerMetadata",
    "LedgerTable",
]
