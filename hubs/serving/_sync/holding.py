# Made from async_holding.py by `python tools/faces.py`: change that file, and run this command.
"""How a hub claims, releases, loses and hands over topics.

Each of these happens with the lock of the topic (see ``served``). An action that has begun
with the lock finishes even if the client goes away: otherwise, the hub would keep a topic that it
does not serve. The rules:

- The hub serves a topic only after its log is open and the listeners know about the claim.
- Handing a topic over is the last step: all accepted messages are in the log, the marks are stored,
  and the listeners know. Only then can others claim the topic.
- A lost topic may already belong to another hub, so it only ends here.
- While no server answers, the hub sends no requests to the store. A topic that is not released ends
  with the session, or is released when a client asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from ....batching import MetadataStore
from ....batching.background import Signal, each, spawn
from ....ops.errors import MetadataStoreError
from ....ops.log import get_logger
from ...errors import TopicLostError
from ...managers._sync.marks import ConsumeMarks
from ...managers.data import HubInfo
from ...topics._sync.hosts import Registration
from ...topics._sync.ownership import Ownership
from ...topics.region import Claim, Vacancy
from ..messages import Redirect
from .listeners import Listeners, TopicCallback
from .logs import Logs
from .owned import OwnedTopic
from .served import ServedTopics

__all__ = ["Holding"]

log = get_logger("batchkeeper.hubs")

# The number of topics released at the same time.
_AT_ONCE: Final = 32

# What may cut a release in two.
_CUT: Final = BaseException  # Ctrl-C, or what another handler of a signal raises


class Holding:
    """Changes the set of topics that a hub holds.

    Args:
        address: the address of the hub.
        topics: the topics that the hub serves.
        listeners: the listeners, called on each change.
        store: the store, whose session says whether a server answers.
        logs: the logs of the messages.
        ownership: the owners of the region's topics.
        registration: the hub's place among the hubs of the region.
        marks: the consume marks.
        stopped: set when the hub stops, and makes no more claims.
    """

    def __init__(
        self,
        address: str,
        topics: ServedTopics,
        listeners: Listeners,
        store: MetadataStore,
        logs: Logs,
        ownership: Ownership,
        registration: Registration,
        marks: ConsumeMarks,
        stopped: Signal,
    ) -> None:
        self._address = address
        self._topics = topics
        self._listeners = listeners
        self._store = store
        self._logs = logs
        self._ownership = ownership
        self._registration = registration
        self._marks = marks
        self._stopped = stopped

    # Whether the hub may serve

    def may_serve(self, owner: HubInfo) -> bool:
        """Return whether no other hub can own the topics of an incarnation of this hub yet."""
        # In this order: the time of a later session must not count for the previous one.
        until = self._registration.held_until()
        return time.monotonic() < until and self._registration.info == owner

    def check_served(self, claim: Claim) -> None:
        """Return if the hub may serve a claim.

        Raises:
            TopicLostError: the session of the claim may have ended.
        """
        if not self.may_serve(claim.owner):
            raise TopicLostError(
                f"the session with which hub {self._address!r} owns topic {claim.topic!r:.200} may "
                "have ended"
            )

    def is_answered(self) -> bool:
        """Return whether the store's server answers, as far as is known.

        During an outage, each request would take its whole timeout, and a hub with many topics
        would never finish.
        """
        return self._store.session.state in {"new", "connected"}

    # Getting topics

    def claim(
        self, name: str, me: HubInfo, vacancy: Vacancy | None
    ) -> OwnedTopic | Redirect | None:
        """Claim a topic, or return ``None`` if another call has, or had, its lock."""

        def claim() -> OwnedTopic | Redirect:
            if self._stopped.is_set():
                raise TopicLostError(f"hub {self._address!r} stops: ask again")
            claimed = self._ownership.claim(name, me, vacancy)
            if isinstance(claimed, Claim):
                if self._registration.draining:  # Since then; or it could not release the topic.
                    self._hand_over(claimed)
                    raise TopicLostError(f"hub {self._address!r} drains: ask again")
                return self._begin(claimed)
            if claimed.address == me.address:  # From an earlier session, about to end.
                why = f"hub {self._address!r} owns topic {name!r:.200} from before its restart"
                raise TopicLostError(f"{why}: ask again")
            return Redirect(claimed)

        mine = self._topics.try_lock(name)
        if mine is None:
            return None
        return self._topics.run_locked(name, mine, claim)

    def _begin(self, claim: Claim) -> OwnedTopic:
        """Start to serve a topic that was just claimed, or release it again."""
        notified: list[TopicCallback] = []
        try:
            last = self._logs.begin(claim)
            self._listeners.notify_acquired(claim, notified)
        except BaseException as error:
            log.warning("a topic is given up again", topic=claim.topic, reason=str(error))
            self._listeners.notify_lost(claim, notified)
            self._hand_over(claim)
            raise
        found = OwnedTopic(claim, self._logs, last, self.check_served, time.monotonic())
        self._topics.add(found)
        return found

    # Giving topics up

    def release(self, name: str) -> bool:
        """Release a topic; return whether the hub owned it and others can claim it now."""
        found = self._topics.get(name)
        return found is not None and self._give_up(found)

    def release_each(self, names: Collection[str]) -> None:
        """Release some topics, several at the same time."""
        each(self.release, names, _AT_ONCE)

    def release_all(self) -> None:
        """Release all topics."""
        self._topics.all_settled()  # A claim may be running.
        # In parallel: one write after the other would take too long.
        self._store_marks()
        each(self._give_up, self._topics.all(), _AT_ONCE)

    def _give_up(self, topic: OwnedTopic) -> bool:
        """Release a topic, so that others can claim it; return whether it was owned."""
        try:
            return self._release(topic)
        except _CUT:
            # Closed but held, the topic would be refused to everybody.
            if topic.ended and self._topics.has(topic):
                spawn(f"release of {topic.claim.topic:.80}", self._release_later, topic)
            raise

    def _release_later(self, topic: OwnedTopic) -> None:
        self._release(topic)

    def _release(self, topic: OwnedTopic) -> bool:
        def give_up() -> bool:
            if not self._topics.has(topic):
                return False
            topic.close()
            topic.end(self._lost(topic, "gives it up"))
            self._store_marks(topic)
            self._end(topic)
            return self._hand_over(topic.claim)

        name = topic.claim.topic
        return self._topics.run_locked(name, self._topics.lock(name), give_up)

    # Losing topics

    def lose_all(self, topics: list[OwnedTopic]) -> None:
        """Stop serving some topics, because their session has ended."""
        for topic in topics:  # Clients must not wait for the following requests.
            topic.end(self._lost(topic, "has lost its session"))
        self._store_marks()  # Refused for topics that have a new owner.
        each(self._lose, topics, _AT_ONCE)

    def lose_later(self, topic: OwnedTopic) -> TopicLostError:
        """Lose a topic whose epoch has ended; return the error for the caller."""
        error = self._lost(topic, "has lost it")
        if topic.end(error):  # Many callers may get the error at once.
            spawn(f"loss of {topic.claim.topic:.80}", self._lose, topic)
        return error

    def disconnect_all(self, topics: list[OwnedTopic]) -> None:
        """Disconnect all subscribers of some topics that the hub may have lost."""
        for topic in topics:
            topic.disconnect_all(self._lost(topic, "may have lost its session"))

    def _lose(self, topic: OwnedTopic) -> None:
        """Stop serving a topic that others may already own."""

        def lose() -> None:
            if self._topics.has(topic):
                self._end(topic)

        name = topic.claim.topic
        self._topics.run_locked(name, self._topics.lock(name), lose)

    # The end of a topic

    def _end(self, topic: OwnedTopic) -> None:
        """Forget a topic that has ended. The caller has locked it."""
        claim = topic.claim
        self._listeners.notify_lost(claim)
        self._topics.remove(topic)
        self._marks.forget(claim.topic)
        try:
            self._logs.end(claim)
        except Exception:
            log.exception("a log has failed", topic=claim.topic)

    def _store_marks(self, topic: OwnedTopic | None = None) -> None:
        """Store the consume marks of a topic, or of all topics, if possible."""
        if not self.is_answered():
            return
        try:
            self._marks.flush(None if topic is None else topic.claim.topic)
        except MetadataStoreError as error:
            log.warning("consume marks are not stored", hub=self._address, reason=str(error))

    def _hand_over(self, claim: Claim) -> bool:
        """Let others claim a topic. If no server answers, keep it until the next request."""
        if not self.is_answered():
            log.warning("a topic is not released", topic=claim.topic, reason="no server answers")
            return False
        try:
            return self._ownership.release(claim)
        except MetadataStoreError as error:
            log.warning("a topic is not released", topic=claim.topic, reason=str(error))
            return False

    def _lost(self, topic: OwnedTopic, why: str) -> TopicLostError:
        return TopicLostError(f"hub {self._address!r} {why}: topic {topic.claim.topic!r:.200}")
