"""The checks of a simulation: a sound history passes, and each fault is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batchkeeper.bench.simulation.checks import Verdict, judge
from batchkeeper.bench.simulation.events import Event
from batchkeeper.bench.simulation.history import History
from batchkeeper.bench.simulation.plan import Plan

PLAN = Plan(topics=1, seconds=60.0, session_timeout=4.0)
(TOPIC,) = PLAN.topic_names
LOG = {TOPIC: [1, 2, 3, 3, 4]}

HUB_1, HUB_2, CLIENTS, OTHER = "hub-1-1", "hub-2-1", "clients", "simulation"


def event(at: float, source: str, name: str, **fields: Any) -> Event:
    return Event(at, source, name, fields)


def sample(at: float, source: str, appended: int, topics: int, until: float = 32.0) -> Event:
    asked = {"topics": topics, "hosts": int(at)}
    fields = {"hub": source, "incarnation": 1, "until": until, "topics": 1}
    return event(at, source, "sample", appended=appended, asked=asked, **fields)


def acquired(at: float, source: str, epoch: int) -> Event:
    fields = {"epoch": epoch, "hub": source, "incarnation": 1}
    return event(at, source, "acquired", topic=TOPIC, **fields)


def accepted(at: float, sequence: int, number: int, begun: float) -> Event:
    fields = {"sequence": sequence, "number": number, "hub": "h", "begun": begun}
    return event(at, CLIENTS, "accepted", topic=TOPIC, **fields)


def of_subscriber(at: float, name: str, **fields: Any) -> Event:
    source = OTHER if name == "mark" else CLIENTS
    return event(at, source, name, topic=TOPIC, subscriber="s", **fields)


# A hub is killed at 30 s. Another one has its topic 3.5 s later.
SOUND = [
    event(0.0, HUB_1, "serving", hub=HUB_1, incarnation=1),
    event(0.0, HUB_2, "serving", hub=HUB_2, incarnation=1),
    event(1.0, HUB_1, "began", topic=TOPIC, epoch=1, begun=0.9),
    acquired(1.1, HUB_1, 1),
    of_subscriber(1.2, "subscribed"),
    event(1.3, CLIENTS, "publishing", topic=TOPIC),
    sample(10.0, HUB_1, appended=0, topics=3),
    event(10.4, HUB_1, "appended", topic=TOPIC, epoch=1, begun=10.3, last=1),
    accepted(10.5, sequence=1, number=1, begun=10.2),
    event(10.9, HUB_1, "appended", topic=TOPIC, epoch=1, begun=10.8, last=2),
    accepted(11.0, sequence=2, number=2, begun=10.7),
    sample(11.2, HUB_1, appended=2, topics=3),
    of_subscriber(11.3, "taken", messages=[[1, 1], [2, 2]]),
    of_subscriber(12.0, "mark", mark=1),
    event(29.8, HUB_1, "appended", topic=TOPIC, epoch=1, begun=29.7, last=3),
    event(30.0, OTHER, "fault", kind="kill", hub=HUB_1, process=HUB_1),
    event(33.0, OTHER, "gone", hub=HUB_1, incarnation=1),
    event(33.4, HUB_2, "began", topic=TOPIC, epoch=2, begun=33.3),
    acquired(33.5, HUB_2, 2),
    event(33.6, HUB_2, "appended", topic=TOPIC, epoch=2, begun=33.6, last=4),
    # The first attempt was in the log, but its answer was lost.
    accepted(33.7, sequence=3, number=4, begun=29.6),
    event(34.0, OTHER, "healed", kind="kill", hub=HUB_1, process="hub-1-2"),
    of_subscriber(34.1, "subscribed"),
    of_subscriber(34.2, "taken", messages=[[2, 2], [3, 3], [4, 3]]),
    accepted(59.0, sequence=4, number=5, begun=58.9),
    of_subscriber(59.1, "taken", messages=[[5, 4]]),
    of_subscriber(59.3, "finished", consumed=5),
    of_subscriber(60.5, "mark", mark=5),
    event(60.6, HUB_2, "lost", topic=TOPIC, epoch=2),
]


def verdicts(events: list[Event], logs: dict[str, list[int]] | None = None) -> list[Verdict]:
    return judge(PLAN, History.of(events), LOG if logs is None else logs)


def broken(found: list[Verdict]) -> list[str]:
    return [verdict.promise for verdict in found if not verdict.holds]


def at(when: float, **fields: Any) -> Callable[[list[Event]], list[Event]]:
    """Change the fields of the event of a time."""

    def change(events: list[Event]) -> list[Event]:
        assert any(one.at == when for one in events)
        return [
            replace(one, fields={**one.fields, **fields}) if one.at == when else one
            for one in events
        ]

    return change


def without(*times: float) -> Callable[[list[Event]], list[Event]]:
    """Leave events out."""
    return lambda events: [one for one in events if one.at not in times]


def also(*more: Event) -> Callable[[list[Event]], list[Event]]:
    """Add events."""
    return lambda events: [*events, *more]


def test_a_sound_history_passes() -> None:
    """Each verdict says what it has found."""
    found = verdicts(SOUND)
    assert broken(found) == []
    said = {verdict.promise: verdict.found for verdict in found}
    assert said == {
        "one owner of a topic at a time": "2 ownerships",
        "no late message of an earlier owner": "0 refused by the log",
        "the order of each topic": "5 messages, 1 of them twice",
        "accepted messages are in the log": "4 accepted",
        "every subscriber gets every message, in order": (
            "5 delivered, 1 of them again (at most 1 at once)"
        ),
        "consume marks never go back": "2 changes seen",
        "every message is accepted in the end": "half within 300.0 ms, all within 4.1 s",
        "after a crash, half of its topics have an owner within 5 s": (
            "1 crash, 1 topics: half 3.5 s, all 3.5 s; the store ended the sessions after 3.0 s"
        ),
        "no store operation for a publish in the steady state": (
            "0 of 2 messages; for reports and marks 0.8 a second and hub"
        ),
    }


ONE_OWNER = "one owner of a topic at a time"
FENCED = "no late message of an earlier owner"
ORDER = "the order of each topic"
LOST = "accepted messages are in the log"
DELIVERED = "every subscriber gets every message, in order"
MARKS = "consume marks never go back"
ACCEPTED = "every message is accepted in the end"
CRASH = "after a crash, half of its topics have an owner within 5 s"
STEADY = "no store operation for a publish in the steady state"


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        # The first hub serves on.
        (lambda events: at(11.2, until=50.0)(without(30.0, 34.0)(events)), ONE_OWNER),
        (at(33.5, epoch=1), ONE_OWNER),
        (also(acquired(45.0, HUB_1, 2)), ONE_OWNER),
        (
            also(event(50.0, HUB_1, "appended", topic=TOPIC, epoch=1, begun=33.5, last=4)),
            FENCED,
        ),
        (at(10.5, number=2), LOST),
        (at(59.0, number=6), LOST),
        (without(10.5, 11.0, 33.7, 59.0), LOST),  # Nothing was accepted at all.
        (at(34.2, messages=[[4, 3]]), DELIVERED),  # Message 3 is left out.
        (at(59.1, messages=[[5, 3]]), DELIVERED),
        (at(11.3, messages=[[2, 2], [1, 1]]), DELIVERED),
        (without(59.3), DELIVERED),
        (also(event(59.5, CLIENTS, "broken", why="OSError()")), DELIVERED),
        (at(12.0, mark=3), MARKS),  # ahead of what was taken
        (also(of_subscriber(60.0, "mark", mark=0)), MARKS),
        (at(60.5, mark=4), MARKS),  # The last one is not stored.
        (
            also(event(40.0, CLIENTS, "failed", topic=TOPIC, sequence=9, begun=1.0, why="x")),
            ACCEPTED,
        ),
        (also(event(59.9, OTHER, "died", process=HUB_2, code=1)), ACCEPTED),
        (without(33.4, 33.5, 33.6, 60.6), CRASH),  # Nobody takes the topic.
        (at(11.2, asked={"topics": 4, "hosts": 11}), STEADY),
    ],
)
def test_each_fault_is_found(change: Callable[[list[Event]], list[Event]], promise: str) -> None:
    """One thing is wrong, and the promise that it breaks is named, with where it happened."""
    found = verdicts(change(SOUND))
    assert promise in broken(found)
    (verdict,) = (one for one in found if one.promise == promise)
    assert verdict.violations


def test_an_owner_that_comes_late() -> None:
    """Half of the topics of a crashed hub have waited too long."""
    moved = [replace(one, at=one.at + 3.0) if 33.1 < one.at < 33.65 else one for one in SOUND]
    assert broken(verdicts(moved)) == [CRASH]
    # The store, not the hubs, was late.
    ended = [replace(one, at=35.9) if one.name == "gone" else one for one in moved]
    assert broken(verdicts(ended)) == []


def test_messages_that_change_places() -> None:
    """The log has a later message of a publisher before an earlier one."""
    assert ORDER in broken(verdicts(SOUND, {TOPIC: [1, 3, 2, 3, 4]}))


def test_a_hub_that_notices_its_loss_late() -> None:
    """A hub serves no longer than its session is valid, so its late `lost` is no second owner."""
    late = [
        sample(29.9, HUB_1, appended=3, topics=3, until=33.0),
        event(40.0, HUB_1, "lost", topic=TOPIC, epoch=1),
    ]
    paused = at(30.0, kind="pause")(SOUND)
    history = History.of([*paused, *late])
    first, second = history.owners[TOPIC]
    assert (first.ended, first.end) == (33.0, "expired")
    assert (second.begun, second.end) == (33.5, "lost")
    assert broken(judge(PLAN, history, LOG)) == []
    too_long = [replace(late[0], fields={**late[0].fields, "until": 33.6}), late[1]]
    assert ONE_OWNER in broken(verdicts([*paused, *too_long]))


def test_violations_are_counted_when_there_are_many() -> None:
    """The first ones are shown."""
    failed = [
        event(40.0 + n, CLIENTS, "failed", topic=TOPIC, sequence=n, begun=1.0, why="x")
        for n in range(5)
    ]
    (verdict,) = (one for one in verdicts([*SOUND, *failed]) if one.promise == ACCEPTED)
    assert len(verdict.violations) == 4
    assert verdict.violations[-1] == "and 2 more"
