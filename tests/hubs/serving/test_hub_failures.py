"""Hubs in outages and after lost sessions, on real servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    FileLogs,
    HubSettings,
    Message,
    Published,
    Redirect,
    Subscription,
    TopicHub,
    TopicLostError,
)
from batchkeeper.hubs.serving._sync.holding import Holding
from batchkeeper.hubs.serving._sync.upkeep import Upkeep
from batchkeeper.testing import FaultInjector
from batchkeeper.testing.servers import LocalServer

from ...proxy import Proxy
from ...waiting import PATIENCE, until
from .conftest import Hubs, R, Started


@pytest.fixture
def line(server: LocalServer, proxy: Callable[[str], Proxy]) -> Proxy:
    """The connection of the hub that is cut off."""
    return proxy(server.address)


@pytest.fixture
def hub(server: LocalServer, line: Proxy, ownership: str, logs: FileLogs) -> Iterator[Hubs]:
    """Start a hub with a short or a long session, behind the line or not."""
    with ExitStack() as stack:

        def start(
            address: str, *, cut: bool, session: float, timeout: float = 4.0, **settings: Any
        ) -> Started:
            url = server.url.replace(server.address, line.address) if cut else server.url
            faults = FaultInjector()
            store = bk.open_store(
                url, session_timeout=session, operation_timeout=timeout, wrap=faults
            )
            stack.callback(store.close, 0)
            chosen = HubSettings(ownership=ownership, **settings)  # type: ignore[arg-type]
            made = TopicHub(store, R, address, logs, chosen)
            stack.callback(made.stop)
            made.start(PATIENCE)
            return made, store, faults

        yield Hubs(start)


def cut(line: Proxy) -> None:
    """Let nothing through any more."""
    line.drops = line.swallows = True
    line.cut()


def test_a_short_disconnection_costs_nothing(hub: Hubs, line: Proxy) -> None:
    """The hub goes on with all its topics, and nobody else has had them."""
    one = hub("hub-1:1", cut=True, session=60.0)
    found = one.subscribe("s", "t")
    assert isinstance(found, Subscription)
    me = one.info
    cut(line)
    assert one.publish("p", "t", b"1") == Published(1, me)
    assert found.take(timeout=PATIENCE) == [Message(1, b"1")]
    line.restore()
    until(lambda: one.hosts.is_alive(me))
    assert one.publish("p", "t", b"2") == Published(2, me)
    assert one.topics["t"].epoch == 1


def test_a_hub_whose_session_is_lost(hub: Hubs, line: Proxy) -> None:
    """It stops in time, others take its topics, and it comes back without them."""
    seen: list[str] = []
    one = hub("hub-1:1", cut=True, session=2.0)
    one.add_listener(lost=lambda claim: seen.append(claim.topic))
    two = hub("hub-2:1", cut=False, session=30.0)
    found = one.subscribe("s", "t", True)
    assert isinstance(found, Subscription)
    one.publish("p", "t", b"1", True)
    first = one.info
    cut(line)
    until(lambda: time.monotonic() > one.valid_until())
    with pytest.raises(TopicLostError):
        one.publish("p", "t", b"late", True)
    with pytest.raises(TopicLostError):
        found.take(timeout=PATIENCE)
    until(lambda: "hub-1:1" not in two.hosts.hubs())

    def taken_over() -> bool:
        return isinstance(two.publish("p", "t", b"2", True), Published)

    until(taken_over)
    assert two.topics["t"].epoch == 2
    line.restore()
    until(lambda: one.info.incarnation > first.incarnation)
    until(lambda: not one.topics)
    assert seen == ["t"]
    with pytest.raises(TopicLostError):
        found.consumed(1)
    assert one.publish("p", "t", b"3", True) == Redirect(two.info)
    # Its view of the hubs has gone through the same outage. It takes a topic when it sees itself.
    until(lambda: one.info in [each.info for each in one.hosts.hubs().values()])
    assert one.publish("p", "new", b"1", True) == Published(1, one.info)


def test_a_paused_hub_writes_nothing_late(
    hub: Hubs, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that believes in its topic after another has claimed it is refused everywhere."""
    # It does not learn of its lost session before it goes on.
    monkeypatch.setattr(Upkeep, "start", lambda self: None)
    one = hub("hub-1:1", cut=True, session=2.0, mark_interval=3600.0)
    two = hub("hub-2:1", cut=False, session=30.0)
    found = one.subscribe("s", "t", True)
    assert isinstance(found, Subscription)
    for number in range(3):
        one.publish("p", "t", b"%d" % number, True)
    found.consumed(1)
    # Its clock stands still, as that of a process that was paused after it had looked.
    monkeypatch.setattr(Holding, "may_serve", lambda self, owner: True)
    cut(line)
    until(lambda: "hub-1:1" not in two.hosts.hubs())
    other = two.subscribe("s", "t", True)
    assert isinstance(other, Subscription)
    assert other.take(timeout=PATIENCE)
    other.consumed(2)
    line.restore()
    until(lambda: one.hosts.is_alive(one.info))
    with pytest.raises(TopicLostError):
        one.publish("p", "t", b"late", True)
    until(lambda: not one.topics)
    assert two.publish("p", "t", b"next", True) == Published(4, two.info)
    assert [message.body for message in other.take(timeout=PATIENCE)] == [b"next"]


def test_a_hub_that_cannot_reach_the_store_says_so(hub: Hubs, line: Proxy) -> None:
    """What needs the store fails with its error, in its time, and works again afterwards."""
    one = hub("hub-1:1", cut=True, session=60.0)
    one.publish("p", "t", b"1")
    cut(line)
    with pytest.raises((bk.OperationTimeoutError, bk.StoreUnavailableError)):
        one.publish("p", "new", b"1")
    line.restore()
    until(lambda: one.hosts.is_alive(one.info))
    assert one.publish("p", "new", b"1") == Published(1, one.info)


def test_a_hub_that_stops_in_an_outage(hub: Hubs, line: Proxy) -> None:
    """It stops all the same; its topics are free when its session has ended."""
    one = hub("hub-1:1", cut=True, session=2.0)
    two = hub("hub-2:1", cut=False, session=30.0)
    one.publish("p", "t", b"1", True)
    cut(line)
    one.stop()
    until(lambda: "hub-1:1" not in two.hosts.hubs())
    until(lambda: isinstance(two.publish("p", "t", b"2", True), Published))
    assert two.topics["t"].epoch == 2


def test_a_hub_with_many_topics_stops_in_an_outage(hub: Hubs, line: Proxy) -> None:
    """It does not wait for the time-out of each mark and each topic, one after the other."""
    # One of so many calls may take two seconds on a busy machine.
    one = hub("hub-1:1", cut=True, session=60.0, timeout=6.0, mark_interval=3600.0)
    for number in range(50):
        found = one.subscribe("s", f"t{number}", True)
        assert isinstance(found, Subscription)
        one.publish("p", f"t{number}", b"1", True)
        found.consumed(1)
    cut(line)
    until(lambda: hub.store(one).session.state == "suspended")
    faults = hub.faults(one)
    asked = len(faults.calls)
    one.stop()
    paths = [path for call in faults.calls[asked:] for path in call.paths]
    assert not [path for path in paths if path.startswith((f"{R}/topics/", f"{R}/subscri"))], paths
    assert not one.topics


def test_no_topic_is_given_up_in_an_outage(
    hub: Hubs, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else could claim it. It goes when the server answers again."""
    one = hub("hub-1:1", cut=True, session=60.0, retention_after_access=1.0, shed_interval=0.05)

    def connected() -> Subscription | None:
        try:
            found = one.subscribe("s", "t", True)
        except TopicLostError:  # The store is so slow that the topic was given up meanwhile.
            return None
        assert isinstance(found, Subscription)
        return found

    found = until(connected)
    assert found is not None
    held = one.topics["t"]
    cut(line)
    looks: list[float] = []
    is_answered = Holding.is_answered

    def look(self: Holding) -> bool:
        if not is_answered(self):
            looks.append(time.monotonic())
            return False
        return True

    monkeypatch.setattr(Holding, "is_answered", look)
    until(lambda: looks)
    found.close()
    used = time.monotonic()
    looks.clear()
    until(lambda: len(looks) > 10 and looks[-1] > used + 3.0)
    assert one.topics == {"t": held}
    assert one.publish("p", "t", b"1", True) == Published(1, one.info)
    line.restore()
    until(lambda: not one.topics)
