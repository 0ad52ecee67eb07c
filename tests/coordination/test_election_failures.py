"""Elections on real servers: candidates and servers are killed, stopped, or cut off."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Election
from batchkeeper.ops import Put
from batchkeeper.ops.errors import LockBusyError, TransactionRefusedError
from batchkeeper.testing.servers import LocalServer

from ..histories.nemesis import server_to_hurt
from ..idle import no_data_left
from ..proxy import Proxy
from ..waiting import PATIENCE, until
from .candidates import PATH, Heard, entries, never_two, remove_leader
from .recipes import worker

# Seconds: a session that is to end in the test.
SHORT: Final = 2.0
# Seconds: a session that lives through a pause of the machine; the longest that ZooKeeper grants
# here.
LONG: Final = 20.0

Open = Callable[..., bk.MetadataStore]


@pytest.fixture(scope="module", params=["etcd", "zookeeper"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server of each kind, of these tests alone."""
    directory = tmp_path_factory.mktemp(request.param)
    with no_data_left(server_to_hurt(request.param, directory)) as made:
        yield made


@pytest.fixture
def url(server: LocalServer, request: pytest.FixtureRequest) -> str:
    """The URL of an empty store."""
    if not server.running:  # An old etcd has crashed in an earlier test, which has failed for that.
        server.restart()
    return f"{server.url}/{request.node.originalname}"


@pytest.fixture
def open_store(url: str) -> Iterator[Open]:
    """Open a store with a session timeout in seconds, through a proxy if there is one."""
    with ExitStack() as stack:

        def open_one(
            timeout: float = LONG, through: Proxy | None = None, **options: Any
        ) -> bk.MetadataStore:
            scheme, _, rest = url.partition("://")
            place = f"{scheme}://{through.address}/{rest.partition('/')[2]}" if through else url
            store = bk.open_store(place, session_timeout=timeout, **options)
            stack.callback(store.close, 1.0)
            return store

        yield open_one


@pytest.fixture
def cable(server: LocalServer, proxy: Callable[[str], Proxy]) -> Iterator[Proxy]:
    """What connects a candidate with the server, and can be cut."""
    made = proxy(server.address)
    yield made
    made.drops = False
    made.cut()


@pytest.fixture
def second(open_store: Open) -> Election:
    """A candidate that nothing happens to."""
    return Election(open_store(), PATH, b"second")


def test_an_outage_that_the_session_survives(
    open_store: Open, cable: Proxy, second: Election
) -> None:
    """The leader stays, with its term and its token; nobody hears of it."""
    store = open_store(through=cable)
    first, heard, session = Election(store, PATH, b"first"), Heard(), Heard()
    first.add_listener(heard)
    store.add_session_listener(session)
    first.campaign(PATIENCE)
    second.stand()
    until(lambda: len(entries(store)) == 2)
    token, term = first.fencing_token, first.lost
    cable.cut()
    session.wait("connection_lost", "reconnected")
    first.update(b"after it")
    until(first.is_leader)
    assert (first.fencing_token, first.lost) == (token, term)
    assert not term.is_set()
    assert not second.is_leader()
    assert second.leader() == b"after it"
    assert heard.events == ["leading"]
    # Its watch goes on, too.
    remove_leader(store)
    heard.wait("leading", "lost", "following")
    assert term.is_set()


def test_a_leader_that_is_cut_off(open_store: Open, cable: Proxy, second: Election) -> None:
    """It has lost before the next one leads; when it is back, it stands at the end of the line."""
    store, observer = open_store(SHORT, cable), open_store()
    first, heard = Election(store, PATH, b"first"), Heard()
    first.add_listener(heard)
    with never_two(first, second), second.observe() as values:
        assert next(values) is None
        first.campaign(PATIENCE)
        token, term, check = first.fencing_token, first.lost, first.check()
        cable.drops = True
        assert next(values) == b"first"
        second.campaign(PATIENCE)
        assert not first.is_leader()
        assert term.wait(PATIENCE)
        while (value := next(values)) is None:
            pass
        assert value == b"second"
        assert second.fencing_token > token
        cable.drops = False
        cable.cut()
        heard.wait("leading", "lost", "following")
        with pytest.raises(TransactionRefusedError):
            store.transaction([check, Put("/result", b"stale")]).result(PATIENCE)
        second.resign()
        until(first.is_leader)
        while (value := next(values)) is None:
            pass
        assert value == b"first"
    heard.wait("leading", "lost", "following", "leading")
    assert len(entries(observer)) == 1


def test_a_resignation_without_a_server(open_store: Open, cable: Proxy, second: Election) -> None:
    """It ends the leadership at once; the value is removed as soon as a server answers."""
    store, observer = open_store(through=cable, operation_timeout=0.5), open_store()
    first = Election(store, PATH, b"first")
    first.campaign(PATIENCE)
    session = store.session.id
    second.stand()
    until(lambda: len(entries(observer)) == 2)
    cable.drops = True
    first.resign()
    assert not first.is_leader()
    cable.drops = False
    cable.cut()
    second.campaign(PATIENCE)
    assert store.session.id == session  # So it was not the end of the session.
    until(lambda: len(entries(observer)) == 1)


def test_a_campaign_without_a_server(open_store: Open, cable: Proxy, second: Election) -> None:
    """It waits until the time-out, and leaves nothing behind; another one waits out the outage."""
    store, observer = open_store(through=cable, operation_timeout=0.5), open_store()
    first = Election(store, PATH, b"first")
    store.put("/ready", b"", ephemeral=True).result(PATIENCE)
    cable.drops = True
    with pytest.raises(LockBusyError) as caught:
        first.campaign(0.1)
    assert caught.value.value is None
    first.stand()
    cable.drops = False
    cable.cut()
    first.campaign(PATIENCE)
    until(lambda: len(entries(observer)) == 1)
    assert first.is_leader()


def test_a_server_that_stops(server: LocalServer, open_store: Open) -> None:
    """Without a server for longer than a session, nobody leads; then one does again."""
    candidates = [Election(open_store(SHORT), PATH, b"%d" % n) for n in range(2)]
    observer = open_store()
    with never_two(*candidates):
        candidates[0].campaign(PATIENCE)
        candidates[1].stand()
        until(lambda: len(entries(observer)) == 2)
        term, token = candidates[0].lost, candidates[0].fencing_token
        server.pause()
        try:
            assert term.wait(PATIENCE)
            assert not any(candidate.is_leader() for candidate in candidates)
        finally:
            server.resume()
        until(lambda: any(candidate.is_leader() for candidate in candidates))
    (leader,) = (candidate for candidate in candidates if candidate.is_leader())
    assert leader.fencing_token > token


CANDIDATE: Final = """
import sys, time
import batchkeeper as bk
from batchkeeper.coordination import Election

store = bk.open_store(sys.argv[1], session_timeout=float(sys.argv[2]))
election, events = Election(store, sys.argv[3], b"child"), []
election.add_listener(events.append)
election.campaign()
check = election.check()
print(election.fencing_token, flush=True)
sys.stdin.readline()
print(election.is_leader(), election.lost.wait(60), flush=True)
try:
    store.transaction([check, bk.Put("/result", b"child")]).result(60)
except bk.MetadataStoreError as error:
    print(type(error).__name__, flush=True)
while events[-1:] != ["following"]:
    time.sleep(0.001)
print(*events, flush=True)
store.close()
"""


@pytest.fixture
def child(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is a candidate; its first line is its token when it leads."""
    with worker(CANDIDATE, url, SHORT, PATH) as process:
        yield process


def test_a_leader_that_is_killed(child: subprocess.Popen[str], second: Election) -> None:
    """The next one leads when the session of the dead leader has ended."""
    assert child.stdout is not None
    token = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    second.campaign(PATIENCE)
    assert second.leader() == b"second"
    assert second.fencing_token > token


def test_a_leader_that_is_stopped(
    child: subprocess.Popen[str], open_store: Open, second: Election
) -> None:
    """Stopped for longer than its session, it knows at once that it does not lead any more."""
    observer = open_store()
    assert child.stdin is not None
    assert child.stdout is not None
    token = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGSTOP)
    second.campaign(PATIENCE)
    assert second.fencing_token > token
    observer.transaction([second.check(), Put("/result", b"second")]).result(PATIENCE)
    child.stdin.write("\n")
    child.stdin.flush()
    os.kill(child.pid, signal.SIGCONT)
    assert child.stdout.readline().split() == ["False", "True"]
    assert child.stdout.readline().strip() == "TransactionRefusedError"
    assert child.stdout.readline().split() == ["leading", "lost", "following"]
    assert second.is_leader()
    assert observer.get("/result").result(PATIENCE).value == b"second"  # type: ignore[union-attr]
