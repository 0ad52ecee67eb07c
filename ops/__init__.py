"""The vocabulary of batchkeeper: operations, results, versions, paths and errors. No I/O.

- ``operations``: the operations that a caller can submit
- ``steps``: what a write does: a path, a condition and an effect
- ``kinds``: the table of kinds: lane, whether it writes, results
- ``results``: the results of operations, scans and bulk calls
- ``sessions``: the states and the events of a session
- ``errors``: the tree of errors, each with its policy
- ``exit_codes``: the exit codes of the commands, and the code for each error
- ``paths``: the path rule of all stores
- ``capabilities``: the features that some stores have beyond the operations of all
- ``json_lines``: turns lines of JSON into puts, and values into JSON
- ``serdes``: how values become bytes, and bytes become values
- ``durations``: durations as people write them
- ``acceleration``: chooses between hot functions and their compiled twins
- ``backoff``: how long to wait before another attempt
- ``log``: sends log events to the standard library's logging
"""

from .capabilities import CAPABILITIES, Capability
from .errors import (
    AuthenticationError,
    BadVersionError,
    IndeterminateError,
    InvalidPathError,
    InvalidSettingError,
    LockBusyError,
    LockCancelledError,
    LockLostError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    OperationTimeoutError,
    QueueFullError,
    RevisionCompactedError,
    SessionLostError,
    StoreClosedError,
    StoreUnavailableError,
    TransactionRefusedError,
    UnsupportedError,
    ValueDecodeError,
    ValueTooLargeError,
)
from .operations import (
    ABSENT,
    Check,
    Delete,
    Exists,
    Get,
    GetChildren,
    Operation,
    Put,
    PutOptions,
    Transaction,
)
from .results import (
    Acl,
    Change,
    ChangePage,
    ForeignKeys,
    GetResult,
    Outcome,
    Range,
    Result,
    ScanPage,
    ScanResult,
    Stat,
    StatPage,
    WatchEvent,
)
from .sessions import SessionEvent, SessionState

__all__ = [
    "ABSENT",
    "CAPABILITIES",
    "Acl",
    "AuthenticationError",
    "BadVersionError",
    "Capability",
    "Change",
    "ChangePage",
    "Check",
    "Delete",
    "Exists",
    "ForeignKeys",
    "Get",
    "GetChildren",
    "GetResult",
    "IndeterminateError",
    "InvalidPathError",
    "InvalidSettingError",
    "LockBusyError",
    "LockCancelledError",
    "LockLostError",
    "MetadataStoreError",
    "NotEmptyError",
    "NotFoundError",
    "Operation",
    "OperationTimeoutError",
    "Outcome",
    "Put",
    "PutOptions",
    "QueueFullError",
    "Range",
    "Result",
    "RevisionCompactedError",
    "ScanPage",
    "ScanResult",
    "SessionEvent",
    "SessionLostError",
    "SessionState",
    "Stat",
    "StatPage",
    "StoreClosedError",
    "StoreUnavailableError",
    "Transaction",
    "TransactionRefusedError",
    "UnsupportedError",
    "ValueDecodeError",
    "ValueTooLargeError",
    "WatchEvent",
]
