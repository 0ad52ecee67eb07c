"""Errors specific to hubs. All other errors are those of the store."""

from __future__ import annotations

from ..ops.errors import MetadataStoreError

__all__ = [
    "AccessDeniedError",
    "HubsRegisteredError",
    "IllegalOperationError",
    "KeyExistsError",
    "LayoutError",
    "LedgerExistsError",
    "NoHubError",
    "NoKeyError",
    "NoLedgerError",
    "NoSubscriptionStateError",
    "NoTopicOwnerInfoError",
    "NoTopicPersistenceInfoError",
    "StaleEpochError",
    "SubscriberReplacedError",
    "SubscriptionStateExistsError",
    "TooManyRedirectsError",
    "TopicLostError",
    "TopicOwnerInfoExistsError",
    "TopicPersistenceInfoExistsError",
]


class IllegalOperationError(MetadataStoreError, ValueError):
    """A key, value, version or range is invalid. Nothing was sent."""


class NoKeyError(MetadataStoreError):
    """The table has no such key."""


class KeyExistsError(MetadataStoreError):
    """The table has the key already, so it cannot be created."""


class NoLedgerError(NoKeyError):
    """There is no ledger with this id."""


class LedgerExistsError(KeyExistsError):
    """There is a ledger with this id already."""


class NoTopicOwnerInfoError(NoKeyError):
    """The topic has no owner info."""


class TopicOwnerInfoExistsError(KeyExistsError):
    """The topic has owner info already, so it cannot be created."""


class NoTopicPersistenceInfoError(NoKeyError):
    """The topic has no persistence info."""


class TopicPersistenceInfoExistsError(KeyExistsError):
    """The topic has persistence info already, so it cannot be created."""


class NoSubscriptionStateError(NoKeyError):
    """The topic has no such subscription."""


class SubscriptionStateExistsError(KeyExistsError):
    """The topic has the subscription already, so it cannot be created."""


class LayoutError(MetadataStoreError):
    """The metadata at a path has another layout, or a layout that this program does not know."""


class HubsRegisteredError(MetadataStoreError):
    """Hubs are still registered, so their metadata is not removed."""


class NoHubError(MetadataStoreError):
    """No hub can take a topic: no hub is alive and eligible, or all such hubs are draining."""

    retriable = True


class AccessDeniedError(MetadataStoreError):
    """The access rules deny the action, or the deciding rule is damaged."""


class TopicLostError(MetadataStoreError):
    """This hub does not serve the topic, or no longer does. Another hub may: ask again."""

    retriable = True


class StaleEpochError(MetadataStoreError):
    """Another hub has since become the owner of the topic. Nothing was written."""


class SubscriberReplacedError(MetadataStoreError):
    """The subscriber has subscribed again, and gets its messages through the new connection."""


class TooManyRedirectsError(MetadataStoreError):
    """Hubs keep redirecting the client, and none of them takes the topic."""

    retriable = True
