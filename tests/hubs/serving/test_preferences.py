"""What hubs and clients do with what is stored: preferences, marks, damage, epochs, other hubs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    FileLogs,
    HubSettings,
    IllegalOperationError,
    Message,
    MessageSeqId,
    Published,
    SubscriptionDataManager,
    SubscriptionPreferences,
    SubscriptionState,
    TopicClient,
    TopicHub,
    TopicLostError,
    format_metadata,
    open_managers,
)

from ...waiting import PATIENCE, result, until
from .conftest import R
from .test_hub import subscribed


def _chosen(message: Message, options: Mapping[str, bytes]) -> bool:
    return message.body.startswith(options["first"])


@pytest.fixture
def url(fresh_url: Callable[[str], str]) -> str:
    """The store of a test, in memory."""
    return fresh_url("memory")


@pytest.fixture
def start(url: str, logs: FileLogs) -> Iterator[Callable[..., TopicHub]]:
    """Start a hub with few unstored marks and a filter."""
    with ExitStack() as stack:

        def begin(address: str = "hub-1:1", max_created: int | None = None) -> TopicHub:
            store = stack.enter_context(bk.open_store(url))
            settings = HubSettings(most_redelivered=4, mark_interval=60.0, max_created=max_created)
            hub = TopicHub(store, R, address, logs, settings, filters={"chosen": _chosen})
            return stack.enter_context(hub)

        yield begin


def _publish(hub: TopicHub, *bodies: bytes) -> None:
    for body in bodies:
        assert isinstance(hub.publish("p", "t", body, redirected=True), Published)


def test_a_subscription_keeps_at_most_its_bound(start: Callable[..., TopicHub]) -> None:
    """The newest messages stay; those in the middle of the window are no obstacle."""
    hub = start()
    wanted = SubscriptionPreferences(message_bound=2, message_window_size=3)
    subscription = subscribed(hub, preferences=wanted)
    _publish(hub, b"1")
    assert [one.number for one in subscription.take(timeout=0)] == [1]
    _publish(hub, *[b""] * 8)
    # Two of three are taken, and one place is left, whatever lies between.
    assert [one.number for one in subscription.take(timeout=0)] == [8, 9]
    _publish(hub, b"10")
    assert subscription.take(timeout=0) == []
    subscription.consumed(8)
    assert [one.number for one in subscription.take(timeout=0)] == [10]


def test_a_filter_chooses_the_messages(start: Callable[..., TopicHub]) -> None:
    """Those that are left out take no room in the window. An unknown filter is refused first."""
    hub = start()
    wanted = SubscriptionPreferences(
        {"first": b"a"}, message_filter="chosen", message_window_size=2
    )
    subscription = subscribed(hub, preferences=wanted)
    _publish(hub, b"a1", b"b2", b"b3", b"b4", b"a5", b"b6")
    found = []
    while messages := subscription.take(timeout=0.0 if len(found) == 2 else PATIENCE):
        found += messages
    assert [(one.number, one.body) for one in found] == [(1, b"a1"), (5, b"a5")]
    with pytest.raises(IllegalOperationError, match="'other', which this hub does not have"):
        hub.subscribe("u", "t", preferences=SubscriptionPreferences(message_filter="other"))
    assert hub.unsubscribe("u", "t") is False


def test_the_stored_mark_is_known(start: Callable[..., TopicHub], url: str) -> None:
    """So the first mark of a subscriber is no write of its own, however many messages there are."""
    hub = start()
    _publish(hub, *[b""] * 9)
    hub.subscribe("s", "t")
    hub.stop()
    other = start("hub-2:1")
    _publish(other, b"10")
    subscribed(other).consumed(10)
    with bk.open_store(url) as store, open_managers(store, R) as managers:
        found = managers.subscriptions.read_subscription_data("t", "s")
        assert found is not None
        assert found.value.state == SubscriptionState(MessageSeqId(9))


def test_a_mark_of_a_lost_topic_is_sent_again_elsewhere(
    start: Callable[..., TopicHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub whose epoch has ended loses the topic with its refused mark; the reader may go on."""
    hub = start()
    subscription = subscribed(hub)
    _publish(hub, *[b""] * 9)

    def refused(*_: object, **__: object) -> None:
        raise bk.TransactionRefusedError("another hub", error=bk.BadVersionError("another epoch"))

    monkeypatch.setattr(SubscriptionDataManager, "advance_marks", refused)
    with pytest.raises(TopicLostError) as caught:
        subscription.consumed(9)
    assert caught.value.retriable
    until(lambda: not hub.topics)


def test_a_damaged_subscription_can_be_removed(start: Callable[..., TopicHub], url: str) -> None:
    """Otherwise, its subscriber could never come back."""
    hub = start()
    subscribed(hub)
    with bk.open_store(url) as store:
        result(store.put(f"{R}/topics/t/subscribers/s", b"damaged"))
        assert hub.unsubscribe("s", "t") is True
    subscribed(hub, mode="create")


def test_a_region_that_is_formatted_keeps_its_epochs(
    start: Callable[..., TopicHub], url: str
) -> None:
    """Its logs would refuse epochs that begin again."""
    hub = start()
    _publish(hub, b"1")
    hub.release("t")
    _publish(hub, b"2")
    subscribed(hub, "epoch")
    hub.stop()
    with bk.open_store(url) as store:
        format_metadata(store, R)
        assert [path for path, *_ in store.scan(f"{R}/topics")] == [f"{R}/topics/t/epoch"]
    again = start("hub-2:1")
    assert again.publish("p", "t", b"3", redirected=True) == Published(3, again.info)


def test_a_start_that_waits_says_so(
    start: Callable[..., TopicHub], url: str, logs: FileLogs, caplog: pytest.LogCaptureFixture
) -> None:
    """A hub whose address another one has tells why it does not serve."""
    start("hub-1:1")
    with bk.open_store(url) as other:
        late = TopicHub(other, R, "hub-1:1", logs)
        with pytest.raises(bk.LockBusyError):
            late.start(timeout=2.1)
    assert "a hub with this address is alive" in caplog.text


def test_a_client_learns_of_other_hubs(start: Callable[..., TopicHub]) -> None:
    """From redirects, or from a function such as that of the hosts.

    A hub that does not answer is not asked again for each of its topics, which may take a time-out.
    """
    one, two = start("hub-1:1"), start("hub-2:1")
    until(lambda: sum(hub.eligible for hub in one.hosts.hubs().values()) == 2)
    two.publish("p", "t", b"1", redirected=True)  # Who is redirected is not sent on.
    topics = [f"of-one-{number}" for number in range(9)]
    for topic in topics:
        one.publish("p", topic, b"1", redirected=True)
    up = {one.address: one, two.address: two}
    asked: list[str] = []

    def connect(address: str) -> TopicHub:
        asked.append(address)
        try:
            return up[address]
        except KeyError:
            raise ConnectionRefusedError(address) from None

    learning = TopicClient(connect, ["hub-1:1"], timeout=5.0)
    assert learning.publish("p", "t", b"2") == Published(2, two.info)
    for topic in topics:
        assert learning.publish("p", topic, b"2") == Published(2, one.info)
    del up["hub-1:1"]
    one.stop()
    asked.clear()
    for topic in topics:
        assert learning.publish("p", topic, b"3") == Published(3, two.info)
    assert asked.count("hub-1:1") < len(topics)
    assert learning.publish("p", "u", b"1") == Published(1, two.info)
    of_the_store = TopicClient(connect, two.hosts.hubs, timeout=5.0)
    assert of_the_store.publish("p", "u", b"2") == Published(2, two.info)


def test_new_topics_are_bounded(start: Callable[..., TopicHub]) -> None:
    """A stranger does not fill the store with them; topics that were there before are claimed."""
    hub = start(max_created=3)
    hub.publish("p", "old", b"")
    hub.release("old")
    new = (hub.publish("p", f"new-{number}", b"") for number in range(100))
    with pytest.raises(bk.QueueFullError, match="at most 3 new topics a second"):
        list(new)
    assert isinstance(hub.publish("p", "old", b""), Published)
