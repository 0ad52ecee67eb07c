"""Sessions on real etcds: a lease that is kept alive, and what a client learns of its end."""

from __future__ import annotations

import itertools
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from batchkeeper.ops import (
    AuthenticationError,
    MetadataStoreError,
    OperationTimeoutError,
    Put,
    SessionLostError,
    StoreClosedError,
    StoreUnavailableError,
)
from batchkeeper.stores import connect
from batchkeeper.stores.etcd import backend as backend_module
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.session.keep_alives import KeepAlives
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.errors import EtcdRefusedError
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.stores.session import SessionMachine
from batchkeeper.testing.servers import EtcdServer

from ...forks import holds_in_a_child
from ...proxy import Proxy
from ...waiting import PATIENCE, soon, until
from ..secured import LIMITED, ROOT, TlsEtcd, secured
from .live import SHORT, STEADY, Claims, Other, Told, opened, other_client

SHORT_OUTAGE = ["connection_lost", "reconnected"]
LOSS = ["session_lost", "session_reestablished"]


@pytest.fixture
def server(own_etcd: Callable[..., EtcdServer]) -> EtcdServer:
    """An etcd for one test."""
    return own_etcd()


@pytest.fixture
def other(server: EtcdServer) -> Iterator[Other]:
    """Another client of that etcd."""
    with other_client(server.address) as client:
        yield client


def threads() -> list[str]:
    """Return the names of the session threads that run."""
    return [thread.name for thread in threading.enumerate() if "etcd-session" in thread.name]


# --- the life of a session


def test_a_session_that_nobody_needs_costs_nothing(server: EtcdServer, other: Other) -> None:
    """Without an ephemeral value or a listener there is neither a lease nor a thread."""
    with opened(server.url) as backend:
        session = backend.session
        assert (session.id, session.number, session.state) == (None, 1, "new")
        assert (session.timeout, session.valid_until()) == (STEADY, -math.inf)
        backend.write([Put("/a", b"")], soon())
        assert len(other.leases()) == 1  # that of the write ids
        assert threads() == []


def test_a_session_is_a_lease_with_a_key(server: EtcdServer, other: Other) -> None:
    """The first use grants the lease and puts the key; later ones find both as they are."""
    with opened(f"{server.url}/p", session_timeout=1.2) as backend:
        before = time.monotonic()
        taken = backend.session.take(1, soon())
        assert backend.session.take(1, soon()) == taken
        assert backend.session.id == f"{taken.lease:016x}"
        assert taken.key == f"/p/.batchkeeper/sessions/{backend.session.id}".encode()
        assert taken.number == 1
        assert other.leases() == [taken.lease]
        assert other.there(taken.key)
        # Whole seconds, rounded up; and etcd's own minimum, if that is longer, counts.
        assert backend.session.timeout == other.granted(taken.lease) == SHORT
        claim = backend.session.valid_until()
        assert before + SHORT <= claim <= time.monotonic() + SHORT
        assert backend.session.state == "connected"
        assert backend.session.owns(taken.lease)
        assert not backend.session.owns(taken.lease + 1)
        assert not backend.session.owns(0)


def test_a_listener_begins_the_session(server: EtcdServer) -> None:
    """Whoever listens has a session from then on, and its beginning is no event."""
    told = Told()
    with opened(server.url) as backend:
        backend.session.listen(told)
        until(lambda: backend.session.id)
        assert told.all == []


def test_an_idle_session_lives(server: EtcdServer, other: Other) -> None:
    """The lease outlives several of its timeouts, and the claim moves on with it."""
    with opened(server.url, SHORT) as backend:
        taken = backend.session.take(1, soon())
        claim = backend.session.valid_until()
        until(lambda: backend.session.valid_until() > claim + 2 * SHORT)
        assert other.there(taken.key)
        assert backend.session.take(1, soon()) == taken


def test_closing_ends_the_session_at_once(server: EtcdServer, other: Other) -> None:
    """The lease is revoked, with all values of the session, and the thread ends."""
    told = Told()
    with opened(server.url, session_timeout=600) as backend:
        taken = backend.session.take(1, soon())
        backend.session.listen(told)
        other.put(b"/ephemeral", lease=taken.lease)
    assert not other.there(b"/ephemeral")
    assert not other.there(taken.key)
    assert threads() == []
    assert (backend.session.state, backend.session.id) == ("closed", None)
    assert backend.session.valid_until() == -math.inf
    assert told.all == []
    with pytest.raises(StoreClosedError):
        backend.session.take(1, soon())


def test_a_session_that_has_ended_takes_no_more_writes(server: EtcdServer, other: Other) -> None:
    """A write of an earlier session is refused, and one of the next gets the next."""
    with opened(server.url) as backend:
        first = backend.session.take(1, soon())
        other.revoke(first.lease)
        backend.session.doubt(1)
        with pytest.raises(SessionLostError):
            backend.session.take(1, soon())
        second = backend.session.take(2, soon())
        assert second.lease != first.lease
        assert second.number == 2
        assert backend.session.owns(second.lease)
        assert not backend.session.owns(first.lease)


def test_a_write_that_gets_no_session_was_never_sent(server: EtcdServer) -> None:
    """It ends at its deadline like a call that found no server, or a silent one."""
    with opened(server.url) as backend:
        server.pause()
        with pytest.raises(OperationTimeoutError) as caught:
            backend.session.take(1, soon(0.2))
        assert caught.value.outcome == "not_applied"
        server.kill()
        until(lambda: not backend.connected)
        with pytest.raises(StoreUnavailableError):
            backend.session.take(1, soon(0.2))
        server.start()
        assert backend.session.take(1, soon()).number == 1


# --- the end of a session


def test_a_revoked_lease_is_noticed(server: EtcdServer, other: Other) -> None:
    """The next keep-alive says so; a new session follows, and nothing is put again."""
    told = Told()
    with opened(server.url) as backend:
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        other.put(b"/ephemeral", lease=taken.lease)
        other.revoke(taken.lease)
        told.wait(*LOSS)
        assert backend.session.number == 2
        assert other.there(backend.session.take(2, soon()).key)
        assert not other.there(b"/ephemeral")


def test_doubt_finds_the_end_at_once(
    server: EtcdServer, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever saw that the session key is gone need not wait for the next keep-alive."""
    told = Told()
    with opened(server.url, session_timeout=600) as backend:
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        other.revoke(taken.lease)
        backend.session.doubt(2)  # of another session: nothing happens
        # The first keep-alive may still be under way, and finds the end as well. It says so.
        assert backend.session.number == 1 or "etcd session lost" in caplog.text
        backend.session.doubt(1)
        assert backend.session.number == 2
        backend.session.doubt(1)
        told.wait(*LOSS)
        assert backend.session.take(2, soon()).lease != taken.lease


def test_a_session_key_that_somebody_removed_is_put_again(server: EtcdServer, other: Other) -> None:
    """The session lives on with its lease, so it gets its key back."""
    told = Told()
    with opened(server.url) as backend:
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        other.delete(taken.key)
        backend.session.doubt(1)
        assert other.there(taken.key)
        assert backend.session.take(1, soon()) == taken
        assert told.all == []


def test_a_listener_that_fails_hears_the_next_event(
    server: EtcdServer, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception is logged, and neither the session nor later events suffer."""
    told = Told()

    def listener(event: str) -> None:
        told(event)
        raise ValueError("from the listener")

    with opened(server.url) as backend:
        backend.session.listen(listener)
        other.revoke(backend.session.take(1, soon()).lease)
        told.wait(*LOSS)
    assert caplog.text.count("session listener failed") == 2


def test_a_fault_of_our_own_does_not_end_the_session(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error is logged, and the keep-alives go on."""
    renewed = SessionMachine.renewed

    def fail(self: SessionMachine, *args: Any) -> Any:
        monkeypatch.setattr(SessionMachine, "renewed", renewed)
        raise ZeroDivisionError("a fault")

    with opened(server.url, session_timeout=20) as backend:
        monkeypatch.setattr(SessionMachine, "renewed", fail)
        taken = backend.session.take(1, soon())
        claim = backend.session.valid_until()
        until(lambda: backend.session.valid_until() > claim)
        assert backend.session.take(1, soon()) == taken
    assert "a fault" in caplog.text


# --- outages


def test_a_session_survives_a_restart(server: EtcdServer) -> None:
    """A server that is back gives the session its whole time, so only the connection was lost."""
    told = Told()
    with opened(server.url) as backend:
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        server.kill()
        told.wait("connection_lost")
        assert backend.session.state == "suspended"
        assert backend.session.id is not None
        # Longer than the session: only the server's word ends it, and it has not spoken.
        until(lambda: time.monotonic() > backend.session.valid_until() + 0.5)
        server.start()
        told.wait(*SHORT_OUTAGE)
        assert backend.session.take(1, soon()) == taken
        assert backend.session.state == "connected"


def test_an_outage_beyond_the_session_gives_all_four_events(
    server: EtcdServer, other: Other, proxy: Callable[[str], Proxy]
) -> None:
    """The client learns from the server, after it has come back, that the session is over."""
    told = Told()
    line = proxy(server.address)
    with opened(f"etcd://{line.address}") as backend:
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        with Claims(backend.session.valid_until, lambda: other.there(taken.key)) as claims:
            line.drops = True
            until(lambda: claims.gone < math.inf)
        assert backend.session.number == 1
        line.restore()
        told.wait(*SHORT_OUTAGE, *LOSS)
        assert backend.session.take(2, soon()).lease != taken.lease


def test_a_cut_connection_costs_no_session(
    server: EtcdServer, proxy: Callable[[str], Proxy]
) -> None:
    """The session goes on over the next connection, again and again."""
    told = Told()
    line = proxy(server.address)
    with opened(f"etcd://{line.address}") as backend:
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        for outage in range(3):
            claim = backend.session.valid_until()
            until(lambda: backend.session.valid_until() > claim)  # noqa: B023 - it is called now
            line.cut()
            told.wait(*SHORT_OUTAGE * (outage + 1))
        assert backend.session.take(1, soon()) == taken


def test_swallowed_answers_are_not_claimed(
    server: EtcdServer, other: Other, proxy: Callable[[str], Proxy]
) -> None:
    """The server keeps the session alive, but the client does not hear it, and claims nothing."""
    line = proxy(server.address)
    with opened(f"etcd://{line.address}", SHORT) as backend:
        taken = backend.session.take(1, soon())
        with Claims(backend.session.valid_until, lambda: other.there(taken.key)) as claims:
            line.swallows = True
            assert line.swallowed.wait(PATIENCE)
            claim = backend.session.valid_until()
            until(lambda: time.monotonic() > claim)
            assert backend.session.valid_until() == claim
            until(lambda: claims.gone < math.inf)
        line.restore()
        until(lambda: backend.session.number == 2)
        assert backend.session.take(2, soon()).lease != taken.lease


def test_a_paused_server_is_given_up(server: EtcdServer) -> None:
    """A server that answers no keep-alive counts as lost, before gRPC gives up its connection."""
    told = Told()
    with opened(server.url) as backend:
        backend.session.listen(told)
        backend.session.take(1, soon())
        server.pause()
        try:
            told.wait("connection_lost")
            assert backend.session.valid_until() > -math.inf
        finally:
            server.resume()
        until(lambda: len(told.all) > 1)
        assert told.all[1] == "reconnected"


def test_another_member_takes_over(
    server: EtcdServer, proxy: Callable[[str], Proxy], other: Other
) -> None:
    """A member that is cut off from the client costs the session nothing: another one renews it."""
    told = Told()
    first, second = proxy(server.address), proxy(server.address)
    with opened(f"etcd://{first.address},{second.address}") as backend:
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        first.drops = True
        told.wait(*SHORT_OUTAGE)
        claim = backend.session.valid_until()
        until(lambda: backend.session.valid_until() > claim + SHORT)
        assert backend.session.take(1, soon()) == taken
        assert other.there(taken.key)


def test_an_etcd_with_other_data_has_no_session(server: EtcdServer) -> None:
    """An etcd that was set up again has ended all sessions, and says so."""
    told = Told()
    with opened(server.url) as backend:
        backend.session.listen(told)
        backend.session.take(1, soon())
        server.kill()
        shutil.rmtree(server.directory / "data")
        server.start()
        told.wait(*SHORT_OUTAGE, *LOSS)
        assert backend.session.take(2, soon()).number == 2


PAUSED = """
import sys, time
from batchkeeper.stores import ConnectOptions, connect

backend = connect(sys.argv[1], ConnectOptions(session_timeout=6))
session = backend.session
soon = lambda: time.monotonic() + 60
events = []
session.listen(events.append)
print(session.take(1, soon()).key.decode(), flush=True)
sys.stdin.readline()
# The claim of a client that has just woken up, before it hears anything.
print(session.valid_until(), flush=True)
while len(events) < 2 or events[-1] != "session_reestablished":
    time.sleep(0.001)
print(session.take(2, soon()).key.decode(), *events, flush=True)
sys.stdin.readline()
backend.close()
"""


def test_a_client_that_slept_through_its_session_learns_it(
    server: EtcdServer, other: Other
) -> None:
    """A paused process claims nothing beyond the end of its session; it gets all four events."""
    child = subprocess.Popen(
        [sys.executable, "-c", PAUSED, server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        key = child.stdout.readline().strip().encode()
        assert other.there(key)
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: not other.there(key))
        gone = time.monotonic()  # one clock for all processes
        child.stdin.write("\n")
        child.stdin.flush()
        os.kill(child.pid, signal.SIGCONT)
        assert float(child.stdout.readline()) <= gone
        renewed, *events = child.stdout.readline().split()
        assert other.there(renewed.encode())
        assert events == ["connection_lost", "reconnected", *LOSS]
        child.stdin.close()
    assert child.returncode == 0
    assert not other.there(renewed.encode())


# --- the stream of keep-alives


class SlowMember:
    """A member that notes when it received each keep-alive, and answers a bit later."""

    metadata = ()

    def __init__(self) -> None:
        self.calls = self
        self.received: list[float] = []

    def keep_alive(self, requests: Iterator[Any], metadata: Any) -> Any:
        for _ in requests:
            self.received.append(time.monotonic())
            time.sleep(0.01)
            yield messages.LeaseKeepAliveResponse(TTL=30)


def test_a_renewal_counts_from_before_it_was_sent() -> None:
    """Each answer belongs to the last request, and neither its delay nor a pause adds time."""
    member = SlowMember()
    beats = KeepAlives(member, 1, 0.03)  # type: ignore[arg-type]
    answered = 0.0
    for sent, ttl in itertools.islice(beats, 5):
        assert answered < sent <= member.received[-1]
        assert ttl == 30
        time.sleep(0.01)
        answered = time.monotonic()
    assert len(member.received) == 5


class LateMember:
    """A member that answers the second keep-alive late, and may answer other requests at once."""

    metadata = ()

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers
        self.calls = self
        self._late: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def keep_alive(self, requests: Iterator[Any], metadata: Any) -> Any:
        threading.Thread(target=self._receive, args=(requests,)).start()
        return self

    def time_to_live(self, request: Any, timeout: float, metadata: Any) -> None:
        if not self._answers:
            raise grpc.RpcError

    def cancel(self) -> None:
        self._late.put(None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._late.get, None)

    def _receive(self, requests: Iterator[Any]) -> None:
        for number, _ in enumerate(requests):
            answer = messages.LeaseKeepAliveResponse(TTL=number + 1)
            threading.Timer(1.0 * number, self._late.put, (answer,)).start()


def test_a_member_that_answers_keep_alives_at_its_own_times_is_not_given_up() -> None:
    """``etcd grpc-proxy`` does that, and answers other requests at once."""
    for answers in (True, False):
        beats = KeepAlives(LateMember(answers=answers), 1, 1.5)  # type: ignore[arg-type]
        with closing(beats):
            assert len([*itertools.islice(beats, 2)]) == 1 + answers
            assert beats.silent is not answers


class SlowToCall(LateMember):
    """A member that is silent before the client has its call."""

    def _receive(self, requests: Iterator[Any]) -> None:
        assert len([*requests]) == 1

    def keep_alive(self, requests: Iterator[Any], metadata: Any) -> Any:
        self._receive(requests)
        return self


def test_a_member_that_is_silent_from_the_start_is_given_up() -> None:
    """The wait for its answers ends, although there was no call to cancel at first."""
    beats = KeepAlives(SlowToCall(answers=False), 1, 0.03)  # type: ignore[arg-type]
    with closing(beats):
        assert ([*beats], beats.silent) == ([], True)


# --- logins


@pytest.fixture
def secured_etcd(own_etcd: Callable[..., EtcdServer]) -> EtcdServer:
    """An etcd that asks for a login, and forgets it after a second without use."""
    server = own_etcd("--auth-token-ttl", "1")
    secured(server)
    return server


def test_a_limited_user_has_a_session(secured_etcd: EtcdServer) -> None:
    """Permissions on the prefix are enough for the whole life of a session."""
    told = Told()
    with other_client(secured_etcd.address, ROOT) as root:
        with opened(f"{secured_etcd.url}/ok", username="limited", password="limited's") as backend:
            backend.session.listen(told)
            taken = backend.session.take(1, soon())
            assert root.there(taken.key)
            root.revoke(taken.lease)
            told.wait(*LOSS)
            backend.session.doubt(2)
            assert backend.session.take(2, soon()).number == 2
        assert root.leases() == []


def test_a_login_that_expires_between_keep_alives_is_no_outage(secured_etcd: EtcdServer) -> None:
    """It is renewed without an event, and the session goes on."""
    told = Told()
    with (
        other_client(secured_etcd.address, ROOT) as root,
        opened(f"{secured_etcd.url}/ok", 9.0, username="limited", password="limited's") as backend,
    ):
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        claim = backend.session.valid_until()
        until(lambda: backend.session.valid_until() > claim + 7)
        assert backend.session.take(1, soon()) == taken
        assert root.there(taken.key)
        assert told.all == []


def test_without_permission_there_is_no_session(
    secured_etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A user who may not write the session key learns it at once, and leaves no lease behind."""
    with (
        other_client(secured_etcd.address, ROOT) as root,
        closing(connect(secured_etcd.url, LIMITED)) as backend,
    ):
        assert isinstance(backend, EtcdBackend)
        with pytest.raises(AuthenticationError, match="permission denied"):
            backend.session.take(1, soon())
        assert backend.session.state == "new"
        until(lambda: root.leases() == [])
    assert "limited's" not in caplog.text


def test_a_login_that_is_taken_back_suspends_the_session(secured_etcd: EtcdServer) -> None:
    """The client says that it no longer reaches its session, and is there when it may again."""
    told = Told()

    def change_password(password: str) -> None:
        with other_client(secured_etcd.address, ROOT) as root:
            link = root.connection.open(soon())
            stub = grpc_stubs.AuthStub(grpc.insecure_channel(link.address))
            change = messages.AuthUserChangePasswordRequest(name="limited", password=password)
            stub.UserChangePassword(change, metadata=link.metadata)

    with opened(f"{secured_etcd.url}/ok", username="limited", password="limited's") as backend:
        backend.session.listen(told)
        backend.session.take(1, soon())
        change_password("other")
        secured_etcd.restart()  # It forgets the logins.
        told.wait("connection_lost")
        change_password("limited's")
        until(lambda: "reconnected" in told.all)


@pytest.mark.server
def test_a_certificate_is_enough_for_a_session(tmp_path: Any) -> None:
    """With TLS, the user of a client certificate has a session like any other."""
    with TlsEtcd(tmp_path / "etcd", asks=True) as server:
        secured(server)
        told = Told()
        with (
            other_client(server.address, ROOT) as root,
            opened(
                server.tls_url("limited", "trusted").replace("?", "/ok?"), connect_timeout=PATIENCE
            ) as backend,
        ):
            backend.session.listen(told)
            taken = backend.session.take(1, soon())
            claim = backend.session.valid_until()
            until(lambda: backend.session.valid_until() > claim)
            assert root.there(taken.key)
            assert told.all == []


# --- other troubles


@pytest.mark.server
def test_a_full_etcd_refuses_a_session_at_once(tmp_path: Any) -> None:
    """Beyond its quota etcd grants no lease; the write that needs one was not sent."""
    directory = tmp_path / "etcd"
    with EtcdServer(directory) as server, opened(server.url) as backend:
        backend.write([Put(f"/{number}", b"x" * 100_000) for number in range(100)], soon())
    with (
        EtcdServer(directory, flags=("--quota-backend-bytes", "1")) as server,
        opened(server.url) as backend,
        pytest.raises(MetadataStoreError, match="space exceeded") as caught,
    ):
        backend.session.take(1, soon())
    assert not isinstance(caught.value, EtcdRefusedError)
    assert caught.value.outcome == "not_applied"


def test_a_forked_child_leaves_the_session_alone(server: EtcdServer, other: Other) -> None:
    """Closing in the child neither revokes the lease nor touches the streams of the parent."""
    with opened(server.url) as backend:
        taken = backend.session.take(1, soon())
        watch = backend.watches.watch("/a", None, print, print, soon())

        def close() -> bool:
            watch.close()
            backend.watches.close()
            backend.session.close(soon())
            backend.session.join()
            return True

        assert holds_in_a_child(close)
        claim = backend.session.valid_until()
        until(lambda: backend.session.valid_until() > claim)
        assert other.there(taken.key)
        assert backend.session.state == "connected"


def test_a_session_that_comes_too_late_is_revoked(
    server: EtcdServer, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is closed while its session is being granted leaves no lease behind."""
    granted = threading.Event()
    call = EtcdConnection.call

    def slowly(self: EtcdConnection, method: Any, request: Any, *args: Any, **more: Any) -> Any:
        if method == "txn" and b"/sessions/" in request:
            granted.set()
            time.sleep(0.2)
        return call(self, method, request, *args, **more)

    monkeypatch.setattr(EtcdConnection, "call", slowly)
    monkeypatch.setattr(backend_module, "_LAST_WORDS", PATIENCE)
    with opened(server.url, session_timeout=600) as backend:
        backend.session.listen(print)
        assert granted.wait(PATIENCE)
    assert other.leases() == []
    assert threads() == []
