# Made from async_lookup.py by `python tools/faces.py`: change that file, and run this command.
"""The hub that serves a topic, found as in Hedwig.

The owner of a topic serves it; every other hub redirects the client to the owner. If a topic has no
owner, a hub is chosen for it. The client asks that hub with ``redirected=True``, and the hub claims
the topic. A hub that loses a claim redirects the client to the winner.

A topic that this hub serves is found without its lock, and without a request to the store. Looking
for the owner of another topic takes no lock either; only its claim does.
"""

from __future__ import annotations

import threading
import time

from ....batching.background import Signal
from ....ops.errors import QueueFullError, SessionLostError
from ...errors import StaleEpochError, TopicLostError
from ...managers.data import HubInfo
from ...names import name_text
from ...topics._sync.access import AccessRules
from ...topics._sync.hosts import Hosts, Registration
from ...topics._sync.ownership import Ownership
from ...topics.choosing import Planned, Strategy, choose
from ...topics.region import Hub, Vacancy
from ..messages import Redirect
from .holding import Holding
from .owned import OwnedTopic
from .served import ServedTopics

__all__ = ["Lookup"]


class Lookup:
    """Finds the topic that a client asks for, or the hub that the client must ask.

    Args:
        address: the address of this hub.
        topics: the topics that it serves.
        holding: claims topics.
        access: the access rules, which decide who may create a topic.
        hosts: the hubs of the region.
        ownership: the owners of the region's topics.
        registration: the hub's place among the hubs of the region.
        strategy: how a hub is chosen for a topic without an owner.
        stopped: set when the hub stops, and must no longer be chosen.
        max_created: the limit of new topics per second.
    """

    def __init__(
        self,
        address: str,
        topics: ServedTopics,
        holding: Holding,
        access: AccessRules,
        hosts: Hosts,
        ownership: Ownership,
        registration: Registration,
        strategy: Strategy,
        stopped: Signal,
        max_created: int | None,
    ) -> None:
        self._address = address
        self._topics = topics
        self._holding = holding
        self._access = access
        self._hosts = hosts
        self._ownership = ownership
        self._registration = registration
        self._strategy = strategy
        self._stopped = stopped
        self._planned = Planned()
        self._max_created = max_created
        self._lock = threading.Lock()  # guards the following field
        self._creation = 0.0  # when the next topic may be created, without the burst of a second

    def find(self, who: str, topic: str | bytes, redirected: bool) -> OwnedTopic | Redirect:
        """Return the topic if this hub serves or has just claimed it; otherwise, the hub to ask.

        Args:
            who: the name of the client.
            topic: the topic.
            redirected: whether another hub has sent the client here.

        Raises:
            AccessDeniedError: the topic does not exist, and the client may not create it.
            NoHubError: no hub can take the topic.
            TopicLostError: the hub cannot serve the topic now; ask again.
            MetadataStoreError: a request has failed.
        """
        name = name_text(topic)
        try:
            while True:
                found = self._topics.settled(name)
                if found is None:
                    me = self._registration.info
                    owner, vacancy = self._owner(me, who, topic, redirected)
                    if owner.address != me.address:
                        return Redirect(owner)
                    claimed = self._holding.claim(name, me, vacancy)
                    if claimed is None:
                        continue  # Another call has the lock. The state of this call is outdated.
                    if isinstance(claimed, Redirect):
                        return claimed
                    found = claimed
                self._holding.check_served(found.claim)
                return found
        except (SessionLostError, StaleEpochError) as error:
            why = f"hub {self._address!r} has lost topic {name!r:.200} at its claim: ask again"
            raise TopicLostError(why) from error

    def _owner(
        self, me: HubInfo, who: str, topic: str | bytes, redirected: bool
    ) -> tuple[HubInfo, Vacancy | None]:
        """Return the hub that owns a topic or should own it, and the vacancy that it would claim.

        Any number of calls do this at once. If the result is this hub, the hub does not know of its
            claim: an answer was lost, or it could not release the topic.
        """
        if not self._holding.may_serve(me):
            raise TopicLostError(f"the session of hub {self._address!r} may have ended")
        found = self._ownership.look(topic)
        if not isinstance(found, Vacancy):
            return found, None
        if found.epoch is None:
            self._access.check("create", who, topic)
        owner = self._choose(me, self._others(), redirected)
        if found.epoch is None and owner == me:
            self._count_creation()
        return owner, found

    def _count_creation(self) -> None:
        """Count a topic that this hub creates.

        Raises:
            QueueFullError: the hub has just created too many.
        """
        if self._max_created is None:
            return
        now = time.monotonic()
        with self._lock:
            due = max(self._creation, now - 1)
            if due > now:
                raise QueueFullError(
                    f"hub {self._address!r} creates at most {self._max_created} new topics a "
                    "second: try again, or raise max_created"
                )
            self._creation = due + 1 / self._max_created

    def _others(self) -> dict[str, Hub]:
        hubs = self._hosts.hubs()
        if self._stopped.is_set():
            hubs.pop(self._address, None)
        return hubs

    def _choose(self, me: HubInfo, hubs: dict[str, Hub], redirected: bool) -> HubInfo:
        """Return the hub that gets a topic without an owner.

        A hub to which a client was redirected takes the topic, if it takes topics at all.
        """
        mine = hubs.get(me.address)
        if redirected and mine is not None and mine.eligible and not mine.draining:
            return me
        chosen = choose(hubs, self._strategy, planned=self._planned)
        # The view may know an incarnation of this hub that has ended.
        return me if chosen.address == me.address else chosen
