"""A ZooKeeper that is killed, paused or gone, and a session that ends: the outcomes for callers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from struct import pack
from typing import Any

import pytest
from kazoo.exceptions import (
    ConnectionLoss,
    SessionMovedError,
    ThrottledOpError,
    UnimplementedError,
    ZookeeperError,
)

from batchkeeper.ops import (
    ABSENT,
    Exists,
    Get,
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    Put,
    Stat,
    StoreClosedError,
    StoreUnavailableError,
)
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.session import connection as connection_module
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.wire.errors import CONNECTION_LOSS
from batchkeeper.stores.zookeeper.wire.exchanges import Exchange
from batchkeeper.stores.zookeeper.wire.jute import (
    EMPTY_MULTI,
    EXISTS,
    GET_DATA,
    MULTI,
    MULTI_READ,
    SYNC,
)
from batchkeeper.stores.zookeeper.wire.kazoo_client import Handler, new_client
from batchkeeper.testing.servers import ZooKeeperServer

from ...forks import holds_in_a_child
from ...proxy import Proxy
from ...waiting import PATIENCE, soon, until
from ..calls import await_request, requests_to_zookeeper
from .altering import Altering, once, with_code
from .opening import connected, end_session


@pytest.fixture
def server(own_zookeeper: Callable[..., ZooKeeperServer]) -> ZooKeeperServer:
    return own_zookeeper()


@pytest.fixture
def line(server: ZooKeeperServer, proxy: Callable[[str], Proxy]) -> Proxy:
    return proxy(server.address)


@pytest.fixture
def backend_url(line: Proxy) -> str:
    return f"zookeeper://{line.address}"


def write(backend: ZooKeeperBackend, *ops: Any, within: float = PATIENCE) -> Any:
    """Return the answers, or the error that the call ended with."""
    try:
        return backend.write(ops, soon(within))
    except MetadataStoreError as error:
        return error


def read(backend: ZooKeeperBackend, *ops: Any, within: float = PATIENCE) -> Any:
    try:
        return backend.read(ops, soon(within))
    except MetadataStoreError as error:
        return error


def suspended(connection: ZooKeeperConnection) -> threading.Event:
    """Return an event that is set as soon as the connection is lost."""
    lost = threading.Event()
    connection.attach(lambda moment: None if moment.state == "connected" else lost.set())
    return lost


def test_what_was_given_up_before_it_was_sent_never_happens(
    line: Proxy, backend: ZooKeeperBackend
) -> None:
    """When the line works again, every write is known as applied, or never is."""
    # So that each of the writes would go through, if it went: slots, parents, a request as long.
    with ThreadPoolExecutor(40) as threads:
        list(threads.map(lambda i: write(backend, Put(f"/w/old-{i}", b"x" * 1_000_000)), range(40)))
        mended = threading.Event()
        line.on_request = mended.wait
        # More than the system's buffers take: the rest waits in kazoo's queue. The buffers before a
        # server that is paused may grow to 80 MB.
        outcomes = [
            threads.submit(write, backend, Put(f"/w/{i}", b"x" * 1_000_000), within=2)
            for i in range(40)
        ]
        wait(outcomes, return_when=FIRST_COMPLETED)
        mended.set()
        answers = [outcome.result() for outcome in outcomes]

    (after,) = write(backend, Put("/after", b"1"))
    there = [read(backend, Exists(f"/w/{i}"))[0] for i in range(40)]

    assert isinstance(after, Stat)
    refused = [type(answer) is OperationTimeoutError for answer in answers]
    applied = [isinstance(answer, list) and type(answer[0]) is Stat for answer in answers]
    assert [*map(sum, zip(refused, applied, strict=True))] == [1] * 40
    assert there == applied


@pytest.mark.parametrize("given_up_first", [True, False])
def test_sending_and_giving_up_exclude_each_other(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, given_up_first: bool
) -> None:
    """A write that was given up is never sent later, and one that was sent says so."""
    call = Exchange(connection, MULTI, b"a multi", None)
    if given_up_first:
        call.wait(time.monotonic())
        assert call.serialize() == EMPTY_MULTI
    else:
        assert call.serialize() == b"a multi"
        call.wait(time.monotonic())
        assert call.serialize() == EMPTY_MULTI
    assert call.sent is not given_up_first


def test_a_killed_server_loses_and_invents_nothing(
    server: ZooKeeperServer, backend: ZooKeeperBackend
) -> None:
    """Over a kill -9 and a restart, what was acknowledged is there, what was refused is not."""
    done = threading.Event()
    acknowledged = threading.Semaphore(0)

    def put_until_done(turn: int) -> dict[str, Any]:
        outcomes: dict[str, Any] = {}
        while not done.is_set():
            paths = [f"/k/{turn}-{len(outcomes) + i}" for i in range(20)]
            answers = write(backend, *[Put(path, path.encode(), ABSENT) for path in paths])
            if isinstance(answers, MetadataStoreError):
                answers = [answers] * 20
            outcomes |= zip(paths, answers, strict=True)
            acknowledged.release()
        return outcomes

    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(put_until_done, turn) for turn in range(8)]
        for _ in range(2):
            for _ in range(40):
                acknowledged.acquire()
            server.kill()
            server.start()
        for _ in range(40):
            acknowledged.acquire()
        done.set()
        outcomes = {path: answer for future in running for path, answer in future.result().items()}

    paths = list(outcomes)
    found = dict(zip(paths, read(backend, *map(Get, paths)), strict=True))
    lost = [p for p in paths if isinstance(outcomes[p], Stat) and found[p] is None]
    wrong = [p for p in paths if found[p] is not None and found[p].value != p.encode()]
    assert (lost, wrong) == ([], [])
    # Everything was a fresh path, and what got no answer was settled.
    assert {type(answer) for answer in outcomes.values()} == {Stat}
    assert {p: found[p].stat for p in paths} == outcomes


def test_what_is_asked_of_a_server_that_is_gone(
    server: ZooKeeperServer, backend: ZooKeeperBackend, connection: ZooKeeperConnection, line: Proxy
) -> None:
    """A write is executed when the server returns within its deadline, and otherwise never."""
    write(backend, Put("/there", b"1"))
    lost = suspended(connection)
    server.kill()
    lost.wait()

    refused = write(backend, Put("/never", b"1"), within=0.2)
    unread = read(backend, Get("/there"), within=0.2)
    with ThreadPoolExecutor(2) as threads:
        patient = [
            threads.submit(write, backend, Put("/later", b"1", ABSENT)),
            threads.submit(read, backend, Get("/there"), Exists("/never")),
        ]
        server.start()
        (stat,), (found, exists) = [future.result() for future in patient]

    assert type(refused) is StoreUnavailableError
    assert type(unread) is StoreUnavailableError
    assert line.address in str(refused)
    assert (stat.version, found.value, exists) == (0, b"1", False)
    assert read(backend, Exists("/never")) == [False]


def test_a_write_is_settled_however_long_the_server_was_away(
    server: ZooKeeperServer,
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    monkeypatch: pytest.MonkeyPatch,
    line: Proxy,
) -> None:
    """If no server answers an attempt to settle a write, settling goes on."""
    monkeypatch.setattr("batchkeeper.stores.zookeeper.writes.settling._ATTEMPT", 0.1)
    write(backend, Put("/before", b"1"))
    server.pause()
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(write, backend, Put("/a", b"1"))
        await_request(line, "/a", write=True)
        server.kill()
        until(lambda: sent.done() or backend.tally.counts()["retry"] >= 4)
        server.start()
        (stat,) = sent.result()
    assert (type(stat), stat.version) == (Stat, 0)


def test_a_server_that_is_gone_is_reported_once(
    server: ZooKeeperServer,
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    caplog: pytest.LogCaptureFixture,
    line: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any number of attempts to connect causes one warning, and one message of the return."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(connection_module, "_STEADY", 0)
    before = connection.number
    lost = suspended(connection)
    server.kill()
    lost.wait()
    attempts = len(line.sent)
    until(lambda: len(line.sent) >= attempts + 5)
    server.start()
    assert isinstance(write(backend, Put("/a", b"1"))[0], Stat)

    assert connection.number == before + 1
    said = [record.levelname for record in caplog.records if "connect" in record.getMessage()]
    assert said == ["WARNING", "INFO"]


def test_many_callers_of_a_server_that_is_gone(
    server: ZooKeeperServer, backend: ZooKeeperBackend, connection: ZooKeeperConnection, line: Proxy
) -> None:
    """A thousand calls while disconnected end by their deadlines and leave nothing in the queue."""
    lost = suspended(connection)
    server.kill()
    lost.wait()

    with ThreadPoolExecutor(50) as threads:
        outcomes = list(
            threads.map(
                lambda i: type(write(backend, Put(f"/n/{i}", b"1"), within=0.05)), range(1000)
            )
        )

    assert set(outcomes) == {StoreUnavailableError}
    # What is sent to the next server is a read, and none of these writes.
    before = len(requests_to_zookeeper(line))
    server.start()
    assert read(backend, Exists("/n/0")) == [False]
    assert {request.opcode for request in requests_to_zookeeper(line)[before:]} == {EXISTS}


def test_a_paused_server(
    server: ZooKeeperServer, backend: ZooKeeperBackend, connection: ZooKeeperConnection, line: Proxy
) -> None:
    """At its deadline, a read times out; a sent write ends when its outcome is known."""
    write(backend, Put("/before", b"1"))
    server.pause()
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(write, backend, Put("/a", b"1"), Put("/b", b"1"), within=1)
        await_request(line, "/a", write=True)
        late = read(backend, Get("/a"), within=1.5)
        assert not sent.done()
        server.resume()
        stats = sent.result()

    assert type(late) is OperationTimeoutError
    # On one session they are in order: it came before what was to shut it out.
    assert [type(stat) for stat in stats] == [Stat, Stat]
    assert [found.stat for found in read(backend, Get("/a"), Get("/b"))] == stats


def test_a_pause_that_outlasts_the_session(server: ZooKeeperServer) -> None:
    """Whether the session survives or not, the outcomes are right, and the store goes on."""
    with closing(connected(server.url, session_timeout=1)) as backend:
        write(backend, Put("/before", b"1"))
        server.pause()
        with ThreadPoolExecutor(1) as threads:
            open_write = threads.submit(write, backend, Put("/open", b"1", ABSENT))
            time.sleep(3)  # The server's clock has to pass the end of the session.
            server.resume()
            outcome = open_write.result()
        later = write(backend, Put("/later", b"1", ABSENT))
        there = read(backend, Exists("/open"))[0]

    assert [type(stat) for stat in later] == [Stat]
    if isinstance(outcome, list):
        assert there
        assert outcome[0].version == 0
    else:
        assert type(outcome) is IndeterminateError


def test_a_session_that_ends(
    server: ZooKeeperServer, backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """When the server ends the session, the store goes on with a new one."""
    write(backend, Put("/a", b"1"))
    before = backend.session.id
    lost = suspended(connection)
    end_session(backend, server.url)
    lost.wait()

    (stat,) = write(backend, Put("/a", b"2", 0))

    assert stat.version == 1
    assert backend.session.id not in {None, before}


def test_an_answer_that_never_arrives_whole_is_asked_for_in_parts(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that lose the connection together are read one by one."""
    write(backend, *[Put(f"/v/{i}", b"%d" % i) for i in range(30)])
    exchange = connection.exchange
    asked = []

    def lose_multi_reads(requests: Any, deadline: float, **how: Any) -> Any:
        asked.extend(opcode for opcode, _ in requests)
        replies = exchange(requests, deadline, **how)
        return [
            CONNECTION_LOSS if opcode == MULTI_READ else reply
            for (opcode, _), reply in zip(requests, replies, strict=True)
        ]

    monkeypatch.setattr(connection, "exchange", lose_multi_reads)

    found = read(backend, *[Get(f"/v/{i}") for i in range(30)])

    assert [result.value for result in found] == [b"%d" % i for i in range(30)]
    assert asked == [MULTI_READ] + [GET_DATA] * 30


def test_a_read_is_sent_again_after_its_connection_broke(
    server: ZooKeeperServer, backend: ZooKeeperBackend, connection: ZooKeeperConnection, line: Proxy
) -> None:
    """A read under way when the connection breaks is answered by the next one."""
    write(backend, Put("/a", b"1"))
    server.pause()
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(read, backend, Get("/a"))
        await_request(line, "/a", write=False)
        server.kill()
        server.start()

        assert found.result()[0].value == b"1"


def test_close_ends_what_is_under_way(
    server: ZooKeeperServer, backend: ZooKeeperBackend, connection: ZooKeeperConnection, line: Proxy
) -> None:
    """Close does not wait for a server that is silent: unsent is closed, sent is unknown."""
    threads_before = set(threading.enumerate())
    write(backend, Put("/w/before", b"x" * 1_000_100))
    server.pause()
    with ThreadPoolExecutor(41) as threads:
        outcomes = [
            threads.submit(write, backend, Put(f"/w/{i}", b"x" * 1_000_000)) for i in range(40)
        ]
        reading = threads.submit(read, backend, Get("/a"))
        await_request(line, "/w/", write=True)
        backend.close()
        kinds = {type(outcome.result()) for outcome in outcomes}
        read_ended = reading.result()

    assert kinds == {IndeterminateError, StoreClosedError}
    assert isinstance(read_ended, StoreClosedError)
    assert isinstance(write(backend, Put("/late", b"1")), StoreClosedError)
    assert isinstance(read(backend, Get("/late")), StoreClosedError)
    backend.close()
    assert set(threading.enumerate()) < threads_before
    server.resume()


def test_close_lets_what_was_sent_be_answered(backend: ZooKeeperBackend, line: Proxy) -> None:
    """If the server answers, operations sent before the close end with their results."""
    write(backend, Put("/before", b"1"))
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(write, backend, Put("/a", b"x" * 500_000))
        await_request(line, "/a", write=True)
        backend.close()
        (stat,) = sent.result()

    assert isinstance(stat, Stat)


def test_a_forked_child_is_refused(server: ZooKeeperServer, backend: ZooKeeperBackend) -> None:
    """In a forked child every call raises at once, and closing leaves the parent's session."""
    write(backend, Put("/a", b"1"))

    def refused() -> bool:
        answers = [read(backend, Get("/a")), write(backend, Put("/a", b"2"))]
        backend.close()
        return all(isinstance(error, StoreClosedError) for error in answers)

    assert holds_in_a_child(refused)
    assert read(backend, Get("/a"))[0].value == b"1"


def test_a_sync_whose_answer_is_lost_is_repeated(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync counts only with an answer: after two lost answers, it is sent again."""
    replies = [[CONNECTION_LOSS], [CONNECTION_LOSS], [(b"", 0)]]
    monkeypatch.setattr(connection, "exchange", lambda *_, **__: replies.pop(0))

    backend.sync(soon())

    assert replies == []


def test_a_sync_that_is_refused_says_so(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that refuses to sync has not caught up."""
    monkeypatch.setattr(connection, "exchange", lambda *_, **__: [UnimplementedError.code])

    with pytest.raises(MetadataStoreError, match="UnimplementedError"):
        backend.sync(soon())


def test_a_call_that_kazoo_forgot_is_sent_again(
    line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request queued in kazoo as the connection breaks does not wait until its deadline."""
    clients: list[Any] = []

    def make(*args: Any) -> Any:
        clients.append(new_client(*args))
        return clients[0]

    monkeypatch.setattr(connection_module, "new_client", make)
    with closing(connected(f"zookeeper://{line.address}")) as backend:
        call = clients[0]._call
        forgotten: list[Any] = []

        def forget_once(request: Any, result: Any) -> None:
            if forgotten:
                call(request, result)
            else:
                # What happens to a request that comes between kazoo's clearing of its queue and
                # its making of a new one, for a new session.
                forgotten.append(request)
                line.cut()

        clients[0]._call = forget_once
        (stat,) = write(backend, Put("/a", b"1", ABSENT))

    assert stat.version == 0
    assert isinstance(forgotten[0].error, ConnectionLoss)


@pytest.mark.parametrize("error", [ThrottledOpError, SessionMovedError])
def test_what_the_server_did_not_look_at_is_sent_again(
    server: ZooKeeperServer, error: type[ZookeeperError]
) -> None:
    """A write that the server says it has ignored is sent again, though it had been sent."""
    ignored: list[bytes] = []

    def ignore(opcode: int, packet: bytes) -> bytes:
        """Let the server answer a sync instead."""
        if opcode != MULTI or len(ignored) == 2:
            return packet
        ignored.append(packet[12:])
        return pack("!i", 13) + packet[4:8] + pack("!ii", SYNC, 1) + b"/"

    with (
        closing(Altering(server.address)) as line,
        closing(connected(f"zookeeper://{line.address}")) as backend,
    ):
        line.alter_request = ignore
        line.alter = once(MULTI, partial(with_code, error.code), times=2)
        (stat,) = write(backend, Put("/a", b"1", ABSENT))

    assert stat.version == 0
    assert ignored[0] == ignored[1] != EMPTY_MULTI


@pytest.mark.parametrize("place", ["select", "lookup"])
def test_a_fault_in_kazoos_thread(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch, line: Proxy, place: str
) -> None:
    """Whatever is raised there, such as for want of file descriptors, the client goes on."""
    left = [3]

    def break_down(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("a fault") if place == "select" else OSError(24, "too many files")
        return original(*args, **options)

    if place == "select":
        select = Handler.select
        monkeypatch.setattr(Handler, "select", lambda *args, **o: break_down(select, *args, **o))
    else:
        monkeypatch.setattr(socket, "getaddrinfo", partial(break_down, socket.getaddrinfo))
    write(backend, Put("/before", b"1"))
    line.cut()

    ((stat,), (found,)) = write(backend, Put("/a", b"1")), read(backend, Get("/a"))

    assert left == [0]
    assert (stat.version, found.value) == (0, b"1")
