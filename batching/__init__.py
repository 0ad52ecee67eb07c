"""The engine: bounded queues, batches, futures, settings and metrics, and the stores on top.

- ``entry``: one operation in the engine, and its states: read this first
- ``lines``: the order of operations that share a path
- ``accumulator``: decides the content and the time of the next batch: a pure object
- ``lane``: a bounded queue with its batches and senders
- ``queues``: decides under the engine's lock: the place of each operation, and which goes next
- ``restoring``: makes all of it consistent again after Ctrl-C has interrupted a decision
- ``engine``: the threads and the lock: submitting, sending, deadlines, closing
- ``senders``: starts the threads that send, and makes up for those that cannot start
- ``epochs``: the operations that a flush waits for
- ``execution``: one request at the back end, and its errors
- ``futures``: the future of an entry, and done-callbacks
- ``metrics``: the snapshot that ``metrics()`` returns
- ``hooks``: informs the application about batches, conflicts and sessions
- ``attachments``: what ends with a store
- ``recording``: counts for it, a batch at a time
- ``settings``: ``BatchingConfig``, validated
- ``checks``: refuses bad operations before they are queued
- ``async_store``: the store for tasks, and the source of ``_sync/store``, which is for threads
- ``async_store_base``: how the calls of tasks reach the engine
- ``store_base``: how the calls of threads reach it
- ``bulk``: many operations in, their outcomes out
- ``scans``: scans and splits, in the caller's thread or on others for a task
- ``changes``: the history of changes, likewise
- ``facets``: the optional parts of a back end, for callers that may use them
- ``feeds``: the events of a watch, between the back end and the caller, who may be slow
- ``values``: watches whose events have values
- ``table``: the contents of a view: a pure object
- ``async_views``: the view of the values below a path, which a watch keeps current
- ``async_watches``: the watch that tasks hold
- ``watches``: the watch that threads hold
- ``async_listeners``: calls functions of an application at events
- ``async_background``: background work, for tasks
- ``background``: the same for threads, written by hand
- ``sessions``: the session that callers hold, and its listeners
- ``lifetime``: forks, and the end of the interpreter
- ``reentry``: calls that a signal handler or a finalizer makes in the middle of other code
"""

from ._sync.store import MetadataStore
from ._sync.views import View, ViewListener
from .async_store import AsyncMetadataStore
from .async_views import AsyncView, AsyncViewListener
from .async_watches import AsyncWatch
from .bulk import OutcomeStream
from .hooks import Batch, Conflict, EndedBatch, Hook, SessionChange
from .metrics import Counts, Histogram, LaneMetrics, Metrics
from .scans import AsyncResultStream, ResultStream
from .sessions import Session, SessionListener
from .settings import BatchingConfig
from .table import ViewSnapshot
from .watches import Watch

__all__ = [
    "AsyncMetadataStore",
    "AsyncResultStream",
    "AsyncView",
    "AsyncViewListener",
    "AsyncWatch",
    "Batch",
    "BatchingConfig",
    "Conflict",
    "Counts",
    "EndedBatch",
    "Histogram",
    "Hook",
    "LaneMetrics",
    "MetadataStore",
    "Metrics",
    "OutcomeStream",
    "ResultStream",
    "Session",
    "SessionChange",
    "SessionListener",
    "View",
    "ViewListener",
    "ViewSnapshot",
    "Watch",
]
