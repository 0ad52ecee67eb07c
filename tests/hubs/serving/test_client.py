"""The client finds the hub of a topic, and its reader survives changes of hubs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    AccessDeniedError,
    Attempt,
    FileLogs,
    HubInfo,
    HubSettings,
    IllegalOperationError,
    Message,
    NoSubscriptionStateError,
    Published,
    Reader,
    Redirect,
    Rule,
    SubscriberReplacedError,
    Subscription,
    TooManyRedirectsError,
    TopicClient,
    TopicHub,
    open_managers,
)
from batchkeeper.hubs.serving._sync import client as serving_client
from batchkeeper.testing.servers import LocalServer

from ...proxy import Proxy
from ...waiting import PATIENCE, until
from .conftest import Hubs, R
from .test_hub import chosen, joined


class Net:
    """Connects clients to hubs of this process, unless they are down."""

    def __init__(self, *hubs: TopicHub) -> None:
        self.hubs = {hub.address: hub for hub in hubs}
        self.asked: list[str] = []

    def __call__(self, address: str) -> TopicHub:
        self.asked.append(address)
        try:
            return self.hubs[address]
        except KeyError:
            raise ConnectionRefusedError(address) from None

    def client(self, *first: str, **options: float) -> TopicClient:
        """Return a client that knows some hubs."""
        return TopicClient(self, first or [*self.hubs], **options)  # type: ignore[arg-type]


def read(reader: Reader, count: int) -> list[bytes]:
    """Read and consume ``count`` messages, one after the other."""
    found: list[Message] = []
    while len(found) < count:
        messages = reader.take(timeout=PATIENCE)
        assert messages
        assert [one.number for one in messages] == sorted(one.number for one in messages)
        found += messages
        reader.consumed(messages[-1].number)
    return [message.body for message in found]


def test_redirects_are_followed(hub: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub that had the topic is asked first from then on."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    chosen(monkeypatch, two)
    net = Net(one, two)
    client = net.client("hub-1:1")
    assert client.publish("p", "t", b"1") == Published(1, two.info)
    assert client.publish("p", "t", b"2") == Published(2, two.info)
    assert net.asked == ["hub-1:1", "hub-2:1", "hub-2:1"]


def test_subscribing_through_redirects(hub: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages arrive, a subscription can be removed, and errors of the hub reach the caller."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    chosen(monkeypatch, two)
    client = Net(one, two).client("hub-1:1")
    with client.subscribe("s", "t") as reader:
        client.publish("p", "t", b"1")
        assert read(reader, 1) == [b"1"]
        with client.subscribe("s", "t") as other:
            with pytest.raises(SubscriberReplacedError):
                reader.take(timeout=PATIENCE)
            client.publish("p", "t", b"2")
            assert read(other, 1) == [b"2"]
            assert other.take(timeout=0) == []
    with pytest.raises(bk.StoreClosedError):
        reader.take(timeout=0)
    assert client.unsubscribe("s", "t")
    assert not client.unsubscribe("s", "t")
    with pytest.raises(NoSubscriptionStateError):
        client.subscribe("s", "t", "attach")
    one.access.set_rule("", Rule())
    until(lambda: _denied(client))


def _denied(client: TopicClient) -> bool:
    try:
        client.publish("p", "t", b"1")
    except AccessDeniedError:
        return True
    return False


class Fixed:
    """A hub that sends everybody to another one."""

    def __init__(self, to: str) -> None:
        self.to = to

    def publish(self, *_: object) -> Redirect:
        return Redirect(HubInfo(self.to, 1))


@pytest.mark.slow
@pytest.mark.parametrize("hubs", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "b"}])
def test_a_loop_of_redirects_ends(hubs: dict[str, str]) -> None:
    """The client tries again until its time is over. The error shows the loop."""
    client = TopicClient(lambda name: Fixed(hubs[name]), ["a"], timeout=0.2)  # type: ignore[arg-type,return-value]
    with pytest.raises(TooManyRedirectsError, match=r"a -> (b -> )?[ab]"):
        client.publish("p", "t", b"1")


def test_too_many_redirects() -> None:
    """Also without a loop, there is an end."""
    asked: list[str] = []

    def connect(name: str) -> Fixed:
        asked.append(name)
        return Fixed(name + "x")

    client = TopicClient(connect, ["a"], timeout=0.01, most_redirects=3)  # type: ignore[arg-type]
    with pytest.raises(TooManyRedirectsError):
        client.publish("p", "t", b"1")
    assert max(map(len, asked)) == 4


def test_without_hubs(hub: Hubs) -> None:
    """The error at the end of its time says what the last hub said."""
    client = Net().client("down:1", timeout=0.1)
    with pytest.raises(bk.OperationTimeoutError, match="down:1") as caught:
        client.publish("p", "t", b"1")
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    one = hub("hub-1:1")
    one.hosts.set_eligible("hub-1:1", False)
    with pytest.raises(bk.OperationTimeoutError, match="no hub can take a topic"):
        Net(one).client(timeout=0.1).publish("p", "t", b"1")
    with pytest.raises(bk.InvalidSettingError, match="addresses"):
        TopicClient(Net(), [])
    with pytest.raises(bk.InvalidSettingError, match="most_redirects"):
        TopicClient(Net(), ["a"], most_redirects=0)


def test_a_reader_follows_its_topic(hub: Hubs) -> None:
    """The topic moves ten times while it is published to; each message is read once, in order."""
    hubs = [hub(f"hub-{number}:1") for number in range(3)]
    joined(*hubs)
    client = Net(*hubs).client()
    done = threading.Event()

    def publish() -> int:
        number = 0
        while not done.is_set():
            client.publish("p", "t", b"%d" % number)
            number += 1
        return number

    def move() -> None:
        for _ in range(10):
            until(lambda: any(each.release("t") for each in hubs))
        done.set()

    with client.subscribe("s", "t") as reader, ThreadPoolExecutor(2) as pool:
        publishing, moving = pool.submit(publish), pool.submit(move)
        found: list[bytes] = []
        while not moving.done() or len(found) < publishing.result(PATIENCE):
            messages = reader.take(timeout=0.1)
            found += [message.body for message in messages]
            if messages:  # On a slow machine, there are more of them than the window holds.
                reader.consumed(messages[-1].number)
        moving.result(PATIENCE)
    assert found == [b"%d" % number for number in range(publishing.result())]


def test_a_subscriber_that_restarts_goes_on_at_its_mark(hub: Hubs) -> None:
    """What it had consumed does not come again."""
    one = hub("hub-1:1")
    client = Net(one).client()
    with client.subscribe("s", "t") as reader:
        for number in range(4):
            client.publish("p", "t", b"%d" % number)
        assert read(reader, 4)[:2] == [b"0", b"1"]
        client.publish("p", "t", b"4")
        assert [one.body for one in reader.take(timeout=PATIENCE)] == [b"4"]
    with client.subscribe("s", "t", "attach") as reader:
        assert [one.body for one in reader.take(timeout=PATIENCE)] == [b"4"]


def test_a_late_attempt_does_not_replace_a_later_one(hub: Hubs) -> None:
    """A new subscribe replaces the connection, but no earlier attempt does."""
    one = hub("hub-1:1")
    late, first, second = (Attempt("reader", number) for number in (1, 2, 3))
    found = one.subscribe("s", "t", attempt=first)
    assert isinstance(found, Subscription)
    with pytest.raises(SubscriberReplacedError):
        one.subscribe("s", "t", attempt=late)
    one.publish("p", "t", b"1")
    assert found.take(timeout=PATIENCE) == [Message(1, b"1")]
    for attempt in (second, Attempt("another", 1), None):
        later = one.subscribe("s", "t", attempt=attempt)
        assert isinstance(later, Subscription)
        with pytest.raises(SubscriberReplacedError):
            found.take(timeout=0)
        found = later


def test_a_reader_that_is_closed_tells_its_last_mark(hub: Hubs) -> None:
    """Also if its hub has just lost the topic: what was consumed does not come again."""
    one, two = hub("hub-1:1"), hub("hub-2:1")
    joined(one, two)
    client = Net(one, two).client()
    reader = client.subscribe("s", "t")
    client.publish("p", "t", b"1")
    assert read(reader, 1) == [b"1"]
    client.publish("p", "t", b"2")
    (message,) = reader.take(timeout=PATIENCE)
    assert one.release("t") or two.release("t")
    reader.consumed(message.number)
    reader.close()
    reader.close()
    client.publish("p", "t", b"3")
    with client.subscribe("s", "t", "attach") as again:
        assert read(again, 1) == [b"3"]
        # One that was replaced does not come back for its mark, and so ends nobody.
        with client.subscribe("s", "t", "attach") as later:
            with pytest.raises(SubscriberReplacedError):
                again.consumed(2)
            again.close()
            client.publish("p", "t", b"4")
            assert read(later, 1) == [b"4"]


def test_a_reader_whose_last_mark_is_lost_says_so(
    hub: Hubs, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends in its time, and logs that messages come again."""
    one = hub("hub-1:1")
    net = Net(one)
    reader = net.client().subscribe("s", "t")
    one.publish("p", "t", b"1")
    (message,) = reader.take(timeout=PATIENCE)
    one.release("t")
    reader.consumed(message.number)
    net.hubs.clear()
    reader.close(timeout=0)
    assert "a consume mark is lost" in caplog.text


@pytest.mark.slow
def test_a_hub_that_has_not_answered_is_not_asked_first(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until some time has passed, and unless there is no other."""
    one = hub("hub-1:1")
    net = Net(one)
    client = net.client("down:1", one.address)
    monkeypatch.setattr(serving_client, "_AVOIDED", PATIENCE)  # however slow the machine
    for number in range(50):
        client.publish("p", f"t{number}", b"")
    assert net.asked.count("down:1") <= 1
    monkeypatch.setattr(serving_client, "_AVOIDED", 0.0)
    lost = net.client("down:1", timeout=0.1)
    with pytest.raises(bk.OperationTimeoutError):
        lost.publish("p", "t", b"")
    assert net.asked.count("down:1") > 2


@pytest.mark.parametrize("ownership", ["ephemeral", "compared"], indirect=True)
def test_a_crash_of_the_hub(
    server: LocalServer, proxy: Callable[[str], Proxy], ownership: str, logs: FileLogs
) -> None:
    """The reader and the publisher go on with another hub when the session has ended."""
    line = proxy(server.address)
    settings = HubSettings(ownership=ownership, mark_interval=0.05)  # type: ignore[arg-type]
    with ExitStack() as stack:

        def hub(address: str, url: str, session: float) -> TopicHub:
            store = bk.open_store(url, session_timeout=session, operation_timeout=2.0)
            stack.callback(store.close, 0)
            made = TopicHub(store, R, address, logs, settings)
            stack.callback(made.stop)
            made.start(PATIENCE)
            return made

        one = hub("hub-1:1", server.url.replace(server.address, line.address), 2.0)
        net = Net(one)
        client = net.client("hub-1:1", "hub-2:1")
        reader = stack.enter_context(client.subscribe("s", "t"))
        client.publish("p", "t", b"1")
        assert read(reader, 1) == [b"1"]
        two = hub("hub-2:1", server.url, 30.0)
        net.hubs["hub-2:1"] = two
        line.drops = line.swallows = True
        line.cut()
        del net.hubs["hub-1:1"]
        published = client.publish("p", "t", b"2")
        assert published == Published(2, two.info)
        assert read(reader, 1) == [b"2"]
        # The mark of the first message came with the new connection.
        with (
            bk.open_store(server.url) as store,
            open_managers(store, R) as managers,
        ):

            def mark() -> int | None:
                found = managers.subscriptions.read_subscription_data("t", "s")
                return (
                    None
                    if found is None or found.value.state is None
                    else (found.value.state.mark.local)
                )

            until(lambda: mark() == 2)
        line.restore()


def test_a_topic_that_is_lost_is_no_end(hub: Hubs) -> None:
    """An error of the connection is one of many for a reader."""
    one = hub("hub-1:1")
    client = Net(one).client()
    with client.subscribe("s", "t") as reader:
        for number in range(5):
            one.release("t")
            client.publish("p", "t", b"%d" % number)
            assert read(reader, 1) == [b"%d" % number]


def test_a_reader_that_is_closed_in_an_outage(hub: Hubs) -> None:
    """Whoever waits for messages, or for a hub, learns that the reader was closed."""
    one = hub("hub-1:1")
    for down in (False, True):
        net = Net(one)
        client = net.client()
        reader = client.subscribe("s", "t")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(reader.take)
            if down:
                del net.hubs["hub-1:1"]
                one.release("t")
                asked = len(net.asked)
                until(lambda net=net, asked=asked: len(net.asked) > asked + 2)  # type: ignore[misc]
            reader.close()
            with pytest.raises(bk.StoreClosedError, match="reader"):
                waiting.result(PATIENCE)


def test_a_number_that_no_message_has(hub: Hubs) -> None:
    """It is refused, at the latest when a hub is there again, and then forgotten."""
    one = hub("hub-1:1")
    net = Net(one)
    client = net.client()
    with client.subscribe("s", "t") as reader:
        client.publish("p", "t", b"1")
        assert read(reader, 1) == [b"1"]
        for wrong in (-1, "1", None):
            with pytest.raises(IllegalOperationError):
                reader.consumed(wrong)  # type: ignore[arg-type]
        with pytest.raises(IllegalOperationError):
            reader.consumed(9)
        one.release("t")
        client.publish("p", "t", b"2")
        assert read(reader, 1) == [b"2"]
        del net.hubs["hub-1:1"]
        one.release("t")
        assert reader.take(timeout=0) == []
        reader.consumed(9)
        net.hubs["hub-1:1"] = one
        with pytest.raises(IllegalOperationError, match="messages 1 to 2"):
            reader.take(timeout=PATIENCE)
        client.publish("p", "t", b"3")
        assert read(reader, 1) == [b"3"]


def test_a_mark_whose_way_was_lost_is_told_again(
    hub: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the connection itself goes on."""
    one = hub("hub-1:1")
    connections: list[Subscription] = []
    subscribe = one.subscribe

    def connected(*args: Any) -> Subscription | Redirect:
        made = subscribe(*args)
        assert isinstance(made, Subscription)
        connections.append(made)
        return made

    monkeypatch.setattr(one, "subscribe", connected)
    client = Net(one).client()
    with client.subscribe("s", "t") as reader:
        client.publish("p", "t", b"1")
        assert [message.body for message in reader.take(timeout=PATIENCE)] == [b"1"]
        (connection,) = connections
        consumed = connection.consumed

        def lost(number: int) -> None:
            monkeypatch.setattr(connection, "consumed", consumed)
            raise ConnectionResetError

        monkeypatch.setattr(connection, "consumed", lost)
        reader.consumed(1)
        assert reader.take(timeout=0) == []
        assert connections == [connection]
    with client.subscribe("s", "t") as reader:
        assert reader.take(timeout=0) == []
