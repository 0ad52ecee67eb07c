"""A topic at its hub, and whether the hub may serve it, without a store."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from batchkeeper import Check
from batchkeeper.hubs import Claim, HubInfo, HubSettings, Message, TopicLostError
from batchkeeper.hubs.serving._sync.holding import Holding
from batchkeeper.hubs.serving._sync.owned import OwnedTopic, Subscription
from batchkeeper.hubs.serving._sync.upkeep import Upkeep

from ...waiting import PATIENCE, until

ME = HubInfo("hub-1:1", 2)
CLAIM = Claim("t", ME, 1, Check("/epoch", 0))


class Log:
    """A log in memory whose appends wait until they may go, and then until they may answer."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.appending = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.appended = threading.Event()
        self.answer = threading.Event()
        self.answer.set()

    def append(self, claim: Claim, bodies: Sequence[bytes]) -> int:
        self.appending.set()
        assert self.go.wait(PATIENCE)
        self.bodies += bodies
        self.appended.set()
        assert self.answer.wait(PATIENCE)
        return len(self.bodies)

    def read(self, topic: str, after: int, most: int) -> list[Message]:
        found = enumerate(self.bodies[after : after + most], after + 1)
        return [Message(number, body) for number, body in found]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def topic(log: Log) -> OwnedTopic:
    return OwnedTopic(CLAIM, log, 0, lambda _: None, time.monotonic())  # type: ignore[arg-type]


def test_a_message_that_waits_when_the_topic_is_lost_is_refused(
    log: Log, topic: OwnedTopic
) -> None:
    """Only what is on its way into the log is still accepted."""
    log.go.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(topic.publish, b"1")
        assert log.appending.wait(PATIENCE)
        second = pool.submit(topic.publish, b"2")
        until(lambda: topic._waiting)
        assert topic.end(TopicLostError("lost"))
        log.go.set()
        assert first.result(PATIENCE) == 1
        with pytest.raises(TopicLostError, match="lost"):
            second.result(PATIENCE)
    assert log.bodies == [b"1"]


def test_the_close_of_a_replaced_connection_leaves_its_successor(topic: OwnedTopic) -> None:
    """The subscriber is still connected, and is woken by the next message."""

    def connect() -> Subscription:
        return topic.subscribe("s", 0, 10, lambda _: None)  # type: ignore[arg-type, return-value]

    first, second = connect(), connect()
    first.close()
    assert topic.held.connections == 1
    topic.publish(b"1")
    assert second.take(timeout=PATIENCE) == [Message(1, b"1")]
    second.close()
    assert topic.held.connections == 0


def test_a_message_is_delivered_when_the_topic_has_its_number(log: Log, topic: OwnedTopic) -> None:
    """A reader may confirm all that it gets, though the log has more."""
    reader = topic.subscribe("s", 0, 10, lambda _: None)  # type: ignore[arg-type, return-value]
    topic.publish(b"1")
    log.appended.clear()
    log.answer.clear()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(topic.publish, b"2")
        assert log.appended.wait(PATIENCE)
        assert reader.take(timeout=PATIENCE) == [Message(1, b"1")]
        log.answer.set()
        assert second.result(PATIENCE) == 2
    assert reader.take(timeout=PATIENCE) == [Message(2, b"2")]
    reader.consumed(2)
    reader.close()


@pytest.mark.parametrize(
    ("incarnation", "until", "may"), [(2, math.inf, True), (1, math.inf, False), (2, 0.0, False)]
)
def test_only_the_present_incarnation_may_serve_and_only_in_its_time(
    incarnation: int, until: float, may: bool
) -> None:
    """The time of the next session does not count for the topics of the one before."""
    registration = SimpleNamespace(info=ME, held_until=lambda: until)
    nothing: Any = None
    holding = Holding(
        ME.address,
        *[nothing] * 5,
        registration,
        nothing,
        nothing,  # type: ignore[arg-type]
    )
    assert holding.may_serve(HubInfo(ME.address, incarnation)) is may


def test_the_topics_of_a_session_that_has_ended_are_lost_before_the_next_one() -> None:
    """The hub informs its listeners, although it may not be registered again for long."""
    lost: list[OwnedTopic] = []
    registration = SimpleNamespace(info=ME, draining=False, lost=threading.Event())
    holding = SimpleNamespace(
        is_answered=lambda: True, may_serve=lambda _: True, lose_all=lost.extend
    )
    held: Any = SimpleNamespace(claim=CLAIM)
    topics, stopped = SimpleNamespace(all=lambda: [held]), threading.Event()
    settings = HubSettings(report_interval=3600.0, shed_interval=None)
    hosts: Any = None
    upkeep = Upkeep(ME.address, topics, holding, hosts, registration, settings, stopped)  # type: ignore[arg-type]
    upkeep.start()
    registration.lost.set()
    until(lambda: lost)
    stopped.set()
    assert lost[0] is held
