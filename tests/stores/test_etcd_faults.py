"""The etcd back end when servers die, stand still, are not there, or want a login."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from batchkeeper.bench.servers import EtcdServer, _free_ports
from batchkeeper.ops import (
    AuthenticationError,
    BadVersionError,
    Delete,
    Exists,
    Get,
    GetChildren,
    IndeterminateError,
    NotEmptyError,
    OperationTimeoutError,
    Put,
    Stat,
    StoreClosedError,
    StoreUnavailableError,
)
from batchkeeper.stores import Backend, ConnectOptions, RequestRefusedError, connect
from batchkeeper.stores.etcd import tokens
from batchkeeper.stores.etcd.connection import (
    Connection,
    Credentials,
    FlatOnlyError,
    checks_nested_permissions,
)
from batchkeeper.stores.etcd.protos import grpc_stubs, messages

PATIENCE = 60.0


def soon(seconds: float = PATIENCE) -> float:
    """Return a deadline: one that nothing here comes near, or one that is to pass."""
    return time.monotonic() + seconds


@contextmanager
def under_way(*calls: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    """Run calls that block, each in a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        yield [pool.submit(call) for call in calls]


def without_tokens(backend: Any) -> None:
    """Make a client as if it were not permitted to write tokens: it cannot settle anything."""
    backend._tokens.permitted = False


def sent(monkeypatch: pytest.MonkeyPatch, backend: Any) -> threading.Semaphore:
    """Return a semaphore that is released when a transaction has been handed to gRPC."""
    released = threading.Semaphore(0)
    link = backend._connection.open(soon())

    class Announcing:
        nesting, metadata, address = link.nesting, link.metadata, link.address

        @staticmethod
        def txn(*args: Any, **more: Any) -> Any:
            future = link.txn.future(*args, **more)
            released.release()
            return future.result()

    monkeypatch.setattr(backend._connection, "_link", Announcing)
    return released


def secured(server: EtcdServer) -> None:
    """Turn on etcd's authentication, with a user who may do all below /ok and nothing else."""
    with closing(Connection([server.address], Credentials())) as connection:
        stub = grpc_stubs.AuthStub(connection._members[0].channel)
        permission = messages.AuthRoleGrantPermissionRequest(name="some")
        permission.perm.permType = 2  # READWRITE
        permission.perm.key, permission.perm.range_end = b"/ok", b"/ok0"
        for user, role in (("root", "root"), ("limited", "some")):
            stub.UserAdd(messages.AuthUserAddRequest(name=user, password=f"{user}'s"))
            stub.RoleAdd(messages.AuthRoleAddRequest(name=role))
            stub.UserGrantRole(messages.AuthUserGrantRoleRequest(user=user, role=role))
        stub.RoleGrantPermission(permission)
        stub.AuthEnable(messages.AuthEnableRequest())


LIMITED = ConnectOptions(username="limited", password="limited's")


# --- nobody there


@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
def test_an_unreachable_cluster_is_named(hosts: str) -> None:
    """Opening ends within the timeout, with the addresses and the reason."""
    with pytest.raises(StoreUnavailableError) as caught:
        connect(f"etcd://{hosts}/prefix", ConnectOptions(connect_timeout=0.3))
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
    """Opening ends within the timeout with the address, though the member says that it is there."""
    server = own_etcd()
    with closing(Connection([server.address], Credentials())) as connection:
        stub = grpc_stubs.ClusterStub(connection._members[0].channel)
        # A second member that never comes: from now on the first can agree on nothing.
        stub.MemberAdd(messages.MemberAddRequest(peerURLs=["http://127.0.0.1:1"]))
        connection.open(soon())
    # Which of the requests of opening it is that gets no answer depends on the moment.
    with pytest.raises(StoreUnavailableError, match=server.address):
        connect(server.url, ConnectOptions(connect_timeout=1.0))


def test_the_next_member_takes_over(own_etcd: Callable[..., EtcdServer]) -> None:
    """A member that does not answer is passed over, at opening and later."""
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
    """A member may answer and still be of no use, so the search begins behind it."""
    addresses = [own_etcd().address, own_etcd().address]
    with closing(Connection(addresses, Credentials())) as connection:
        used = []
        for _ in range(4):
            link = connection.open(soon())
            used.append(link.address)
            connection._lost(link, "no leader")
            connection._lost(link, "said twice")
        assert used == addresses * 2


@contextmanager
def useless_member(code: StatusCode, message: str) -> Iterator[tuple[str, list[str]]]:
    """Run a member that tells its status, and fails all else; give address and calls so far."""
    calls: list[str] = []

    class Useless(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, call: Any) -> Any:
            calls.append(call.method.rpartition("/")[2])

            def answer(_: bytes, context: Any) -> bytes:
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
            server.stop(None).wait()


@pytest.mark.parametrize("code", [StatusCode.UNAVAILABLE, StatusCode.FAILED_PRECONDITION])
def test_a_learner_is_passed_over(etcd_server: EtcdServer, code: StatusCode) -> None:
    """A member that tells its status and serves nothing else refuses nothing: others are asked."""
    with useless_member(code, "etcdserver: rpc not supported for learner") as (learner, _):
        url = f"etcd://{learner},{etcd_server.address}/{uuid.uuid4().hex}"
        with closing(connect(url, ConnectOptions(PATIENCE))) as backend:
            connection = backend._connection
            for _ in range(2):
                assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat
                connection._lost(connection.open(soon()), "back to the learner")
            assert backend._tokens.permitted


def test_logins_that_fail_for_now_are_tried_after_growing_pauses() -> None:
    """A server that is overloaded is not kept so by the logins of a client that finds it there."""
    options = ConnectOptions(connect_timeout=1.0, username="a", password="b")
    with useless_member(StatusCode.RESOURCE_EXHAUSTED, "too many requests") as (address, calls):
        with pytest.raises(StoreUnavailableError, match="too many requests"):
            connect(f"etcd://{address}", options)
        # Pauses of 0.01 s at least that double, each with one attempt more behind it.
        assert calls.count("Authenticate") <= 16


# --- killed


def test_what_was_never_sent_is_not_applied(own_etcd: Callable[..., EtcdServer]) -> None:
    """Without a connection a write waits, ends as not applied, and never takes effect."""
    server = own_etcd()
    with closing(connect(server.url, ConnectOptions())) as backend:
        server.kill()
        with pytest.raises(StoreUnavailableError):
            backend.read([Exists("/a")], soon(0.2))  # notices that the connection is gone
        for call, operation in ((backend.write, Put("/a", b"")), (backend.read, Get("/a"))):
            with pytest.raises(OperationTimeoutError) as caught:
                call([operation], soon(0.2))
            assert caught.value.outcome == "not_applied"
            assert server.address in str(caught.value)
        server.start()
        assert backend.read([Exists("/a")], soon()) == [False]


def test_errors_of_a_batch_are_each_operation_s_own(own_etcd: Callable[..., EtcdServer]) -> None:
    """Operations that share a failure do not share its error object."""
    server = own_etcd()
    secured(server)
    with closing(connect(server.url, LIMITED)) as backend:
        server.kill()
        # Flat, and too many for one transaction, since a delete counts twice.
        deletes = [Delete(f"/ok/{number}") for number in range(100)]
        answers = backend.write(deletes, soon(0.3))
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
            backend.read([Get("/there")], soon(0.1))
        calls = [lambda n=n: backend.write([Put(f"/{n}", b"", -1)], soon()) for n in range(8)]
        reads = [lambda: backend.read([Exists("/there")], soon())] * 8
        with under_way(*calls, *reads) as futures:
            server.start()
            answers = [future.result()[0] for future in futures]
        assert [answer.version for answer in answers[:8]] == [0] * 8
        assert answers[8:] == [True] * 8


def test_a_write_that_a_kill_catches_is_indeterminate(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a token it is not sent again, and nothing is claimed of it."""
    server = own_etcd()
    with closing(connect(server.url, ConnectOptions())) as backend:
        without_tokens(backend)
        released = sent(monkeypatch, backend)
        server.pause()
        with under_way(lambda: backend.write([Put("/a", b""), Put("/b", b"")], soon())) as (call,):
            assert released.acquire(timeout=PATIENCE)
            server.kill()
            error = call.exception(PATIENCE)
        assert type(error) is IndeterminateError
        assert error.outcome == "unknown"
        server.start()
        assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat


def test_a_read_that_a_kill_catches_is_repeated(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller of a read notices nothing but the delay."""
    server = own_etcd()
    with closing(connect(server.url, ConnectOptions())) as backend:
        released = sent(monkeypatch, backend)
        server.pause()
        with under_way(lambda: backend.read([Exists("/a")], soon())) as (call,):
            assert released.acquire(timeout=PATIENCE)
            server.restart()
            assert call.result(PATIENCE) == [False]


# --- standing still


def test_a_call_with_little_time_says_nothing_against_the_member(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    """A member is not given up for all because one caller could not wait for it."""
    server = own_etcd()
    with closing(connect(server.url, ConnectOptions())) as backend:
        without_tokens(backend)
        link = backend._connection.open(soon())
        server.pause()
        with pytest.raises(IndeterminateError):
            backend.write([Put("/a", b"")], soon(0.3))
        assert backend._connection._link is link


def test_a_server_that_stands_still_past_the_deadline(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sent write without a token is indeterminate, a read timed out; the rest is never sent."""
    # The calls below then have time enough to say something against the member.
    monkeypatch.setattr("batchkeeper.stores.etcd.connection._GREETING", 0.1)
    server = own_etcd()
    with closing(connect(server.url, ConnectOptions())) as backend:
        without_tokens(backend)
        server.pause()
        with pytest.raises(IndeterminateError):
            backend.write([Put("/a", b"")], soon(0.3))
        with pytest.raises(OperationTimeoutError) as caught:
            backend.write([Put("/b", b"")], soon(0.3))
        assert caught.value.outcome == "not_applied"
        with pytest.raises(OperationTimeoutError) as caught:
            backend.read([Get("/a")], soon(0.3))
        assert caught.value.outcome == "not_applied"
        server.resume()
        assert backend.read([Exists("/b")], soon()) == [False]


def test_close_ends_what_is_under_way(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sent write is indeterminate, a read says that the store is closed."""
    server = own_etcd()
    backend = connect(server.url, ConnectOptions())
    backend.write([Put("/a", b"")], soon())
    released = sent(monkeypatch, backend)
    server.pause()
    write, read = Put("/a", b""), Get("/a")
    with under_way(
        lambda: backend.write([write], soon()), lambda: backend.read([read], soon())
    ) as calls:
        for _ in calls:
            assert released.acquire(timeout=PATIENCE)
        backend.close()
        errors = [call.exception(PATIENCE) for call in calls]
    assert [type(error) for error in errors] == [IndeterminateError, StoreClosedError]


def test_close_ends_the_wait_for_a_connection(own_etcd: Callable[..., EtcdServer]) -> None:
    """What waits for the server to come back ends as closed, and was never sent."""
    server = own_etcd()
    backend = connect(server.url, ConnectOptions())
    server.kill()
    with pytest.raises(StoreUnavailableError):
        backend.read([Exists("/a")], soon(0.1))
    with under_way(*[lambda: backend.write([Put("/a", b"")], soon())] * 4) as calls:
        backend.close()
        assert [type(call.exception(PATIENCE)) for call in calls] == [StoreClosedError] * 4


# --- login


@pytest.fixture
def secured_etcd(own_etcd: Callable[..., EtcdServer]) -> EtcdServer:
    """An etcd that asks for a login; it keeps tokens in memory, and a restart loses them."""
    server = own_etcd()
    secured(server)
    return server


def outcomes(backend: Backend, operations: list[Any]) -> list[Any]:
    """Execute a batch as the engine does: halve what is refused whole."""
    execute = backend.read if operations[0].kind in {"get", "get_children"} else backend.write
    try:
        return list(execute(operations, soon()))
    except RequestRefusedError:
        half = len(operations) // 2
        return [*outcomes(backend, operations[:half]), *outcomes(backend, operations[half:])]


@pytest.mark.parametrize(
    "options",
    [
        ConnectOptions(),
        ConnectOptions(username="limited", password="wrong-secret"),
        ConnectOptions(username="nobody", password="wrong-secret"),
    ],
    ids=["none", "password", "user"],
)
def test_wrong_credentials_are_refused(secured_etcd: EtcdServer, options: ConnectOptions) -> None:
    """Opening says so at once, and repeats no password."""
    with pytest.raises(AuthenticationError) as caught:
        connect(secured_etcd.url, options)
    assert "secret" not in str(caught.value)


def test_a_login_is_of_no_harm_where_none_is_asked_for(etcd_server: EtcdServer) -> None:
    """An etcd without authentication takes anybody."""
    with closing(connect(etcd_server.url, LIMITED)) as backend:
        assert backend.read([Exists("/no/such")], soon()) == [False]


def test_a_login_that_is_asked_for_only_later_is_made(own_etcd: Callable[..., EtcdServer]) -> None:
    """A store with a login goes on when authentication is turned on while it is open."""
    server = own_etcd()
    with closing(connect(f"{server.url}/ok", LIMITED)) as backend:
        assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat
        secured(server)
        assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat
        assert backend.read([Exists("/a")], soon()) == [True]


def test_permissions_hold_for_each_operation(secured_etcd: EtcdServer) -> None:
    """Batching lets nothing through that a single call would refuse, and finds the culprit."""
    with closing(connect(secured_etcd.url, LIMITED)) as backend:
        answers = outcomes(
            backend,
            [
                Put("/ok/a", b"1"),
                Put("/no/x", b"1"),
                Put("/ok/b", b"1", -1),
                Put("/no/y", b"1", -1),
                Put("/ok/c", b"1", 7),
                Delete("/ok"),
                Delete("/no/x"),
            ],
        )
        assert [type(answer) for answer in answers] == [
            Stat,
            AuthenticationError,
            Stat,
            AuthenticationError,
            BadVersionError,
            NotEmptyError,
            AuthenticationError,
        ]
        reads = outcomes(
            backend, [Get("/ok/a"), Get("/no/x"), GetChildren("/ok"), GetChildren("/")]
        )
        assert reads[0].value == b"1"
        assert reads[2] == ["a", "b"]
        assert [type(answer) for answer in reads[1::2]] == [AuthenticationError] * 2


def test_without_a_permission_for_tokens_writes_go_without(
    secured_etcd: EtcdServer, proxy: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, nothing is left behind, and what gets no answer is indeterminate."""
    line = proxy(secured_etcd.address)
    # The whole space of keys is the store's; the permission covers less, and not the tokens' place.
    with closing(connect(f"etcd://{line.address}", LIMITED)) as backend:
        for version in range(3):
            (stat,) = backend.write([Put("/ok/a", b"")], soon())
            assert stat.version == version
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1
        assert "tokens refused" in warnings[0].getMessage()
        line.swallows = True
        with under_way(lambda: backend.write([Put("/ok/a", b"")], soon())) as (call,):
            assert line.swallowed.wait(PATIENCE)
            line.swallows = False
            line.cut()
            assert type(call.exception(PATIENCE)) is IndeterminateError
    root = Credentials(username="root", password="root's")
    with closing(Connection([secured_etcd.address], root)) as connection:
        link = connection.open(soon())
        stub = grpc_stubs.LeaseStub(connection._members[0].channel)
        found = stub.LeaseLeases(messages.LeaseLeasesRequest(), metadata=link.metadata)
        assert list(found.leases) == []


def test_tokens_are_asked_for_again_where_permissions_may_have_changed(
    own_etcd: Callable[..., EtcdServer],
    proxy: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They go with the writes as soon as they are permitted, and no longer than they are."""
    server = own_etcd()
    secured(server)
    line = proxy(server.address)
    root = Credentials(username="root", password="root's")
    place = {"key": b"/.batchkeeper/", "range_end": b"/.batchkeeper0"}
    monkeypatch.setattr(tokens, "_RECONSIDER", 0)
    with (
        closing(connect(f"etcd://{line.address}", LIMITED)) as backend,
        closing(Connection([server.address], root)) as connection,
    ):
        stub = grpc_stubs.AuthStub(connection._members[0].channel)

        def change(method: Any, request: Any) -> None:
            link = connection.open(soon())
            method(request, metadata=link.metadata)
            connection._lost(link, "logged in before the change")

        backend.write([Put("/ok/a", b"")], soon())
        permission = messages.AuthRoleGrantPermissionRequest(name="some")
        permission.perm.permType = 2  # READWRITE
        permission.perm.key, permission.perm.range_end = place["key"], place["range_end"]
        change(stub.RoleGrantPermission, permission)
        line.swallows = True
        with under_way(lambda: backend.write([Put("/ok/a", b"", 0)], soon())) as (call,):
            assert line.swallowed.wait(PATIENCE)
            line.swallows = False
            line.cut()
            assert [stat.version for stat in call.result(PATIENCE)] == [1]
        change(
            stub.RoleRevokePermission,
            messages.AuthRoleRevokePermissionRequest(role="some", **place),
        )
        monkeypatch.setattr(tokens, "_RENEW", 0)
        (stat,) = backend.write([Put("/ok/a", b"", 1)], soon())
        assert type(stat) is Stat


def test_with_a_login_writes_are_settled_too(
    secured_etcd: EtcdServer, proxy: Callable[[str], Any]
) -> None:
    """Where the prefix is within the permission, tokens are; a lost answer costs nothing."""
    line = proxy(secured_etcd.address)
    with closing(connect(f"etcd://{line.address}/ok", LIMITED)) as backend:
        backend.write([Put("/a", b"")], soon())
        line.swallows = True
        with under_way(lambda: backend.write([Put("/a", b"", 0), Put("/b", b"")], soon())) as calls:
            assert line.swallowed.wait(PATIENCE)
            line.swallows = False
            line.cut()
            assert [stat.version for stat in calls[0].result(PATIENCE)] == [1, 0]


def test_an_expired_login_is_renewed(secured_etcd: EtcdServer) -> None:
    """A token that etcd no longer knows costs one more login: neither reads nor writes notice."""
    with closing(connect(secured_etcd.url, LIMITED)) as backend:
        assert backend.write([Put("/ok/a", b"0")], soon())[0].version == 0
        secured_etcd.restart()
        assert backend.write([Put("/ok/a", b"1", 0)], soon())[0].version == 1
        secured_etcd.restart()
        assert backend.read([Get("/ok/a")], soon())[0].stat.version == 1


def test_a_login_that_is_taken_back_ends_calls(secured_etcd: EtcdServer) -> None:
    """When the password no longer holds, renewing fails and calls say so."""
    with closing(connect(secured_etcd.url, LIMITED)) as backend:
        root = Credentials(username="root", password="root's")
        with closing(Connection([secured_etcd.address], root)) as connection:
            link = connection.open(soon())
            stub = grpc_stubs.AuthStub(connection._members[0].channel)
            change = messages.AuthUserChangePasswordRequest(name="limited", password="other")
            stub.UserChangePassword(change, metadata=link.metadata)
        for call, operation in ((backend.write, Put("/ok/a", b"")), (backend.read, Get("/ok/a"))):
            with pytest.raises(AuthenticationError):
                call([operation], soon())


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.4.43", False),
        ("3.4.44", True),
        ("3.5.1", False),
        ("3.5.29", False),
        ("3.5.30", True),
        ("3.6.10", False),
        ("3.6.11", True),
        ("3.7.0", True),
        ("3.7.0-rc.1", True),
        ("3.3.25", False),
        ("strange", False),
    ],
)
def test_nesting_with_a_login_depends_on_the_version(version: str, safe: bool) -> None:
    """Older versions do not look at permissions inside nested transactions."""
    assert checks_nested_permissions(version) is safe


def test_a_nested_request_never_goes_to_a_member_that_would_not_check_it(
    secured_etcd: EtcdServer,
) -> None:
    """After a failover to an older member, batches are flat."""
    with closing(connect(secured_etcd.url, LIMITED)) as backend:
        with pytest.raises(FlatOnlyError):
            backend._connection.call("txn", b"", soon(), write=True, nested=True)
        # As if the first member had been a newer one.
        backend._capacity.group = 32
        refused = backend.write([Put("/no/x", b"", -1)], soon())
        assert type(refused[0]) is AuthenticationError
        assert backend.limits.write_ops == 127


# --- encryption


class TlsEtcd(EtcdServer):
    """An etcd that also listens with a certificate that it signs itself."""

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        self.tls_address = f"127.0.0.1:{_free_ports(1)[0]}"
        clients = f"http://127.0.0.1:{ports[0]},https://{self.tls_address}"
        return [*super()._command(ports), "--auto-tls", "--listen-client-urls", clients]

    def pem(self, name: str) -> Path:
        """Return the file of the certificate or its key."""
        return self.directory / "data" / "fixtures" / "client" / f"{name}.pem"


@pytest.fixture(scope="module")
def tls_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsEtcd]:
    """An etcd with TLS, for all tests of it."""
    with TlsEtcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def test_an_encrypted_connection_trusts_the_given_certificate(tls_etcd: TlsEtcd) -> None:
    """With ``ca`` the server is believed, and everything works as in the clear."""
    url = f"etcds://{tls_etcd.tls_address}?ca={tls_etcd.pem('cert')}"
    with closing(connect(url, ConnectOptions(PATIENCE))) as backend:
        assert type(backend.write([Put("/a", b"")], soon())[0]) is Stat
        assert backend.limits.write_ops == 1024


def test_a_client_with_a_certificate_does_not_nest_on_an_old_etcd(tls_etcd: TlsEtcd) -> None:
    """A certificate is a login: on a version that would not check it, batches are flat."""
    cert, key = tls_etcd.pem("cert"), tls_etcd.pem("key")
    url = f"etcds://{tls_etcd.tls_address}?ca={cert}&cert={cert}&key={key}"
    with closing(connect(url, ConnectOptions(PATIENCE))) as backend:
        nests = checks_nested_permissions(backend._connection.open(soon()).version)
        assert backend.limits.write_ops == (1024 if nests else 127)


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_etcd: TlsEtcd) -> None:
    """Without ``ca`` the self-signed certificate is not believed, and the message says why."""
    with pytest.raises(StoreUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(f"etcds://{tls_etcd.tls_address}", ConnectOptions(connect_timeout=2.0))
