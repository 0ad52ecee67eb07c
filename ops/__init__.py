"""The vocabulary of batchkeeper: operations, results, versions, paths and errors. No I/O.

- ``operations``: what a caller can ask of a store
- ``kinds``: the table of kinds: lane, whether it writes, results
- ``results``: what a store answers
- ``errors``: the tree of errors, each with its policy
- ``exit_codes``: which exit code an error gives a command
- ``paths``: the one path rule
- ``capabilities``: what a store can do beyond the operations that all have
- ``records``: lines of JSON to puts, and values to JSON
- ``backoff``: how long to wait before another attempt
- ``log``: where log events go
"""

from .capabilities import CAPABILITIES, Capability
from .errors import (
    AuthenticationError,
    BadVersionError,
    IndeterminateError,
    InvalidPathError,
    InvalidSettingError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    OperationTimeoutError,
    QueueFullError,
    RevisionCompactedError,
    SessionLostError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
    ValueTooLargeError,
)
from .operations import ABSENT, Delete, Exists, Get, GetChildren, Operation, Put
from .results import (
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
)

__all__ = [
    "ABSENT",
    "AuthenticationError",
    "BadVersionError",
    "CAPABILITIES",
    "Capability",
    "Change",
    "ChangePage",
    "Delete",
    "Exists",
    "ForeignKeys",
    "Get",
    "GetChildren",
    "GetResult",
    "IndeterminateError",
    "InvalidPathError",
    "InvalidSettingError",
    "MetadataStoreError",
    "NotEmptyError",
    "NotFoundError",
    "Operation",
    "OperationTimeoutError",
    "Outcome",
    "Put",
    "QueueFullError",
    "RevisionCompactedError",
    "Range",
    "Result",
    "ScanPage",
    "ScanResult",
    "SessionLostError",
    "Stat",
    "StatPage",
    "StoreClosedError",
    "StoreUnavailableError",
    "UnsupportedError",
    "ValueTooLargeError",
]
