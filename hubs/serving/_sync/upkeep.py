# Made from async_upkeep.py by `python tools/faces.py`: change that file, and run this command.
"""The background work of a hub, from its start to its stop.

A hub follows its session and its membership, reports its load, sheds topics if it is overloaded,
and retires topics if they are too old or too many. The rules:

- No error ends a loop. Otherwise, a hub would not notice the end of its next session.
- During an outage, the hub only follows its session: no hub could claim released topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ....batching.background import Signal, spawn
from ....ops.errors import MetadataStoreError
from ....ops.log import get_logger
from ...managers.data import HubLoad
from ...topics._sync.hosts import Hosts, Registration
from ..settings import HubSettings
from ..shedding import Held, to_shed, unused
from .holding import Holding
from .served import ServedTopics

__all__ = ["Upkeep"]

log = get_logger("batchkeeper.hubs")

# Seconds between two checks of the session and of the membership.
_POLL: Final = 0.25


class Upkeep:
    """The background work of one hub.

    Args:
        address: the address of the hub.
        topics: the topics that it serves.
        holding: releases and loses topics.
        hosts: the hubs of the region.
        registration: the hub's place among them.
        settings: the settings of the hub.
        stopped: ends the work.
    """

    def __init__(
        self,
        address: str,
        topics: ServedTopics,
        holding: Holding,
        hosts: Hosts,
        registration: Registration,
        settings: HubSettings,
        stopped: Signal,
    ) -> None:
        self._address = address
        self._topics = topics
        self._holding = holding
        self._hosts = hosts
        self._registration = registration
        self._settings = settings
        self._stopped = stopped

    def start(self) -> None:
        """Start, and run until the hub has stopped."""
        settings = self._settings
        self._every(_POLL, self._follow_session, offline=True)
        self._every(_POLL, self._follow_membership)
        self._every(settings.report_interval, self._report)
        self._every(settings.shed_interval, self._shed)
        self._every(_retirement(settings), self._retire)

    def _every(
        self, seconds: float | None, call: Callable[[], None], *, offline: bool = False
    ) -> None:
        """Call a function periodically; during an outage, only if it is meant for outages.

        A topic that is released during an outage cannot be handed over, so no hub would serve it.
        """
        if seconds is not None:
            spawn(f"hub {self._address}", self._repeat, seconds, call, offline)

    def _repeat(self, seconds: float, call: Callable[[], None], offline: bool) -> None:
        while not self._stopped.wait(seconds):
            try:
                if offline or self._holding.is_answered():
                    call()
            except MetadataStoreError as error:
                log.warning("a hub goes on", hub=self._address, reason=str(error))
            except Exception:  # An error of the logs, or no thread is left.
                log.exception("a hub goes on", hub=self._address)

    def _follow_session(self) -> None:
        """Lose the topics of a session that has ended.

        If the session may have ended, because no server answers, disconnect all subscribers.
        """
        # In this order: the end of one incarnation must not end the topics of the next.
        me = self._registration.info
        ended = self._registration.lost.is_set()
        topics = self._topics.all()
        lost = [
            topic
            for topic in topics
            if topic.claim.owner.incarnation < me.incarnation or (ended and topic.claim.owner == me)
        ]
        if topics and not lost and not self._holding.may_serve(me):
            self._holding.disconnect_all(topics)
        if lost:
            self._holding.lose_all(lost)

    def _follow_membership(self) -> None:
        """Release all topics if an operator drains the hub."""
        if self._registration.draining:
            self._holding.release_all()

    def _report(self) -> None:
        now = time.monotonic()
        for topic in self._topics.all():
            topic.rate(now)
        self._registration.update(self._load())

    def _shed(self) -> None:
        """Release topics if the hub is overloaded."""
        chosen = to_shed(
            self._address,
            self._load(),
            self._hosts.hubs(),
            self._held(),
            self._settings,
        )
        self._holding.release_each(chosen)

    def _retire(self) -> None:
        """Release topics if they are too old or too many."""
        self._holding.release_each(unused(self._held(), self._settings, time.monotonic()))

    def _held(self) -> list[Held]:
        return [topic.held for topic in self._topics.all()]

    def _load(self) -> HubLoad:
        held = self._held()
        return HubLoad(
            len(held),
            sum(one.message_rate for one in held),
            sum(one.connections for one in held),
            self._settings.capacity,
        )


def _retirement(settings: HubSettings) -> float | None:
    """Return the seconds between two checks for topics to retire; ``None`` for no checks."""
    limits = [
        1.0 if settings.max_topics is not None else None,
        settings.retention_after_access,
        settings.retention_after_claim,
    ]
    known = [limit for limit in limits if limit is not None]
    return min(1.0, min(known) / 2) if known else None
