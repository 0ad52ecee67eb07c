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
        made.owners = _Owners(made.ended).follow(ordered)
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


class _Owners:
    """Follows the owners of topics."""

    def __init__(self, ended: float) -> None:
        self._ended = ended  # of the records
        self._owners: dict[str, list[Ownership]] = defaultdict(list)
        self._held: dict[tuple[str, str], Ownership] = {}  # by process and topic
        # By process and incarnation: until when the hub may serve, according to itself.
        self._until: dict[tuple[str, int], float] = {}

    def follow(self, ordered: Iterable[Event]) -> dict[str, list[Ownership]]:
        for event in ordered:
            if event.name == "sample":
                # A hub that has lost its session records that it must not serve.
                life = event.source, event["incarnation"]
                self._until[life] = max(self._until.get(life, event["until"]), event["until"])
            elif event.name == "acquired":
                self._begin(event)
            elif event.name == "lost":
                self._end(event.source, event["topic"], event.at, "lost")
            elif event.name == "died" or (event.name == "fault" and event["kind"] == "kill"):
                for source, topic in [key for key in self._held if key[0] == event["process"]]:
                    self._end(source, topic, event.at, "killed")
        for source, topic in [*self._held]:
            self._end(source, topic, self._ended, "records")
        return dict(self._owners)

    def _begin(self, event: Event) -> None:
        self._end(event.source, event["topic"], event.at, "lost")
        owned = self._held[event.source, event["topic"]] = Ownership(
            event["topic"],
            event["epoch"],
            event["hub"],
            event["incarnation"],
            event.source,
            event.at,
            self._ended,
        )
        self._owners[owned.topic].append(owned)

    def _end(self, source: str, topic: str, at: float, why: End) -> None:
        owned = self._held.pop((source, topic), None)
        if owned is None:
            return
        promised = self._until.get((source, owned.incarnation), at)
        # A hub that notices its loss late has not served since its session may have ended: it
        # checks that time before each message and each delivery.
        owned.ended, owned.end = (promised, "expired") if promised < at else (at, why)
        owned.ended = max(owned.ended, owned.begun)
