"""The metadata of topics: their owners, their ledgers and their subscriptions.

Each module ``async_x`` is for tasks, and the source of ``x``, which is for threads.

- ``data``: the values, and how they are stored
- ``async_topics``: the managers of topic ownership and of topic persistence info
- ``topics``: the same for threads, generated
- ``async_subscribers``: the manager of subscriptions
- ``subscribers``: the same for threads, generated
- ``async_marks``: consume marks, kept with few writes
- ``marks``: the same for threads, generated
- ``async_placements``: where the metadata of topics is
- ``placements``: the same for threads, generated
- ``layouts``: the record that says which of these places a region has: pure functions
- ``async_factory``: the managers of a region
- ``factory``: the same for threads, generated
"""

from .async_factory import AsyncMetadataManagers, async_format_metadata, async_open_managers
from .async_marks import AsyncConsumeMarks
from .async_subscribers import AsyncSubscriptionDataManager
from .async_topics import AsyncTopicOwnershipManager, AsyncTopicPersistenceManager
from .data import (
    HubInfo,
    HubLoad,
    LedgerRange,
    LedgerRanges,
    MessageSeqId,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
    Versioned,
)
from .factory import MetadataManagers, format_metadata, open_managers
from .layouts import Layout
from .marks import ConsumeMarks
from .subscribers import SubscriptionDataManager
from .topics import TopicOwnershipManager, TopicPersistenceManager

__all__ = [
    "AsyncConsumeMarks",
    "AsyncMetadataManagers",
    "AsyncSubscriptionDataManager",
    "AsyncTopicOwnershipManager",
    "AsyncTopicPersistenceManager",
    "ConsumeMarks",
    "HubInfo",
    "HubLoad",
    "Layout",
    "LedgerRange",
    "LedgerRanges",
    "MessageSeqId",
    "MetadataManagers",
    "SubscriptionData",
    "SubscriptionDataManager",
    "SubscriptionPreferences",
    "SubscriptionState",
    "TopicOwnershipManager",
    "TopicPersistenceManager",
    "Versioned",
    "async_format_metadata",
    "async_open_managers",
    "format_metadata",
    "open_managers",
]
