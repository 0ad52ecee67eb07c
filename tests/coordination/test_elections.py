"""Elections for threads, on every store."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching.background import spawn as spawn_thread
from batchkeeper.coordination import Election
from batchkeeper.coordination._sync import claims
from batchkeeper.ops import Check, Put
from batchkeeper.ops.errors import (
    AuthenticationError,
    InvalidPathError,
    InvalidSettingError,
    LockBusyError,
    LockLostError,
    StoreClosedError,
    TransactionRefusedError,
)
from batchkeeper.testing import FaultInjector

from ..forgetting import forgets
from ..forks import holds_in_a_child, locked_elsewhere
from ..waiting import PATIENCE, until
from .candidates import LONG, PATH, Heard, background, entries, never_two, remove_leader

# Seconds: too short for a campaign that cannot succeed.
BRIEF = 0.2


@pytest.fixture
def store(store_url: str) -> Iterator[bk.MetadataStore]:
    """An empty store of each kind."""
    with bk.open_store(store_url, session_timeout=LONG) as opened:
        yield opened


@pytest.fixture
def another(store: bk.MetadataStore, store_url: str) -> Iterator[Callable[[], bk.MetadataStore]]:
    """Open another client of the same store; where only one can have it open, it is the same."""
    with ExitStack() as stack:

        def open_another() -> bk.MetadataStore:
            if bk.store_kind(store_url).local_directory:
                return store
            return stack.enter_context(bk.open_store(store_url, session_timeout=LONG))

        yield open_another


@pytest.fixture
def first(store: bk.MetadataStore) -> Iterator[Election]:
    """A candidate."""
    with Election(store, PATH, b"first") as candidate:
        yield candidate


@pytest.fixture
def second(another: Callable[[], bk.MetadataStore]) -> Iterator[Election]:
    """Another candidate for the same, of another client where there can be one."""
    with Election(another(), PATH, b"second") as candidate:
        yield candidate


@pytest.fixture
def memory() -> Iterator[bk.MetadataStore]:
    """A store in memory, for what does not depend on the store."""
    with bk.open_store("memory://elections") as opened:
        yield opened


# --- campaigns


def test_the_only_candidate_leads(store: bk.MetadataStore, first: Election) -> None:
    """``campaign`` returns as the leader, with a token, a time, and a condition that holds."""
    assert not first.is_leader()
    assert first.lost.is_set()
    first.campaign(PATIENCE)
    assert first.is_leader()
    assert first.leader() == first.value == b"first"
    assert time.monotonic() < first.held_until()
    assert not first.lost.is_set()
    assert first.fencing_token > 0
    store.transaction([first.check(), Put("/result", b"1")]).result(PATIENCE)
    term = first.lost
    first.resign()
    assert not first.is_leader()
    assert term.is_set()
    assert first.held_until() == -math.inf
    assert first.leader() is None


def test_who_does_not_lead_has_neither_token_nor_condition(first: Election) -> None:
    """``check`` and ``fencing_token`` raise ``LockLostError`` before and after the leadership."""
    for _ in range(2):
        with pytest.raises(LockLostError):
            first.check()
        with pytest.raises(LockLostError):
            _ = first.fencing_token
        first.campaign(PATIENCE)
        first.resign()


def test_a_campaign_in_vain(store: bk.MetadataStore, first: Election, second: Election) -> None:
    """At its time-out a campaign names the leader, and leaves no candidate behind."""
    first.campaign(PATIENCE)
    with pytest.raises(LockBusyError) as caught:
        second.campaign(BRIEF)
    assert caught.value.value == b"first"
    # On a slow machine, its put may not have been answered in time.
    until(lambda: len(entries(store)) == 1)
    first.resign()
    assert entries(store) == []
    assert not second.is_leader()


def test_a_leader_that_campaigns_leads_already(store: bk.MetadataStore, first: Election) -> None:
    """``campaign`` and ``stand`` of a leader return at once, and begin no other term."""
    first.campaign(PATIENCE)
    token = first.fencing_token
    first.campaign(0)
    first.stand()
    assert first.fencing_token == token
    assert len(entries(store)) == 1


def test_the_next_one_leads_after_a_resignation(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """A waiting campaign returns when the leader resigns, with a greater token."""
    first.campaign(PATIENCE)
    token, term = first.fencing_token, first.lost
    with background(lambda: second.campaign(PATIENCE)) as ended:
        until(lambda: len(entries(store)) == 2)
        assert not second.is_leader()
        assert ended == []
        first.resign()
        assert term.is_set()
    assert ended == [None]
    assert second.is_leader()
    assert second.fencing_token > token
    assert second.leader() == b"second"


def test_two_candidates_in_turn(first: Election, second: Election) -> None:
    """In a hundred rounds there is always one leader at most, and the tokens grow."""
    first.campaign(PATIENCE)
    old, new = first, second
    token = first.fencing_token
    with never_two(first, second):
        for _ in range(100):
            new.stand()
            old.resign()
            new.campaign(PATIENCE)
            assert new.fencing_token > token
            token = new.fencing_token
            old, new = new, old


def test_many_candidates_lead_in_their_order(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Who stood first leads first, and each hand-over makes exactly one leader."""
    stores = [store, another()]
    number = 100 if store.session.timeout == math.inf else 40  # Elsewhere, it takes seconds.
    candidates = [Election(stores[n % 2], PATH, b"%d" % n) for n in range(number)]
    for n, candidate in enumerate(candidates):
        candidate.stand()
        until(lambda n=n: len(store.get_children(PATH).result(PATIENCE)) > n)
    for n, candidate in enumerate(candidates):
        candidate.campaign(PATIENCE)
        assert [other.value for other in candidates if other.is_leader()] == [b"%d" % n]
        candidate.close()
    assert entries(store) == []


def test_the_end_of_a_leader_wakes_one_candidate(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """However many stand, only the next one has an event."""
    stores = [store, *(another() for _ in range(4))]
    candidates = [Election(at, PATH) for at in stores]
    for number, candidate in enumerate(candidates):
        candidate.stand()
        until(lambda n=number: len(entries(store)) > n)
    apart = stores[1] is not store
    if apart:  # Each watches its own value, and all but the leader that of the one before it.
        until(lambda: [at.metrics().watches for at in stores] == [1, 2, 2, 2, 2])
    for number, candidate in enumerate(candidates):
        candidate.campaign(PATIENCE)
        events = sum(at.metrics().watch_events for at in set(stores))
        assert events <= (number if apart else 0)
        candidate.close()


def test_a_candidate_in_the_background(first: Election, second: Election) -> None:
    """``stand`` returns at once; the candidate leads when its turn comes."""
    first.campaign(PATIENCE)
    second.stand()
    assert not second.is_leader()
    first.resign()
    until(second.is_leader)


def test_a_resignation_ends_a_waiting_campaign(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """``campaign`` raises ``LockLostError`` after ``resign``, ``StoreClosedError`` after close."""
    first.campaign(PATIENCE)
    for end, error in ((second.resign, LockLostError), (second.close, StoreClosedError)):
        with background(lambda: second.campaign(PATIENCE)) as ended:
            until(lambda: len(entries(store)) == 2)
            end()
            until(lambda: len(entries(store)) == 1)
        assert [type(found) for found in ended] == [error]
    with pytest.raises(StoreClosedError, match="closed"):
        second.campaign(PATIENCE)
    with pytest.raises(StoreClosedError, match="closed"):
        second.stand()


def test_a_time_out_does_not_end_the_campaign_of_another_thread(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """The candidacy lasts as long as anybody wants it: a campaign that waits, or ``stand``."""
    first.campaign(PATIENCE)
    with background(lambda: second.campaign(PATIENCE)) as ended:
        until(lambda: len(entries(store)) == 2)
        (_, before) = entries(store)
        with pytest.raises(LockBusyError):
            second.campaign(BRIEF)
        assert entries(store)[1] == before
        first.resign()
    assert ended == [None]
    first.stand()
    with pytest.raises(LockBusyError):
        first.campaign(BRIEF)
    second.resign()
    until(first.is_leader)


def test_ending_twice(store: bk.MetadataStore, first: Election) -> None:
    """``resign`` and ``close`` do nothing without a candidacy; ``resign`` allows another one."""
    first.resign()
    first.campaign(PATIENCE)
    first.resign()
    first.resign()
    first.campaign(PATIENCE)
    first.close()
    first.close()
    first.resign()
    assert entries(store) == []


def test_a_block(memory: bk.MetadataStore) -> None:
    """``with`` is no campaign, and closes the election, also when the block raises."""

    def fail(candidate: Election) -> None:
        with candidate:
            assert not candidate.is_leader()
            candidate.campaign(PATIENCE)
            raise ZeroDivisionError

    candidate = Election(memory, PATH)
    with pytest.raises(ZeroDivisionError):
        fail(candidate)
    assert entries(memory) == []
    with pytest.raises(StoreClosedError):
        candidate.campaign()


# --- the end of a leadership


def test_the_clock_decides(monkeypatch: pytest.MonkeyPatch, memory: bk.MetadataStore) -> None:
    """A leader whose time has passed does not lead, even if nothing has noticed that yet."""
    with Election(memory, PATH) as candidate:
        candidate.campaign(PATIENCE)
        with monkeypatch.context() as patch:
            passed = time.monotonic()
            patch.setattr(claims.Claim, "over", lambda *_: False)
            patch.setattr(claims.Claim, "valid_until", lambda _: passed)
            assert candidate.held_until() == passed
            assert not candidate.is_leader()
            assert not candidate.lost.is_set()
            with pytest.raises(LockBusyError):
                candidate.campaign(BRIEF)
        assert candidate.is_leader()
        candidate.campaign(0)


def test_a_deleted_leader_stands_again(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """The leader whose value somebody deletes knows it; the next one leads, and it stands again."""
    heard = Heard()
    first.add_listener(heard)
    first.campaign(PATIENCE)
    second.stand()
    until(lambda: len(entries(store)) == 2)
    token, term, check = first.fencing_token, first.lost, first.check()
    remove_leader(store)
    assert term.wait(PATIENCE)
    until(second.is_leader)
    heard.wait("leading", "lost", "following")
    with pytest.raises(TransactionRefusedError):
        store.transaction([check, Put("/result", b"1")]).result(PATIENCE)
    second.resign()
    until(first.is_leader)
    heard.wait("leading", "lost", "following", "leading")
    assert first.fencing_token > token


def test_a_deleted_candidate_stands_again(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """A campaign goes on if somebody deletes the value of the candidate that waits."""
    first.campaign(PATIENCE)
    with background(lambda: second.campaign(PATIENCE)) as ended:
        until(lambda: len(entries(store)) == 2)
        (_, before) = entries(store)
        store.delete(f"{PATH}/{before}").result(PATIENCE)
        until(lambda: len(entries(store)) == 2 and before not in entries(store))
        first.resign()
    assert ended == [None]
    assert second.is_leader()


def test_a_stale_leader_removes_nothing(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """Whatever a former leader does, its successor's value stays."""
    first.campaign(PATIENCE)
    second.stand()
    until(lambda: len(entries(store)) == 2)
    remove_leader(store)
    second.campaign(PATIENCE)
    check = second.check()
    first.update(b"stale")
    first.resign()
    first.close()
    assert second.is_leader()
    store.transaction([check, Put("/result", b"1")]).result(PATIENCE)
    assert second.leader() == b"second"


def test_the_end_of_the_store(store_url: str) -> None:
    """``store.close`` ends all: the leader has lost, and waiting campaigns raise."""
    with bk.open_store(store_url, session_timeout=LONG) as store:
        leader, other = Election(store, PATH, b"1"), Election(store, PATH, b"2")
        heard = Heard()
        leader.add_listener(heard)
        leader.campaign(PATIENCE)
        term = leader.lost
        with background(lambda: other.campaign(PATIENCE)) as ended:
            until(lambda: len(entries(store)) == 2)
            store.close()
            assert not leader.is_leader()
            assert term.wait(PATIENCE)
    assert [type(error) for error in ended] == [StoreClosedError]
    heard.wait("leading", "lost")
    for election in (leader, other):
        for call in (election.campaign, election.stand):
            with pytest.raises(StoreClosedError):
                call()
        election.resign()
        election.close()


def test_a_failure_for_good(
    monkeypatch: pytest.MonkeyPatch, memory: bk.MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A campaign raises an error that another attempt would not help, and can be repeated."""
    with Election(memory, PATH) as candidate:
        with monkeypatch.context() as patch:

            def refuse(*_: Any, **__: Any) -> None:
                raise AuthenticationError("not permitted")

            patch.setattr(claims.Claim, "create", refuse)
            with pytest.raises(AuthenticationError, match="not permitted"):
                candidate.campaign(PATIENCE)
        assert any("a candidacy has failed" in record.getMessage() for record in caplog.records)
        candidate.campaign(PATIENCE)


def test_a_thread_that_cannot_begin(
    monkeypatch: pytest.MonkeyPatch, memory: bk.MetadataStore
) -> None:
    """A campaign without a thread fails, and leaves nothing behind; neither does a leader."""

    failed: list[Any] = []

    def fail(*_: Any) -> None:
        failed.append(memory.get_children(PATH).result(PATIENCE))
        raise RuntimeError("no thread left")

    with Election(memory, PATH) as candidate:
        with monkeypatch.context() as patch:
            patch.setattr("batchkeeper.coordination._sync.elections.spawn", fail)
            with pytest.raises(RuntimeError, match="no thread left"):
                candidate.campaign(PATIENCE)
        failed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(claims.Claim, "follow", fail)
            candidate.stand()
            until(lambda: failed)
        until(lambda: entries(memory) == [])
        candidate.campaign(PATIENCE)


# --- the value


def test_an_update_is_no_election(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """The leader's new value is seen; term, token and condition are those of the same leader."""
    first.campaign(PATIENCE)
    second.stand()
    token, term = first.fencing_token, first.lost
    for value in (b"1", b"2", b"2"):
        first.update(value)
        assert first.leader() == first.value == value
    assert (first.fencing_token, first.lost) == (token, term)
    assert first.is_leader()
    assert not term.is_set()
    store.transaction([first.check(), Put("/result", b"")]).result(PATIENCE)


def test_an_update_after_somebody_elses_put(store: bk.MetadataStore, first: Election) -> None:
    """A value that somebody else has put over the leader's does not stop its next update."""
    first.campaign(PATIENCE)
    store.put(first.check().path, b"from elsewhere").result(PATIENCE)
    first.update(b"mine")
    assert first.leader() == b"mine"
    store.transaction([first.check(), Put("/result", b"")]).result(PATIENCE)


def test_an_update_that_has_failed_never_shows(fresh_url: Callable[[str], str]) -> None:
    """An update that was not applied is not applied later, either, by the next term."""
    faults = FaultInjector()
    with (
        bk.open_store(fresh_url("memory"), wrap=faults) as store,
        Election(store, PATH, b"old") as election,
    ):
        election.campaign(PATIENCE)
        faults.fail("put")
        with pytest.raises(bk.StoreUnavailableError) as failed:
            election.update(b"new")
        assert failed.value.outcome == "not_applied"
        assert election.value == b"old"
        term = election.lost
        remove_leader(store)
        assert term.wait(PATIENCE)
        election.campaign(PATIENCE)
        assert election.leader() == b"old"


def test_updates_of_two_threads(first: Election, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update that takes effect last is the candidate's value, whichever was called last."""
    first.campaign(PATIENCE)
    begun, other = threading.Event(), threading.Event()
    update = claims.Claim.update

    def late(claim: claims.Claim, value: bytes) -> None:
        if value == b"late":
            begun.set()
            assert other.wait(PATIENCE)
        update(claim, value)

    monkeypatch.setattr(claims.Claim, "update", late)
    with background(lambda: first.update(b"late")):
        assert begun.wait(PATIENCE)
        first.update(b"early")
        other.set()
    assert first.value == first.leader() == b"late"


def test_a_candidate_that_updates_keeps_its_place(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """The value of a candidate that waits is what others see when it leads."""
    heard = Heard()
    second.add_listener(heard)
    first.campaign(PATIENCE)
    second.stand()
    heard.wait("following")
    line = entries(store)
    second.update(b"new")
    assert entries(store) == line
    first.resign()
    second.campaign(PATIENCE)
    assert second.leader() == b"new"


@pytest.mark.parametrize("waits", [False, True])
def test_an_update_while_the_value_is_created(
    monkeypatch: pytest.MonkeyPatch, memory: bk.MetadataStore, waits: bool
) -> None:
    """Nobody ever leads with a value from before an update that has returned."""
    created, updated = threading.Event(), threading.Event()
    create = claims.Claim.create

    def slow(claim: claims.Claim, *args: Any) -> None:
        create(claim, *args)
        created.set()
        assert updated.wait(PATIENCE)

    monkeypatch.setattr(claims.Claim, "create", slow)
    heard: list[bytes | None] = []
    with Election(memory, PATH, b"other") as other, Election(memory, PATH, b"1") as candidate:
        candidate.add_listener(lambda _: heard.append(candidate.leader()))
        if waits:
            updated.set()
            other.campaign(PATIENCE)
            updated.clear()
            created.clear()
        candidate.stand()
        assert created.wait(PATIENCE)
        candidate.update(b"2")
        updated.set()
        other.resign()
        candidate.campaign(PATIENCE)
        assert candidate.leader() == b"2"
        until(lambda: heard[-1:] == [b"2"])
        assert b"1" not in heard


def test_an_update_before_the_candidacy(first: Election) -> None:
    """Without a candidacy, an update is for the next one."""
    first.update(bytearray(b"later"))
    assert first.leader() is None
    first.campaign(PATIENCE)
    assert first.leader() == b"later"


# --- listeners


def test_what_listeners_hear(store: bk.MetadataStore, first: Election, second: Election) -> None:
    """They hear what each candidate is, in order, and nothing twice."""
    ours, theirs = Heard(), Heard()
    first.add_listener(ours)
    second.add_listener(theirs)
    first.campaign(PATIENCE)
    first.campaign(PATIENCE)
    second.stand()
    second.stand()
    theirs.wait("following")
    # The follower stands again, and still follows.
    store.delete(f"{PATH}/{entries(store)[1]}").result(PATIENCE)
    until(lambda: len(entries(store)) == 2)
    remove_leader(store)
    theirs.wait("following", "leading")
    ours.wait("leading", "lost", "following")
    second.resign()
    ours.wait("leading", "lost", "following", "leading")
    assert theirs.events == ["following", "leading"]


def test_a_listener_that_raises(
    store: bk.MetadataStore, first: Election, caplog: pytest.LogCaptureFixture
) -> None:
    """Its exception is logged, also ``SystemExit``; it and the others hear the next event."""
    raised, heard = Heard(), Heard()
    errors = iter([ZeroDivisionError("ours"), SystemExit("ours"), None])

    def fail(event: str) -> None:
        raised(event)
        if (error := next(errors)) is not None:
            raise error

    first.add_listener(fail)
    first.add_listener(heard)
    with caplog.at_level(logging.ERROR):
        first.campaign(PATIENCE)
        raised.wait("leading")
        remove_leader(store)
        raised.wait("leading", "lost", "leading")
        heard.wait("leading", "lost", "leading")
    logged = [record for record in caplog.records if "a listener failed" in record.getMessage()]
    assert len(logged) == 2


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
def test_a_listener_without_a_thread(
    store: bk.MetadataStore, first: Election, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no thread can begin, the term goes on; with the next event, it hears all, in order."""
    heard, left = Heard(), [RuntimeError("can't start new thread")]

    def spawn(*args: Any) -> None:
        if left:
            raise left.pop()
        spawn_thread(*args)

    first.add_listener(heard)
    monkeypatch.setattr("batchkeeper.batching._sync.listeners.spawn", spawn)
    first.campaign(PATIENCE)
    until(lambda: not left)
    remove_leader(store)
    heard.wait("leading", "lost", "leading")


def test_a_listener_that_blocks(store: bk.MetadataStore, first: Election, second: Election) -> None:
    """It delays neither the election nor the others, and hears all that it has missed, in order."""
    entered, leave = threading.Event(), threading.Event()
    heard, blocked = Heard(), Heard()

    def block(event: str) -> None:
        blocked(event)
        entered.set()
        assert leave.wait(PATIENCE)

    first.add_listener(block)
    first.add_listener(heard)
    first.campaign(PATIENCE)
    assert entered.wait(PATIENCE)
    second.stand()
    until(lambda: len(entries(store)) == 2)
    term = first.lost
    remove_leader(store)
    assert term.wait(PATIENCE)
    assert not first.is_leader()
    until(second.is_leader)
    heard.wait("leading", "lost", "following")
    assert blocked.events == ["leading"]
    leave.set()
    blocked.wait("leading", "lost", "following")


def test_nothing_untrue_is_told_after_a_resignation(
    store: bk.MetadataStore, first: Election
) -> None:
    """An event that waits for a slow listener is dropped if a resignation has overtaken it."""
    entered, leave, heard = threading.Event(), threading.Event(), Heard()

    def block(event: str) -> None:
        heard(event)
        entered.set()
        assert leave.wait(PATIENCE)

    prompt = Heard()
    first.add_listener(block)
    first.add_listener(prompt)
    first.campaign(PATIENCE)
    assert entered.wait(PATIENCE)
    remove_leader(store)
    prompt.wait("leading", "lost", "leading")
    first.resign()
    leave.set()
    heard.wait("leading", "lost")
    first.campaign(PATIENCE)
    heard.wait("leading", "lost", "leading")


@pytest.mark.parametrize("name", ["resign", "close"])
def test_ending_in_a_callback(
    store: bk.MetadataStore, first: Election, second: Election, name: str
) -> None:
    """A callback may resign, or close the election; the next candidate leads."""
    ended: list[Any] = []

    def end(event: str) -> None:
        try:
            ended.append((event, getattr(first, name)()))
        except BaseException as error:
            ended.append(error)

    first.add_listener(end)
    first.stand()
    until(lambda: ended == [("leading", None)])
    assert not first.is_leader()
    second.campaign(PATIENCE)
    if name == "resign":
        first.stand()
        until(lambda: ended[1:] == [("following", None)])
    until(lambda: len(entries(store)) == 1)
    assert second.is_leader()


def test_updating_and_campaigning_in_a_callback(store: bk.MetadataStore, first: Election) -> None:
    """A callback may wait for all that the election does."""
    heard: list[Any] = []

    def act(event: str) -> None:
        if event == "leading":
            first.update(b"%d" % first.fencing_token)
        first.campaign(PATIENCE)
        heard.append((event, first.leader() == b"%d" % first.fencing_token))

    first.add_listener(act)
    first.campaign(PATIENCE)
    until(lambda: heard == [("leading", True)])
    remove_leader(store)
    until(lambda: len(heard) == 3)
    assert [event for event, _ in heard] == ["leading", "lost", "leading"]
    assert heard[2] == ("leading", True)


def test_closed_listeners_are_forgotten(first: Election) -> None:
    """Listeners that come and go take no room, also if nothing happens meanwhile."""

    def listen(heard: Heard) -> None:
        first.add_listener(heard).close()
        first.add_listener(Heard()).close()

    assert forgets(Heard, listen)


@pytest.mark.slow
def test_a_closed_listener_hears_nothing(store: bk.MetadataStore, first: Election) -> None:
    """A listener that was closed, in its callback or elsewhere, hears no later event."""
    ours, other, stays = Heard(), Heard(), Heard()
    threads: list[threading.Thread] = []

    def once(event: str) -> None:
        threads.append(threading.current_thread())
        ours(event)
        until(lambda: len(stays.events) == 3)  # Two more events wait for this listener.
        listener.close()

    listener = first.add_listener(once)
    first.add_listener(stays)
    with first.add_listener(other):
        pass
    first.campaign(PATIENCE)
    stays.wait("leading")
    ours.wait("leading")
    remove_leader(store)
    stays.wait("leading", "lost", "leading")
    until(lambda: not any(thread.is_alive() for thread in threads))
    assert ours.events == ["leading"]
    assert other.events == []


# --- observing


def test_observing(store: bk.MetadataStore, first: Election, second: Election) -> None:
    """An observer sees the present value and every change of it, ``None`` between two leaders."""
    with first.observe() as values:
        assert next(values) is None
        first.campaign(PATIENCE)
        assert next(values) == b"first"
        first.update(b"updated")
        assert next(values) == b"updated"
        first.resign()
        assert next(values) is None
        second.campaign(PATIENCE)
        assert next(values) == b"second"
        with second.observe() as others:
            assert next(others) == b"second"
        first.stand()
        until(lambda: len(entries(store)) == 2)
        second.update(b"again")
        assert next(values) == b"again"
        second.resign()
        assert next(values) == b"updated"
        assert store.metrics().watches <= 3  # Those of two candidates, and this one.


def test_an_observer_that_sleeps_sees_the_last_value(
    store: bk.MetadataStore, first: Election, second: Election
) -> None:
    """Values that were replaced meanwhile may be left out; the present one never is."""
    first.campaign(PATIENCE)
    with second.observe() as values:
        assert next(values) == b"first"
        second.stand()
        until(lambda: len(entries(store)) == 2)
        for n in range(50):
            first.update(b"%d" % n)
        first.resign()
        second.campaign(PATIENCE)
        seen = []
        while seen[-1:] != [b"second"]:
            seen.append(next(values))
        assert len(seen) == len(set(seen))


def test_an_observer_whose_watch_has_gaps(memory: bk.MetadataStore) -> None:
    """After more events than a watch holds, an observer reads who leads."""
    with Election(memory, PATH, b"1") as leader, leader.observe() as values:
        assert next(values) is None
        leader.campaign(PATIENCE)
        names = [f"{PATH}/other-{n}" for n in range(10_001)]
        memory.apply([Put(name, b"") for name in names])
        assert next(values) == b"1"


def test_the_end_of_observing(store_url: str) -> None:
    """``close`` ends the iteration; after the end of the store, it raises."""
    with bk.open_store(store_url, session_timeout=LONG) as store:
        election = Election(store, PATH)
        unused = election.observe()
        unused.close()
        assert list(unused) == []
        values = election.observe()
        assert next(values) is None
        with background(lambda: list(values)) as ended:
            values.close()
            values.close()
        assert ended == [[]]
        left = election.observe()
        assert next(left) is None
    with pytest.raises(StoreClosedError):
        next(left)


# --- mistakes


def test_what_is_refused(memory: bk.MetadataStore) -> None:
    """Paths, values, time-outs and callbacks that make no sense are refused by the call."""

    async def coroutine(_: str) -> None: ...

    with pytest.raises(InvalidPathError):
        Election(memory, "e")
    with pytest.raises(InvalidSettingError):
        Election(memory, PATH, "text")  # type: ignore[arg-type]
    with Election(memory, PATH) as candidate:
        for timeout in (-1, "1"):
            with pytest.raises(InvalidSettingError):
                candidate.campaign(timeout)  # type: ignore[arg-type]
        with pytest.raises(InvalidSettingError):
            candidate.update("text")  # type: ignore[arg-type]
        for callback in (None, coroutine):
            with pytest.raises(InvalidSettingError):
                candidate.add_listener(callback)  # type: ignore[arg-type]
        assert entries(memory) == []


def test_values_of_others_below_the_path(store: bk.MetadataStore, first: Election) -> None:
    """A foreign value is neither a leader nor an obstacle."""
    store.put(f"{PATH}/note", b"from elsewhere").result(PATIENCE)
    assert first.leader() is None
    first.campaign(PATIENCE)
    with first.observe() as values:
        assert next(values) == b"first"


def test_a_forked_child(store: bk.MetadataStore, first: Election) -> None:
    """A child does not lead, is refused at once, and takes nothing from its parent."""
    first.campaign(PATIENCE)
    check = first.check()

    def refused(call: Callable[[], Any]) -> bool:
        try:
            call()
        except StoreClosedError:
            return True
        return False

    def holds() -> bool:
        first.resign()
        first.close()
        return not first.is_leader() and all(
            refused(call)
            for call in (
                first.campaign,
                first.stand,
                first.leader,
                lambda: first.update(b"child"),
                lambda: first.add_listener(print),
                lambda: next(first.observe()),
            )
        )

    with locked_elsewhere(first):
        assert holds_in_a_child(holds)
    assert first.is_leader()
    assert first.check() == check == Check(check.path, 0)
    store.transaction([check, Put("/result", b"")]).result(PATIENCE)
