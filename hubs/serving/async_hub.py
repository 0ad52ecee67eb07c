# async:
# `hub.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""A hub: it owns topics, takes and delivers their messages, and hands them over.

Which hub serves a topic is decided as in Hedwig. The owner of a topic serves it; every other hub
redirects the client to the owner. A topic without an owner is claimed by the hub that was chosen
for it: the client asks that hub with ``redirected=True``. Whoever loses a claim redirects the
client to the winner.

For each topic, one call at a time claims it or gives it up: whoever has its *turn*. A topic that
the hub serves takes messages and subscribers without a turn, and without a request to the store.
A claim that has begun ends also if the client goes away, and so does the release of a topic:
otherwise, the hub would keep a topic that it does not serve.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Final, ParamSpec, Self, TypeAlias, TypeVar

from ...batching import AsyncMetadataStore
from ...coordination.async_background import (
    AsyncGate,
    AsyncSignal,
    async_each,
    async_finish,
    async_spawn,
)
from ...coordination.async_turns import AsyncTurns
from ...ops.errors import (
    InvalidSettingError,
    MetadataStoreError,
    SessionLostError,
    TransactionRefusedError,
)
from ...ops.log import get_logger
from ...ops.operations import ABSENT, Check
from ...ops.paths import check_path
from ..errors import (
    IllegalOperationError,
    NoSubscriptionStateError,
    StaleEpochError,
    SubscriptionStateExistsError,
    TopicLostError,
)
from ..managers.async_factory import AsyncMetadataManagers, async_open_managers
from ..managers.async_marks import AsyncConsumeMarks
from ..managers.data import (
    HubInfo,
    HubLoad,
    MessageSeqId,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
)
from ..managers.layouts import Layout
from ..names import escaped, name_text
from ..tables import Version
from ..topics.async_access import AsyncAccessRules
from ..topics.async_hosts import AsyncHosts, AsyncRegistration
from ..topics.async_modes import async_open_ownership
from ..topics.async_ownership import AsyncOwnership
from ..topics.choosing import Planned, choose
from ..topics.records import Claim, Hub, Vacancy
from .async_logs import AsyncLogs
from .async_owned import AsyncOwnedTopic, AsyncSubscription
from .records import Attempt, Published, Redirect, SubscribeMode
from .settings import HubSettings
from .shedding import Held, to_shed, unused

__all__ = ["AsyncTopicHub", "TopicCallback"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Is called with the claim of a topic that the hub has got, or is about to give up.
TopicCallback: TypeAlias = Callable[[Claim], Awaitable[object]]

log = get_logger("batchkeeper.hubs")

# Seconds between two looks at the session and at the membership.
_LOOK: Final = 0.25
# Topics that are given up at the same time.
_AT_ONCE: Final = 32


class AsyncTopicHub:
    """A hub of a region. Start it, and stop it; it is also a context manager that does both.

    Any number of threads or tasks can share one hub. The store must be its own: all that it owns
    goes with the session of this store.

    Args:
        store: the store, with ``"ephemerals"``, ``"transactions"`` and ``"watches"``.
        region: the path of the region.
        address: where clients reach this hub, such as ``"hub-1:4080"``.
        logs: the logs of the messages.
        settings: how it behaves.
        layout: where the metadata must be; see ``open_managers``.

    Raises:
        InvalidPathError: the path is not valid.
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
    ) -> None:
        self.region = check_path(region)
        self.address = address
        self.settings = settings or HubSettings()
        self.hosts = AsyncHosts(store, region)
        self.access = AsyncAccessRules(store, region)
        self._store = store
        self._layout = layout
        self._logs = logs
        self._planned = Planned()
        self._stopped = AsyncSignal()
        self._stopping = AsyncGate()  # Whoever stops the hub has passed it.
        self._subscribing = AsyncTurns()  # for each subscriber of a topic
        self._stack = AsyncExitStack()
        self._managers: AsyncMetadataManagers
        self._registration: AsyncRegistration
        self._ownership: AsyncOwnership
        self._marks: AsyncConsumeMarks
        self._started = False
        self._serves = False  # whether it has been registered
        self._lock = threading.Lock()  # guards the following fields
        self._topics: dict[str, AsyncOwnedTopic] = {}
        self._turns: dict[str, AsyncSignal] = {}
        self._listeners: tuple[tuple[TopicCallback | None, TopicCallback | None], ...] = ()

    async def start(self, timeout: float | None = None) -> None:
        """Register, and serve from now on. A hub is started once.

        Args:
            timeout: seconds to wait while a hub with this address is alive, such as this one before
                its restart; for ever by default.

        Raises:
            LockBusyError: a hub with this address was alive until the end of ``timeout``.
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
            self._managers = await async_open_managers(store, self.region, self._layout)
            self._stack.push_async_callback(self._managers.close)
            self._ownership = await async_open_ownership(
                store, self._managers, self.hosts, settings.ownership
            )
            self._marks = AsyncConsumeMarks(
                self._managers.subscriptions,
                settings.most_redelivered,
                settings.mark_interval,
                beside=self._checks,
            )
            load = HubLoad(capacity=settings.capacity)
            self._registration = await self.hosts.register(self.address, load, timeout)
            self._serves = True
            self._every(_LOOK, self._follow_session, offline=True)
            self._every(_LOOK, self._follow_membership)
            self._every(settings.report_interval, self._report)
            self._every(settings.shed_interval, self._shed)
            self._every(_retirement(settings), self._retire)
        except BaseException:
            self._stopped.set()
            await self._stack.aclose()
            raise

    @property
    def info(self) -> HubInfo:
        """The address and the present incarnation of the hub."""
        return self._registration.info

    @property
    def topics(self) -> dict[str, Claim]:
        """The topics that the hub owns, with their claims."""
        with self._lock:
            return {name: topic.claim for name, topic in self._topics.items()}

    def valid_until(self) -> float:
        """Return the time, by ``time.monotonic()``, until which the hub serves its topics.

        Nobody else can own them before. Each answer of the store's server moves it on.
        """
        return self._registration.held_until()

    def add_listener(
        self, acquired: TopicCallback | None = None, lost: TopicCallback | None = None
    ) -> None:
        """Call functions when the hub gets topics, and when it loses them.

        The hub awaits ``acquired`` before it serves a topic; if it raises, the hub gives the claim
        up, and the caller gets the error. It awaits ``lost`` before it gives a topic up; what it
        raises is logged. After a lost session, others may own the topic already.

        Neither may wait for a call of this hub about the same topic, or for its end: that call
        waits for them.
        """
        with self._lock:
            self._listeners = (*self._listeners, (acquired, lost))

    async def publish(
        self, publisher: str, topic: str | bytes, message: bytes, redirected: bool = False
    ) -> Published | Redirect:
        """Take a message, or say which hub takes it.

        Args:
            publisher: the name of the client, whom somebody has authenticated.
            topic: the topic. It is created if there is none.
            message: the body.
            redirected: whether another hub has sent the client here.

        Returns:
            ``Published`` when the message is in the log; ``Redirect`` if another hub owns the topic
            or is to become its owner.

        Raises:
            AccessDeniedError: an access rule does not allow it. Nothing was written.
            NoHubError: no hub can take the topic.
            TopicLostError: the hub cannot serve the topic now; ask again.
            IllegalOperationError: an argument is no name, or no message.
            MetadataStoreError: a request has failed.
        """
        if not isinstance(message, bytes):
            raise IllegalOperationError(f"a message must be bytes, not {message!r:.80}")
        await self.access.check("publish", publisher, topic)
        found = await self._find(publisher, topic, redirected)
        if isinstance(found, Redirect):
            return found
        try:
            number = await found.publish(message)
        except StaleEpochError as error:
            raise self._lose_later(found) from error
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
        """Connect a subscriber, or say which hub does.

        A new subscription gets the messages that are published from now on. One that is there gets
        those after its consume mark. If the subscriber is connected already, that connection ends.

        Args:
            subscriber: the name of the client, whom somebody has authenticated.
            topic: the topic. It is created if there is none.
            redirected: whether another hub has sent the client here.
            mode: whether the subscription must be new, must be there, or either.
            preferences: what the subscriber wants; ``None`` leaves what was stored.
            attempt: which of its attempts this is, if the client makes several.

        Raises:
            AccessDeniedError: an access rule does not allow it. Nothing was written.
            SubscriberReplacedError: a later attempt has connected the subscriber already.
            SubscriptionStateExistsError: the mode is ``"create"``, and it is there.
            NoSubscriptionStateError: the mode is ``"attach"``, and it is not there.
            NoHubError: no hub can take the topic.
            TopicLostError: the hub cannot serve the topic now; ask again.
            IllegalOperationError: an argument is no name, mode or preferences.
            MetadataStoreError: a request has failed.
        """
        if mode not in {"create", "attach", "create_or_attach"}:
            raise IllegalOperationError(f"no mode of a subscription: {mode!r:.80}")
        who = name_text(subscriber)
        await self.access.check("subscribe", who, topic)
        found = await self._find(who, topic, redirected)
        if isinstance(found, Redirect):
            return found
        turn = _key(topic, who)
        await self._subscribing.enter(turn)
        try:
            return await self._connect(found, who, mode, preferences, attempt)
        except TransactionRefusedError as error:  # The epoch is not ours any more.
            raise self._lose_later(found) from error
        finally:
            self._subscribing.leave(turn)

    async def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, redirected: bool = False
    ) -> bool | Redirect:
        """Remove a subscription, or say which hub does; return whether it was there.

        Raises:
            AccessDeniedError: an access rule does not allow the client to subscribe.
            MetadataStoreError: as with :meth:`subscribe`.
        """
        who = name_text(subscriber)
        await self.access.check("subscribe", who, topic)
        found = await self._find(who, topic, redirected)
        if isinstance(found, Redirect):
            return found
        turn = _key(topic, who)
        await self._subscribing.enter(turn)
        try:
            found.unsubscribe(who)
            self._marks.forget(topic, who)
            await self._managers.subscriptions.delete_subscription_data(
                topic, subscriber, Version.ANY, beside=(found.claim.check,)
            )
        except NoSubscriptionStateError:
            return False
        except TransactionRefusedError as error:
            raise self._lose_later(found) from error
        finally:
            self._subscribing.leave(turn)
        return True

    async def release(self, topic: str | bytes) -> bool:
        """Give a topic up; return whether the hub owned it, and others can claim it now.

        The next client that asks for the topic makes a hub its owner. Messages that were taken are
        in the log, and consume marks are stored, when the others can claim it.
        """
        name = name_text(topic)
        with self._lock:
            found = self._topics.get(name)
        return found is not None and await self._give_up(found)

    async def drain(self) -> None:
        """Take no more topics, and give up all that the hub owns. It stays registered.

        Raises:
            MetadataStoreError: the membership cannot be changed.
        """
        await self.hosts.set_draining(self.address, True)
        await self._give_up_all()

    async def stop(self) -> None:
        """Give all topics up, and leave. Return when the hub has stopped, whoever has begun that.

        Stopping twice does no harm. A call that was cancelled can be repeated. What cannot be given
        up, because no server answers, goes with the session.
        """
        if not self._started:
            return
        self._stopped.set()
        await self._stopping.enter()
        try:
            if self._serves:
                await self._give_up_all()
                try:
                    await self._marks.close()
                except MetadataStoreError as error:
                    log.warning("consume marks are lost", hub=self.address, reason=str(error))
            await self._stack.aclose()
        finally:
            self._stopping.leave()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r} of {self.region!r}>"

    # Which hub serves a topic

    async def _find(
        self, who: str, topic: str | bytes, redirected: bool
    ) -> AsyncOwnedTopic | Redirect:
        """Return the topic if this hub serves it, or gets it now; otherwise the hub to ask."""
        name = name_text(topic)
        if not self._serves:
            raise TopicLostError(f"hub {self.address!r} has not started")
        try:
            while True:
                found = await self._served(name)
                if found is None:
                    me = self.info
                    owner, vacancy = await self._owner(me, who, topic, redirected)
                    if owner.address != me.address:
                        return Redirect(owner)
                    claimed = await self._claim(name, me, vacancy)
                    if claimed is None:
                        continue  # Somebody else has the turn. What this call knows is outdated.
                    if isinstance(claimed, Redirect):
                        return claimed
                    found = claimed
                self._check_served(found.claim)
                return found
        except (SessionLostError, StaleEpochError) as error:
            why = f"hub {self.address!r} has lost topic {name!r:.200} at its claim: ask again"
            raise TopicLostError(why) from error

    async def _served(self, name: str) -> AsyncOwnedTopic | None:
        """Return a topic if this hub serves it. If somebody has its turn, that is waited for."""
        while True:
            with self._lock:
                found, turn = self._topics.get(name), self._turns.get(name)
            if turn is None:
                return found
            await turn.wait()

    async def _owner(
        self, me: HubInfo, who: str, topic: str | bytes, redirected: bool
    ) -> tuple[HubInfo, Vacancy | None]:
        """Return the hub that owns a topic, or is to own it, and what its claim starts from.

        Any number of calls do that at once. If this hub is the owner, it does not know of it: an
        answer was lost, or it could not release the topic.
        """
        if not self._may_serve(me):
            raise TopicLostError(f"the session of hub {self.address!r} may have ended")
        seen = await self._ownership.look(topic)
        if not isinstance(seen, Vacancy):
            return seen, None
        if seen.epoch is None:
            await self.access.check("create", who, topic)
        return self._choose(me, await self._others(), redirected), seen

    async def _claim(
        self, name: str, me: HubInfo, vacancy: Vacancy | None
    ) -> AsyncOwnedTopic | Redirect | None:
        """Claim a topic, unless somebody else has its turn, or has had it; then return ``None``."""

        async def claim() -> AsyncOwnedTopic | Redirect:
            if self._stopped.is_set():
                raise TopicLostError(f"hub {self.address!r} stops: ask again")
            claimed = await self._ownership.claim(name, me, vacancy)
            if isinstance(claimed, Claim):
                if self._registration.draining:  # By now; or it could not release the topic.
                    await self._hand_over(claimed)
                    raise TopicLostError(f"hub {self.address!r} drains: ask again")
                return await self._begin(claimed)
            if claimed.address == me.address:  # Of an earlier life, whose session is about to end.
                why = f"hub {self.address!r} owns topic {name!r:.200} from before its restart"
                raise TopicLostError(f"{why}: ask again")
            return Redirect(claimed)

        with self._lock:
            if name in self._turns or name in self._topics:
                return None
            mine = self._turns[name] = AsyncSignal()
        return await self._in_turn(name, mine, claim)

    async def _others(self) -> dict[str, Hub]:
        hubs = await self.hosts.hubs()
        if self._stopped.is_set():
            hubs.pop(self.address, None)
        return hubs

    def _choose(self, me: HubInfo, hubs: dict[str, Hub], redirected: bool) -> HubInfo:
        """Return the hub that gets a topic without an owner.

        A hub to which a client was redirected takes the topic, if it takes any at all.
        """
        mine = hubs.get(me.address)
        if redirected and mine is not None and mine.eligible and not mine.draining:
            return me
        chosen = choose(hubs, self.settings.strategy, planned=self._planned)
        # The view may know an incarnation of this hub that has ended.
        return me if chosen.address == me.address else chosen

    async def _begin(self, claim: Claim) -> AsyncOwnedTopic:
        """Serve a topic that was just claimed, or give it up again."""
        told: list[TopicCallback] = []
        try:
            last = await self._logs.begin(claim)
            for acquired, lost in self._listeners:
                if lost is not None:
                    told.append(lost)
                if acquired is not None:
                    await acquired(claim)
        except BaseException as error:
            log.warning("a topic is given up again", topic=claim.topic, reason=str(error))
            await self._tell_lost(told, claim)
            await self._hand_over(claim)
            raise
        found = AsyncOwnedTopic(claim, self._logs, last, self._check_served, time.monotonic())
        with self._lock:
            self._topics[claim.topic] = found
        return found

    def _may_serve(self, owner: HubInfo) -> bool:
        # In this order: the time of a later session must not count for the one before it.
        until = self._registration.held_until()
        return time.monotonic() < until and self._registration.info == owner

    def _check_served(self, claim: Claim) -> None:
        if not self._may_serve(claim.owner):
            raise TopicLostError(
                f"the session with which hub {self.address!r} owns topic {claim.topic!r:.200} may "
                "have ended"
            )

    # Subscriptions

    async def _connect(
        self,
        topic: AsyncOwnedTopic,
        subscriber: str,
        mode: SubscribeMode,
        preferences: SubscriptionPreferences | None,
        attempt: Attempt | None,
    ) -> AsyncSubscription:
        """Connect a subscriber. The caller has its turn, so that nobody removes it meanwhile."""
        data = await self._subscribed(topic, subscriber, mode, preferences)
        position = 0 if data.state is None else data.state.mark.local
        window = self.settings.window
        if data.preferences is not None and data.preferences.message_window_size:
            window = data.preferences.message_window_size

        name = topic.claim.topic

        async def mark(number: int) -> None:
            try:
                await self._marks.consumed(name, subscriber, MessageSeqId(number))
            finally:
                with self._lock:
                    gone = name not in self._topics
                # Since the subscriber has said so. Nobody else would take the mark out of line.
                if gone:
                    self._marks.forget(name, subscriber)

        return topic.subscribe(subscriber, position, window, mark, attempt)

    async def _subscribed(
        self,
        topic: AsyncOwnedTopic,
        subscriber: str,
        mode: SubscribeMode,
        preferences: SubscriptionPreferences | None,
    ) -> SubscriptionData:
        """Create a subscription, or read it, as the mode says; return what is stored."""
        subscriptions = self._managers.subscriptions
        name, beside = topic.claim.topic, (topic.claim.check,)
        with suppress(MetadataStoreError):  # Without it, more is delivered again.
            await self._marks.flush(name, subscriber)
        while True:
            if mode != "attach":
                data = SubscriptionData(preferences, SubscriptionState(MessageSeqId(topic.last)))
                try:
                    await subscriptions.create_subscription_data(
                        name, subscriber, data, beside=beside
                    )
                except SubscriptionStateExistsError:
                    if mode == "create":
                        raise
                else:
                    return data
            try:
                if preferences is not None:
                    await subscriptions.update_subscription_data(
                        name,
                        subscriber,
                        SubscriptionData(preferences),
                        Version.ANY,
                        beside=beside,
                    )
                found = await subscriptions.read_subscription_data(name, subscriber)
            except NoSubscriptionStateError:
                found = None
            if found is not None:
                return found.value
            if mode == "attach":
                raise NoSubscriptionStateError(
                    f"topic {name!r:.200} has no subscriber {subscriber!r:.200}"
                )

    def _checks(self, topic: str | bytes) -> tuple[Check]:
        """Return the condition of the writes of marks: that the hub still owns the topic."""
        with self._lock:
            found = self._topics.get(name_text(topic))
        if found is not None:
            return (found.claim.check,)
        # It has an epoch, so this never holds.
        return (Check(f"{self.region}/topics/{escaped(topic)}/epoch", ABSENT),)

    # Giving topics up

    async def _give_up(self, topic: AsyncOwnedTopic) -> bool:
        """Give a topic up, so that others can claim it; return whether it was owned."""

        async def give_up() -> bool:
            if not self._has(topic):
                return False
            await topic.close()
            topic.end(self._lost(topic, "gives it up"))
            await self._store_marks(topic)
            await self._end(topic)
            return await self._hand_over(topic.claim)

        name = topic.claim.topic
        return await self._in_turn(name, await self._take_turn(name), give_up)

    async def _give_up_all(self) -> None:
        with self._lock:
            turns = [*self._turns.values()]
        for turn in turns:  # A claim may be under way.
            await turn.wait()
        # All together: one write for each topic, one after the other, would take too long.
        await self._store_marks()
        with self._lock:
            topics = [*self._topics.values()]
        await async_each(self._give_up, topics, _AT_ONCE)

    async def _lose_all(self, topics: list[AsyncOwnedTopic]) -> None:
        """Serve some topics no more, because their session has ended."""
        for topic in topics:  # Clients must not wait for the requests that follow.
            topic.end(self._lost(topic, "has lost its session"))
        await self._store_marks()  # Those of topics that have another owner by now are refused.
        await async_each(self._lose, topics, _AT_ONCE)

    async def _lose(self, topic: AsyncOwnedTopic) -> None:
        """Serve a topic no more, which others may own already."""

        async def lose() -> None:
            if self._has(topic):
                await self._end(topic)

        name = topic.claim.topic
        await self._in_turn(name, await self._take_turn(name), lose)

    def _lose_later(self, topic: AsyncOwnedTopic) -> TopicLostError:
        """Lose a topic whose epoch has ended; return the error for the caller."""
        error = self._lost(topic, "has lost it")
        if topic.end(error):  # Many callers may learn it at the same time.
            async_spawn(f"loss of {topic.claim.topic:.80}", self._lose, topic)
        return error

    async def _end(self, topic: AsyncOwnedTopic) -> None:
        """Forget a topic that has ended. The caller has its turn."""
        claim = topic.claim
        await self._tell_lost([lost for _, lost in self._listeners if lost is not None], claim)
        with self._lock:
            del self._topics[claim.topic]
        self._marks.forget(claim.topic)
        try:
            await self._logs.end(claim)
        except Exception:
            log.exception("a log has failed", topic=claim.topic)

    async def _store_marks(self, topic: AsyncOwnedTopic | None = None) -> None:
        """Store the consume marks of a topic, or all, if that is possible."""
        if not self._is_answered():
            return
        try:
            await self._marks.flush(None if topic is None else topic.claim.topic)
        except MetadataStoreError as error:
            log.warning("consume marks are not stored", hub=self.address, reason=str(error))

    async def _hand_over(self, claim: Claim) -> bool:
        """Let others claim a topic. If no server answers, it stays this hub's until it is asked."""
        if not self._is_answered():
            log.warning("a topic is not released", topic=claim.topic, reason="no server answers")
            return False
        try:
            return await self._ownership.release(claim)
        except MetadataStoreError as error:
            log.warning("a topic is not released", topic=claim.topic, reason=str(error))
            return False

    def _is_answered(self) -> bool:
        """Say whether the store's server answers, as far as is known.

        In an outage, each request would take its whole time-out, and a hub with many topics would
        not come to an end.
        """
        return self._store.session.state in {"new", "connected"}

    async def _tell_lost(self, listeners: list[TopicCallback], claim: Claim) -> None:
        for lost in listeners:
            try:
                await lost(claim)
            except Exception:
                log.exception("a listener has failed", topic=claim.topic)

    def _lost(self, topic: AsyncOwnedTopic, why: str) -> TopicLostError:
        return TopicLostError(f"hub {self.address!r} {why}: topic {topic.claim.topic!r:.200}")

    def _has(self, topic: AsyncOwnedTopic) -> bool:
        with self._lock:
            return self._topics.get(topic.claim.topic) is topic

    async def _take_turn(self, name: str) -> AsyncSignal:
        """Wait until nobody else claims a topic or gives it up."""
        while True:
            with self._lock:
                turn = self._turns.get(name)
                if turn is None:
                    mine = self._turns[name] = AsyncSignal()
                    return mine
            await turn.wait()

    async def _in_turn(
        self,
        name: str,
        turn: AsyncSignal,
        call: Callable[_P, Awaitable[_T]],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Call a function in the turn of a topic, which ends with it, whatever the caller does."""

        async def run() -> _T:
            try:
                return await call(*args, **kwargs)
            finally:
                self._end_turn(name, turn)

        return await async_finish(run)

    def _end_turn(self, name: str, turn: AsyncSignal) -> None:
        with self._lock:
            del self._turns[name]
        turn.set()

    # In the background

    def _every(
        self, seconds: float | None, call: Callable[[], Awaitable[None]], *, offline: bool = False
    ) -> None:
        """Call a function again and again; in an outage only if it is for that.

        A topic that is given up then could not be handed over, and nobody would serve it.
        """
        if seconds is not None:
            async_spawn(f"hub {self.address}", self._repeat, seconds, call, offline)

    async def _repeat(
        self, seconds: float, call: Callable[[], Awaitable[None]], offline: bool
    ) -> None:
        while not await self._stopped.wait(seconds):
            try:
                if offline or self._is_answered():
                    await call()
            except MetadataStoreError as error:
                log.warning("a hub goes on", hub=self.address, reason=str(error))
            except Exception:  # Of the logs, or no thread can be started.
                log.exception("a hub goes on", hub=self.address)

    async def _follow_session(self) -> None:
        """Lose the topics of a session that has ended.

        If it may have ended, because no server answers, subscribers are better off elsewhere.
        """
        # In this order: the end of one incarnation must not end the topics of the next.
        me = self.info
        ended = self._registration.lost.is_set()
        with self._lock:
            topics = [*self._topics.values()]
        lost = [
            topic
            for topic in topics
            if topic.claim.owner.incarnation < me.incarnation or (ended and topic.claim.owner == me)
        ]
        if topics and not lost and not self._may_serve(me):
            for topic in topics:
                topic.disconnect_all(self._lost(topic, "may have lost its session"))
        if lost:
            await self._lose_all(lost)

    async def _follow_membership(self) -> None:
        """Give all topics up if somebody lets the hub drain."""
        if self._registration.draining:
            await self._give_up_all()

    async def _report(self) -> None:
        now = time.monotonic()
        with self._lock:
            topics = [*self._topics.values()]
        for topic in topics:
            topic.rate(now)
        await self._registration.update(self._load())

    async def _shed(self) -> None:
        """Give topics up if the hub bears more than its share."""
        chosen = to_shed(
            self.address,
            self._load(),
            await self.hosts.hubs(),
            self._held(),
            self.settings,
        )
        await async_each(self.release, chosen, _AT_ONCE)

    async def _retire(self) -> None:
        """Give up topics that are old, or too many."""
        await async_each(
            self.release, unused(self._held(), self.settings, time.monotonic()), _AT_ONCE
        )

    def _held(self) -> list[Held]:
        with self._lock:
            topics = [*self._topics.values()]
        return [topic.held for topic in topics]

    def _load(self) -> HubLoad:
        held = self._held()
        return HubLoad(
            len(held),
            sum(one.message_rate for one in held),
            sum(one.connections for one in held),
            self.settings.capacity,
        )


def _key(topic: str | bytes, subscriber: str) -> str:
    return f"{escaped(topic)}/{escaped(subscriber)}"


def _retirement(settings: HubSettings) -> float | None:
    """Return the seconds between two looks for topics to give up; ``None`` for no looks."""
    limits = [
        1.0 if settings.max_topics is not None else None,
        settings.retention_after_access,
        settings.retention_after_claim,
    ]
    known = [limit for limit in limits if limit is not None]
    return min(1.0, min(known) / 2) if known else None
