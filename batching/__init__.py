"""The engine: bounded queues, batches, futures, settings and metrics, and the stores on top."""

from .async_store import AsyncMetadataStore
from .bulk import OutcomeStream
from .metrics import Counts, Histogram, LaneMetrics, Metrics
from .scans import AsyncResultStream, ResultStream
from .settings import BatchingConfig
from .store import MetadataStore

__all__ = [
    "AsyncMetadataStore",
    "AsyncResultStream",
    "BatchingConfig",
    "Counts",
    "Histogram",
    "LaneMetrics",
    "MetadataStore",
    "Metrics",
    "OutcomeStream",
    "ResultStream",
]
