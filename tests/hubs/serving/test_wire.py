"""Hubs over TCP, on loopback, for threads and for tasks."""

from __future__ import annotations

import asyncio
import os
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import hubs
from batchkeeper.hubs import (
    AccessDeniedError,
    IllegalOperationError,
    Message,
    NoSubscriptionStateError,
    Published,
    Redirect,
    Rule,
    SubscriberReplacedError,
    SubscriptionPreferences,
    TopicLostError,
)
from batchkeeper.hubs.serving import async_frames, async_remote, async_server, frames
from batchkeeper.hubs.serving._sync import remote as remote_module
from batchkeeper.hubs.serving._sync import server
from batchkeeper.hubs.serving._sync.client import passing

from ...forks import holds_in_a_child
from ...proxy import Proxy
from ...waiting import PATIENCE, until
from .wires import Bare, Face, Tasks, Threads, answering

PUBLISH = {"call": "publish", "who": "p", "topic": "t", "redirected": False, "body": ""}
SUBSCRIBE = {
    "call": "subscribe",
    "who": "s",
    "topic": "t",
    "redirected": False,
    "mode": "create_or_attach",
}
TAKE = {"call": "take", "subscription": 1, "most": 100, "timeout": 5.0}


@pytest.fixture(params=[Threads, Tasks])
def face(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Face]:
    """Both faces."""
    with request.param(tmp_path) as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait."""
    with ThreadPoolExecutor(32) as made:
        yield made


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Change a limit of the servers of both faces."""

    def change(name: str, value: float) -> None:
        for module in (server, async_server, frames, async_frames):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)

    return change


def test_all_calls_of_a_client(face: Face) -> None:
    """A remote hub answers as the hub does, with its errors."""
    hub, _ = face.hub(window=3)
    connections = face.connections()
    remote = connections(hub.address)
    with pytest.raises(NoSubscriptionStateError, match="no subscriber 's'"):
        remote.subscribe("s", "t", mode="attach")
    found = remote.subscribe(b"\xff", b"\xfe/\n")
    assert found.take(timeout=0) == []
    for number in range(5):
        body = bytes([number, 255])
        assert remote.publish("p", b"\xfe/\n", body) == Published(number + 1, hub.info)
    assert found.take() == [Message(n + 1, bytes([n, 255])) for n in range(3)]
    found.consumed(3)
    assert found.take(1) == [Message(4, b"\x03\xff")]
    with pytest.raises(IllegalOperationError, match="messages 1 to 5"):
        found.consumed(9)
    again = remote.subscribe(b"\xff", b"\xfe/\n")
    with pytest.raises(SubscriberReplacedError):
        found.take()
    assert again.take(timeout=1) == [Message(4, b"\x03\xff"), Message(5, b"\x04\xff")]
    again.close()
    with pytest.raises(TopicLostError):
        again.take()
    assert remote.unsubscribe(b"\xff", b"\xfe/\n") is True
    assert remote.unsubscribe(b"\xff", b"\xfe/\n") is False
    wide = SubscriptionPreferences({"a": b"\xff"}, message_window_size=5)
    found = remote.subscribe("w", "t", preferences=wide)
    for _ in range(9):
        remote.publish("p", "t", b"")
    assert len(found.take()) == 5
    hub.access.set_rule("", Rule())
    with pytest.raises(AccessDeniedError, match="must not publish"):
        remote.publish("p", "t", b"")


def test_a_client_of_several_hubs(face: Face, pool: ThreadPoolExecutor) -> None:
    """It follows redirects, and its reader survives the end of a hub and its server."""
    served = [face.hub(), face.hub()]
    client = face.client(*(hub.address for hub, _ in served))
    reader = client.subscribe("s", "t")
    published = client.publish("p", "t", b"1")
    served.sort(key=lambda one: one[0].address != published.hub.address)
    (owner, front), (other, _) = served
    remote = face.connections()(other.address)
    assert remote.publish("p", "t", b"", redirected=True) == Redirect(owner.info)
    assert remote.subscribe("x", "t") == Redirect(owner.info)
    assert remote.unsubscribe("x", "t") == Redirect(owner.info)
    assert reader.take() == [Message(1, b"1")]
    reader.consumed(1)
    waiting = pool.submit(reader.take)
    front.stop()
    owner.stop()
    assert client.publish("p", "t", b"2") == Published(2, other.info)
    assert waiting.result(PATIENCE) == [Message(2, b"2")]
    reader.close()


def test_a_take_that_waits_blocks_no_other_request(face: Face) -> None:
    """Requests of one connection are answered as soon as they can be."""
    hub, _ = face.hub()
    with Bare(hub.address) as bare:
        assert bare.ask(id=1, **SUBSCRIBE) == {"id": 1, "subscription": 1}
        bare.send({"id": 2, **TAKE}, {"id": 3, **PUBLISH})
        answers = {answer["id"]: answer for answer in (bare.receive(), bare.receive())}
        assert answers[3]["number"] == 1
        assert answers[2]["messages"] == [[1, ""]]


def test_the_subscriber_of_a_client_that_has_gone(face: Face) -> None:
    """Its connection to the topic ends, also if a request of it waits for messages."""
    hub, _ = face.hub()
    with Bare(hub.address) as bare:
        bare.ask(id=1, **SUBSCRIBE)
        bare.send({"id": 2, **TAKE})
        assert face.subscribers() == 1
    until(lambda: face.subscribers() == 0)


def test_a_client_that_goes_while_it_subscribes(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it stays at the hub."""
    hub, _ = face.hub()
    hub.publish("p", "t", b"1")
    hold = face.hold(hub, "subscribe")
    with Bare(hub.address) as bare:
        bare.send({"id": 1, **SUBSCRIBE})
        assert hold.entered.wait(PATIENCE)
        caplog.set_level("DEBUG")
    until(lambda: "the connection of a client has ended" in caplog.text)
    hold.open()
    until(lambda: face.made and not face.subscribers())
    assert hold.calls == 1


def test_messages_of_a_broken_connection_come_again(face: Face) -> None:
    """The next connection of the subscriber gets all that was not consumed."""
    hub, _ = face.hub()
    with Bare(hub.address) as bare:
        bare.ask(id=1, **SUBSCRIBE)
        for number in range(4):
            hub.publish("p", "t", b"%d" % number)
        answer = bare.ask(id=2, **TAKE)
        assert [number for number, _ in answer["messages"]] == [1, 2, 3, 4]
        bare.ask(id=3, call="consumed", subscription=1, number=2)
    again = face.connections()(hub.address).subscribe("s", "t", mode="attach")
    assert [message.number for message in again.take()] == [3, 4]


RUBBISH = {
    "a long frame": b"\xff\xff\xff\xff",
    "a list": b"\0\0\0\2[]",
    "no JSON": b"\0\0\0\1{",
    "no whole length": b"\0\0",
    "no id": b"\0\0\0\2{}",
    "a text as id": b'\0\0\0\x0a{"id":"1"}',
    "a bool as id": b'\0\0\0\x0b{"id":true}',
    "a negative id": b'\0\0\0\x09{"id":-1}',
    "a deep object": b"\0\1\0\0" + b"[" * 65536,
    "a long number": b'\0\0\x27\x15{"id":' + b"1" * 9999 + b"}",
}


@pytest.mark.parametrize("raw", RUBBISH.values(), ids=RUBBISH)
def test_a_client_that_sends_rubbish_is_cut_off(raw: bytes, face: Face) -> None:
    """Others go on."""
    hub, _ = face.hub()
    remote = face.connections()(hub.address)
    remote.publish("p", "t", b"")
    with Bare(hub.address) as bare:
        bare.socket.sendall(raw)
        if raw == RUBBISH["no whole length"]:
            bare.socket.shutdown(1)
        assert bare.ended()
    assert remote.publish("p", "t", b"") == Published(2, hub.info)


def test_an_id_that_is_in_use(face: Face) -> None:
    """The client is cut off: nobody could tell the answers apart."""
    hub, _ = face.hub()
    with Bare(hub.address) as bare:
        bare.ask(id=1, **SUBSCRIBE)
        bare.send({"id": 1, **PUBLISH})
        assert bare.ended()
    until(lambda: face.subscribers() == 0)


MALFORMED = [
    {},
    {"call": 7},
    {"call": ["publish"]},
    {"call": "no such call"},
    {**PUBLISH, "who": None},
    {**PUBLISH, "topic": ""},
    {**PUBLISH, "topic": "\ud800"},
    {**PUBLISH, "topic": ["t"]},
    {**PUBLISH, "body": "no base64"},
    {**PUBLISH, "body": None},
    {**PUBLISH, "redirected": 0},
    {**SUBSCRIBE, "mode": "no mode"},
    {**SUBSCRIBE, "mode": ["attach"]},
    {**SUBSCRIBE, "who": 7},
    {**SUBSCRIBE, "preferences": []},
    {**SUBSCRIBE, "preferences": {"options": 7}},
    {**SUBSCRIBE, "preferences": {"message_bound": -1}},
    {**SUBSCRIBE, "attempt": 1},
    {**SUBSCRIBE, "attempt": ["r", "1"]},
    {"call": "unsubscribe"},
    {"call": "unsubscribe", "who": "s", "topic": "t"},
    {"call": "take"},
    {**TAKE, "most": 0},
    {**TAKE, "most": True},
    {**TAKE, "timeout": -1},
    {**TAKE, "timeout": False},
    {**TAKE, "timeout": float("nan")},
    {**TAKE, "timeout": float("inf")},
    {**TAKE, "timeout": "1"},
    {"call": "consumed", "subscription": 1},
    {"call": "consumed", "subscription": 1, "number": 2**70},
    {"call": "consumed", "subscription": 1, "number": 1},
    {"call": "close", "subscription": None},
]


@pytest.mark.slow
@pytest.mark.parametrize("request_", MALFORMED, ids=str)
def test_a_malformed_request_gets_an_error(request_: dict[str, Any], face: Face) -> None:
    """The connection and its subscription go on."""
    hub, _ = face.hub()
    with Bare(hub.address) as bare:
        bare.ask(id=1, **SUBSCRIBE)
        answer = bare.ask(id=2, **request_)
        assert answer["id"] == 2
        assert answer["error"] == "IllegalOperationError"
        assert answer["message"]
        bare.ask(id=2, **PUBLISH)
        assert bare.ask(id=2, **TAKE) == {"id": 2, "messages": [[1, ""]]}


def test_two_requests_for_the_messages_of_one_subscription(face: Face) -> None:
    """The second one is refused, so waiting requests are bounded by subscriptions."""
    hub, _ = face.hub()
    with Bare(hub.address) as bare:
        bare.ask(id=1, **SUBSCRIBE)
        bare.send({"id": 2, **TAKE}, {"id": 3, **TAKE})
        answer = bare.receive()
        assert answer["error"] == "IllegalOperationError"
        assert answer["id"] in {2, 3}
        hub.publish("p", "t", b"")
        assert bare.receive() == {"id": 5 - answer["id"], "messages": [[1, ""]]}


def test_requests_under_way_are_bounded(face: Face, limit: Callable[[str, float], None]) -> None:
    """Those beyond the bound wait in the connection, and are all answered."""
    limit("_MOST_REQUESTS", 3)
    hub, _ = face.hub()
    hold = face.hold(hub, "publish")
    with Bare(hub.address) as bare, Bare(hub.address) as other:
        bare.send(*({"id": number, **PUBLISH} for number in range(20)))
        until(lambda: hold.calls == 3)
        other.ask(id=1, **SUBSCRIBE)  # There was time for another one.
        assert hold.calls == 3
        hold.open()
        answers = [bare.receive() for _ in range(20)]
    assert sorted(answer["number"] for answer in answers) == [*range(1, 21)]


def test_subscriptions_of_a_connection_are_bounded(
    face: Face, limit: Callable[[str, float], None]
) -> None:
    """One more is refused before the hub knows of it, until another is closed."""
    limit("_MOST_SUBSCRIPTIONS", 2)
    hub, _ = face.hub()
    remote = face.connections()(hub.address)
    first = remote.subscribe("s1", "t")
    remote.subscribe("s2", "t")
    with pytest.raises(bk.QueueFullError, match="at most 2 subscriptions"):
        remote.subscribe("s3", "t")
    assert face.subscribers() == 2
    first.close()
    remote.subscribe("s3", "t")


@pytest.mark.slow
def test_a_message_that_no_frame_can_hold(face: Face) -> None:
    """It is refused before it is sent, and the connection goes on. Large ones arrive."""
    hub, _ = face.hub()
    remote = face.connections()(hub.address)
    found = remote.subscribe("s", "t")
    with pytest.raises(bk.ValueTooLargeError, match="at most 16777216"):
        remote.publish("p", "t", bytes(13_000_000))
    with pytest.raises(IllegalOperationError, match="cannot be sent"):
        remote.publish(b"p", "t", b"")
    with pytest.raises(IllegalOperationError, match="must be bytes"):
        remote.publish("p", "t", "text")
    body = os.urandom(12_000_000)
    remote.publish("p", "t", body)
    assert found.take() == [Message(1, body)]


def test_many_large_messages_come_in_several_answers(face: Face) -> None:
    """They arrive in order, and none twice."""
    hub, _ = face.hub()
    with Bare(hub.address) as bare:
        bare.ask(id=1, **SUBSCRIBE)
        for _ in range(5):
            hub.publish("p", "t", bytes(400_000))
        answers = [bare.ask(id=2, **TAKE)["messages"] for _ in range(3)]
        assert [[number for number, _ in answer] for answer in answers] == [[1, 2], [3, 4], [5]]


def test_a_client_that_takes_no_answers_is_cut_off(
    face: Face, limit: Callable[[str, float], None]
) -> None:
    """It keeps nothing busy for ever."""
    limit("WRITE_TIMEOUT", 0.2)
    hub, _ = face.hub()
    with Bare(hub.address) as bare:
        bare.ask(id=1, **SUBSCRIBE)
        hub.publish("p", "t", bytes(12_000_000))
        bare.send({"id": 2, **TAKE})
        until(lambda: face.subscribers() == 0)
        with pytest.raises((EOFError, ConnectionResetError)):
            bare.receive()


def test_answers_that_wait_for_an_answer(face: Face) -> None:
    """Each of them is sent whole, one after the other."""
    hub, _ = face.hub()
    body = b64encode(bytes(3_000_000)).decode()
    with Bare(hub.address) as bare:
        bare.send(*({"id": number, **SUBSCRIBE, "who": str(number)} for number in range(5)))
        assert sorted(bare.receive()["subscription"] for _ in range(5)) == [*range(5)]
        bare.send({"id": 5, **PUBLISH, "body": body})
        bare.receive()
        bare.send(*({"id": 6 + n, **TAKE, "subscription": n} for n in range(5)))
        answers = [bare.receive() for _ in range(5)]
        assert sorted(answer["id"] for answer in answers) == [*range(6, 11)]
        assert all(answer["messages"] == [[1, body]] for answer in answers)


def test_a_late_subscribe_does_not_replace_a_later_one(face: Face) -> None:
    """A client that asks again has the subscription, whichever request the hub ends first."""
    hub, _ = face.hub()
    hub.publish("p", "t", b"")
    hold = face.hold(hub, "subscribe")
    with Bare(hub.address) as first, Bare(hub.address) as second:
        first.send({"id": 1, **SUBSCRIBE})
        assert hold.entered.wait(PATIENCE)
        second.send({"id": 1, **SUBSCRIBE}, {"id": 2, **PUBLISH})
        second.receive()  # So its other request has arrived.
        assert hold.calls == 1
        hold.open()
        assert second.receive() == {"id": 1, "subscription": 1}
        second.send({"id": 3, **PUBLISH})
        answers = {answer["id"]: answer for answer in (second.receive(), second.ask(id=4, **TAKE))}
        assert [number for number, _ in answers[4]["messages"]][-1] == 3
        assert first.receive() == {"id": 1, "subscription": 1}
        assert first.ask(id=2, **TAKE)["error"] == "SubscriberReplacedError"


def test_a_late_attempt_of_another_connection(face: Face) -> None:
    """A hub that was paused may read the connections of a client in any order."""
    hub, _ = face.hub()
    with Bare(hub.address) as first, Bare(hub.address) as second:
        assert second.ask(id=1, **SUBSCRIBE, attempt=["r", 2]) == {"id": 1, "subscription": 1}
        late = first.ask(id=1, **SUBSCRIBE, attempt=["r", 1])
        assert late["error"] == "SubscriberReplacedError"
        hub.publish("p", "t", b"")
        assert len(second.ask(id=2, **TAKE)["messages"]) == 1


def test_a_subscription_that_is_closed_before_it_is_there(face: Face) -> None:
    """A client that does not wait for the answer leaves nothing behind."""
    hub, _ = face.hub()
    hub.publish("p", "t", b"")
    hold = face.hold(hub, "subscribe")
    with Bare(hub.address) as bare:
        bare.send({"id": 1, **SUBSCRIBE})
        assert hold.entered.wait(PATIENCE)
        assert bare.ask(id=2, call="close", subscription=1) == {"id": 2}
        hold.open()
        assert bare.receive()["error"] == "TopicLostError"
        assert face.subscribers() == 0


def test_a_subscribe_without_an_answer_is_closed(face: Face) -> None:
    """When the hub goes on, the subscriber is not connected for ever."""
    hub, _ = face.hub()
    hub.publish("p", "t", b"")
    hold = face.hold(hub, "subscribe")
    remote = face.remote(hub.address, timeout=1.0)
    found = remote.subscribe
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(found, "s", "t")
        assert hold.entered.wait(PATIENCE)
        # Something is answered meanwhile, so the connection is kept.
        remote.publish("p", "t", b"")
        assert isinstance(late.exception(PATIENCE), TimeoutError)
    hold.open()
    until(lambda: hold.calls == 1 and face.subscribers() == 0)
    assert remote.publish("p", "t", b"") == Published(3, hub.info)


def test_a_server_that_stops_while_requests_are_under_way(
    face: Face, pool: ThreadPoolExecutor
) -> None:
    """They get their answers, those that wait for messages end, and later ones fail."""
    hub, front = face.hub()
    remote = face.connections()(hub.address)
    found = remote.subscribe("s", "t")
    hold = face.hold(hub, "publish")
    publishing = pool.submit(remote.publish, "p", "t", b"1")
    assert hold.entered.wait(PATIENCE)
    (connection,) = face.made
    taking = face.hold(connection, "take")
    taking.open()
    waiting = pool.submit(found.take)
    assert taking.entered.wait(PATIENCE)
    stopping = pool.submit(front.stop)
    with pytest.raises(TopicLostError):
        waiting.result(PATIENCE)
    hold.open()
    assert publishing.result(PATIENCE) == Published(1, hub.info)
    stopping.result(PATIENCE)
    with pytest.raises(ConnectionError):
        remote.publish("p", "t", b"2")
    front.stop()


def test_a_server_stops_although_a_request_does_not_end(
    face: Face, pool: ThreadPoolExecutor, limit: Callable[[str, float], None]
) -> None:
    """After some seconds, its client gets an error."""
    limit("_GRACE", 0.1)
    hub, front = face.hub()
    remote = face.connections()(hub.address)
    hold = face.hold(hub, "publish")
    publishing = pool.submit(remote.publish, "p", "t", b"1")
    assert hold.entered.wait(PATIENCE)
    front.stop()
    assert isinstance(publishing.exception(PATIENCE), ConnectionError)
    hold.open()


def test_a_server_that_stops_without_a_hub(face: Face) -> None:
    """Requests that wait for a hub end. A server listens once, and serves one hub."""
    made = face.server()
    address = made.listen()
    with pytest.raises(bk.InvalidSettingError, match="listens once"):
        made.listen()
    with Bare(address) as bare:
        bare.send({"id": 1, **PUBLISH})
        made.stop()
        assert bare.ended()
    hub, front = face.hub()
    with pytest.raises(bk.InvalidSettingError, match="serves"):
        front.serve(hub)
    # The port is free at once.
    again = face.server()
    assert again.listen("127.0.0.1", int(address.rpartition(":")[2])) == address


def test_a_hub_that_has_stopped_behind_its_server(face: Face, pool: ThreadPoolExecutor) -> None:
    """Each request gets an error that sends a client to other hubs."""
    hub, _ = face.hub()
    remote = face.connections()(hub.address)
    found = remote.subscribe("s", "t")
    waiting = pool.submit(found.take)
    hub.stop()
    for call in (
        lambda: waiting.result(PATIENCE),
        lambda: remote.publish("p", "t", b""),
        lambda: remote.subscribe("s", "t"),
        lambda: remote.unsubscribe("s", "t"),
        lambda: found.consumed(0),
    ):
        with pytest.raises((bk.MetadataStoreError, OSError)) as caught:
            call()
        assert passing(caught.value)  # type: ignore[arg-type]


def test_a_hub_that_does_not_answer(face: Face) -> None:
    """A request ends in its time, and the next one makes a new connection."""
    made = face.server()
    address = made.listen()
    remote = face.remote(address, timeout=0.1)
    with pytest.raises(TimeoutError, match=address):
        remote.publish("p", "t", b"")
    made.stop()
    with pytest.raises(OSError, match="onnect"):
        remote.publish("p", "t", b"")
    remote.close()
    with pytest.raises(ConnectionAbortedError, match="was closed"):
        remote.publish("p", "t", b"")
    with pytest.raises(OSError, match="onnect"):
        face.remote(address).publish("p", "t", b"")


def test_those_who_wait_for_a_hub_share_its_failure(
    face: Face, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may ask a hub that has crashed: one attempt to connect is enough for all of them.

    Those who come later try again.
    """
    attempts: list[str] = []
    looks: list[str] = []
    held = threading.Event()
    present = {kind: kind._present for kind in (hubs.RemoteHub, hubs.AsyncRemoteHub)}

    def looking(self: Any) -> Any:
        looks.append(self.address)
        return present[type(self)](self)

    def refuse(address: str, _: float | None) -> None:
        attempts.append(address)
        assert held.wait(PATIENCE)
        raise ConnectionRefusedError(address)

    async def refuse_task(address: str, timeout: float | None) -> None:
        await asyncio.to_thread(refuse, address, timeout)

    for kind in present:
        monkeypatch.setattr(kind, "_present", looking)
    monkeypatch.setattr(remote_module, "connect", refuse)
    monkeypatch.setattr(async_remote, "async_connect", refuse_task)
    remote = face.remote("127.0.0.1:1")
    calls = [pool.submit(remote.publish, "p", "t", b"") for _ in range(20)]
    until(lambda: len(looks) == 21)  # The first one looks again before it connects.
    held.set()
    for call in calls:
        with pytest.raises(OSError, match=r"127\.0\.0\.1:1"):
            call.result(PATIENCE)
    assert len(attempts) == 1
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1"):
        remote.publish("p", "t", b"")
    assert len(attempts) == 2


@pytest.mark.parametrize("address", ["", "hub-1", "hub-1:", ":4080", "hub-1:0", "a:99999", "a:1b"])
def test_an_address_that_is_none(face: Face, address: str) -> None:
    """It is an error of the connection, so a client asks another hub."""
    with pytest.raises(ConnectionAbortedError, match="no address"):
        face.remote(address).publish("p", "t", b"")


def test_a_half_open_connection(face: Face, proxy: Callable[[str], Proxy]) -> None:
    """If nothing at all comes back, the client makes a new connection for the next request."""
    hub, _ = face.hub()
    line = proxy(hub.address)
    remote = face.remote(line.address, timeout=1.0)
    remote.subscribe("s", "t")
    assert remote.publish("p", "t", b"") == Published(1, hub.info)
    assert face.subscribers() == 1
    line.drops = True
    with pytest.raises(TimeoutError, match="not answered"):
        remote.publish("p", "t", b"")
    line.drops = False
    assert remote.publish("p", "t", b"") == Published(2, hub.info)
    until(lambda: face.subscribers() == 0)


def test_a_lost_answer_with_messages(face: Face, proxy: Callable[[str], Proxy]) -> None:
    """The subscription has ended for its client, and the messages come to the next one."""
    hub, _ = face.hub()
    line = proxy(hub.address)
    remote = face.remote(line.address, timeout=1.0)
    found = remote.subscribe("s", "t")
    line.swallows = True
    hub.publish("p", "t", b"1")
    with pytest.raises(TimeoutError, match="not answered"):
        found.take()
    line.restore()
    with pytest.raises(ConnectionResetError):
        found.take()
    found.close()
    assert remote.subscribe("s", "t").take() == [Message(1, b"1")]


def test_an_answer_with_messages_that_is_late(face: Face, pool: ThreadPoolExecutor) -> None:
    """The subscription has ended for its client, although its connection has not."""

    def answer(request: dict[str, Any]) -> bytes:
        if request["call"] == "take":
            return b""
        raw = b'{"id": %d, "subscription": 1, "removed": true}' % request["id"]
        return len(raw).to_bytes(4) + raw

    with answering(answer) as (address, made):
        remote = face.remote(address, timeout=0.5)
        found = remote.subscribe("s", "t")
        taking = pool.submit(found.take)
        while not taking.done():
            assert remote.unsubscribe("x", "t") is True
        assert isinstance(taking.exception(), TimeoutError)
        with pytest.raises(ConnectionResetError, match="was lost"):
            found.take()
        assert made == [0]


def test_one_connection_for_each_address(face: Face, pool: ThreadPoolExecutor) -> None:
    """It is made by the first request, serves all, and is made again after a failure."""

    def answer(request: dict[str, Any]) -> bytes:
        if request["who"] == "bad":
            return b"HTTP/1.1 400 Bad Request\r\n"
        raw = b'{"id": %d, "number": 1, "hub": ["hub-1:1", 7]}' % request["id"]
        return len(raw).to_bytes(4) + raw

    with answering(answer) as (address, made):
        connections = face.connections()
        remote = connections(address)
        assert getattr(connections(address), "made", remote) is getattr(remote, "made", remote)
        assert made == []
        for calls in [pool.submit(remote.publish, "p", "t", b"") for _ in range(30)]:
            assert calls.result(PATIENCE).number == 1
        assert made == [0]
        with pytest.raises(ConnectionResetError, match="a frame of"):
            remote.publish("bad", "t", b"")
        assert remote.publish("p", "t", b"").number == 1
        assert made == [0, 1]
        connections.close()
        with pytest.raises(ConnectionAbortedError, match="were closed"):
            connections(address)


@pytest.mark.parametrize(
    "members", [b"", b', "number": "1"', b', "number": 1', b', "number": 1, "hub": [1, 2]']
)
def test_an_answer_that_is_none(face: Face, members: bytes) -> None:
    """It is an error of the connection, as from a server that is not a hub."""

    def answer(request: dict[str, Any]) -> bytes:
        raw = b'{"id": %d%s}' % (request["id"], members)
        return len(raw).to_bytes(4) + raw

    with answering(answer) as (address, _), pytest.raises(ConnectionAbortedError, match="none"):
        face.remote(address).publish("p", "t", b"")


def test_connections_that_are_closed_while_calls_wait(face: Face, pool: ThreadPoolExecutor) -> None:
    """The calls get an error at once, and the hub forgets the subscriber."""
    hub, _ = face.hub()
    connections = face.connections()
    remote = connections(hub.address)
    found = remote.subscribe("s", "t")
    hold = face.hold(hub, "publish")
    calls = [pool.submit(found.take), pool.submit(remote.publish, "p", "t", b"")]
    assert hold.entered.wait(PATIENCE)
    connections.close()
    for call in calls:
        with pytest.raises(ConnectionResetError, match="was closed"):
            call.result(PATIENCE)
    until(lambda: face.subscribers() == 0)
    with pytest.raises(ConnectionError):
        remote.publish("p", "t", b"")
    with pytest.raises(ConnectionError):
        found.take()
    found.close()


def test_a_forked_client(tmp_path: Path) -> None:
    """The child has connections of its own, and disturbs nothing of its parent."""
    with Threads(tmp_path) as face:
        hub, front = face.hub()
        connections = face.connections()
        remote = connections(hub.address)
        found = remote.subscribe("s", "t")

        def fails(call: Callable[[], object]) -> bool:
            try:
                call()
            except ConnectionError:
                return True
            return False

        def check() -> bool:
            ended = fails(lambda: remote.publish("p", "t", b"")) and fails(found.take)
            found.close()
            remote.close()
            published = connections(hub.address).publish("p", "t", b"of the child")
            connections.close()
            front.stop()
            return ended and published.number == 1

        assert holds_in_a_child(check)
        assert found.take() == [Message(1, b"of the child")]
        assert remote.publish("p", "t", b"") == Published(2, hub.info)


def test_a_server_that_has_forked(tmp_path: Path) -> None:
    """Its clients notice when it stops, although the child has copies of their connections."""
    with Threads(tmp_path) as face:
        hub, front = face.hub()
        (read, write) = os.pipe()
        with Bare(hub.address) as bare:
            bare.ask(id=1, **PUBLISH)
            ended: list[bool] = []
            forked = threading.Thread(
                target=lambda: ended.append(holds_in_a_child(lambda: os.read(read, 1) == b"x"))
            )
            forked.start()
            front.stop()
            assert bare.ended()
            os.write(write, b"x")
            forked.join()
            assert ended == [True]
        os.close(read)
        os.close(write)
