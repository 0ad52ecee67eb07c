"""A hub that serves: every branch of Hedwig's topic management, in both modes, on every store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    AccessDeniedError,
    Claim,
    FileLogs,
    Hub,
    HubInfo,
    IllegalOperationError,
    LayoutError,
    Message,
    NoHubError,
    NoSubscriptionStateError,
    Published,
    Redirect,
    Rule,
    StaleEpochError,
    SubscriberReplacedError,
    Subscription,
    SubscriptionDataManager,
    SubscriptionPreferences,
    SubscriptionStateExistsError,
    TopicHub,
    TopicLostError,
    open_managers,
)
from batchkeeper.hubs.serving._sync.served import ServedTopics
from batchkeeper.testing import Target

from ...interrupts import interrupted
from ...waiting import PATIENCE, until
from .conftest import OWNERSHIPS, Hubs, R


def joined(*hubs: TopicHub) -> None:
    """Wait until each hub sees that all others may get topics."""
    until(
        lambda: all(
            sum(other.eligible for other in hub.hosts.hubs().values()) == len(hubs) for hub in hubs
        )
    )


def chosen(monkeypatch: pytest.MonkeyPatch, hub: TopicHub) -> None:
    """Let the choice of a hub be this one."""

    def choose(hubs: dict[str, Hub], *_: object, **__: object) -> HubInfo:
        return hubs[hub.address].info

    monkeypatch.setattr("batchkeeper.hubs.serving._sync.lookup.choose", choose)


def subscribed(hub: TopicHub, who: str = "s", topic: str = "t", **options: object) -> Subscription:
    """Subscribe at the hub that serves the topic."""
    found = hub.subscribe(who, topic, True, **options)  # type: ignore[arg-type]
    assert isinstance(found, Subscription)
    return found


def releases(target: Target) -> bool:
    """Say whether a transaction lets others claim a topic."""
    return target.options is not None and any(
        isinstance(part, bk.Delete) for part in target.options.parts
    )


def taken(subscription: Subscription, count: int) -> list[bytes]:
    """Take ``count`` messages."""
    found: list[Message] = []
    while len(found) < count:
        messages = subscription.take(timeout=PATIENCE)
        assert messages
        found += messages
    return [message.body for message in found]


def written_marks(monkeypatch: pytest.MonkeyPatch) -> list[list[object]]:
    """Note the consume marks of each write from now on."""
    writes: list[list[object]] = []
    advance = SubscriptionDataManager.advance_marks

    def counted(self: SubscriptionDataManager, marks: Any, beside: Any = None) -> Any:
        writes.append([*marks])
        return advance(self, writes[-1], beside)  # type: ignore[arg-type]

    monkeypatch.setattr(SubscriptionDataManager, "advance_marks", counted)
    return writes


# Which hub serves a topic


def test_a_hub_that_is_chosen_claims_the_topic(hub: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first publish creates the topic, and makes the chosen hub its owner."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    chosen(monkeypatch, one)
    assert one.publish("p", "t", b"1") == Published(1, one.info)
    assert one.topics["t"].epoch == 1
    assert one.publish("p", "t", b"2") == Published(2, one.info)
    assert one.publish("p", "t", b"3", redirected=True) == Published(3, one.info)


def test_a_client_is_sent_to_the_hub_that_is_chosen(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written then. That hub claims the topic, because the client was redirected."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    chosen(monkeypatch, two)
    assert one.publish("p", "t", b"1") == Redirect(two.info)
    assert one.subscribe("s", "t") == Redirect(two.info)
    assert not one.topics
    assert not two.topics
    assert two.publish("p", "t", b"1", redirected=True) == Published(1, two.info)


def test_a_client_is_sent_to_the_owner(hub: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was redirected or not, and whatever would be chosen."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    one.publish("p", "t", b"1", redirected=True)
    for choice in (one, two):
        chosen(monkeypatch, choice)
        for redirected in (False, True):
            assert two.publish("p", "t", b"2", redirected) == Redirect(one.info)
            assert two.subscribe("s", "t", redirected) == Redirect(one.info)
            assert two.unsubscribe("s", "t", redirected) == Redirect(one.info)


def test_whoever_loses_the_claim_sends_the_client_to_the_winner(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another hub claims the topic between the look at its owner and the claim."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    chosen(monkeypatch, one)
    look = one.hosts.hubs
    for number, redirected in enumerate((False, True)):
        topic = f"t{number}"

        def overtaken(topic: str = topic) -> dict[str, Hub]:
            # The hub has seen that the topic has no owner, and is about to claim it.
            two.publish("p", topic, b"first", redirected=True)
            return look()

        with monkeypatch.context() as patch:
            patch.setattr(one.hosts, "hubs", overtaken)
            assert one.publish("p", topic, b"late", redirected) == Redirect(two.info)
        assert one.subscribe("s", topic, redirected) == Redirect(two.info)


@pytest.mark.slow
def test_a_race_has_one_winner(hub: Hubs) -> None:
    """All hubs are asked for the same topics at the same time; every message is taken by one."""
    hubs = [hub(f"hub-{number}:1") for number in range(3)]
    joined(*hubs)

    def publish(number: int) -> Published | Redirect:
        return hubs[number % 3].publish("p", f"t{number // 3 % 20}", b"%d" % number, True)

    with ThreadPoolExecutor(12) as pool:
        answers = [*pool.map(publish, range(240))]
    owners = {}
    for each in hubs:
        for name, claim in each.topics.items():
            assert name not in owners
            assert claim.epoch == 1
            owners[name] = each.info
    assert len(owners) == 20
    for number, answer in enumerate(answers):
        owner = owners[f"t{number // 3 % 20}"]
        assert answer[-1] == owner


def test_no_hub_is_an_error_at_once(hub: Hubs) -> None:
    """No hub takes a topic if all drain. Those that have one go on."""
    one = hub("hub-1:1")
    one.publish("p", "t", b"1")
    one.hosts.set_eligible("hub-1:1", False)
    for redirected in (False, True):
        with pytest.raises(NoHubError):
            one.publish("p", "new", b"1", redirected)
    assert isinstance(one.publish("p", "t", b"2"), Published)


@pytest.mark.parametrize("flag", ["set_draining", "set_eligible"])
def test_a_hub_that_takes_no_topics_sends_redirected_clients_on(hub: Hubs, flag: str) -> None:
    """A redirect's claim is honoured only by a hub that may get topics."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    getattr(one.hosts, flag)("hub-1:1", flag == "set_draining")
    assert one.publish("p", "t", b"1", redirected=True) == Redirect(two.info)


# Messages


def test_messages_come_in_order(hub: Hubs) -> None:
    """A new subscription gets what is published from then on; numbers have no gaps."""
    one = hub("hub-1:1")
    one.publish("p", "t", b"before")
    subscription = subscribed(one)
    assert subscription.take(timeout=0) == []
    numbers = [one.publish("p", "t", b"%d" % n)[0] for n in range(250)]
    assert numbers == [*range(2, 252)]
    assert taken(subscription, 250) == [b"%d" % n for n in range(250)]


def test_a_message_wakes_who_waits(hub: Hubs) -> None:
    """So does the end of the connection."""
    one = hub("hub-1:1")
    subscription = subscribed(one)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(subscription.take, timeout=PATIENCE)
        one.publish("p", "t", b"1")
        assert waiting.result(PATIENCE) == [Message(1, b"1")]
        waiting = pool.submit(subscription.take, timeout=PATIENCE)
        subscription.close()
        with pytest.raises(TopicLostError, match="closed"):
            waiting.result(PATIENCE)


def test_concurrent_publishes_are_all_in_the_log(hub: Hubs, logs: FileLogs) -> None:
    """Each call gets its own number, and they share appends."""
    one = hub("hub-1:1")
    one.publish("p", "t", b"0")
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(one.publish, "p", "t", b"%d" % n) for n in range(1, 400)]
        numbers = {call.result(PATIENCE)[0]: b"%d" % n for n, call in enumerate(calls, 1)}
    assert {m.number: m.body for m in logs.read("t", 1, 1000)} == numbers


def test_the_window_bounds_what_is_not_consumed(hub: Hubs) -> None:
    """The settings give it, and the preferences of a subscriber."""
    one = hub("hub-1:1", window=3)
    plain = subscribed(one)
    wide = subscribed(one, "wide", preferences=SubscriptionPreferences(message_window_size=5))
    for number in range(10):
        one.publish("p", "t", b"%d" % number)
    assert taken(plain, 3) == [b"0", b"1", b"2"]
    assert taken(wide, 5) == [b"0", b"1", b"2", b"3", b"4"]
    assert plain.take(timeout=0) == wide.take(timeout=0) == []
    plain.consumed(2)
    assert taken(plain, 2) == [b"3", b"4"]
    assert plain.take(timeout=0) == []


def test_a_subscription_goes_on_at_its_mark(hub: Hubs) -> None:
    """Consumed messages do not come again; unconsumed ones do."""
    one = hub("hub-1:1")
    subscription = subscribed(one)
    for number in range(5):
        one.publish("p", "t", b"%d" % number)
    assert taken(subscription, 4)
    subscription.consumed(2)
    subscription.close()
    again = subscribed(one)
    assert taken(again, 3) == [b"2", b"3", b"4"]
    with pytest.raises(IllegalOperationError, match="messages 1 to 5"):
        again.consumed(6)


def test_a_subscriber_has_one_connection(hub: Hubs) -> None:
    """The newest one counts; the one before ends with an error that says so."""
    one = hub("hub-1:1")
    first = subscribed(one)
    second = subscribed(one)
    one.publish("p", "t", b"1")
    with pytest.raises(SubscriberReplacedError):
        first.take(timeout=0)
    with pytest.raises(SubscriberReplacedError):
        first.consumed(1)
    first.close()
    assert taken(second, 1) == [b"1"]


def test_modes_of_subscribing(hub: Hubs) -> None:
    """Create, attach, or either; and the end of a subscription."""
    one = hub("hub-1:1")
    with pytest.raises(NoSubscriptionStateError):
        one.subscribe("s", "t", mode="attach")
    subscribed(one, mode="create")
    with pytest.raises(SubscriptionStateExistsError):
        one.subscribe("s", "t", mode="create")
    attached = subscribed(one, mode="attach")
    one.publish("p", "t", b"1")
    attached.consumed(1)
    assert one.unsubscribe("s", "t") is True
    assert one.unsubscribe("s", "t") is False
    with pytest.raises(TopicLostError):
        attached.take(timeout=0)
    with pytest.raises(NoSubscriptionStateError):
        one.subscribe("s", "t", mode="attach")
    assert subscribed(one).take(timeout=0) == []


def test_names_may_be_anything(hub: Hubs) -> None:
    """Topics and subscribers, text or bytes."""
    one = hub("hub-1:1")
    for name in ("a/b", "\n", b"\xff", "x" * 300):
        found = one.subscribe(name, name)
        assert isinstance(found, Subscription)
        one.publish("p", name, b"1")
        assert taken(found, 1) == [b"1"]


# Moving topics


def test_a_released_topic_goes_on_elsewhere(hub: Hubs) -> None:
    """Marks are stored when the next hub has it; subscribers get an error, and ask again."""
    one, two = hub("hub-1:1", mark_interval=60.0), hub("hub-2:1")
    joined(one, two)
    subscription = subscribed(one)
    for number in range(3):
        one.publish("p", "t", b"%d" % number)
    assert taken(subscription, 3)
    subscription.consumed(2)
    assert one.release("t") is True
    assert one.release("t") is False
    with pytest.raises(TopicLostError, match="hub-1"):
        subscription.take(timeout=0)
    assert taken(subscribed(two), 1) == [b"2"]
    assert two.topics["t"].epoch == 2
    assert two.publish("p", "t", b"3") == Published(4, two.info)
    assert one.publish("p", "t", b"4") == Redirect(two.info)


@pytest.mark.slow
def test_a_hub_that_drains_hands_all_over(hub: Hubs) -> None:
    """It serves none of its topics any more, and gets none, until it may again."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    for number in range(50):
        one.publish("p", f"t{number}", b"1", redirected=True)
    one.drain()
    assert not one.topics
    for number in range(50):
        assert one.publish("p", f"t{number}", b"2", redirected=True) == Redirect(two.info)
        assert two.publish("p", f"t{number}", b"2", redirected=True) == Published(2, two.info)
    one.hosts.set_draining("hub-1:1", False)
    assert isinstance(one.publish("p", "new", b"1", redirected=True), Published)


@pytest.mark.slow
def test_somebody_else_can_let_a_hub_drain(hub: Hubs) -> None:
    """It sees that in its membership."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    one.publish("p", "t", b"1", redirected=True)
    two.hosts.set_draining("hub-1:1", True)
    until(lambda: not one.topics)
    until(lambda: isinstance(two.publish("p", "t", b"2", redirected=True), Published))


def test_a_hub_that_stops_hands_all_over(hub: Hubs) -> None:
    """Another one has its topics at once, and sees it no more."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    one.publish("p", "t", b"1", redirected=True)
    one.stop()
    one.stop()
    hub.store(two).sync()
    assert two.publish("p", "t", b"2", redirected=True) == Published(2, two.info)
    until(lambda: set(two.hosts.hubs()) == {"hub-2:1"})


@pytest.mark.slow
def test_a_hub_sheds_what_is_too_much(hub: Hubs) -> None:
    """A hub that joins gets its share as clients come back, and then nothing moves any more."""
    one = hub("hub-1:1", shed_interval=0.2, report_interval=0.05, most_shed=5)
    names = [f"t{number}" for number in range(20)]
    for name in names:
        one.publish("p", name, b"1", redirected=True)
    two = hub("hub-2:1", shed_interval=0.2, report_interval=0.05)
    joined(one, two)

    def even() -> bool:
        for name in names:
            answer = one.publish("p", name, b"1")
            if isinstance(answer, Redirect):
                two.publish("p", name, b"1", redirected=True)
        return 8 <= len(two.topics) <= 12

    until(even)


@pytest.mark.slow
def test_topics_that_nobody_uses_are_given_up(hub: Hubs) -> None:
    """A subscriber keeps its topic; a claim ends after its time in any case."""
    one = hub("hub-1:1", retention_after_access=0.2)
    one.publish("p", "idle", b"1")
    subscription = subscribed(one)
    until(lambda: set(one.topics) == {"t"})
    subscription.close()
    until(lambda: not one.topics)
    two = hub("hub-2:1", retention_after_claim=0.2)
    held = subscribed(two, topic="u")
    with pytest.raises(TopicLostError):
        held.take(timeout=PATIENCE)


@pytest.mark.slow
def test_a_hub_keeps_at_most_so_many_topics(hub: Hubs) -> None:
    """Those that were used least recently go."""
    one = hub("hub-1:1", max_topics=3)
    for number in range(6):
        one.publish("p", f"t{number}", b"1")
    until(lambda: set(one.topics) == {"t3", "t4", "t5"})


# Listeners and access


def test_listeners_are_awaited(hub: Hubs) -> None:
    """`acquired` before the topic is served, `lost` before others can claim it."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    seen: list[tuple[str, int]] = []

    def acquired(claim: Claim) -> None:
        seen.append(("acquired", claim.epoch))

    def lost(claim: Claim) -> None:
        assert two.publish("p", "t", b"x", redirected=True) == Redirect(one.info)
        seen.append(("lost", claim.epoch))

    one.add_listener(acquired, lost)
    one.publish("p", "t", b"1", redirected=True)
    assert seen == [("acquired", 1)]
    one.release("t")
    assert seen == [("acquired", 1), ("lost", 1)]


def test_a_topic_that_is_released_twice_is_given_up_once(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second waits for the end of the first, and finds nothing to release."""
    one = hub("hub-1:1")
    told, go = threading.Event(), threading.Event()
    seen: list[int] = []
    locked: list[str] = []
    lock = ServedTopics.lock

    def counted(self: ServedTopics, name: str) -> Any:
        locked.append(name)
        return lock(self, name)

    monkeypatch.setattr(ServedTopics, "lock", counted)

    def lost(claim: Claim) -> None:
        seen.append(claim.epoch)
        told.set()
        assert go.wait(PATIENCE)

    one.add_listener(lost=lost)
    one.publish("p", "t", b"1", redirected=True)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.release, "t")
        assert told.wait(PATIENCE)
        second = pool.submit(one.release, "t")
        until(lambda: len(locked) == 2)
        go.set()
        assert (first.result(PATIENCE), second.result(PATIENCE)) == (True, False)
    assert seen == [1]


def test_a_release_that_ctrl_c_cuts_goes_on(hub: Hubs) -> None:
    """Otherwise, the topic would stay, owned and closed, and be refused to everybody."""
    one = hub("hub-1:1")
    told, go = threading.Event(), threading.Event()

    def lost(_: Claim) -> None:
        told.set()
        assert go.wait(PATIENCE)

    one.add_listener(lost=lost)
    one.publish("p", "t", b"1", redirected=True)
    with interrupted(told.wait):
        one.release("t")
    go.set()
    until(lambda: not one.topics)
    assert one.publish("p", "t", b"2", redirected=True) == Published(2, one.info)


def test_a_listener_that_fails_undoes_the_claim(hub: Hubs) -> None:
    """The caller gets the error, earlier listeners learn of the loss, others may claim."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    seen: list[str] = []
    one.add_listener(lambda claim: seen.append("a"), lambda claim: seen.append("b"))

    def refuse(claim: Claim) -> None:
        raise RuntimeError("no room")

    one.add_listener(refuse)
    with pytest.raises(RuntimeError, match="no room"):
        one.publish("p", "t", b"1", redirected=True)
    assert seen == ["a", "b"]
    assert not one.topics
    hub.store(two).sync()
    assert two.publish("p", "t", b"1", redirected=True) == Published(1, two.info)


def test_a_listener_that_fails_at_the_end_changes_nothing(hub: Hubs) -> None:
    """It is logged."""
    one = hub("hub-1:1")

    def fail(claim: Claim) -> None:
        raise RuntimeError("late")

    one.add_listener(lost=fail)
    one.publish("p", "t", b"1", redirected=True)
    assert one.release("t") is True
    assert one.publish("p", "t", b"1", redirected=True)[0] == 2


def test_access_is_denied_before_anything_is_written(hub: Hubs) -> None:
    """Publishing, subscribing, and creating a topic by either."""
    one = hub("hub-1:1")
    one.access.set_rule("t", Rule(create=("alice",), subscribe=("bob",), publish=("carol",)))
    for denied in (
        lambda: one.publish("bob", "t", b"1"),
        lambda: one.subscribe("carol", "t"),
        lambda: one.unsubscribe("carol", "t"),
        lambda: one.publish("carol", "t", b"1"),  # It may publish, but not create.
        lambda: one.subscribe("bob", "t"),
    ):
        with pytest.raises(AccessDeniedError):
            denied()
        assert not hub.store(one).get_children(f"{R}/topics").result()
    one.access.set_rule("t", Rule(("alice", "carol"), ("bob",), ("carol",)))
    one.publish("carol", "t", b"1")
    assert isinstance(one.subscribe("bob", "t"), Subscription)


def test_bad_input(hub: Hubs) -> None:
    """Each has an error that names it, and nothing is sent."""
    one = hub("hub-1:1")
    with pytest.raises(IllegalOperationError, match="message"):
        one.publish("p", "t", "text")  # type: ignore[arg-type]
    with pytest.raises(IllegalOperationError, match="mode"):
        one.subscribe("s", "t", mode="both")  # type: ignore[arg-type]
    for most in (0, -1, True, "1"):
        with pytest.raises(IllegalOperationError, match="most"):
            subscribed(one).take(most, timeout=0)  # type: ignore[arg-type]
    for topic in ("", 7):
        with pytest.raises(IllegalOperationError):
            one.publish("p", topic, b"1")  # type: ignore[arg-type]
    with pytest.raises(IllegalOperationError):
        one.publish("", "t", b"1")
    with pytest.raises(bk.InvalidSettingError, match="before"):
        one.start()


def test_an_owned_topic_costs_no_requests(hub: Hubs) -> None:
    """Neither a publish nor a delivery makes any while the session is good."""
    one = hub("hub-1:1", report_interval=3600.0, shed_interval=None, mark_interval=3600.0)
    subscription = subscribed(one)
    one.publish("p", "t", b"0")
    subscription.consumed(1)
    counts = []
    for number in range(200):
        if number % 100 == 0:  # An operation is counted a moment after it has ended.
            counts.append(hub.store(one).metrics().operations)
        one.publish("p", "t", b"%d" % number)
        taken(subscription, 1)
        subscription.consumed(number + 2)
    assert hub.store(one).metrics().operations == counts[1]


# Ends and failures


def test_a_hub_that_was_not_started(hub: Hubs, logs: FileLogs, layout: str) -> None:
    """It serves nothing, and can be stopped, also after a start that has failed."""
    one = hub("hub-1:1")
    other: Any = "paths" if layout == "tables" else "tables"
    two = TopicHub(hub.store(one), R, "hub-2:1", logs, layout=other)
    two.stop()
    with pytest.raises(TopicLostError, match="not started"):
        two.publish("p", "t", b"1")
    with pytest.raises(LayoutError):
        two.start()
    two.stop()
    two = TopicHub(hub.store(one), R, "hub-1:1", logs, one.settings)
    with pytest.raises(bk.LockBusyError):
        two.start(timeout=0.01)
    two.stop()
    assert isinstance(one.publish("p", "t", b"1"), Published)


def test_a_log_that_cannot_be_closed_keeps_nothing(
    hub: Hubs, logs: FileLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topic and all others are handed over, and the hub stops."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)

    def fail(claim: Claim) -> None:
        raise OSError("no disk")

    for number in range(5):
        one.publish("p", f"t{number}", b"1", redirected=True)
    with monkeypatch.context() as patch:
        patch.setattr(logs, "end", fail)
        assert one.release("t0") is True
        one.stop()
    hub.store(two).sync()
    for number in range(5):
        assert two.publish("p", f"t{number}", b"2", redirected=True) == Published(2, two.info)


def test_what_runs_in_the_background_survives_any_error(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a hub would not notice the end of its next session."""
    calls: list[int] = []

    def fail() -> dict[str, Hub]:
        calls.append(1)
        raise RuntimeError("unexpected")

    one = hub("hub-1:1", shed_interval=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(one.hosts, "hubs", fail)
        until(lambda: len(calls) > 2)


def test_a_log_that_is_ahead_is_no_error(hub: Hubs, logs: FileLogs) -> None:
    """A hub that comes late with its claim says that it has lost the topic: clients ask again."""
    one = hub("hub-1:1")
    logs.begin(Claim("t", HubInfo("hub-2:1", 1), 2, bk.Check("/epoch", 1)))
    with pytest.raises(TopicLostError, match="ask again"):
        one.publish("p", "t", b"1", redirected=True)
    assert one.publish("p", "t", b"1", redirected=True) == Published(1, one.info)
    assert one.topics["t"].epoch == 2


def test_a_hub_never_sends_a_client_to_itself(
    hub: Hubs, ownership: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the session of its earlier life has not ended, its topics are to be asked for later."""
    one = hub("hub-1:1")
    earlier = HubInfo("hub-1:1", one.info.incarnation - 1)
    with monkeypatch.context() as patch:
        patch.setattr(OWNERSHIPS[ownership], "claim", lambda *_: earlier)
        for redirected in (False, True):
            with pytest.raises(TopicLostError, match="restart"):
                one.publish("p", "t", b"1", redirected)
    assert isinstance(one.publish("p", "t", b"1", True), Published)


def test_what_could_not_be_released_is_released_on_demand(hub: Hubs) -> None:
    """A topic that a hub has given up in vain is no dead end, whether the hub drains or not."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    for name in ("t", "u"):
        one.publish("p", name, b"1", redirected=True)
    fault = hub.faults(one).fail("transaction", where=releases, times=None)
    assert one.release("t") is False
    assert one.publish("p", "t", b"2", redirected=True) == Published(2, one.info)
    one.drain()
    assert {hit.kind for hit in fault.hits} == {"transaction"}
    fault.remove()
    assert not one.topics
    assert two.publish("p", "u", b"2", redirected=True) == Redirect(one.info)
    with pytest.raises(TopicLostError, match="drains"):
        one.publish("p", "u", b"2", redirected=True)
    assert not one.topics
    hub.store(two).sync()
    assert two.publish("p", "u", b"2", redirected=True) == Published(2, two.info)


def test_a_hub_that_is_told_to_drain_claims_nothing_more(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a topic for which it was chosen a moment ago."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    look = one.hosts.hubs

    def late() -> dict[str, Hub]:
        monkeypatch.setattr(one.hosts, "hubs", look)
        seen = look()
        one.drain()
        return seen

    monkeypatch.setattr(one.hosts, "hubs", late)
    with pytest.raises(TopicLostError, match="drains"):
        one.publish("p", "t", b"1", redirected=True)
    assert one.publish("p", "t", b"1", redirected=True) == Redirect(two.info)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["drain", "lose"])
def test_marks_of_many_topics_are_written_together(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whether the hub gives its topics up, or loses its session: one write, not one for each."""
    one, two = hub("hub-1:1", mark_interval=3600.0), hub("hub-2:1")
    joined(one, two)
    names = [f"t{number}" for number in range(30)]
    for name in names:
        subscription = subscribed(one, topic=name)
        for body in (b"1", b"2"):
            one.publish("p", name, body)
        subscription.consumed(1)
    writes = written_marks(monkeypatch)
    if how == "drain":
        one.drain()
    else:
        hub.faults(one).lose_session()
        until(lambda: not one.topics)
    assert [len(marks) for marks in writes if marks] == [30]
    hub.store(two).sync()
    with open_managers(hub.store(two), R) as managers:
        for name in names:
            found = managers.subscriptions.read_subscription_data(name, "s")
            assert found is not None
            assert found.value.state is not None
            assert found.value.state.mark.local == 1


def test_a_mark_that_comes_behind_the_end_of_its_topic(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is dropped. Otherwise, the hub would try to write it for ever."""
    one = hub("hub-1:1", mark_interval=3600.0)
    subscription = subscribed(one)
    one.publish("p", "t", b"1")
    wake = subscription.wake

    def paused() -> None:
        monkeypatch.setattr(subscription, "wake", wake)
        one.release("t")

    monkeypatch.setattr(subscription, "wake", paused)
    subscription.consumed(1)
    writes = written_marks(monkeypatch)
    one.stop()  # All marks that wait are written.
    assert not any(writes)


def test_a_stale_epoch_is_settled_once(
    hub: Hubs, logs: FileLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many callers learn of it; the next claim has the topic again."""
    one = hub("hub-1:1")
    one.publish("p", "t", b"1")
    seen: list[str] = []
    one.add_listener(lambda _: seen.append("acquired"), lambda _: seen.append("lost"))
    begun = threading.Barrier(4)

    def stale(*_: object) -> int:
        raise StaleEpochError("another hub has it")

    def publish(_: int) -> None:
        begun.wait(PATIENCE)
        with pytest.raises(TopicLostError, match=r"has lost it|gives up"):
            one.publish("p", "t", b"2")

    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(logs, "append", stale)
        [*pool.map(publish, range(4))]
        until(lambda: not one.topics)
    # Who comes late gets the topic once more, and loses it once more.
    assert seen == ["lost", "acquired"] * (len(seen) // 2) + ["lost"]
    assert one.publish("p", "t", b"2") == Published(2, one.info)
