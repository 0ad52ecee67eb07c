"""A batching metadata client for etcd, ZooKeeper, RocksDB and memory.

::

    import batchkeeper as bk

    with bk.open_store("etcd://127.0.0.1:2379") as store:
        stat = store.put("/topics/t1", b"hub-1", expected_version=bk.ABSENT).result()
        found = store.get("/topics/t1").result()
        store.delete("/topics/t1", expected_version=stat.version).result()

Operations return futures at once and wait in bounded queues. The client sends them in batches: one
etcd transaction, one ZooKeeper multi or one RocksDB write batch for many operations.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Type checkers know the name; `typing` would have to be loaded.

if TYPE_CHECKING:
    from .batching import *
    from .coordination import *
    from .opening import *
    from .ops import *
    from .stores import Backend, RateLimit, StoreKind, StoreURL, parse_url, store_kind

    #: Whether hot functions run compiled. ``batchkeeper --version`` says why not.
    accelerated: bool
    __version__: str
else:
    from importlib import import_module

    # A name loads the part that has it when it is first used. So a program that uses a part of this
    # package starts without the others, and Ctrl-C ends the command while they are loaded.
    _PARTS = ("ops", "stores", "batching", "opening", "coordination")

    def __getattr__(name: str) -> object:
        if name == "accelerated":
            found = import_module(".ops.acceleration", __name__).ACCELERATED
        elif name == "__version__":
            found = import_module("importlib.metadata").version("batchkeeper")
        elif name in _PARTS:
            return import_module(f".{name}", __name__)
        elif name in __all__:
            parts = (import_module(f".{part}", __name__) for part in _PARTS)
            found = next(getattr(part, name) for part in parts if name in part.__all__)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "ABSENT",
    "accelerated",
    "Acl",
    "async_fenced",
    "AsyncBarrier",
    "AsyncCacheListener",
    "AsyncCounter",
    "AsyncDoubleBarrier",
    "AsyncElection",
    "AsyncElectionListener",
    "AsyncFencedStore",
    "AsyncGroup",
    "AsyncGroupListener",
    "AsyncJob",
    "AsyncLeaderWatch",
    "AsyncLock",
    "AsyncMembership",
    "AsyncMetadataCache",
    "AsyncMetadataStore",
    "AsyncPersistentEphemeral",
    "AsyncResultStream",
    "AsyncSemaphore",
    "AsyncView",
    "AsyncViewListener",
    "AsyncWatch",
    "AsyncWorkQueue",
    "AuthenticationError",
    "Backend",
    "BadVersionError",
    "Barrier",
    "Batch",
    "BatchingConfig",
    "bytes_serde",
    "CacheListener",
    "CacheResult",
    "Capability",
    "Change",
    "Check",
    "Conflict",
    "Counter",
    "Counts",
    "dataclass_serde",
    "Delete",
    "DoubleBarrier",
    "Election",
    "ElectionListener",
    "EndedBatch",
    "Exists",
    "fenced",
    "FencedStore",
    "ForeignKeys",
    "Get",
    "GetChildren",
    "GetResult",
    "Group",
    "GroupListener",
    "Histogram",
    "Hook",
    "IndeterminateError",
    "InvalidPathError",
    "InvalidSettingError",
    "Job",
    "json_serde",
    "LaneMetrics",
    "LeaderWatch",
    "Lock",
    "LockBusyError",
    "LockCancelledError",
    "LockLostError",
    "Member",
    "Membership",
    "MetadataCache",
    "MetadataStore",
    "MetadataStoreError",
    "Metrics",
    "msgspec_serde",
    "NOT_CACHED",
    "NotEmptyError",
    "NotFoundError",
    "open_async_store",
    "open_store",
    "Operation",
    "OperationTimeoutError",
    "Outcome",
    "OutcomeStream",
    "parse_url",
    "Participant",
    "PersistentEphemeral",
    "Put",
    "PutOptions",
    "QueueFullError",
    "Range",
    "RateLimit",
    "Result",
    "ResultStream",
    "RevisionCompactedError",
    "ScanPage",
    "ScanResult",
    "Semaphore",
    "Serde",
    "Session",
    "SessionChange",
    "SessionEvent",
    "SessionListener",
    "SessionLostError",
    "SessionState",
    "Stat",
    "StatPage",
    "store_kind",
    "StoreClosedError",
    "StoreKind",
    "StoreUnavailableError",
    "StoreURL",
    "Transaction",
    "TransactionRefusedError",
    "UnsupportedError",
    "ValueDecodeError",
    "ValueTooLargeError",
    "View",
    "ViewListener",
    "ViewSnapshot",
    "Watch",
    "WatchEvent",
    "WorkQueue",
    "Wrapper",
]
