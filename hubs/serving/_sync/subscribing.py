# Made from async_subscribing.py by `python tools/faces.py`: change that file, and run this command.
"""Connects and removes the subscribers of the topics that a hub serves.

For each subscriber of a topic, one call at a time connects it or removes its subscription, in order
of arrival. So no subscriber is connected without a subscription. Each write of a subscription takes
effect only while the hub owns the topic. If the store refuses the write for that reason, the topic
is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ....coordination._sync.key_locks import KeyLocks
from ....ops.errors import MetadataStoreError, TransactionRefusedError, check_conflict
from ...errors import NoSubscriptionStateError, SubscriptionStateExistsError, TopicLostError
from ...managers._sync.marks import ConsumeMarks
from ...managers._sync.subscribers import SubscriptionDataManager
from ...managers.data import (
    MessageSeqId,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
)
from ...names import escaped, name_text
from ...tables import Version
from ..messages import Attempt, SubscribeMode
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
        lose: loses a topic that has another owner, and returns the error for the caller.
    """

    def __init__(
        self,
        topics: ServedTopics,
        subscriptions: SubscriptionDataManager,
        marks: ConsumeMarks,
        window: int,
        lose: Callable[[OwnedTopic], TopicLostError],
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._marks = marks
        self._window = window
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
            TopicLostError: the hub no longer owns the topic.
            MetadataStoreError: a request has failed.
        """
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
            self._subscriptions.delete_subscription_data(
                name, subscriber, Version.ANY, beside=(topic.claim.check,)
            )
        except NoSubscriptionStateError:
            return False
        except TransactionRefusedError as error:
            check_conflict(error)
            raise self._lose(topic) from error
        finally:
            self._key_locks.unlock(key)
        return True

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
        window = self._window
        if data.preferences is not None and data.preferences.message_window_size:
            window = data.preferences.message_window_size

        name = topic.claim.topic

        def mark(number: int) -> None:
            try:
                self._marks.consumed(name, subscriber, MessageSeqId(number))
            finally:
                # Since the subscriber has said so. Nobody else would take the mark out of line.
                if self._topics.get(name) is None:
                    self._marks.forget(name, subscriber)

        return topic.subscribe(subscriber, position, window, mark, attempt)

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
