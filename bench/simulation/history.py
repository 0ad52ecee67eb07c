"""The owners of topics over time, and the messages that clients saw, from the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .events import Event

#: How an ownership ended: the hub released the topic or noticed its loss, it was killed, its
#: session may have ended, or the records end.
End: TypeAlias = Literal["lost", "killed", "expired", "records"]


@dataclass(slots=True)
class Ownership:
    """A topic and the hub that owned it for a time.

    Attributes:
        topic: the topic.
        epoch: its epoch.
        hub: the address of the hub.
        incarnation: the incarnation of the hub.
        source: the process of the hub.
        begun: when the hub began to serve it.
        ended: the time after which the hub cannot have served it.
        end: how it ended.
    """

    topic: str
    epoch: int
    hub: str
    incarnation: int
    source: str
    begun: float
    ended: float
    end: End = "records"


@dataclass(slots=True)
class FaultTime:
    """A fault of a hub.

    Attributes:
        kind: the fault.
        hub: the address of the hub.
        source: the affected process.
        begun: when it began.
        ended: when it was over; the end of the records if nothing says so.
    """

    kind: str
    hub: str
    source: str
    begun: float
    ended: float


@dataclass(slots=True)
class History:
    """The history in the records.

    Attributes:
        events: all events, by name, in order of time.
        begun: the time of the first one.
        ended: the time of the last one.
        owners: by topic, its ownerships, in the order of their beginning.
        faults: the faults of the hubs.
    """

    events: Mapping[str, Sequence[Event]]
    begun: float
    ended: float
    owners: dict[str, list[Ownership]] = field(default_factory=dict)
    faults: list[FaultTime] = field(default_factory=list)

    def named(self, name: str) -> Sequence[Event]:
        """Return the events of a name, in the order of time."""
        return self.events.get(name, ())

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """Return the history from the records of all processes."""
        ordered = sorted(events, key=lambda event: event.at)
        by_name: dict[str, list[Event]] = defaultdict(list)
        for event in ordered:
            by_name[event.name].append(event)
        times = [event.at for event in ordered] or [0.0]
        made = cls(by_name, times[0], times[-1])
        made.owners = _owners(ordered, made.ended)
        made._follow_faults(ordered)
        return made

    def _follow_faults(self, ordered: Sequence[Event]) -> None:
        under_way: dict[str, FaultTime] = {}
        for event in ordered:
            if event.name == "fault":
                fault = FaultTime(
                    event["kind"], event["hub"], event["process"], event.at, self.ended
                )
                self.faults.append(fault)
                under_way[fault.hub] = fault
            elif event.name == "healed":
                under_way[event["hub"]].ended = event.at


def _owners(ordered: Iterable[Event], last: float) -> dict[str, list[Ownership]]:
    """Follow the owners of topics, until the records end."""
    owners: dict[str, list[Ownership]] = defaultdict(list)
    held: dict[tuple[str, str], Ownership] = {}  # by process and topic
    # By process and incarnation: until when the hub may serve, according to itself.
    until: dict[tuple[str, int], float] = {}

    def end(source: str, topic: str, at: float, why: End) -> None:
        owned = held.pop((source, topic), None)
        if owned is None:
            return
        promised = until.get((source, owned.incarnation), at)
        # A hub that notices its loss late has not served since its session may have ended: it
        # checks that time before each message and each delivery.
        owned.ended, owned.end = (promised, "expired") if promised < at else (at, why)
        owned.ended = max(owned.ended, owned.begun)

    for event in ordered:
        if event.name == "sample":
            # A hub that has lost its session records that it must not serve.
            life = event.source, event["incarnation"]
            until[life] = max(until.get(life, event["until"]), event["until"])
        elif event.name == "acquired":
            topic = event["topic"]
            end(event.source, topic, event.at, "lost")
            epoch, hub, incarnation = (event[name] for name in ("epoch", "hub", "incarnation"))
            owned = Ownership(topic, epoch, hub, incarnation, event.source, event.at, last)
            held[event.source, topic] = owned
            owners[topic].append(owned)
        elif event.name == "lost":
            end(event.source, event["topic"], event.at, "lost")
        elif event.name == "died" or (event.name == "fault" and event["kind"] == "kill"):
            for source, topic in [key for key in held if key[0] == event["process"]]:
                end(source, topic, event.at, "killed")
    for source, topic in [*held]:
        end(source, topic, last, "records")
    return dict(owners)
