"""The metadata of topics: their owners, their ledgers and their subscriptions.

Each module ``async_x`` is for tasks, and the source of ``_sync/x``, which is for threads.

- ``data``: the values, and how they are stored
- ``async_topics``: the managers of topic ownership and of topic persistence info
- ``async_subscribers``: the manager of subscriptions
- ``async_marks``: consume marks, stored with few writes
- ``async_placements``: where the metadata of topics is stored
- ``layouts``: the record that names the layout of a region: pure functions
- ``async_factory``: the managers of a region
"""

from ._sync.factory import MetadataManagers, format_metadata, open_managers
from ._sync.marks import ConsumeMarks
from ._sync.subscribers import SubscriptionDataManager
from ._sync.topics import TopicOwnershipManager, TopicPersistenceManager
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
from .layouts import Layout

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
