# Made from async_subscribing.py by `python tools/faces.py`: change that file, and run this command.
"""Connects and removes the subscribers of the topics that a hub serves.

For each subscriber of a topic, one call at a time connects it or removes its subscription, in order
of arrival. So no subscriber is connected without a subscription. Each write of a subscription takes
effect only while the hub owns the topic. If the store refuses the write for that reason, the topic
is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from ....coordination._sync.key_locks import KeyLocks
from ....ops.errors import (
    BadVersionError,
    MetadataStoreError,
    TransactionRefusedError,
    check_conflict,
)
from ...errors import (
    IllegalOperationError,
    NoSubscriptionStateError,
    SubscriptionStateExistsError,
    TopicLostError,
)
from ...managers._sync.marks import ConsumeMarks
from ...managers._sync.subscribers import SubscriptionDataManager
from ...managers.data import (
    MessageSeqId,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
)
from ...names import escaped, name_text
from ...tables import DamagedRecordError, Version
from ..messages import Attempt, Message, MessageFilter, SubscribeMode
from .owned import OwnedTopic, Subscription
from .served import ServedTopics

__all__ = ["Subscribing"]


class Subscribing:
    """Connects subscribers to topics, and removes subscriptions.

    Args:
        topics: the topics that the hub serves.
        subscriptions: the manager of the stored subscriptions.
        marks: the consume marks.
        window: the limit of delivered, unconsumed messages of a subscriber, unless its preferences
            set another one.
        filters: the filters that preferences may name.
        lose: loses a topic that has another owner, and returns the error for the caller.
    """

    def __init__(
        self,
        topics: ServedTopics,
        subscriptions: SubscriptionDataManager,
        marks: ConsumeMarks,
        window: int,
        filters: Mapping[str, MessageFilter],
        lose: Callable[[OwnedTopic], TopicLostError],
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._marks = marks
        self._window = window
        self._filters = filters
        self._lose = lose
        self._key_locks = KeyLocks()  # for each subscriber of a topic

    def connect(
        self,
        topic: OwnedTopic,
        subscriber: str,
        mode: SubscribeMode,
        preferences: SubscriptionPreferences | None,
        attempt: Attempt | None,
    ) -> Subscription:
        """Connect a subscriber. Its previous connection ends.

        Raises:
            SubscriberReplacedError: a later attempt has already connected the subscriber.
            SubscriptionStateExistsError: the mode is ``"create"``, and the subscription exists.
            NoSubscriptionStateError: the mode is ``"attach"``, and there is no subscription.
            IllegalOperationError: the preferences name a filter that this hub does not have.
            TopicLostError: the hub no longer owns the topic.
            MetadataStoreError: a request has failed.
        """
        self._filter(topic, preferences)
        key = _key(topic.claim.topic, subscriber)
        self._key_locks.lock(key)
        try:
            return self._connect(topic, subscriber, mode, preferences, attempt)
        except TransactionRefusedError as error:
            check_conflict(error)  # Otherwise, the epoch has ended.
            raise self._lose(topic) from error
        finally:
            self._key_locks.unlock(key)

    def remove(self, topic: OwnedTopic, subscriber: str | bytes) -> bool:
        """Remove a subscription, and end its connection; return whether it existed.

        Raises:
            TopicLostError: the hub no longer owns the topic.
            MetadataStoreError: a request has failed.
        """
        name, who = topic.claim.topic, name_text(subscriber)
        key = _key(name, who)
        self._key_locks.lock(key)
        try:
            topic.unsubscribe(who)
            self._marks.forget(name, who)
            version = Version.ANY
            while True:
                try:
                    self._subscriptions.delete_subscription_data(
                        name, subscriber, version, beside=(topic.claim.check,)
                    )
                except DamagedRecordError as error:
                    version = error.at
                except BadVersionError:  # Another client has replaced the damaged record.
                    version = Version.ANY
                else:
                    return True
        except NoSubscriptionStateError:
            return False
        except TransactionRefusedError as error:
            check_conflict(error)
            raise self._lose(topic) from error
        finally:
            self._key_locks.unlock(key)

    def _connect(
        self,
        topic: OwnedTopic,
        subscriber: str,
        mode: SubscribeMode,
        preferences: SubscriptionPreferences | None,
        attempt: Attempt | None,
    ) -> Subscription:
        """Connect a subscriber. The caller has locked it, so no other call removes it meanwhile."""
        data = self._subscribed(topic, subscriber, mode, preferences)
        position = 0 if data.state is None else data.state.mark.local
        wanted = data.preferences or SubscriptionPreferences()
        keep = self._filter(topic, wanted)
        name = topic.claim.topic

        def mark(number: int) -> None:
            try:
                self._marks.consumed(name, subscriber, MessageSeqId(number))
            except TransactionRefusedError as error:
                check_conflict(error)  # Otherwise, the epoch has ended.
                raise self._lose(topic) from error
            finally:
                # Since the subscriber has said so. Nobody else would take the mark out of line.
                if self._topics.get(name) is None:
                    self._marks.forget(name, subscriber)

        subscription = topic.subscribe(
            subscriber,
            position,
            wanted.message_window_size or self._window,
            mark,
            attempt,
            wanted.message_bound or None,
            keep,
        )
        if data.state is not None:
            self._marks.set_stored(name, subscriber, data.state.mark)
            if self._topics.get(name) is None:
                self._marks.forget(name, subscriber)
        return subscription

    def _filter(
        self, topic: OwnedTopic, preferences: SubscriptionPreferences | None
    ) -> Callable[[Message], bool] | None:
        """Return the function that chooses the messages of a subscriber; ``None`` for all."""
        if preferences is None or preferences.message_filter is None:
            return None
        name, options = preferences.message_filter, preferences.options
        chosen = self._filters.get(name)
        if chosen is None:
            raise IllegalOperationError(
                f"the preferences name the message filter {name!r:.200}, which this hub does not "
                "have: give it to all hubs of the region as one of their filters"
            )

        def keep(message: Message) -> bool:
            try:
                return chosen(message, options)
            except Exception as error:
                raise MetadataStoreError(
                    f"the message filter {name!r:.200} has failed with {type(error).__name__} for "
                    f"message {message.number} of topic {topic.claim.topic!r:.200}"
                ) from error

        return keep

    def _subscribed(
        self,
        topic: OwnedTopic,
        subscriber: str,
        mode: SubscribeMode,
        preferences: SubscriptionPreferences | None,
    ) -> SubscriptionData:
        """Create or read a subscription, depending on the mode; return its stored data."""
        subscriptions = self._subscriptions
        name, beside = topic.claim.topic, (topic.claim.check,)
        with suppress(MetadataStoreError):  # Without it, more is redelivered.
            self._marks.flush(name, subscriber)
        while True:
            if mode != "attach":
                data = SubscriptionData(preferences, SubscriptionState(MessageSeqId(topic.last)))
                try:
                    subscriptions.create_subscription_data(name, subscriber, data, beside=beside)
                except SubscriptionStateExistsError:
                    if mode == "create":
                        raise
                else:
                    return data
            try:
                if preferences is not None:
                    subscriptions.update_subscription_data(
                        name,
                        subscriber,
                        SubscriptionData(preferences),
                        Version.ANY,
                        beside=beside,
                    )
                found = subscriptions.read_subscription_data(name, subscriber)
            except NoSubscriptionStateError:
                found = None
            if found is not None:
                return found.value
            if mode == "attach":
                raise NoSubscriptionStateError(
                    f"topic {name!r:.200} has no subscriber {subscriber!r:.200}"
                )


def _key(topic: str, subscriber: str) -> str:
    return f"{escaped(topic)}/{escaped(subscriber)}"
