"""The checks of coordination find what is wrong, only that."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from .checker import Violation
from .coordination import (
    Fenced,
    Finish,
    Hold,
    Job,
    Number,
    Read,
    Seen,
    Update,
    check_fenced,
    check_holds,
    check_jobs,
    check_numbers,
    check_reads,
    check_updates,
)
from .coordination_groups import View, Visit, check_views, check_visits


def rules(violations: Iterable[Violation]) -> list[str]:
    return [violation.rule for violation in violations]


# --- holds


def hold(token: int, acquired: float, until: float, **fields: Any) -> Hold:
    return Hold("/lock", f"holder {token}", token, acquired, until, **fields)


def test_a_hold_is_believed_until_its_holder_knows_better() -> None:
    """A belief ends with the release, the loss, or the time that the session promised."""
    assert hold(1, 0, 9).end == 9
    assert hold(1, 0, 9, released=5).end == 5
    assert hold(1, 0, 9, lost=4).end == 4


def test_looks_move_the_end_of_a_belief() -> None:
    """A look that shows the hold counts from its begin, whatever the clock said before."""
    seen = hold(1, 0, -math.inf)
    seen.look(1.0, 4.0, held=True)
    assert seen.end == 4.0
    seen.look(6.0, -math.inf, held=True)
    assert seen.end == 6.0
    seen.look(5.0, -math.inf, held=False)
    seen.look(7.0, -math.inf, held=False)
    assert seen.end == 5.0


@pytest.mark.parametrize(
    "holds",
    [
        pytest.param([hold(1, 0, 9, released=2), hold(2, 2, 9)], id="released"),
        pytest.param([hold(1, 0, 3), hold(2, 3, 9)], id="past its time"),
        pytest.param([hold(1, 0, 9, lost=3), hold(2, 4, 9)], id="lost"),
        # It was stopped after its hold began, and came back after its session.
        pytest.param([hold(1, 8, 3), hold(2, 4, 9)], id="never believed"),
        pytest.param([hold(7, 0, 5, shared=True), hold(6, 1, 5, shared=True)], id="shared"),
        pytest.param([hold(1, 0, math.inf, released=1), hold(2, 1, math.inf)], id="no server"),
    ],
)
def test_holds_in_turn_are_accepted(holds: Sequence[Hold]) -> None:
    """Beliefs may follow each other, be empty, or be shared."""
    assert check_holds(holds) == []
    assert check_holds(reversed(holds)) == []


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("too many holders at a time", [hold(1, 0, 5), hold(2, 4, 9)]),
        ("too many holders at a time", [hold(1, 0, 9), hold(2, 4, 5)]),
        ("too many holders at a time", [hold(1, 0, 9, lost=5), hold(2, 4, 9, released=6)]),
        ("too many holders at a time", [hold(1, 0, 5, shared=True), hold(2, 4, 9)]),
        ("too many holders at a time", [hold(1, 0, 5), hold(2, 4, 9, shared=True)]),
        ("a token that did not grow", [hold(2, 0, 1), hold(1, 2, 3)]),
        ("a token that did not grow", [hold(2, 0, 1, shared=True), hold(1, 2, 3)]),
        ("a token that did not grow", [hold(2, 0, 1), hold(1, 2, 3, shared=True)]),
        ("a token was given twice", [hold(1, 0, 1), hold(1, 2, 3)]),
    ],
)
def test_wrong_holds_are_found(rule: str, holds: Sequence[Hold]) -> None:
    """Two holders at a time, and a token that comes again or falls, are found."""
    assert rules(check_holds(holds)) == [rule]
    assert rules(check_holds(reversed(holds))) == [rule]


def test_a_third_holder_of_a_semaphore_of_two_is_found() -> None:
    """A semaphore may have as many holders as its limit, with tokens in any order."""
    two = [hold(2, 0, 9), hold(1, 1, 5), hold(3, 5, 8)]
    assert check_holds(two, limit=2) == []
    assert rules(check_holds([*two, hold(4, 3, 4)], limit=2)) == ["too many holders at a time"]


def test_holds_of_other_paths_are_no_rivals() -> None:
    """Each path has a holder of its own."""
    assert check_holds([Hold("/a", "x", 1, 0.0, 9.0), Hold("/b", "y", 1, 0.0, 9.0)]) == []


# --- fenced writes


def fenced(token: int, version: int | None, outcome: Any = "done") -> Fenced:
    return Fenced("/f", f"{token}-{version}", token, outcome, version)


def seen(write: Fenced, version: int) -> Seen:
    return Seen("/f", write.value, version)


def test_fenced_writes_in_order_are_accepted() -> None:
    """A holder may write often, and a write without an answer may have been applied or not."""
    late, never = fenced(5, None, "unknown"), fenced(6, None, "unknown")
    writes = [fenced(9, 4), fenced(3, 0), fenced(3, 1), late, never, fenced(7, None, "refused")]
    assert check_fenced(writes, [seen(late, 2)], [seen(writes[0], 4)]) == []


@pytest.mark.parametrize(
    ("rule", "writes", "read"),
    [
        ("a write came after a greater token's", [fenced(3, 0), fenced(2, 1)], []),
        ("a write came after a greater token's", [fenced(2, None, "unknown"), fenced(3, 0)], [0]),
        ("a refused write was applied", [fenced(2, None, "refused"), fenced(1, 0)], [0]),
        ("a refused write was applied", [fenced(2, None, "not_applied"), fenced(1, 0)], [0]),
        ("two writes of one version", [fenced(1, 0), fenced(2, 0)], []),
        ("two writes of one version", [fenced(1, None, "unknown"), fenced(2, 1)], [0]),
        ("never ended", [fenced(1, None, "pending")], []),
    ],
)
def test_wrong_fenced_writes_are_found(
    rule: str, writes: Sequence[Fenced], read: Sequence[int]
) -> None:
    """A write that lands late, without right or twice is found; a read shows what was applied."""
    assert rules(check_fenced(writes, [seen(writes[at], 1) for at in read])) == [rule]


def test_a_fenced_write_that_is_gone_or_came_from_nowhere_is_found() -> None:
    """The last read must show the last write, and a value that somebody wrote."""
    first, second = fenced(1, 0), fenced(1, 1)
    assert rules(check_fenced([first, second], [], [seen(first, 0)])) == [
        "an acknowledged write is missing"
    ]
    assert rules(check_fenced([first], [Seen("/f", "?", 1)])) == ["a value that nobody wrote"]


# --- counters


def number(times: tuple[float, float], first: int, client: str = "a", count: int = 1) -> Number:
    return Number("/n", client, *times, first, count)


def test_numbers_that_grow_are_accepted() -> None:
    """Numbers may have gaps, and calls at the same time, or of others, take any order."""
    some = [
        number((0, 9), 4),
        number((1, 8), 3),
        number((10, 11), 5, count=5),
        number((12, 13), 10),
        number((12, 13), 1, "b"),
    ]
    assert check_numbers(some) == []


@pytest.mark.parametrize(
    ("rule", "some"),
    [
        ("a number came twice", [number((0, 1), 3), number((0, 1), 3, "b")]),
        ("a number came twice", [number((0, 1), 3, count=9), number((0, 1), 7, "b")]),
        (
            "a number came twice",
            [number((0, 1), 0, count=9), number((2, 3), 9), number((4, 5), 7, "b")],
        ),
        ("a number that did not grow", [number((0, 1), 3), number((2, 3), 2)]),
    ],
)
def test_wrong_numbers_are_found(rule: str, some: Sequence[Number]) -> None:
    """A number that comes twice, also within a range, or that falls is found."""
    assert rules(check_numbers(some)) == [rule]


# --- caches


def read(times: tuple[float, float], found: int, client: str = "a", path: str = "/c") -> Read:
    return Read(path, client, *times, found)


def test_reads_that_do_not_go_back_are_accepted() -> None:
    """A cache may lag behind others, and reads at the same time may take either order."""
    some = [
        read((0, 1), 0),
        read((2, 9), 7),
        read((3, 4), 5),
        read((10, 11), 7),
        read((12, 13), 4, "b"),
        read((12, 13), 1, path="/other"),
    ]
    assert check_reads(some, [read((20, 21), 8)], {"/c": 8}) == []


@pytest.mark.parametrize(
    ("rule", "some", "quiet"),
    [
        ("a read that is older than what was seen", [((0, 1), 5), ((2, 3), 4)], ((9, 9), 5)),
        ("a read that is older than what was seen", [((0, 1), 5), ((2, 3), 0)], ((9, 9), 5)),
        ("a read that is older than what was seen", [((0, 1), 6)], ((9, 9), 5)),
        ("a cache that is not like the store", [], ((9, 9), 4)),
    ],
)
def test_wrong_reads_are_found(rule: str, some: Any, quiet: Any) -> None:
    """A read that goes back, and a cache that never learns of the last change, are found."""
    assert rules(check_reads([read(*one) for one in some], [read(*quiet)], {"/c": 5})) == [rule]


def test_lost_and_doubled_updates_are_found() -> None:
    """Each update counts once; one without an answer may count or not."""
    updates = [Update("/u", outcome) for outcome in ("done", "done", "unknown", "not_applied")]  # type: ignore[arg-type]
    wrong = ["a lost update, or one that came twice"]
    assert [rules(check_updates(updates, {"/u": last})) for last in (1, 2, 3, 4)] == [
        wrong,
        [],
        [],
        wrong,
    ]
    assert rules(check_updates([Update("/u")], {})) == ["never ended"]


# --- jobs


def job(name: str, put: Any, *finished: Any) -> tuple[Job, list[Finish]]:
    return Job(name, put), [Finish(name, outcome) for outcome in finished]


def check_all(made: Iterable[tuple[Job, list[Finish]]], left: Iterable[str]) -> list[str]:
    jobs, finishes = zip(*made, strict=True)
    return rules(check_jobs(jobs, itertools.chain(*finishes), left))


def test_jobs_that_are_done_or_left_are_accepted() -> None:
    """A job may be done again if nobody knows that it was finished."""
    jobs = [
        job("done", "done", "done"),
        job("again", "done", "unknown", "not_applied", "done"),
        job("perhaps", "done", "unknown"),
        job("left", "done", "not_applied"),
        job("put without an answer", "unknown", "done"),
        job("never there", "unknown"),
        job("refused", "not_applied"),
    ]
    assert check_all(jobs, ["left"]) == []


@pytest.mark.parametrize(
    ("rule", "made", "left"),
    [
        ("a job was lost", job("j", "done"), []),
        ("a job was lost", job("j", "done", "not_applied"), []),
        ("a job was finished twice", job("j", "done", "done", "done"), []),
        ("a finished job is there", job("j", "done", "done"), ["j"]),
        ("a job that was refused is there", job("j", "not_applied"), ["j"]),
        ("a job that was refused is there", job("j", "not_applied", "done"), []),
        ("a job that nobody put", job("k", "unknown"), ["j"]),
        ("never ended", job("j", "pending"), []),
        ("never ended", job("j", "unknown", "pending"), []),
    ],
)
def test_wrong_jobs_are_found(
    rule: str, made: tuple[Job, list[Finish]], left: Sequence[str]
) -> None:
    """A job that is lost, finished twice, or there without reason is found."""
    assert check_all([made], left) == [rule]


# --- barriers


def visit(
    holder: str,
    invoked: float,
    token: int = -1,
    times: tuple[float, float] = (math.inf, -math.inf),
    left: float = math.inf,
    **fields: Any,
) -> Visit:
    """Return a visit that is inside for a time."""
    fields = {"certain": token >= 0, **fields}
    return Visit("/b", holder, token, times[0], times[1], invoked=invoked, left=left, **fields)


@pytest.mark.parametrize(
    "visits",
    [
        pytest.param([visit("a", 0, 5, (2, 3), 4), visit("b", 1, 5, (3, 4), 5)], id="together"),
        pytest.param([visit("a", 0, 5, (2, 3), 4), visit("b", 1)], id="killed in enter"),
        pytest.param([visit("a", 0, 5, (2, 3), 4), visit("b", 1), visit("b", 3)], id="gave up"),
        pytest.param(
            [visit("a", 0, 5, (2, 3), 4), visit("b", 1, 7, certain=False), visit("c", 1, 7)],
            id="stood for an earlier round, too",
        ),
        pytest.param(
            [visit("a", 0, 5, (2, 3), 4), visit("b", 1, 5, (2, 9), lost=4)], id="lost its session"
        ),
        pytest.param(
            [visit("a", 0, 5, (2, 3), 4), visit("b", 1, 5, (5, 3), 6)], id="came back too late"
        ),
        pytest.param(
            [visit("a", 0, 5, (2, 3), 4), visit("b", 1, 5, (2, 9), 9, certain=False)],
            id="in a later session",
        ),
    ],
)
def test_rounds_of_a_barrier_are_accepted(visits: Sequence[Visit]) -> None:
    """Somebody who does not come back from ``enter`` may count, and one whose session ends left."""
    assert check_visits(visits, 2) == []
    assert check_visits(reversed(visits), 2) == []


@pytest.mark.parametrize(
    ("rule", "visits"),
    [
        pytest.param("too few have entered", [visit("a", 0, 5)], id="alone"),
        pytest.param(
            "too few have entered",
            [visit("a", 0, 5, (2, 3), 4), visit("b", 2.5, 5, (3, 4), 5)],
            id="before the other",
        ),
        pytest.param(
            "too few have entered", [visit("a", 0, 5, (2, 3)), visit("b", 2.5)], id="before a call"
        ),
        pytest.param(
            "too few have entered",
            [visit("a", 0, 5, (2, 3)), visit("b", 1), visit("b", 2, 4), visit("c", 0, 4)],
            id="after an earlier round",
        ),
        pytest.param(
            "too few have entered",
            [visit("b", 0, 6), visit("c", 0, 6), visit("a", 0, 5, (2, 3)), visit("b", 1)],
            id="after a later round",
        ),
        pytest.param(
            "somebody is still inside",
            [visit("a", 0, 5, (2, 3), 4), visit("b", 1, 5, (2, 9), 6, released=5)],
            id="left alone",
        ),
        pytest.param(
            "somebody is still inside",
            [visit("a", 0, 5, (2, 3), 4), visit("b", 1, 5, (5, 6))],
            id="entered after that",
        ),
        pytest.param(
            "a round that did not grow",
            [visit("a", 0, 5, (1, 2), 3), visit("b", 0, 5, (1, 2), 3), visit("a", 3, 5)],
            id="twice",
        ),
    ],
)
def test_wrong_rounds_of_a_barrier_are_found(rule: str, visits: Sequence[Visit]) -> None:
    """Whoever passes ``enter`` before enough came, or ``leave`` before all have left, is found."""
    assert rules(check_visits(visits, 2)) == [rule]
    assert rules(check_visits(reversed(visits), 2)) == [rule]


# --- groups


def test_views_of_a_group_must_agree() -> None:
    """All processes read the same members and got the same events: those who believe to be
    there."""
    ours, theirs = View("m0", ["a 1"], [], []), View("m1", [], ["a 1"], ["a 1"])
    good = View("m0", ["a 1"], ["a 1"], ["a 1"])
    assert check_views([good, theirs]) == []
    assert rules(check_views([ours, theirs])) == ["a member that does not know of its end"]
    assert rules(check_views([theirs])) == ["a member that does not live"]
    assert rules(check_views([good, View("m1", [], ["a 1"], ["a 0"])])) == [
        "a listener that does not know the members"
    ]
