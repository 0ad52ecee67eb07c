"""The choice of a hub for a topic. Nothing here sends requests.

The known load of a hub is its last report, so it is slightly old. If all hubs sent every new topic
to the hub with the lowest known load, that hub would get all topics until its next report. Two
things prevent this: the default picks from two random hubs, and each hub counts the topics that it
has sent since that report (:class:`Planned`).
"""

from __future__ import annotations

import random as randoms
import threading
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

from ...ops.errors import InvalidSettingError
from ..errors import NoHubError
from ..managers.data import HubInfo, HubLoad
from .region import Hub

__all__ = ["Planned", "Strategy", "choose", "score"]

#: How to choose a hub: the better of two random ones, the best of all, or a random one, weighted by
#: spare capacity.
Strategy: TypeAlias = Literal["two_choices", "least_loaded", "weighted_random"]

_STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)

# The messages per second, and the connections, that weigh as much as one topic.
_RATE: Final = 100.0
_CONNECTIONS: Final = 100.0


def score(load: HubLoad, planned: float = 0.0) -> float:
    """Return how loaded a hub is; of two hubs, the one with the lower score gets the topic.

    ::

        (topics + message_rate / 100 + connections / 100) / capacity

    An idle topic costs memory and a value in the store. Messages and connections cost processor
    time and bandwidth, regardless of their topic. So one busy topic must be able to weigh as much
    as hundreds of idle ones, and hubs must still share idle topics evenly. The sum does both. A hub
    with twice the capacity bears twice as much. With capacity 0, the score is infinite.

    Args:
        load: the load that the hub has reported.
        planned: the number of topics that it has received since.
    """
    return _amount(load, planned) / load.capacity if load.capacity else float("inf")


class Planned:
    """The topics that this process has sent to hubs since their last reports. For any thread.

    Each of them counts once for each live hub: the other hubs choose from the same reports at the
        same time. This process does not see their choices, but they follow the same rule. Without
        this factor, ten hubs would send ten topics to a hub that has room for one.

    A new report or a new incarnation of a hub resets its count to 0.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the field
        # By address: the incarnation and the report that the count belongs to, and the count.
        self._counts: dict[str, tuple[int, int, int]] = {}

    def add(self, hub: Hub) -> None:
        """Count a topic that is sent to a hub."""
        with self._lock:
            self._counts[hub.info.address] = (*_at(hub), self._count(hub) + 1)

    def counts(self, hubs: Sequence[Hub], alive: int) -> list[int]:
        """Return how many topics count for each hub, given the number of live hubs."""
        with self._lock:
            return [self._count(hub) * alive for hub in hubs]

    def _count(self, hub: Hub) -> int:
        incarnation, report, count = self._counts.get(hub.info.address, (0, 0, 0))
        return count if (incarnation, report) == _at(hub) else 0


def choose(
    hubs: Mapping[str, Hub],
    strategy: Strategy = "two_choices",
    random: randoms.Random | None = None,
    planned: Planned | None = None,
) -> HubInfo:
    """Return the hub that gets a topic. Equal hubs are equally likely.

    A hub that is draining or not eligible is never chosen. A hub with capacity 0 is chosen only if
    there is no other.

    Args:
        hubs: the live hubs, as returned by ``Hosts.hubs``.
        strategy: how to choose.
        random: the source of random numbers; that of the module ``random`` by default.
        planned: the topics that this process has already sent to hubs. The choice is added to it.

    Raises:
        NoHubError: no hub can be chosen.
        InvalidSettingError: there is no such strategy.
    """
    if strategy not in _STRATEGIES:
        raise InvalidSettingError(f"strategy must be one of {_STRATEGIES}, not {strategy!r:.80}")
    candidates = [hub for hub in hubs.values() if hub.eligible and not hub.draining]
    candidates = [hub for hub in candidates if hub.load.capacity] or candidates
    if not candidates:
        raise NoHubError(
            f"no hub can take a topic: of {len(hubs)} that are alive, "
            f"{sum(not hub.eligible for hub in hubs.values())} are not eligible, "
            f"{sum(hub.draining for hub in hubs.values())} drain"
        )
    source = random or randoms
    if strategy == "two_choices" and len(candidates) > 2:
        candidates = source.sample(candidates, 2)
    counts = [0] * len(candidates) if planned is None else planned.counts(candidates, len(hubs))
    if strategy == "weighted_random":
        chosen = source.choices(candidates, _weights(candidates, counts))[0]
    else:
        scores = [score(hub.load, count) for hub, count in zip(candidates, counts, strict=True)]
        least = min(scores)
        chosen = source.choice(
            [hub for hub, its in zip(candidates, scores, strict=True) if its == least]
        )
    if planned is not None:
        planned.add(chosen)
    return chosen.info


def _weights(hubs: Sequence[Hub], counts: Sequence[int]) -> list[float]:
    """Return the weight of each hub: its capacity divided by its load."""
    # The sum of huge capacities may be infinite. Either all capacities are 0, or none is.
    most = max(hub.load.capacity for hub in hubs) or 1.0
    return [
        (hub.load.capacity / most or 1.0) / (1.0 + _amount(hub.load, count))
        for hub, count in zip(hubs, counts, strict=True)
    ]


def _amount(load: HubLoad, planned: float) -> float:
    return load.topics + planned + load.message_rate / _RATE + load.connections / _CONNECTIONS


def _at(hub: Hub) -> tuple[int, int]:
    return hub.info.incarnation, hub.report
