"""The checks of sequences, watches and ephemeral values find what is wrong, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest

import batchkeeper as bk

from .contract import (
    Look,
    Sequential,
    SessionRecord,
    WatchRecord,
    check_ephemerals,
    check_sequences,
    check_watch,
)
from .history import Op

Times = tuple[float, float]


# --- sequences


def sequential(times: Times, suffix: int | None, outcome: Any = "done") -> Sequential:
    path = None if suffix is None else f"/q/n-{suffix:010}"
    return Sequential("/q", *times, outcome, path)


def names(*suffixes: int) -> dict[str, list[str]]:
    return {"/q": [f"n-{suffix:010}" for suffix in suffixes]}


def test_sequences_in_order_are_accepted() -> None:
    """Suffixes may have gaps, and puts at the same time may take either order."""
    puts = [
        sequential((0, 1), 0),
        sequential((2, 9), 4),
        sequential((3, 8), 3),
        sequential((3, math.inf), None, "unknown"),
        sequential((3, 4), None, "not_applied"),
        sequential((10, 11), 7),
    ]
    assert check_sequences(puts, names(0, 3, 4, 5, 7)) == []
    assert check_sequences(puts, names(0, 3, 4, 7)) == []


@pytest.mark.parametrize(
    ("rule", "puts", "there"),
    [
        ("a suffix was used twice", [((0, 1), 0), ((2, 3), 0)], None),
        ("a suffix that did not grow", [((0, 1), 5), ((2, 3), 4)], None),
        ("a suffix that did not grow", [((0, 9), 5), ((0, 1), 7), ((2, 3), 6)], None),
        ("an acknowledged value is missing", [((0, 1), 0), ((2, 3), 1)], names(1)),
        ("values that nobody put, or one that was put twice", [((0, 1), 0)], names(0, 1)),
    ],
)
def test_wrong_sequences_are_found(rule: str, puts: Any, there: Any) -> None:
    """A suffix that comes twice or goes back, a lost value and a second value are found."""
    made = [sequential(times, suffix) for times, suffix in puts]
    assert [violation.rule for violation in check_sequences(made, there)] == [rule]


# --- watches


def put(path: str, revision: int, times: Times, **fields: Any) -> Op:
    fields.setdefault("outcome", "done")
    return Op("a", "put", path, revision=revision, invoked=times[0], completed=times[1], **fields)


def delete(path: str, times: Times) -> Op:
    return Op("a", "delete", path, invoked=times[0], completed=times[1], outcome="done")


def created(path: str, revision: int | None) -> bk.WatchEvent:
    return bk.WatchEvent("created", path, 0, revision)


def modified(path: str, version: int | None, revision: int | None) -> bk.WatchEvent:
    return bk.WatchEvent("modified", path, version, revision)


def deleted(path: str, revision: int | None) -> bk.WatchEvent:
    return bk.WatchEvent("deleted", path, None, revision)


GAP = bk.WatchEvent("gap", "/w")

HISTORY = [
    put("/w/a", 1, (0, 1)),
    put("/w/a", 2, (2, 3)),
    put("/w/b", 3, (4, 5)),
    delete("/w/a", (6, 7)),
    put("/w/a", 5, (8, 9)),
    put("/x", 6, (10, 11)),
]
EVENTS = [
    created("/w/a", 1),
    modified("/w/a", 1, 2),
    created("/w/b", 3),
    deleted("/w/a", 4),
    created("/w/a", 5),
]


def watched(*events: bk.WatchEvent, began: float = -1.0) -> list[str]:
    watch = WatchRecord("/w", began, list(events))
    return [violation.rule for violation in check_watch(watch, HISTORY, 100)]


def test_a_watch_that_reports_everything_is_accepted() -> None:
    """All events in order, or a gap in the place of some, have no violation."""
    assert watched(*EVENTS) == []
    assert watched(GAP, *EVENTS[2:]) == []
    assert watched(EVENTS[0], GAP, *EVENTS[4:]) == []
    assert watched(*EVENTS[:4], GAP) == []
    assert watched(EVENTS[1], *EVENTS[2:], began=1.5) == [
        "an event that cannot follow the one before"
    ]
    watch = WatchRecord("/w", 1.5, list(EVENTS[1:]), before={"/w/a"})
    assert check_watch(watch, HISTORY, 100) == []


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("an event came twice", [*EVENTS[:3], EVENTS[2], *EVENTS[3:]]),
        ("an event is missing, and there is no gap", [*EVENTS[:2], *EVENTS[3:]]),
        ("an event is missing, and there is no gap", [*EVENTS[:4]]),
        ("an event is missing, and there is no gap", [*EVENTS[:2], EVENTS[3], GAP, EVENTS[4]]),
        ("an event that cannot follow the one before", [*EVENTS[:3], EVENTS[4]]),
        ("a revision that goes back", [EVENTS[0], EVENTS[2], EVENTS[1], *EVENTS[3:]]),
        ("a version that does not follow", [EVENTS[0], modified("/w/a", 2, 2), *EVENTS[2:]]),
        ("an event that nobody caused", [*EVENTS, created("/w/c", 7)]),
        ("an event of another path", [*EVENTS, created("/x", 6)]),
    ],
)
def test_wrong_watches_are_found(rule: str, events: list[bk.WatchEvent]) -> None:
    """A doubled event, a lost one without a gap, and one in the wrong place are found."""
    assert rule in watched(*events)


def test_events_without_revisions_are_counted() -> None:
    """Where the store reports no revisions, each path has as many events as changes."""
    bare = [event._replace(revision=None) for event in EVENTS]
    assert watched(*bare) == []
    assert "an event is missing, and there is no gap" in watched(*bare[:1], *bare[2:])
    assert "an event came twice" in watched(bare[0], bare[1], *bare[1:])


def test_a_write_with_an_unknown_outcome_may_have_an_event() -> None:
    """Such a write may have one event, or none."""
    lost = Op("a", "put", "/w/b", invoked=20, outcome="unknown")
    watch = WatchRecord("/w", -1, [*EVENTS, modified("/w/b", 1, 9)])
    assert check_watch(watch, [*HISTORY, lost], 100) == []
    watch = WatchRecord("/w", -1, EVENTS)
    assert check_watch(watch, [*HISTORY, lost], 100) == []


# --- ephemeral values

SESSION = SessionRecord("/e", created=1, valid=10, lost=15)


def looks(*seen: tuple[float, bool]) -> list[Look]:
    return [Look("/e", moment, moment + 0.5, there) for moment, there in seen]


def test_an_ephemeral_value_that_lives_as_its_session_is_accepted() -> None:
    """It is there while the session is certain to live, and may go from then on."""
    seen = looks((0, False), (2, True), (9, True), (11, True), (12, False), (16, False))
    assert check_ephemerals([SESSION], seen) == []


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        ("an ephemeral value went before its session", [(2, True), (5, False)]),
        ("an ephemeral value survived its session", [(2, True), (16, True)]),
        ("an ephemeral value came back", [(2, True), (11, False), (13, True)]),
    ],
)
def test_a_wrong_ephemeral_value_is_found(rule: str, seen: list[tuple[float, bool]]) -> None:
    """A value that goes too early, stays too long or comes back is found."""
    assert rule in [violation.rule for violation in check_ephemerals([SESSION], looks(*seen))]
