"""Which topics a hub releases, and when. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ..managers.data import HubLoad
from ..topics.choosing import score
from ..topics.region import Hub
from .settings import HubSettings

__all__ = ["Held", "to_shed", "unused"]


class Held(NamedTuple):
    """A topic that a hub owns.

    Attributes:
        topic: its name.
        message_rate: messages per second.
        connections: the number of connected subscribers.
        claimed: when the hub became its owner, in seconds.
        used: the time of the last publish or subscribe.
    """

    topic: str
    message_rate: float = 0.0
    connections: int = 0
    claimed: float = 0.0
    used: float = 0.0


def to_shed(
    address: str,
    load: HubLoad,
    hubs: Mapping[str, Hub],
    held: Iterable[Held],
    settings: HubSettings,
) -> list[str]:
    """Return the topics that a hub releases because it is overloaded.

    A hub is overloaded when its score exceeds the average of all hubs that take topics by more than
        the tolerance. It then releases topics until it reaches the average, hot topics first. A
        topic that is heavier than the whole surplus stays: it would overload the next hub, and move
        forever.

    Args:
        address: the hub.
        load: its current load, newer than its last report.
        hubs: all live hubs, as returned by ``Hosts.hubs``.
        held: its topics.
        settings: ``tolerance`` and ``most_shed`` decide.
    """
    loads = {
        hub.info.address: hub.load
        for hub in hubs.values()
        if hub.eligible and not hub.draining and hub.load.capacity
    }
    if address not in loads or len(loads) == 1 or not load.capacity:
        return []
    loads[address] = load
    capacity = sum(one.capacity for one in loads.values())
    average = sum(score(one) * (one.capacity / capacity) for one in loads.values())
    if score(load) <= average * (1.0 + settings.tolerance):
        return []
    surplus = (score(load) - average) * load.capacity
    chosen: list[str] = []
    for weight, topic in sorted(((_weight(one), one.topic) for one in held), reverse=True):
        if len(chosen) == settings.most_shed:
            break
        if weight <= surplus:
            surplus -= weight
            chosen.append(topic)
    return chosen


def unused(held: Collection[Held], settings: HubSettings, now: float) -> list[str]:
    """Return the topics that a hub releases because they are too old or too many.

    Args:
        held: its topics.
        settings: the two retentions and ``max_topics`` decide.
        now: the current time, on the clock of the topics' times.
    """
    after_access, after_claim = settings.retention_after_access, settings.retention_after_claim
    old = [
        one.topic
        for one in held
        if (after_claim is not None and now - one.claimed >= after_claim)
        or (after_access is not None and not one.connections and now - one.used >= after_access)
    ]
    if settings.max_topics is not None and (more := len(held) - len(old) - settings.max_topics) > 0:
        gone = set(old)
        rest = (one for one in held if one.topic not in gone)
        old += [one.topic for one in sorted(rest, key=lambda one: one.used)[:more]]
    return old


def _weight(held: Held) -> float:
    return score(HubLoad(1, held.message_rate, held.connections))
