# async:
# `_sync/hub.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""A hub: it owns topics, accepts and delivers their messages, and hands them over.

This module is the public face of a hub. It checks requests, and connects the parts. Each part has
one task, and knows only the parts above it in this list:

- ``async_served``: the topics that the hub serves, and their locks
- ``async_listeners``: the callbacks for topics that the hub gets and loses
- ``async_holding``: claims, releases and loses topics
- ``async_lookup``: finds the hub that serves a topic
- ``async_subscribing``: connects subscribers, and removes subscriptions
- ``async_upkeep``: the background work

The first two send no requests, and exist from the beginning. The others need the registration of
the hub in its region, and are created when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Self

from ...batching import AsyncMetadataStore
from ...batching.async_background import AsyncGate, AsyncSignal, async_finish
from ...coordination.async_kinds import async_check_face
from ...ops.errors import InvalidSettingError, MetadataStoreError
from ...ops.log import get_logger
from ...ops.paths import check_path
from ..errors import IllegalOperationError, StaleEpochError, TopicLostError
from ..managers.async_factory import async_open_managers
from ..managers.async_marks import AsyncConsumeMarks
from ..managers.data import HubInfo, HubLoad, SubscriptionPreferences
from ..managers.layouts import Layout
from ..names import name_text
from ..topics.async_access import AsyncAccessRules
from ..topics.async_hosts import AsyncHosts, AsyncRegistration
from ..topics.async_ownership import async_open_ownership
from ..topics.region import Claim
from .async_holding import AsyncHolding
from .async_listeners import AsyncListeners, TopicCallback
from .async_logs import AsyncLogs
from .async_lookup import AsyncLookup
from .async_owned import AsyncOwnedTopic, AsyncSubscription
from .async_served import AsyncServedTopics
from .async_subscribing import AsyncSubscribing
from .async_upkeep import AsyncUpkeep
from .errors import check_message
from .messages import Attempt, MessageFilter, Published, Redirect, SubscribeMode
from .settings import HubSettings

__all__ = ["AsyncTopicHub", "TopicCallback"]

log = get_logger("batchkeeper.hubs")


class AsyncTopicHub:
    """A hub of a region. Start it, and stop it; it is also a context manager that does both.

    Any number of threads or tasks can share one hub. Give each hub a store of its own: everything
        the hub owns ends with the session of that store.

    Args:
        store: the store, with ``"ephemerals"``, ``"transactions"`` and ``"watches"``.
        region: the path of the region.
        address: where clients reach this hub, such as ``"hub-1:4080"``.
        logs: the logs of the messages.
        settings: the settings of the hub.
        layout: the layout of the metadata; see ``open_managers``.
        filters: the filters that subscribers may name in their preferences. All hubs of a region
            should have the same.

    Raises:
        InvalidPathError: the path is not valid.
        InvalidSettingError: an argument is of another kind, such as one of the other face.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(
        self,
        store: AsyncMetadataStore,
        region: str,
        address: str,
        logs: AsyncLogs,
        settings: HubSettings | None = None,
        layout: Layout | None = None,
        filters: Mapping[str, MessageFilter] | None = None,
    ) -> None:
        async_check_face(logs, "begin", "a hub needs logs of this face")
        if not isinstance(settings, HubSettings | None):
            raise InvalidSettingError(f"settings must be HubSettings, not {settings!r:.80}")
        self.region = check_path(region)
        self.address = address
        self.settings = settings or HubSettings()
        self.hosts = AsyncHosts(store, region)
        self.access = AsyncAccessRules(store, region)
        self._store = store
        self._layout = layout
        self._logs = logs
        self._filters = dict(filters or {})
        self._topics = AsyncServedTopics(self.region)
        self._listeners = AsyncListeners()
        self._stopped = AsyncSignal()
        self._stopping = AsyncGate()  # Held while the hub is stopped.
        self._stack = AsyncExitStack()
        self._marks: AsyncConsumeMarks
        self._registration: AsyncRegistration
        self._holding: AsyncHolding
        self._lookup: AsyncLookup
        self._subscribing: AsyncSubscribing
        self._started = False
        self._serves = False  # whether it has been registered

    async def start(self, timeout: float | None = None) -> None:
        """Register, and start to serve. A hub can be started once.

        Args:
            timeout: seconds to wait while a hub with this address is alive, for example this hub's
                previous process; unlimited by default.

        Raises:
            LockBusyError: a hub with this address was alive for the whole ``timeout``.
            LayoutError: the region has another layout, or another mode of ownership.
            MetadataStoreError: a request has failed.
        """
        if self._started:
            raise InvalidSettingError(f"the hub {self.address!r} was started before")
        self._started = True
        store, settings = self._store, self.settings
        try:
            self._stack.push_async_callback(self.access.close)
            self._stack.push_async_callback(self.hosts.close)
            managers = await async_open_managers(store, self.region, self._layout)
            self._stack.push_async_callback(managers.close)
            ownership = await async_open_ownership(store, managers, self.hosts, settings.ownership)
            self._marks = AsyncConsumeMarks(
                managers.subscriptions,
                settings.most_redelivered,
                settings.mark_interval,
                beside=self._topics.checks,
            )
            load = HubLoad(capacity=settings.capacity)
            self._registration = await self.hosts.register(self.address, load, timeout)
            self._holding = AsyncHolding(
                self.address,
                self._topics,
                self._listeners,
                store,
                self._logs,
                ownership,
                self._registration,
                self._marks,
                self._stopped,
            )
            self._lookup = AsyncLookup(
                self.address,
                self._topics,
                self._holding,
                self.access,
                self.hosts,
                ownership,
                self._registration,
                settings.strategy,
                self._stopped,
                settings.max_created,
            )
            self._subscribing = AsyncSubscribing(
                self._topics,
                managers.subscriptions,
                self._marks,
                settings.window,
                self._filters,
                self._holding.lose_later,
            )
            self._serves = True
            AsyncUpkeep(
                self.address,
                self._topics,
                self._holding,
                self.hosts,
                self._registration,
                settings,
                self._stopped,
            ).start()
        except BaseException:
            self._stopped.set()
            await self._stack.aclose()
            raise

    @property
    def info(self) -> HubInfo:
        """The address and the current incarnation of the hub."""
        return self._registration.info

    @property
    def topics(self) -> dict[str, Claim]:
        """The topics that the hub owns, with their claims."""
        return self._topics.claims()

    def valid_until(self) -> float:
        """Return the time, by ``time.monotonic()``, until which the hub serves its topics.

        No other hub can own them before. Each answer of the store's server extends the time.
        """
        return self._registration.held_until()

    def add_listener(
        self, acquired: TopicCallback | None = None, lost: TopicCallback | None = None
    ) -> None:
        """Call functions when the hub gets topics, and when it loses them.

        The hub awaits ``acquired`` before it serves a topic. If ``acquired`` raises, the hub
        releases the topic, and the caller gets the error. The hub awaits ``lost`` before it
        releases a topic, and logs its exceptions. After a lost session, others may already own the
        topic.

        Neither may wait for another call about the same topic, or for ``drain`` or ``stop``: these
            calls wait for the listener.
        """
        self._listeners.add(acquired, lost)

    async def publish(
        self, publisher: str, topic: str | bytes, message: bytes, redirected: bool = False
    ) -> Published | Redirect:
        """Accept a message, or redirect to the hub that does.

        Args:
            publisher: the name of the client, which must already be authenticated.
            topic: the topic. It is created if it does not exist.
            message: the body.
            redirected: whether another hub has redirected the client here.

        Returns:
            ``Published`` when the message is in the log; ``Redirect`` if another hub owns the
            topic, or should become its owner.

        Raises:
            AccessDeniedError: an access rule does not allow it. Nothing was written.
            NoHubError: no hub can take the topic.
            TopicLostError: the hub cannot serve the topic; ask again.
            IllegalOperationError: a name or the message is invalid.
            MetadataStoreError: a request has failed.
        """
        check_message(message)
        await self.access.check("publish", publisher, topic)
        found = await self._find(publisher, topic, redirected)
        if isinstance(found, Redirect):
            return found
        try:
            number = await found.publish(message)
        except StaleEpochError as error:
            raise self._holding.lose_later(found) from error
        return Published(number, found.claim.owner)

    async def subscribe(
        self,
        subscriber: str | bytes,
        topic: str | bytes,
        redirected: bool = False,
        mode: SubscribeMode = "create_or_attach",
        preferences: SubscriptionPreferences | None = None,
        attempt: Attempt | None = None,
    ) -> AsyncSubscription | Redirect:
        """Connect a subscriber, or redirect to the hub that does.

        A new subscription starts with the next published message, an existing one after its consume
        mark. If the subscriber is already connected, the old connection ends.

        Args:
            subscriber: the name of the client, which must already be authenticated.
            topic: the topic. It is created if it does not exist.
            redirected: whether another hub has redirected the client here.
            mode: whether the subscription must be new, must exist, or either.
            preferences: the preferences of the subscriber; ``None`` keeps the stored ones.
            attempt: identifies this attempt, if the client makes several.

        Raises:
            AccessDeniedError: an access rule does not allow it. Nothing was written.
            SubscriberReplacedError: a later attempt has already connected the subscriber.
            SubscriptionStateExistsError: the mode is ``"create"``, and the subscription exists.
            NoSubscriptionStateError: the mode is ``"attach"``, and there is no subscription.
            NoHubError: no hub can take the topic.
            TopicLostError: the hub cannot serve the topic; ask again.
            IllegalOperationError: a name, the mode or the preferences are invalid, or the
                preferences name a filter that this hub does not have.
            MetadataStoreError: a request has failed.
        """
        if mode not in {"create", "attach", "create_or_attach"}:
            raise IllegalOperationError(f"no mode of a subscription: {mode!r:.80}")
        who = name_text(subscriber)
        await self.access.check("subscribe", who, topic)
        found = await self._find(who, topic, redirected)
        if isinstance(found, Redirect):
            return found
        return await self._subscribing.connect(found, who, mode, preferences, attempt)

    async def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, redirected: bool = False
    ) -> bool | Redirect:
        """Remove a subscription, or redirect to the hub that does; return whether it existed.

        Raises:
            AccessDeniedError: an access rule does not allow the client to subscribe.
            MetadataStoreError: as with :meth:`subscribe`.
        """
        who = name_text(subscriber)
        await self.access.check("subscribe", who, topic)
        found = await self._find(who, topic, redirected)
        if isinstance(found, Redirect):
            return found
        return await self._subscribing.remove(found, subscriber)

    async def release(self, topic: str | bytes) -> bool:
        """Release a topic; return whether the hub owned it and others can claim it now.

        The next request for the topic makes a hub its owner. Before others can claim the topic, all
        accepted messages are in the log, and the consume marks are stored.
        """
        name = name_text(topic)
        return self._serves and await self._holding.release(name)

    async def drain(self) -> None:
        """Release all topics, and accept no new ones. The hub stays registered.

        Raises:
            MetadataStoreError: the membership cannot be changed.
        """
        await self.hosts.set_draining(self.address, True)
        if self._serves:
            await self._holding.release_all()

    async def stop(self) -> None:
        """Release all topics, and leave. Return when the hub has stopped.

        Stopping twice is harmless: all calls wait for the same stop. A cancelled call can be
        repeated. Topics that cannot be released, because no server answers, end with the session.
        """
        if self._started:
            self._stopped.set()
            # What is half removed cannot be repeated, only waited for.
            await async_finish(self._end)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r} of {self.region!r}>"

    async def _end(self) -> None:
        async with self._stopping:
            if self._serves:
                await self._holding.release_all()
                try:
                    await self._marks.close()
                except MetadataStoreError as error:
                    log.warning("consume marks are lost", hub=self.address, reason=str(error))
            await self._stack.aclose()

    async def _find(
        self, who: str, topic: str | bytes, redirected: bool
    ) -> AsyncOwnedTopic | Redirect:
        if not self._serves:
            raise TopicLostError(f"hub {self.address!r} has not started")
        return await self._lookup.find(who, topic, redirected)
