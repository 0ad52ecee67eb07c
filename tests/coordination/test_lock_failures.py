"""Locks on real servers: outages, pauses, and stopped, killed and disconnected holders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Lock
from batchkeeper.ops.errors import LockLostError
from batchkeeper.testing.servers import LocalServer

from ..proxy import Proxy
from ..waiting import PATIENCE, until
from .in_line import line, opened, until_line
from .recipes import begun

PATH = "/locks/a"
#: Seconds: a session that is to end in a test. etcd grants no shorter one.
SHORT = 2.0


def through(server: LocalServer, proxy: Callable[[str], Proxy]) -> tuple[Proxy, str]:
    """Return a proxy before the server, and the URL of the store behind it."""
    made = proxy(server.address)
    return made, server.url.replace(server.address, made.address)


# --- outages


@pytest.mark.parametrize(("begin", "end"), [("pause", "resume"), ("stop", "start")])
def test_a_short_outage(server: LocalServer, begin: str, end: str) -> None:
    """A lock outlives an outage shorter than the session, and so does the place of who waits."""
    with opened(server.url) as store, opened(server.url) as other:
        lock, next_one = Lock(store, PATH, b"one"), Lock(other, PATH)
        lock.acquire()
        waiting = begun(next_one.acquire)
        names = until_line(store, PATH, 2)
        token = lock.fencing_token
        getattr(server, begin)()
        meanwhile = begun(Lock(store, "/locks/b").acquire)
        assert lock.held
        getattr(server, end)()
        meanwhile.result(PATIENCE)
        assert lock.held
        assert lock.fencing_token == token
        store.transaction([lock.check(), bk.Put("/guarded", b"")]).result(PATIENCE)
        assert until_line(store, PATH, 2) == names
        assert not waiting.done()
        lock.release()
        waiting.result(PATIENCE)
        assert next_one.fencing_token > token


def test_a_release_in_an_outage(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """It ends, and the value goes as soon as servers answer, within the session."""
    before, url = through(server, proxy)
    with opened(url, operation_timeout=1.0) as store, opened(server.url) as other:
        lock = Lock(store, PATH)
        lock.acquire()
        session = store.session.id
        before.drops = True
        lock.release()
        assert not lock.held
        assert len(line(other, PATH)) == 1
        before.drops = False
        before.cut()
        Lock(other, PATH).acquire(PATIENCE)
        assert store.session.id == session


def test_a_creation_whose_answer_is_swallowed(
    server: LocalServer, proxy: Callable[[str], Proxy]
) -> None:
    """The store settles it or the lock stands again; one value holds the lock in the end."""
    before, url = through(server, proxy)
    with opened(url) as store:
        Lock(store, "/locks/first").acquire()
        lock = Lock(store, PATH)
        before.swallows = True
        acquiring = begun(lock.acquire)
        before.lose_an_answer(PATIENCE)
        acquiring.result(PATIENCE)
        assert lock.held
        assert f"{PATH}/{until_line(store, PATH, 1)[0]}" == lock.check().path
        lock.release()
        assert line(store, PATH) == []


def test_connections_that_are_cut_in_line(
    own_zookeeper: Callable[[], LocalServer], proxy: Callable[[str], Proxy]
) -> None:
    """Everybody's turn comes, one after the other, even if nobody is told of a holder's end.

    Not on etcd: before 3.5.5, it crashes if clients go away during their reads (#14110).
    """
    server = own_zookeeper()
    before, url = through(server, proxy)
    tokens: list[int] = []

    def hold(lock: Lock) -> None:
        lock.acquire(2 * PATIENCE)
        assert not any(other.held for other in locks if other is not lock)
        tokens.append(lock.fencing_token)
        before.cut()
        lock.release()

    with ExitStack() as stack:
        stores = [stack.enter_context(opened(address)) for address in (server.url, *[url] * 4)]
        locks = [Lock(store, PATH) for store in stores]
        locks[0].acquire()
        waiting = [begun(hold, lock) for lock in locks[1:]]
        until_line(stores[0], PATH, 5)
        locks[0].release()
        for future in waiting:
            future.result(3 * PATIENCE)
    assert tokens == sorted(set(tokens))


# --- the end of the session


def test_the_clock_ends_a_hold(server: LocalServer) -> None:
    """Without an answer for longer than the session, the lock is lost, whatever becomes of it."""
    with opened(server.url, session_timeout=SHORT) as store, opened(server.url) as other:
        lock = Lock(store, PATH)
        lock.acquire()
        lost = lock.lost
        server.pause()
        assert lost.wait(PATIENCE)
        assert not lock.held
        server.resume()
        # Whether its session lives on or not, its value does not keep anybody waiting.
        Lock(other, PATH).acquire(PATIENCE)
        with pytest.raises(LockLostError):
            lock.release()
        assert len(line(other, PATH)) == 1


def test_a_holder_that_is_cut_off(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """It has lost the lock before anybody else can have it, by one clock."""
    before, url = through(server, proxy)
    with opened(url, session_timeout=SHORT) as store, opened(server.url) as other:
        lock, successor = Lock(store, PATH), Lock(other, PATH)
        lock.acquire()
        token, lost = lock.fencing_token, lock.lost
        before.drops = True

        def succeed() -> float:
            successor.acquire(PATIENCE)
            return time.monotonic()

        succeeding = begun(succeed)
        believed = 0.0
        while not lost.wait(0.01):
            believed = max(believed, lock.held_until())
        assert believed <= succeeding.result(PATIENCE)
        assert not lock.held
        assert successor.fencing_token > token
        before.drops = False
        before.cut()
        with pytest.raises(LockLostError):
            lock.release()
        assert len(line(other, PATH)) == 1
        successor.release()
        lock.acquire(PATIENCE)


# --- processes

_HOLDER = """
import sys
import batchkeeper as bk
from batchkeeper.coordination import Lock
from batchkeeper.ops.errors import LockLostError

url, path, timeout = sys.argv[1:]
with bk.open_store(url, session_timeout=float(timeout)) as store:
    lock = Lock(store, path, b"process")
    lock.acquire()
    print(lock.fencing_token, flush=True)
    sys.stdin.readline()
    print(lock.held, flush=True)
    try:
        lock.release()
    except LockLostError:
        print("lost", flush=True)
    sys.stdin.readline()
"""


class Holder:
    """A process that holds the lock."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, url, PATH, str(SHORT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.token = int(self.read())

    def read(self) -> str:
        return _pipe(self.process.stdout).readline().strip()

    def go_on(self) -> None:
        pipe = _pipe(self.process.stdin)
        pipe.write("\n")
        pipe.flush()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@pytest.fixture
def holder(server: LocalServer) -> Iterator[Holder]:
    """A process that holds the lock, in a session of two seconds."""
    made = Holder(server.url)
    yield made
    made.process.kill()
    made.process.communicate()


def test_a_holder_that_is_stopped(server: LocalServer, holder: Holder) -> None:
    """Stopped for longer than its session, it knows at once, and leaves its successor alone."""
    holder.signal(signal.SIGSTOP)
    with opened(server.url) as store:
        successor = Lock(store, PATH)
        successor.acquire(PATIENCE)
        assert successor.fencing_token > holder.token
        holder.signal(signal.SIGCONT)
        holder.go_on()
        assert holder.read() == "False"
        assert holder.read() == "lost"
        assert successor.held
        store.transaction([successor.check(), bk.Put("/guarded", b"")]).result(PATIENCE)
        until(lambda: len(line(store, PATH)) == 1)


def test_a_holder_that_is_killed(server: LocalServer, holder: Holder) -> None:
    """Its value ends with its session, and the next in line has the lock."""
    with opened(server.url) as store:
        successor = Lock(store, PATH)
        waiting: Any = begun(successor.acquire)
        holder.signal(signal.SIGKILL)
        waiting.result(PATIENCE)
        assert successor.fencing_token > holder.token
