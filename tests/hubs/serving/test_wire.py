"""Hubs over gRPC, on loopback, for threads and for tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

import batchkeeper as bk
from batchkeeper.hubs import (
    AccessDeniedError,
    HubTLS,
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
from batchkeeper.hubs.serving import async_remote, async_server
from batchkeeper.hubs.serving._sync import remote as remote_module
from batchkeeper.hubs.serving._sync import server
from batchkeeper.hubs.serving._sync.client import passing
from batchkeeper.hubs.serving.messages import Attempt
from batchkeeper.hubs.serving.schema import SERVICE, messages

from ...forks import forked, holds_in_a_child, returned_true
from ...proxy import Proxy
from ...waiting import PATIENCE, until
from .wires import Face, Tasks, Threads


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
    """Change a limit of the servers and the clients of both faces."""

    def change(name: str, value: float) -> None:
        for module in (server, async_server, remote_module, async_remote):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)

    return change


def taken(found: Any, count: int) -> list[Message]:
    """Take messages until there are so many: a slow hub hands over what it has by then."""
    messages: list[Message] = []
    while len(messages) < count:
        messages += found.take()
    return messages


def until_error(found: Any) -> None:
    """Take what a subscription has read ahead, and then raise its error."""
    while True:
        found.take()


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
    assert taken(found, 3) == [Message(n + 1, bytes([n, 255])) for n in range(3)]
    found.consumed(3)
    assert found.take(1) == [Message(4, b"\x03\xff")]
    with pytest.raises(IllegalOperationError, match="messages 1 to 5"):
        found.consumed(9)
    again = remote.subscribe(b"\xff", b"\xfe/\n")
    with pytest.raises(SubscriberReplacedError):
        until_error(found)
    assert taken(again, 2) == [Message(4, b"\x03\xff"), Message(5, b"\x04\xff")]
    again.close()
    with pytest.raises(TopicLostError):
        again.take()
    assert remote.unsubscribe(b"\xff", b"\xfe/\n") is True
    assert remote.unsubscribe(b"\xff", b"\xfe/\n") is False
    wide = SubscriptionPreferences({"a": b"\xff"}, message_window_size=5)
    found = remote.subscribe("w", "t", preferences=wide)
    for _ in range(9):
        remote.publish("p", "t", b"")
    assert len(taken(found, 5)) == 5
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


def test_a_take_that_waits_blocks_no_other_request(face: Face, pool: ThreadPoolExecutor) -> None:
    """Requests of one connection are answered as soon as they can be."""
    hub, _ = face.hub()
    remote = face.connections()(hub.address)
    found = remote.subscribe("s", "t")
    waiting = pool.submit(found.take)
    assert remote.publish("p", "t", b"").number == 1
    assert waiting.result(PATIENCE) == [Message(1, b"")]


def test_the_subscriber_of_a_client_that_has_gone(
    face: Face, proxy: Callable[[str], Proxy]
) -> None:
    """Its connection to the topic ends, although the hub waits for messages for it."""
    hub, _ = face.hub()
    line = proxy(hub.address)
    found = face.remote(line.address).subscribe("s", "t")
    assert face.subscribers() == 1
    line.cut()
    until(lambda: face.subscribers() == 0)
    with pytest.raises(ConnectionError):
        found.take()


def test_a_client_that_goes_while_it_subscribes(face: Face, pool: ThreadPoolExecutor) -> None:
    """Nothing of it stays at the hub."""
    hub, _ = face.hub()
    hub.publish("p", "t", b"1")
    hold = face.hold(hub, "subscribe")
    remote = face.remote(hub.address)
    late = pool.submit(remote.subscribe, "s", "t")
    assert hold.entered.wait(PATIENCE)
    remote.close()
    assert isinstance(late.exception(PATIENCE), ConnectionError)
    hold.open()
    # A task is cancelled before it has subscribed, and a thread goes on.
    until(lambda: hold.gate.is_set() and not face.subscribers())
    assert hold.calls == 1


def test_messages_of_a_broken_connection_come_again(
    face: Face, proxy: Callable[[str], Proxy]
) -> None:
    """The next connection of the subscriber gets all that was not consumed."""
    hub, _ = face.hub()
    line = proxy(hub.address)
    remote = face.remote(line.address)
    found = remote.subscribe("s", "t")
    for number in range(4):
        hub.publish("p", "t", b"%d" % number)
    assert found.take(1)[0].number == 1
    found.consumed(2)
    line.cut()
    with pytest.raises(ConnectionError):
        until_error(found)
    again = remote.subscribe("s", "t", mode="attach")
    assert [message.number for message in taken(again, 2)] == [3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("raw", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\0\0"])
def test_a_client_that_sends_rubbish_is_cut_off(raw: bytes, face: Face) -> None:
    """Others go on."""
    hub, _ = face.hub()
    remote = face.connections()(hub.address)
    remote.publish("p", "t", b"")
    host, _, port = hub.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as bare:
        bare.sendall(raw)
        try:
            while bare.recv(4096):
                pass
        except ConnectionResetError:
            pass
    assert remote.publish("p", "t", b"") == Published(2, hub.info)


MALFORMED: dict[str, list[dict[str, Any] | bytes]] = {
    "Publish": [b"\xff", {}, {"who": b"p"}, {"who": b"p", "topic": b"", "body": b"1"}],
    "Subscribe": [
        b"\xff",
        {},
        {"who": b"s", "topic": b"t"},
        {"who": b"s", "topic": b"t", "mode": "no mode"},
        *(
            {"who": b"s", "topic": b"t", "mode": "attach", "preferences": raw}
            for raw in (b"[]", b"{", b'{"options": 7}', b"[" * 9999)
        ),
    ],
    "Consumed": [b"\xff", {}, {"subscription": b"1"}],
    "Close": [b"\xff", {}, {"subscription": b"1"}],
    "Unsubscribe": [b"\xff", {}, {"who": b"s"}],
}


def test_a_malformed_request_gets_an_error(face: Face) -> None:
    """The connection and its subscription go on."""
    hub, _ = face.hub()
    found = face.connections()(hub.address).subscribe("s", "t")
    with grpc.insecure_channel(hub.address) as channel:
        for name, malformed in MALFORMED.items():
            kind = channel.unary_stream if name == "Subscribe" else channel.unary_unary
            for one in malformed:
                raw = one if isinstance(one, bytes) else None
                if isinstance(one, dict):
                    raw = messages[f"{name}Request"](**one).SerializeToString()
                call = kind(f"/{SERVICE}/{name}")
                with pytest.raises(grpc.RpcError) as caught:
                    list(call(raw, timeout=PATIENCE))  # What is no stream raises before that.
                code = caught.value.code()  # type: ignore[attr-defined]
                if raw != b"\xff":  # gRPC refuses what is no message.
                    assert code in {
                        grpc.StatusCode.INVALID_ARGUMENT,
                        grpc.StatusCode.FAILED_PRECONDITION,
                    }, (name, one, caught.value)
        with pytest.raises(grpc.RpcError, match="not found"):
            channel.unary_unary(f"/{SERVICE}/Other")(b"", timeout=PATIENCE)
    hub.publish("p", "t", b"")
    assert found.take() == [Message(1, b"")]


@pytest.mark.parametrize(
    "call",
    [
        lambda remote: remote.publish(b"p", "t", b""),
        lambda remote: remote.publish("p", "t", "text"),
        lambda remote: remote.publish("p", ["t"], b""),
        lambda remote: remote.publish("p", "\ud800", b""),
        lambda remote: remote.publish("p", "t", b"", redirected="yes"),
        lambda remote: remote.subscribe("s", "t", mode=7),
        lambda remote: remote.subscribe("s", "t", attempt=Attempt("r", -1)),
        lambda remote: remote.subscribe("s", "t").take(0),
        lambda remote: remote.subscribe("s", "t").consumed(2**70),
        lambda remote: remote.subscribe("s", "t").consumed(1),
    ],
)
def test_an_argument_that_is_none(face: Face, call: Callable[[Any], object]) -> None:
    """It is refused by the client or by the hub."""
    hub, _ = face.hub()
    with pytest.raises(IllegalOperationError):
        call(face.connections()(hub.address))


def test_requests_under_way_are_bounded(
    face: Face, pool: ThreadPoolExecutor, limit: Callable[[str, float], None]
) -> None:
    """Those beyond the bound of a connection wait in the client, and are all answered."""
    limit("_UNDER_WAY", 3)
    hub, _ = face.hub()
    hold = face.hold(hub, "publish")
    remote = face.connections()(hub.address)
    calls = [pool.submit(remote.publish, "p", "t", b"") for _ in range(20)]
    until(lambda: hold.calls == 3)
    hold.open()
    assert sorted(call.result(PATIENCE).number for call in calls) == [*range(1, 21)]


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
def test_large_messages(face: Face) -> None:
    """One beyond the limit is refused before it is sent. Others arrive in order, and none twice."""
    hub, _ = face.hub()
    remote = face.connections()(hub.address)
    remote.subscribe("s", "t").close()
    with pytest.raises(bk.ValueTooLargeError, match="at most 16777216"):
        remote.publish("p", "t", bytes(16 * 1024 * 1024 + 1))
    bodies = [os.urandom(size) for size in (16 * 1024 * 1024, 400_000, 400_000, 400_000, 1)]
    for body in bodies:
        remote.publish("p", "t", body)
    found = remote.subscribe("s", "t")  # The hub reads more at once than a reply has room for.
    assert [message.body for message in taken(found, len(bodies))] == bodies


def test_a_subscriber_that_takes_nothing(face: Face, limit: Callable[[str, float], None]) -> None:
    """The client reads a little ahead, and the rest stays at the hub."""
    limit("_AHEAD", 2)
    hub, _ = face.hub(window=10_000)
    remote = face.connections()(hub.address)
    found = remote.subscribe("s", "t")
    for _ in range(200):
        hub.publish("p", "t", bytes(10_000))
    first = found.take()
    rest = taken(found, 200 - len(first))
    assert [message.number for message in [*first, *rest]] == [*range(1, 201)]
    assert len(first) < 200


def test_a_late_subscribe_does_not_replace_a_later_one(
    face: Face, pool: ThreadPoolExecutor
) -> None:
    """A client that asks again has the subscription, whichever request the hub ends first."""
    hub, _ = face.hub()
    hub.publish("p", "t", b"")
    hold = face.hold(hub, "subscribe")
    first, second = (face.remote(hub.address) for _ in range(2))
    late = pool.submit(first.subscribe, "s", "t")
    assert hold.entered.wait(PATIENCE)
    wanted = pool.submit(second.subscribe, "s", "t")
    for _ in range(3):
        second.publish("p", "t", b"")  # So its other request has arrived.
    assert hold.calls == 1
    hold.open()
    found = wanted.result(PATIENCE)
    with pytest.raises(SubscriberReplacedError):
        until_error(late.result(PATIENCE))
    hub.publish("p", "t", b"")
    assert found.take() == [Message(5, b"")]


def test_a_late_attempt_of_another_connection(face: Face) -> None:
    """A hub that was paused may read the connections of a client in any order."""
    hub, _ = face.hub()
    first, second = (face.remote(hub.address) for _ in range(2))
    found = second.subscribe("s", "t", attempt=Attempt("r", 2))
    with pytest.raises(SubscriberReplacedError):
        first.subscribe("s", "t", attempt=Attempt("r", 1))
    hub.publish("p", "t", b"")
    assert len(found.take()) == 1


@pytest.mark.slow
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
    waiting = pool.submit(found.take)
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


def test_a_server_that_stops_without_a_hub(face: Face, pool: ThreadPoolExecutor) -> None:
    """Requests that wait for a hub end. A server listens once, and serves one hub."""
    made = face.server()
    address = made.listen()
    with pytest.raises(bk.InvalidSettingError, match="listens once"):
        made.listen()
    other = face.server()
    with pytest.raises(OSError, match="cannot be listened on"):
        other.listen("127.0.0.1", int(address.rpartition(":")[2]))
    assert other.listen() != address
    waiting = pool.submit(face.remote(address).publish, "p", "t", b"")
    made.stop()
    assert isinstance(waiting.exception(PATIENCE), ConnectionError)
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


@pytest.mark.parametrize("address", ["", "hub-1", "hub-1:", ":4080", "hub-1:0", "a:99999", "a:1b"])
def test_an_address_that_is_none(face: Face, address: str) -> None:
    """It is an error of the connection, so a client asks another hub."""
    with pytest.raises(ConnectionAbortedError, match="no address"):
        face.remote(address).publish("p", "t", b"")


@pytest.mark.slow
def test_a_half_open_connection(face: Face, proxy: Callable[[str], Proxy]) -> None:
    """If nothing at all comes back, the client makes a new connection for the next request."""
    hub, _ = face.hub()
    line = proxy(hub.address)
    remote = face.remote(line.address, timeout=1.0)
    found = remote.subscribe("s", "t")
    assert remote.publish("p", "t", b"") == Published(1, hub.info)
    assert found.take() == [Message(1, b"")]  # So nothing of before comes later.
    line.drops = True
    with pytest.raises(TimeoutError, match="not answered"):
        remote.publish("p", "t", b"")
    line.drops = False
    assert remote.publish("p", "t", b"") == Published(2, hub.info)
    line.restore()  # If the end of the first one was lost, too, the hub would miss it for 30 s.
    until(lambda: face.subscribers() == 0)


def test_a_server_that_is_not_a_hub(face: Face) -> None:
    """It is an error of the connection, so a client asks another hub."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    answering = threading.Thread(target=answer)
    answering.start()
    with listening, pytest.raises(ConnectionError):
        face.remote(f"127.0.0.1:{listening.getsockname()[1]}").publish("p", "t", b"")
    answering.join()
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    with pytest.raises(ConnectionAbortedError, match="is not a hub"):
        face.remote(f"127.0.0.1:{port}").publish("p", "t", b"")
    other.stop(0).wait()


def test_one_connection_for_each_address(
    face: Face, pool: ThreadPoolExecutor, proxy: Callable[[str], Proxy]
) -> None:
    """It is made by the first request, serves all, and is made again after a failure."""
    hub, _ = face.hub()
    line = proxy(hub.address)
    connections = face.connections()
    remote = connections(line.address)
    assert getattr(connections(line.address), "made", remote) is getattr(remote, "made", remote)
    assert len(line.sent) == 0
    for calls in [pool.submit(remote.publish, "p", "t", b"") for _ in range(30)]:
        calls.result(PATIENCE)
    assert len(line.sent) == 1
    line.cut()
    until(lambda: published(remote))
    assert len(line.sent) == 2
    connections.close()
    with pytest.raises(ConnectionAbortedError, match="were closed"):
        connections(line.address)


def published(remote: Any) -> bool:
    """Publish, and say whether the connection has held."""
    try:
        remote.publish("p", "t", b"")
    except ConnectionError:
        return False
    return True


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
    """The child has connections of its own, and disturbs nothing of its parent.

    The parent is a process of its own: beside other calls, such as those of stores that other tests
    have left to the garbage collector, gRPC does not prepare a fork, and its child may crash.
    """
    program = (
        "import pathlib, sys; from tests.hubs.serving import test_wire; "
        "test_wire.fork_a_client(pathlib.Path(sys.argv[1])); test_wire.fork_beside_garbage()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def fork_a_client(directory: Path) -> None:
    """Do what the test above is about."""
    with Threads(directory) as face:
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


def fork_beside_garbage() -> None:
    """Let a child collect what its parent has left, with a channel."""
    gc.disable()

    async def leave_a_channel() -> None:
        left: list[Any] = [grpc.aio.insecure_channel("127.0.0.1:1")]
        left.append(left)

    asyncio.run(leave_a_channel())
    assert holds_in_a_child(lambda: gc.collect() >= 0)


def test_a_server_that_has_forked(tmp_path: Path) -> None:
    """Its clients notice when it stops, although the child has copies of their connections."""
    with Threads(tmp_path) as face:
        hub, front = face.hub()
        (read, write) = os.pipe()
        found = face.remote(hub.address).subscribe("s", "t")
        child = forked(lambda: os.read(read, 1) == b"x")
        front.stop()
        with pytest.raises((TopicLostError, ConnectionError)):
            found.take()
        os.write(write, b"x")
        assert returned_true(child)
        os.close(read)
        os.close(write)


class Files:
    """Certificates of a hub and of clients, in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str, by: trustme.CA | None = None) -> HubTLS:
        """Write a certificate and its key, and return the settings that use them."""
        made = (by or self.authority).issue_cert(*(hosts or (f"{name}@hubs",)), common_name=name)
        certificate, key = (self.directory / f"{name}.{kind}" for kind in ("crt", "key"))
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return HubTLS(certificate=certificate, key=key, ca=self.ca)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Certificates."""
    return Files(tmp_path)


def test_a_client_acts_as_the_name_of_its_certificate(face: Face, files: Files) -> None:
    """Access rules are about who the connection has proved to be, not about who it says it is."""
    hub, _ = face.hub(face.server(tls=files.issue("hub", "127.0.0.1")))
    hub.access.set_rule("", Rule(create=("*",), publish=("alice",), subscribe=("bob",)))
    alice, bob = (face.connections(tls=files.issue(name))(hub.address) for name in ("alice", "bob"))
    found = bob.subscribe("bob", "t")
    assert alice.publish("alice", "t", b"1") == Published(1, hub.info)
    assert found.take() == [Message(1, b"1")]
    for call in (
        lambda: bob.publish("bob", "t", b""),
        lambda: bob.publish("alice", "t", b""),
        lambda: alice.subscribe("bob", "t"),
        lambda: alice.unsubscribe("bob", "t"),
    ):
        with pytest.raises(AccessDeniedError):
            call()
    assert bob.unsubscribe("bob", "t") is True
    stranger = HubTLS(ca=files.ca)
    forged = files.issue("mallory", by=trustme.CA())
    for tls in (stranger, forged, HubTLS()):
        with pytest.raises(ConnectionError):
            face.connections(tls=tls)(hub.address).publish("alice", "t", b"")
    with pytest.raises(ConnectionError):
        face.connections()(hub.address).publish("alice", "t", b"")


def test_a_client_acts_as_the_name_of_its_token(face: Face, files: Files) -> None:
    """An unknown token is refused at once. A function gives the current token."""
    tokens = {"secret-a": "alice", "secret-b": "bob"}
    own = files.issue("hub", "127.0.0.1")
    secured = face.server(tls=HubTLS(certificate=own.certificate, key=own.key), tokens=tokens.get)
    hub, _ = face.hub(secured)
    tls = HubTLS(ca=files.ca)
    current = ["secret-a"]
    alice = face.connections(tls=tls, token=lambda: current[0])(hub.address)
    bob = face.connections(tls=tls, token="secret-b")(hub.address)
    found = bob.subscribe("bob", "t")
    assert alice.publish("alice", "t", b"") == Published(1, hub.info)
    with pytest.raises(AccessDeniedError, match="'alice', and must not act as 'bob'"):
        alice.publish("bob", "t", b"")
    mine = alice.subscribe("alice", "t")
    getattr(mine, "made", mine)._key = getattr(found, "made", found)._key  # It has learnt it.
    with pytest.raises(TopicLostError):
        mine.consumed(1)
    current[0] = "old"
    with pytest.raises(bk.AuthenticationError, match="token"):
        alice.publish("alice", "t", b"")
    with pytest.raises(bk.AuthenticationError):
        face.connections(tls=tls)(hub.address).subscribe("bob", "t")
    tokens["old"] = "alice"
    assert alice.publish("alice", "t", b"") == Published(2, hub.info)


def test_renewed_files_are_used(face: Face, files: Files) -> None:
    """By the hub for the next connection, and by the client for its next one."""
    hub, _ = face.hub(face.server(tls=files.issue("hub", "127.0.0.1")))
    remote = face.connections(tls=files.issue("alice"))(hub.address)
    assert remote.publish("alice", "t", b"").number == 1
    files.authority = trustme.CA()
    files.authority.cert_pem.write_to_path(files.ca)
    files.issue("hub", "127.0.0.1")
    renewed = face.connections(tls=files.issue("bob"))(hub.address)
    assert renewed.publish("bob", "t", b"").number == 2
    files.issue("alice")
    getattr(remote, "made", remote)._link.failed = True  # Such as by a restart.
    assert remote.publish("alice", "t", b"").number == 3


def test_what_is_open_to_others_needs_tls_and_a_proof(face: Face, files: Files) -> None:
    """A server beyond loopback is refused without them, and a client beyond it without TLS."""
    tls = files.issue("hub", "localhost")
    open_ = HubTLS(certificate=tls.certificate, key=tls.key)
    for security in ({}, {"tls": open_}, {"tokens": {"t": "alice"}}):
        for host in ("0.0.0.0", "::", ""):
            with pytest.raises(bk.InvalidSettingError, match=r"not on loopback: .*tls="):
                face.server(**security).listen(host)
    assert face.server(tls=tls).listen("localhost")
    with pytest.raises(bk.InvalidSettingError, match="give the client tls="):
        face.remote("192.0.2.1:4080").publish("p", "t", b"")
    with pytest.raises(bk.InvalidSettingError, match="needs a certificate"):
        face.server(tls=HubTLS())


def test_files_that_cannot_be_used(files: Files, tmp_path: Path) -> None:
    """The error names the file and the reason, and nobody is asked for a password."""
    tls, other = files.issue("a"), files.issue("b")
    key = Path(str(tls.key)).read_text()
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
        + "\n".join(key.splitlines()[1:-1])
        + "\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    for given, why in (
        ({"certificate": tls.certificate}, "needs its key"),
        ({"ca": tmp_path / "none.pem"}, "none.pem"),
        ({"certificate": tls.certificate, "key": other.key}, "a.crt.*b.key"),
        ({"certificate": tls.certificate, "key": encrypted}, "encrypted"),
        ({"ca": tls.key}, "a.key"),
    ):
        with pytest.raises(bk.InvalidSettingError, match=why):
            HubTLS(**given)  # type: ignore[arg-type]
