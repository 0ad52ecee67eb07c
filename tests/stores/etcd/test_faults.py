"""The etcd back end when servers die, are paused, or are missing."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from batchkeeper.ops import (
    Delete,
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
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire import connection as connection_module
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.members import Credentials
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.testing.servers import EtcdServer

from ...proxy import Proxy
from ...waiting import PATIENCE, soon, until
from .opening import recorded, without_write_ids


@contextmanager
def under_way(*calls: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    """Run blocking calls, each in a separate thread."""
    with ThreadPoolExecutor(len(calls)) as pool:
        yield [pool.submit(call) for call in calls]


def await_request(line: Proxy, path: bytes) -> None:
    """Wait until a request with a path has come to a line, whether or not it goes on."""
    until(lambda: any(path in sent for sent in list(line.sent)))


# --- nobody there


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
def test_an_unreachable_cluster_is_named(hosts: str) -> None:
    """Opening ends within the timeout, with the addresses and the reason."""
    with pytest.raises(StoreUnavailableError) as caught:
        connect(f"etcd://{hosts}/prefix", ConnectOptions(connect_timeout=1.0))
    assert hosts.replace(",", ", ") in str(caught.value)
    assert "refused" in str(caught.value)
    assert caught.value.outcome == "not_applied"


def test_opening_waits_for_a_server_that_comes_up(own_etcd: Callable[..., EtcdServer]) -> None:
    """A server that starts within the timeout is found."""
    server = own_etcd()
    server.kill()
    with under_way(lambda: connect(server.url, ConnectOptions(PATIENCE))) as (opening,):
        server.start()
        with closing(opening.result()) as backend:
            assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat


def test_a_member_without_a_quorum_is_unavailable(own_etcd: Callable[..., EtcdServer]) -> None:
    """Opening ends within the timeout with the address, even if the member reports its status."""
    server = own_etcd()
    with closing(EtcdConnection([server.address], Credentials())) as connection:
        stub = grpc_stubs.ClusterStub(grpc.insecure_channel(server.address))
        # A second member that never comes: from now on the first can agree on nothing.
        stub.MemberAdd(messages.MemberAddRequest(peerURLs=["http://127.0.0.1:1"]))
        connection.open(soon())
    # Which of the requests of opening it is that gets no answer depends on the moment.
    with pytest.raises(StoreUnavailableError, match=server.address):
        connect(server.url, ConnectOptions(connect_timeout=1.0))


def test_the_next_member_takes_over(own_etcd: Callable[..., EtcdServer]) -> None:
    """A member that does not answer is skipped, at opening and later."""
    first, second = own_etcd(), own_etcd()
    url = f"etcd://127.0.0.1:1,{first.address},{second.address}"
    with closing(connect(url, ConnectOptions(PATIENCE))) as backend:
        backend.write([Put("/on-first", b"")], soon())
        first.kill()
        assert backend.read([Exists("/on-first")], soon()) == [False]
        assert type(backend.write([Put("/on-second", b"")], soon())[0]) is Stat
        second.kill()
        first.start()
        assert backend.read([Exists("/on-second")], soon()) == [False]


def test_a_member_that_fails_is_tried_last(own_etcd: Callable[..., EtcdServer]) -> None:
    """A member may answer and still be useless, so the search starts with the next one."""
    addresses = [own_etcd().address, own_etcd().address]
    with closing(EtcdConnection(addresses, Credentials())) as connection:
        used = []
        for _ in range(4):
            link = connection.open(soon())
            used.append(link.address)
            connection.broken(link, None, 0, soon(), said="no leader")
            connection.broken(link, None, 0, soon(), said="said twice")
        assert used == addresses * 2


@contextmanager
def useless_member(
    code: StatusCode, message: str, answers: int = 1_000
) -> Iterator[tuple[str, list[str]]]:
    """Run a member that reports its status but fails other calls; yield its address and calls.

    After so many answers, it falls silent.
    """
    calls: list[str] = []
    ended = threading.Event()

    class Useless(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, call: Any) -> Any:
            calls.append(call.method.rpartition("/")[2])

            def answer(_: bytes, context: Any) -> bytes:
                if len(calls) > answers:
                    ended.wait()
                if not call.method.endswith("/Status"):
                    context.abort(code, message)
                return bytes(messages.StatusResponse(version="3.6.5").SerializeToString())

            return grpc.unary_unary_rpc_method_handler(answer)

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[Useless()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield address, calls
        finally:
            ended.set()
            server.stop(None).wait()


@pytest.mark.parametrize("code", [StatusCode.UNAVAILABLE, StatusCode.FAILED_PRECONDITION])
def test_a_learner_is_passed_over(etcd_server: EtcdServer, code: StatusCode) -> None:
    """If a member reports its status but serves nothing else, other members are asked."""
    with useless_member(code, "etcdserver: rpc not supported for learner") as (learner, _):
        url = f"etcd://{learner},{etcd_server.address}/{uuid.uuid4().hex}"
        with recorded(url) as (backend, connection):
            for _ in range(2):
                assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat
                link = connection.open(soon())
                connection.broken(link, None, 0, soon(), said="back to the learner")


@pytest.mark.slow
def test_logins_that_fail_for_now_are_tried_after_growing_pauses() -> None:
    """The logins of a client do not keep an overloaded server overloaded."""
    options = ConnectOptions(connect_timeout=3.0, username="a", password="b")
    with useless_member(StatusCode.RESOURCE_EXHAUSTED, "too many requests") as (address, calls):
        with pytest.raises(StoreUnavailableError, match="too many requests"):
            connect(f"etcd://{address}", options)
        # Pauses of the least length, 0.01 s, would let through 300.
        assert 1 < calls.count("Authenticate") <= 30


@pytest.mark.slow
def test_the_last_reason_outlives_a_last_attempt_without_an_answer() -> None:
    """The deadline ends the last attempt. The error still says what the member had said before."""
    options = ConnectOptions(connect_timeout=1.0, username="a", password="b")
    with (
        useless_member(StatusCode.RESOURCE_EXHAUSTED, "too many requests", 2) as (address, calls),
        pytest.raises(StoreUnavailableError, match="too many requests"),
    ):
        connect(f"etcd://{address}", options)
    assert len(calls) > 2


# --- killed


def test_what_was_never_sent_is_not_applied(own_etcd: Callable[..., EtcdServer]) -> None:
    """Without a connection a write waits, ends as not applied, and never takes effect."""
    server = own_etcd()
    with closing(connect(server.url, ConnectOptions())) as backend:
        server.kill()
        with pytest.raises(StoreUnavailableError):
            backend.read([Exists("/a")], soon(1.0))  # notices that the connection is gone
        for call, operation in ((backend.write, Put("/a", b"")), (backend.read, Get("/a"))):
            with pytest.raises(StoreUnavailableError) as caught:
                call([operation], soon(0.2))
            assert caught.value.outcome == "not_applied"
            assert server.address in str(caught.value)
        server.start()
        assert backend.read([Exists("/a")], soon()) == [False]


def test_errors_of_a_batch_are_each_operation_s_own(own_etcd: Callable[..., EtcdServer]) -> None:
    """Operations with the same failure have different error objects."""
    server = own_etcd()
    connection = EtcdConnection([server.address], Credentials())
    with closing(EtcdBackend(connection, "", soon(), flat_only=True)) as backend:
        server.kill()
        # Flat, and too many for one transaction, since a delete counts twice.
        deletes = [Delete(f"/ok/{number}") for number in range(100)]
        answers = backend.write(deletes, soon(1.0))
        assert {type(answer) for answer in answers} <= {StoreUnavailableError, IndeterminateError}
        assert [answer.path for answer in answers] == [delete.path for delete in deletes]
        assert len({id(answer) for answer in answers}) == 100


def test_a_write_without_a_connection_is_sent_when_there_is_one(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    """Writes and reads that wait for the server go through when it is back, once each."""
    server = own_etcd()
    with closing(connect(server.url, ConnectOptions())) as backend:
        backend.write([Put("/there", b"")], soon())
        server.stop()  # To the end, as a kill may take what was acknowledged last (etcd #14370).
        with pytest.raises(StoreUnavailableError):
            backend.read([Get("/there")], soon(1.0))
        calls = [lambda n=n: backend.write([Put(f"/{n}", b"", -1)], soon()) for n in range(8)]
        reads = [lambda: backend.read([Exists("/there")], soon())] * 8
        with under_way(*calls, *reads) as futures:
            server.start()
            answers = [future.result()[0] for future in futures]
        assert [answer.version for answer in answers[:8]] == [0] * 8
        assert answers[8:] == [True] * 8


def test_a_server_that_is_gone_is_reported_once(
    own_etcd: Callable[..., EtcdServer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any number of attempts to connect causes one warning, and one message of the return."""
    server = own_etcd()
    with closing(connect(server.url, ConnectOptions())) as backend:
        caplog.set_level(logging.INFO)
        assert isinstance(backend, EtcdBackend)
        monkeypatch.setattr(connection_module, "_WORTH_LOGGING", 0)
        server.stop()
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                backend.read([Get("/there")], soon(0.2))
        server.start()
        backend.read([Get("/there")], soon())
    events = [(vars(record)["event"], record.levelname) for record in caplog.records]
    said = [event for event in events if event[0].startswith("etcd connect")]
    assert said == [("etcd connection lost", "WARNING"), ("etcd connected", "INFO")]


def test_a_write_that_a_kill_catches_is_indeterminate(
    own_etcd: Callable[..., EtcdServer], proxy: Callable[[str], Proxy]
) -> None:
    """A write without a write id is not sent again, and its outcome is unknown."""
    server = own_etcd()
    line = proxy(server.address)
    with recorded(f"etcd://{line.address}") as (backend, connection):
        without_write_ids(connection)
        server.pause()
        with under_way(lambda: backend.write([Put("/a", b""), Put("/b", b"")], soon())) as (call,):
            await_request(line, b"/a")
            server.kill()
            error = call.exception(PATIENCE)
        assert type(error) is IndeterminateError
        assert error.outcome == "unknown"
        server.start()
        assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat


def test_a_read_that_a_kill_catches_is_repeated(
    own_etcd: Callable[..., EtcdServer], proxy: Callable[[str], Proxy]
) -> None:
    """The caller of a read notices only the delay."""
    server = own_etcd()
    line = proxy(server.address)
    with closing(connect(f"etcd://{line.address}", ConnectOptions())) as backend:
        server.pause()
        with under_way(lambda: backend.read([Exists("/a")], soon())) as (call,):
            await_request(line, b"/a")
            server.restart()
            assert call.result(PATIENCE) == [False]


# --- standing still


def test_a_call_with_little_time_says_nothing_against_the_member(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    """One caller's short deadline does not make all callers give up a member."""
    server = own_etcd()
    with recorded(server.url) as (backend, connection):
        without_write_ids(connection)
        link = connection.open(soon())
        server.pause()
        with pytest.raises(IndeterminateError):
            backend.write([Put("/a", b"")], soon(1.0))
        assert connection.in_use
        assert connection.open(soon()) is link


def test_a_server_that_stands_still_past_the_deadline(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sent write without an id is indeterminate, a read timed out; the rest is never sent."""
    # The calls below then have time enough to say something against the member.
    monkeypatch.setattr("batchkeeper.stores.etcd.wire.connection._GREETING", 0.1)
    server = own_etcd()
    with recorded(server.url) as (backend, connection):
        without_write_ids(connection)
        server.pause()
        with pytest.raises(IndeterminateError):
            backend.write([Put("/a", b"")], soon(1.0))
        with pytest.raises(OperationTimeoutError) as caught:
            backend.write([Put("/b", b"")], soon(1.0))
        assert caught.value.outcome == "not_applied"
        with pytest.raises(OperationTimeoutError) as caught:
            backend.read([Get("/a")], soon(1.0))
        assert caught.value.outcome == "not_applied"
        server.resume()
        assert backend.read([Exists("/b")], soon()) == [False]


def test_close_ends_what_is_under_way(
    own_etcd: Callable[..., EtcdServer], proxy: Callable[[str], Proxy]
) -> None:
    """A sent write is indeterminate, a read says that the store is closed."""
    server = own_etcd()
    line = proxy(server.address)
    backend = connect(f"etcd://{line.address}", ConnectOptions())
    backend.write([Put("/a", b"")], soon())
    server.pause()
    write, read = Put("/sent", b""), Get("/asked")
    with under_way(
        lambda: backend.write([write], soon()), lambda: backend.read([read], soon())
    ) as calls:
        for path in (b"/sent", b"/asked"):
            await_request(line, path)
        backend.close()
        errors = [call.exception(PATIENCE) for call in calls]
    assert [type(error) for error in errors] == [IndeterminateError, StoreClosedError]


def test_close_ends_the_wait_for_a_connection(own_etcd: Callable[..., EtcdServer]) -> None:
    """Operations that wait for the server's return end as closed, and were never sent."""
    server = own_etcd()
    backend = connect(server.url, ConnectOptions())
    server.kill()
    with pytest.raises(StoreUnavailableError):
        backend.read([Exists("/a")], soon(1.0))
    with under_way(*[lambda: backend.write([Put("/a", b"")], soon())] * 4) as calls:
        backend.close()
        assert [type(call.exception(PATIENCE)) for call in calls] == [StoreClosedError] * 4


@pytest.mark.parametrize("flat_only", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize("garbled", [b"\xff" * 9, b""], ids=["nonsense", "nothing"])
def test_an_answer_that_cannot_be_read_is_a_lost_one(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch, flat_only: bool, garbled: bytes
) -> None:
    """A write is settled, or is unknown; a read fails with an error that says why."""
    connection = EtcdConnection([etcd_server.address], Credentials())
    prefix = f"/garbled-{uuid.uuid4().hex}"
    with closing(EtcdBackend(connection, prefix, soon(), flat_only=flat_only)) as backend:
        assert backend.write([Put("/a", b"0")], soon())[0].version == 0
        answers = iter([garbled])
        call = connection.call

        def garble(method: Any, *args: Any, **more: Any) -> Any:
            answer = call(method, *args, **more)
            return next(answers, answer) if method == "txn" else answer

        monkeypatch.setattr(connection, "call", garble)
        try:
            (outcome,) = backend.write([Put("/a", b"1", 0)], soon())
        except IndeterminateError as unknown:
            outcome = unknown
        assert type(outcome) is IndeterminateError or outcome.version == 1
        answers = iter([garbled])
        with pytest.raises(MetadataStoreError, match="the answer from etcd cannot be read"):
            backend.read([Get("/a")], soon())
        assert backend.read([Get("/a")], soon())[0].stat.version == 1
