"""The session with real servers: its events, and what it proves about the time that it has left.

Each of these sessions owns a node, the slot of its first write. Another client sees when the server
has removed it. Whatever the session has claimed until then must not be later.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

import batchkeeper as bk
from batchkeeper.ops import Get, Put
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.session.connection import Moment
from batchkeeper.stores.zookeeper.session.session import Proofs, ZooKeeperSession
from batchkeeper.stores.zookeeper.wire.exchanges import Trip
from batchkeeper.stores.zookeeper.wire.jute import SYNC
from batchkeeper.testing.servers import ZooKeeperServer

from ...forks import holds_in_a_child
from ...proxy import Proxy
from ...waiting import PATIENCE, soon, until
from ..calls import requests_to_zookeeper
from ..foreign import zookeeper_client
from .altering import GREETING, Altering, once
from .opening import connected, end_session, recorded

# The shortest timeout that a server with the tests' ticks grants.
TIMEOUT = 1.0
# For tests that look at all events: a busy machine may be silent for a second, which is an outage.
STEADY = 4.0

SHORT_OUTAGE = ["connection_lost", "reconnected"]
LOSS = ["session_lost", "session_reestablished"]


#: The body of a sync.
ROOT = b"\0\0\0\1/"


@pytest.fixture
def server(own_zookeeper: Callable[..., ZooKeeperServer]) -> ZooKeeperServer:
    return own_zookeeper()


@pytest.fixture
def proxied(server: ZooKeeperServer, proxy: Callable[[str], Proxy]) -> Proxy:
    return proxy(server.address)


@pytest.fixture
def other(server: ZooKeeperServer) -> Iterator[KazooClient]:
    with zookeeper_client(server.url, timeout=20) as client:
        yield client


@pytest.fixture
def cluster(own_directory: Callable[[str], Path]) -> Iterator[ZooKeeperServer]:
    directory = own_directory("zookeeper")
    flags = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    with ZooKeeperServer(directory, members=3, jvm_flags=flags, tick_time=500) as started:
        yield started


def slots(client: KazooClient, session: str) -> list[str]:
    """Return the nodes that a session owns."""
    number = int(session, 16)
    place = "/.batchkeeper/slots"
    found = []
    for name in client.get_children(place):
        stat = client.exists(f"{place}/{name}")
        if stat is not None and stat.ephemeralOwner & (1 << 64) - 1 == number:
            found.append(name)
    return found


def begun(backend: ZooKeeperBackend) -> str:
    """Let the session own a node, and return its name."""
    backend.write([Put("/begun", b"1")], soon())
    session = backend.session.id
    assert session is not None
    return session


def claims_until_the_end(backend: ZooKeeperBackend, gone: Callable[[], bool]) -> None:
    """Check that what the session claims until its end is not later than that."""
    latest = -math.inf
    while True:
        latest = max(latest, backend.session.valid_until())
        if gone():
            ended = time.monotonic()
            break
        assert time.monotonic() < latest + PATIENCE, "the session does not end"
        time.sleep(0.001)
    assert latest <= ended
    assert latest > -math.inf


def proven(backend: ZooKeeperBackend) -> float:
    """Wait for a proof, and return until when it says that the session lives."""
    first = backend.session.valid_until()
    return until(lambda: (now := backend.session.valid_until()) > first and now)


# --- proofs


class Ensemble:
    """A leader and a follower, of which the client knows only the answers.

    The follower notes the sessions of its clients, and reports them only with its answers to the
    leader's pings. At some time the two lose each other, and at some time another leader begins,
    which the old one does not notice. What one of them sends arrives in order.
    """

    timeout, tick = 2.0, 1.0  # the shortest timeout that a server grants

    def __init__(self, rng: random.Random) -> None:
        self.cut = rng.uniform(0.0, 6.0)
        self.deposed = rng.uniform(0.0, 6.0)
        self._rng = rng
        # Between the two, all takes equally long, so that nothing overtakes anything.
        self._between = rng.choice([0.001, 0.05, 0.3])
        self._first_ping = rng.uniform(0.0, self.tick / 2)
        self._touches: list[float] = []  # when the follower has noted the session

    def delay(self) -> float:
        return self._rng.uniform(0.0, self._between)

    def ask(self, sent: float, *, commits: bool) -> float | None:
        """Return when the leader's answer to a request arrives; ``None`` if it never does."""
        noted = sent + self.delay()
        self._touches.append(noted)
        at_leader = noted + self._between
        back = at_leader + self._between
        if back >= self.cut or (commits and at_leader >= self.deposed):
            return None
        return back + self.delay()

    def end(self) -> float:
        """Return when the session ends."""
        counted = 0.0
        for k in range(100):
            arrived = self._first_ping + k * self.tick / 2 + self._between
            heard = arrived + self._between
            if heard < self.cut and any(noted <= arrived for noted in self._touches):
                counted = heard
                self._touches = [noted for noted in self._touches if noted > arrived]
        # A new leader gives every session a whole timeout.
        ends = counted + self.timeout
        return self.deposed + self.timeout if self.deposed < ends else ends


def test_what_begins_the_proofs(server: ZooKeeperServer) -> None:
    """An ephemeral put, a question or a listener does; plain puts and metrics do not."""

    def proves() -> bool:
        return any(thread.name == "zookeeper-session" for thread in threading.enumerate())

    until(lambda: not proves())  # those of other tests may be about to end
    uses: list[Callable[[bk.MetadataStore], object]] = [
        lambda store: store.put("/e", b"", ephemeral=True).result(),
        lambda store: store.session.valid_until(),
        lambda store: store.add_session_listener(print),
    ]
    for use in uses:
        with bk.open_store(server.url) as store:
            store.put("/a", b"").result()
            assert (store.metrics().session_losses, store.session.state) == (0, "connected")
            assert not proves()
            use(store)
            assert proves()
        until(lambda: not proves())


@pytest.mark.parametrize("seed", range(10))
def test_a_proof_never_claims_more_than_the_leader_grants(seed: int) -> None:
    """Whatever is delayed, cut or deposed, no leader ends the session before the proven time."""
    rng = random.Random(seed)
    proven_later = 0
    for _ in range(300):
        ensemble = Ensemble(rng)
        proofs, now, claim = Proofs(ensemble.timeout), 0.0, -math.inf
        proofs.begin(1, ensemble.timeout, 0.0)
        while True:
            synced = ensemble.ask(now, commits=False)
            if synced is None:
                break
            asked = synced + ensemble.delay()
            committed = ensemble.ask(asked, commits=True)
            if committed is None:
                break
            proofs.touch(Trip(1, now, synced))
            proofs.touch(Trip(1, asked, committed))
            sent = proofs.prove(Trip(1, now, synced), Trip(1, asked, committed))
            assert sent is not None
            claim = max(claim, sent + ensemble.timeout)
            now = max(now + ensemble.timeout / 10, committed) + ensemble.delay()
        assert claim <= ensemble.end() + 1e-9
        proven_later += claim > ensemble.timeout
    assert proven_later > 30


def test_a_proof_holds_on_one_connection() -> None:
    """A request sent over two connections proves nothing; a greeting needs one committed write."""
    proofs = Proofs(10.0)
    proofs.begin(1, 10.0, 100.0)
    assert proofs.prove(Trip(1, 101.0, 101.1), Trip(1, 101.2, 101.3)) == 100.0
    # A touch is proven when hold has passed since its answer.
    proofs.touch(Trip(1, 101.2, 101.3))
    assert proofs.prove(Trip(1, 104.0, 104.1), Trip(1, 104.2, 104.3)) == 100.0
    assert proofs.prove(Trip(1, 104.1, 104.2), Trip(1, 104.3, 104.4)) == 101.2
    proofs.touch(Trip(2, 101.3, 101.4))
    assert proofs.prove(Trip(1, 104.2, 104.3), Trip(1, 104.4, 104.5)) == 101.2
    assert proofs.prove(Trip(1, 105.0, 105.1), Trip(2, 105.2, 105.3)) is None
    proofs.begin(2, 10.0, 106.0)
    assert proofs.prove(Trip(1, 120.0, 120.1), Trip(1, 120.2, 120.3)) is None
    assert proofs.prove(Trip(2, 120.0, 120.1), Trip(2, 120.2, 120.3)) == 106.0


def test_a_trip_begins_with_its_sending(server: ZooKeeperServer, proxied: Proxy) -> None:
    """A request that waited for its answer counts from its sending, and no earlier or later."""
    backend, connection = recorded(f"zookeeper://{proxied.address}")
    with closing(backend), ThreadPoolExecutor(1) as threads:
        before = time.monotonic()
        server.pause()
        asked = len(requests_to_zookeeper(proxied))
        trip = threads.submit(connection.round_trip, SYNC, ROOT, soon())
        until(lambda: len(requests_to_zookeeper(proxied)) > asked)
        sent = time.monotonic()
        time.sleep(0.1)
        resumed = time.monotonic()
        server.resume()
        connected_by, went, came = trip.result()
    assert connected_by == 1
    assert before <= went <= sent
    assert resumed <= came


def test_a_request_without_an_answer_is_no_trip(server: ZooKeeperServer, proxied: Proxy) -> None:
    """Neither a lost connection nor a deadline nor a close counts as an answer."""
    backend, connection = recorded(f"zookeeper://{proxied.address}")
    with closing(backend):
        proxied.swallows = True
        assert connection.round_trip(SYNC, ROOT, soon(0.2)) is None
        with ThreadPoolExecutor(1) as threads:
            before = len(requests_to_zookeeper(proxied))
            trip = threads.submit(connection.round_trip, SYNC, ROOT, soon())
            until(lambda: len(requests_to_zookeeper(proxied)) > before)
            proxied.cut()
            assert trip.result() is None
    assert connection.round_trip(SYNC, ROOT, soon()) is None


# --- the time that is left


def test_the_time_left_on_a_server_that_answers(server: ZooKeeperServer) -> None:
    """The session proves again and again that it lives, also for longer than its timeout."""
    with closing(connected(server.url, session_timeout=TIMEOUT)) as backend:
        assert backend.session.timeout == TIMEOUT
        first = backend.session.valid_until()
        latest = until(lambda: (now := backend.session.valid_until()) > first + 3 * TIMEOUT and now)
        assert latest <= time.monotonic() + TIMEOUT
        until(lambda: backend.session.state == "connected")
    assert backend.session.valid_until() == -math.inf
    assert backend.session.state == "closed"


@pytest.mark.parametrize("busy", [False, True])
def test_the_first_proof_after_a_long_time(server: ZooKeeperServer, busy: bool) -> None:
    """A store that nobody has asked for longer than its timeout proves at once that it lives."""
    # Long enough for the first proof to be seen before the next one, on a busy machine too.
    timeout = 2 * TIMEOUT
    with closing(connected(server.url, session_timeout=timeout)) as backend:
        end = time.monotonic() + 2 * timeout
        while time.monotonic() < end:
            if busy:
                backend.write([Put("/a", b"")], soon())
            time.sleep(0.01 if busy else timeout)
        asked = time.monotonic()
        first = proven(backend)
        # Without what was sent before, it would say until `asked + timeout` at the earliest.
        assert asked < first < asked + timeout


def test_a_session_that_nobody_needs_costs_nothing(server: ZooKeeperServer) -> None:
    """Without a listener, an ephemeral value or a question, the client makes no proofs."""
    backend, connection = recorded(server.url, session_timeout=STEADY)
    with closing(backend):
        assert backend.session.state == "connected"
        assert backend.session.id is not None
        backend.sync(soon())
        before = connection.zxid
        time.sleep(STEADY / 4)  # There would be two proofs, and each has a zxid.
        backend.sync(soon())
        assert connection.zxid == before + 1  # that of the sync


@pytest.mark.parametrize(
    "fault",
    ["swallows", pytest.param("drops", marks=pytest.mark.full), "cut", "pause"],
)
def test_the_time_left_when_nothing_arrives(
    server: ZooKeeperServer, proxied: Proxy, other: KazooClient, fault: str
) -> None:
    """No claim is later than the end, whether answers, requests or connections are lost."""
    url = f"zookeeper://{proxied.address}"
    with closing(connected(url, session_timeout=TIMEOUT)) as backend:
        session = begun(backend)
        proven(backend)
        if fault == "cut":
            proxied.close()
        elif fault == "pause":
            server.pause()
            time.sleep(2 * TIMEOUT)
            server.resume()
            # The server may end the session, or hear of it first.
            latest = backend.session.valid_until()
            until(lambda: backend.session.valid_until() > latest)
            return
        else:
            setattr(proxied, fault, True)
        claims_until_the_end(backend, lambda: not slots(other, session))


def test_the_time_left_of_a_client_that_was_paused(
    server: ZooKeeperServer, other: KazooClient
) -> None:
    """A stopped client has claimed nothing beyond its end, and then learns of it, in order."""
    program = (
        "import sys, time\n"
        "from batchkeeper.ops import Put\n"
        "from batchkeeper.stores import ConnectOptions, parse_url\n"
        "from batchkeeper.stores.zookeeper import connect\n"
        f"backend = connect(parse_url(sys.argv[1]), ConnectOptions(session_timeout={STEADY}))\n"
        "session, events = backend.session, []\n"
        "session.listen(events.append)\n"
        "backend.write([Put('/a', b'1')], time.monotonic() + 60)\n"
        "print(session.id, flush=True)\n"
        "while 'session_reestablished' not in events:\n"
        "    print(session.valid_until(), flush=True)\n"
        "    time.sleep(0.005)\n"
        "print(*events, session.number, flush=True)\n"
        "backend.close()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, server.url], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        session = child.stdout.readline().strip()
        said = [float(child.stdout.readline()) for _ in range(200)]
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: not slots(other, session))
        ended = time.monotonic()
        os.kill(child.pid, signal.SIGCONT)
        resumed = time.monotonic()
        *lines, last = child.stdout.read().splitlines()
    # Lines of before the stop may still have been on their way.
    claims = said + [float(line) for line in lines]
    stale = [claim for claim in claims if claim <= resumed]
    assert len(stale) >= 200
    assert max(stale) <= ended
    assert last.split() == [*SHORT_OUTAGE, *LOSS, "2"]


# --- events


def test_a_short_outage(proxied: Proxy) -> None:
    """The connection is lost and comes back; the session stays."""
    events: list[str] = []
    with closing(connected(f"zookeeper://{proxied.address}")) as backend:
        backend.session.listen(events.append)
        session = begun(backend)
        for number in (1, 2):
            proxied.cut()
            until(lambda number=number: len(events) >= 2 * number)
        proven(backend)
        assert (backend.session.id, backend.session.number) == (session, 1)
    assert events == SHORT_OUTAGE * 2


def test_a_session_that_the_server_has_ended(server: ZooKeeperServer, other: KazooClient) -> None:
    """The client learns of the end when it has connected again, and then has a new session."""
    events: list[str] = []
    with closing(connected(server.url)) as backend:
        backend.session.listen(events.append)
        session = begun(backend)
        end_session(backend, server.url)
        until(lambda: "session_reestablished" in events)
        assert backend.session.id not in (session, None)
        assert backend.session.number == 2
        assert not slots(other, session)
        # The new session is certain to live from the moment at which the client asked for it.
        assert backend.session.valid_until() > time.monotonic()
        begun(backend)
    assert events[-2:] == LOSS
    assert events[:-2] == SHORT_OUTAGE * (len(events) // 2 - 1)


def test_an_outage_longer_than_the_session(
    server: ZooKeeperServer, proxied: Proxy, other: KazooClient
) -> None:
    """All four events come in order, the last only when a new session stands."""
    events: list[tuple[str, str | None]] = []
    with closing(connected(f"zookeeper://{proxied.address}", session_timeout=STEADY)) as backend:
        session = backend.session
        session.listen(lambda event: events.append((event, session.state)))
        first = begun(backend)
        proxied.drops = True
        until(lambda: not slots(other, first))
        assert [event for event, _ in events] in ([], ["connection_lost"])
        proxied.restore()
        until(lambda: len(events) >= 4)
        assert session.id != first
    assert events == [
        ("connection_lost", "suspended"),
        ("reconnected", "lost"),
        ("session_lost", "lost"),
        ("session_reestablished", "connected"),
    ]


def test_a_server_that_is_killed(server: ZooKeeperServer) -> None:
    """Sessions live through a kill and a restart, and prove it again."""
    events: list[str] = []
    with closing(connected(server.url)) as backend:
        backend.session.listen(events.append)
        session = begun(backend)
        server.kill()
        until(lambda: events)
        assert backend.session.state == "suspended"
        server.start()
        until(lambda: len(events) == 2)
        proven(backend)
        assert backend.session.id == session
    assert events == SHORT_OUTAGE


def test_a_server_that_knows_less_than_the_client_has_seen(
    server: ZooKeeperServer, proxied: Proxy, other: KazooClient
) -> None:
    """A restored server closes connections unheard. After its time, the session is given up."""
    events: list[str] = []
    seen: list[bk.WatchEvent] = []
    backend, connection = recorded(f"zookeeper://{proxied.address}", session_timeout=TIMEOUT)
    with closing(backend):
        first = begun(backend)
        backend.session.listen(events.append)
        backend.watches.watch("/", None, seen.extend, lambda _: None, soon())
        # No answer may come between, and tell the client of a smaller one.
        proxied.swallows = True
        assert proxied.swallowed.wait(PATIENCE)
        connection._client.last_zxid = 1 << 62
        proxied.restore()
        # The backup may contain the session: the client ends it, and so its ephemeral values.
        until(lambda: "session_reestablished" in events)
        assert not slots(other, first)
        assert backend.session.number == 2
        assert [event.kind for event in seen] == ["gap"]
        begun(backend)
    assert events == [*SHORT_OUTAGE, *LOSS]


def test_a_server_that_hangs_is_noticed_by_whoever_asks_it(server: ZooKeeperServer) -> None:
    """kazoo itself waits for a server only while it has nothing to send."""
    events: list[str] = []
    backend, connection = recorded(server.url, session_timeout=STEADY)
    with closing(backend):
        backend.session.listen(events.append)
        begun(backend)
        number = connection.session_id
        server.pause()

        def given_up() -> bool:
            with pytest.raises(bk.MetadataStoreError):
                backend.read([Get("/begun")], soon(0.1))
            return "connection_lost" in events

        try:
            until(given_up)
            # What was read before belongs to the session still.
            assert connection.session_id == number
        finally:
            server.resume()


def test_a_server_that_begins_a_session_with_each_connection(server: ZooKeeperServer) -> None:
    """Another session than the client has asked for is not taken for its own."""
    events: list[str] = []
    with (
        closing(Altering(server.address)) as line,
        closing(connected(f"zookeeper://{line.address}")) as backend,
    ):
        backend.session.listen(events.append)
        first = begun(backend)
        # The number of the session follows the length, the version and the timeout.
        line.alter = once(GREETING, lambda packet: packet[:12] + bytes(7) + b"7" + packet[20:])
        line.cut()
        until(lambda: "session_reestablished" in events)
        assert backend.session.number == 2
        assert backend.session.id not in (first, "0x37")
        begun(backend)
    assert events == [*SHORT_OUTAGE, *LOSS]


def test_a_listener_is_told_outside_of_locks(proxied: Proxy) -> None:
    """A listener may ask the session for everything."""
    seen: list[Any] = []
    with closing(connected(f"zookeeper://{proxied.address}")) as backend:
        session = backend.session
        session.listen(
            lambda event: seen.append(
                (event, session.state, session.number, session.valid_until() > 0, session.id)
            )
        )
        begun(backend)
        proxied.cut()
        until(lambda: len(seen) == 2)
        assert seen == [
            ("connection_lost", "suspended", 1, True, session.id),
            ("reconnected", "connected", 1, True, session.id),
        ]


def test_a_forked_child_has_no_session(server: ZooKeeperServer) -> None:
    """In a child process, the session is never valid, and closing ends nothing."""
    with closing(connected(server.url)) as backend:
        begun(backend)
        backend.session.valid_until()

        def close() -> bool:
            invalid = backend.session.valid_until() == -math.inf
            backend.close()
            return invalid

        assert holds_in_a_child(close)
        proven(backend)


# --- ensembles


@pytest.mark.server
@pytest.mark.parametrize("role", ["follower", pytest.param("leader", marks=pytest.mark.full)])
def test_an_isolated_member_proves_nothing(cluster: ZooKeeperServer, role: str) -> None:
    """A member that answers pings, but is cut off from the others, does not prolong the claim.

    A leader that is cut off also answers syncs until it notices.
    """
    leader = cluster.leader()
    isolated, other_member = (leader, (leader + 1) % 3)[:: 1 if role == "leader" else -1]
    address = cluster.addresses[isolated]
    with (
        zookeeper_client(f"zookeeper://{cluster.addresses[other_member]}", timeout=20) as other,
        closing(connected(f"zookeeper://{address}", session_timeout=4 * TIMEOUT)) as backend,
    ):
        session = begun(backend)
        proven(backend)
        cluster.isolate(isolated)
        claims_until_the_end(backend, lambda: _gone(other, session))
        cluster.rejoin(isolated)
        until(lambda: backend.session.number >= 2 and backend.session.state == "connected")


def _gone(client: KazooClient, session: str) -> bool:
    """Say whether a session's nodes are gone; not while no server says so."""
    try:
        return not slots(client, session)
    except (KazooException, KazooTimeoutError):
        return False


@pytest.mark.full
@pytest.mark.server
def test_a_session_lives_through_the_death_of_a_leader(cluster: ZooKeeperServer) -> None:
    """The next leader gives the session new time, and the client proves it."""
    events: list[str] = []
    with closing(connected(cluster.url, session_timeout=10)) as backend:
        backend.session.listen(events.append)
        session = begun(backend)
        proven(backend)
        cluster.kill_leader()
        until(lambda: len(events) >= 2)
        proven(backend)
        assert backend.session.id == session
    assert events == SHORT_OUTAGE * (len(events) // 2)


def test_a_shorter_timeout_counts_from_the_last_proof() -> None:
    """A server that grants the next connection less time ends the session that much earlier."""
    notes: list[Callable[[Moment], None]] = []

    def attach(note: Callable[[Moment], None]) -> Moment:
        notes.append(note)
        return Moment("lost", 0, (0, 0.0, 0.0))

    connection: Any = SimpleNamespace(
        sessions=1,
        attach=attach,
        receive_touches=lambda _: None,
        round_trip=lambda *_: None,
    )
    session = ZooKeeperSession(connection, 30.0)
    (note,) = notes
    note(Moment("connected", 1, (7, 30.0, 1000.0)))
    assert session.valid_until() == 1030.0
    note(Moment("lost", 1, (7, 30.0, 1000.0)))
    note(Moment("connected", 2, (7, 10.0, 2000.0)))
    assert session.valid_until() == 1010.0
    session.close()
