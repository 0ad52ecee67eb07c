# Made from async_hub.py by `python tools/faces.py`: change that file, and run this command.
"""A hub: it owns topics, accepts and delivers their messages, and hands them over.

This module is the public face of a hub. It checks requests, and connects the parts. Each part has
one task, and knows only the parts above it in this list:

- ``served``: the topics that the hub serves, and their locks
- ``listeners``: the callbacks for topics that the hub gets and loses
- ``holding``: claims, releases and loses topics
- ``lookup``: finds the hub that serves a topic
- ``subscribing``: connects subscribers, and removes subscriptions
- ``upkeep``: the background work

The first two send no requests, and exist from the beginning. The others need the registration of
the hub in its region, and are created when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

from ....batching import MetadataStore
from ....batching.background import Gate, Signal, finish
from ....coordination._sync.kinds import check_face
from ....ops.errors import InvalidSettingError, MetadataStoreError
from ....ops.log import get_logger
from ....ops.paths import check_path
from ...errors import IllegalOperationError, StaleEpochError, TopicLostError
from ...managers._sync.factory import open_managers
from ...managers._sync.marks import ConsumeMarks
from ...managers.data import HubInfo, HubLoad, SubscriptionPreferences
from ...managers.layouts import Layout
from ...names import name_text
from ...topics._sync.access import AccessRules
from ...topics._sync.hosts import Hosts, Registration
from ...topics._sync.ownership import open_ownership
from ...topics.region import Claim
from ..errors import check_message
from ..messages import Attempt, MessageFilter, Published, Redirect, SubscribeMode
from ..settings import HubSettings
from .holding import Holding
from .listeners import Listeners, TopicCallback
from .logs import Logs
from .lookup import Lookup
from .owned import OwnedTopic, Subscription
from .served import ServedTopics
from .subscribing import Subscribing
from .upkeep import Upkeep

__all__ = ["TopicHub", "TopicCallback"]

log = get_logger("batchkeeper.hubs")


class TopicHub:
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
        store: MetadataStore,
        region: str,
        address: str,
        logs: Logs,
        settings: HubSettings | None = None,
        layout: Layout | None = None,
        filters: Mapping[str, MessageFilter] | None = None,
    ) -> None:
        check_face(logs, "begin", "a hub needs logs of this face")
        if not isinstance(settings, HubSettings | None):
            raise InvalidSettingError(f"settings must be HubSettings, not {settings!r:.80}")
        self.region = check_path(region)
        self.address = address
        self.settings = settings or HubSettings()
        self.hosts = Hosts(store, region)
        self.access = AccessRules(store, region)
        self._store = store
        self._layout = layout
        self._logs = logs
        self._filters = dict(filters or {})
        self._topics = ServedTopics(self.region)
        self._listeners = Listeners()
        self._stopped = Signal()
        self._stopping = Gate()  # Held while the hub is stopped.
        self._stack = ExitStack()
        self._marks: ConsumeMarks
        self._registration: Registration
        self._holding: Holding
        self._lookup: Lookup
        self._subscribing: Subscribing
        self._started = False
        self._serves = False  # whether it has been registered

    def start(self, timeout: float | None = None) -> None:
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
            self._stack.callback(self.access.close)
            self._stack.callback(self.hosts.close)
            managers = open_managers(store, self.region, self._layout)
            self._stack.callback(managers.close)
            ownership = open_ownership(store, managers, self.hosts, settings.ownership)
            self._marks = ConsumeMarks(
                managers.subscriptions,
                settings.most_redelivered,
                settings.mark_interval,
                beside=self._topics.checks,
            )
            load = HubLoad(capacity=settings.capacity)
            self._registration = self.hosts.register(self.address, load, timeout)
            self._holding = Holding(
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
            self._lookup = Lookup(
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
            self._subscribing = Subscribing(
                self._topics,
                managers.subscriptions,
                self._marks,
                settings.window,
                self._filters,
                self._holding.lose_later,
            )
            self._serves = True
            Upkeep(
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
            self._stack.close()
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

    def publish(
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
        self.access.check("publish", publisher, topic)
        found = self._find(publisher, topic, redirected)
        if isinstance(found, Redirect):
            return found
        try:
            number = found.publish(message)
        except StaleEpochError as error:
            raise self._holding.lose_later(found) from error
        return Published(number, found.claim.owner)

    def subscribe(
        self,
        subscriber: str | bytes,
        topic: str | bytes,
        redirected: bool = False,
        mode: SubscribeMode = "create_or_attach",
        preferences: SubscriptionPreferences | None = None,
        attempt: Attempt | None = None,
    ) -> Subscription | Redirect:
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
        self.access.check("subscribe", who, topic)
        found = self._find(who, topic, redirected)
        if isinstance(found, Redirect):
            return found
        return self._subscribing.connect(found, who, mode, preferences, attempt)

    def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, redirected: bool = False
    ) -> bool | Redirect:
        """Remove a subscription, or redirect to the hub that does; return whether it existed.

        Raises:
            AccessDeniedError: an access rule does not allow the client to subscribe.
            MetadataStoreError: as with :meth:`subscribe`.
        """
        who = name_text(subscriber)
        self.access.check("subscribe", who, topic)
        found = self._find(who, topic, redirected)
        if isinstance(found, Redirect):
            return found
        return self._subscribing.remove(found, subscriber)

    def release(self, topic: str | bytes) -> bool:
        """Release a topic; return whether the hub owned it and others can claim it now.

        The next request for the topic makes a hub its owner. Before others can claim the topic, all
        accepted messages are in the log, and the consume marks are stored.
        """
        name = name_text(topic)
        return self._serves and self._holding.release(name)

    def drain(self) -> None:
        """Release all topics, and accept no new ones. The hub stays registered.

        Raises:
            MetadataStoreError: the membership cannot be changed.
        """
        self.hosts.set_draining(self.address, True)
        if self._serves:
            self._holding.release_all()

    def stop(self) -> None:
        """Release all topics, and leave. Return when the hub has stopped.

        Stopping twice is harmless: all calls wait for the same stop. A cancelled call can be
        repeated. Topics that cannot be released, because no server answers, end with the session.
        """
        if self._started:
            self._stopped.set()
            # What is half removed cannot be repeated, only waited for.
            finish(self._end)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r} of {self.region!r}>"

    def _end(self) -> None:
        with self._stopping:
            if self._serves:
                self._holding.release_all()
                try:
                    self._marks.close()
                except MetadataStoreError as error:
                    log.warning("consume marks are lost", hub=self.address, reason=str(error))
            self._stack.close()

    def _find(self, who: str, topic: str | bytes, redirected: bool) -> OwnedTopic | Redirect:
        if not self._serves:
            raise TopicLostError(f"hub {self.address!r} has not started")
        return self._lookup.find(who, topic, redirected)
