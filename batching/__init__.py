"""The engine: bounded queues, batches, futures, settings and metrics, and the stores on top."""

from .async_store import AsyncMetadataStore
from .bulk import OutcomeStream
from .metrics import LaneMetrics, Metrics
from .settings import BatchingConfig
from .store import MetadataStore

__all__ = [
    "AsyncMetadataStore",
    "BatchingConfig",
    "LaneMetrics",
    "MetadataStore",
    "Metrics",
    "OutcomeStream",
]
