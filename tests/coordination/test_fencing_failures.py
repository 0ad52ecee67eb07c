"""Fenced writes on real servers, of paused, disconnected or closed holders."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Lock, fenced
from batchkeeper.ops.errors import LockLostError
from batchkeeper.testing.servers import LocalServer

from ..waiting import PATIENCE, error, result, until
from .held_lines import HeldLine, child

# Seconds: sessions that must end, and sessions that must not.
SHORT: Final = 2.0
LONG: Final = 60.0


@pytest.fixture
def through(server: LocalServer, line: HeldLine) -> str:
    """The URL of the server by that line."""
    return f"{server.name}://{line.address}"


@pytest.fixture
def open_store() -> Iterator[Callable[[str, float], bk.MetadataStore]]:
    """Open stores, and close them without patience."""
    opened: list[bk.MetadataStore] = []

    def open_one(url: str, session_timeout: float) -> bk.MetadataStore:
        opened.append(bk.open_store(url, session_timeout=session_timeout))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close(0)


Opens = Callable[[str, float], bk.MetadataStore]


def take_over(store: bk.MetadataStore) -> bk.Stat:
    """Acquire the lock as the successor, and write."""
    lock = Lock(store, "/lock", b"successor")
    lock.acquire(PATIENCE)
    stat = result(fenced(store, lock).put("/guarded", b"successor"))
    assert isinstance(stat, bk.Stat)
    return stat


class Trusting:
    """A lock that never looks at its clock, so that all depends on the server."""

    def __init__(self, lock: Lock) -> None:
        self._known = lock.check()

    def check(self) -> bk.Check:
        return self._known


def guarded(store: bk.MetadataStore) -> tuple[bytes, int]:
    store.sync()
    found = result(store.get("/guarded"))
    assert found is not None
    return found.value, found.stat.version


def test_writes_that_arrive_after_the_successors(
    server: LocalServer, line: HeldLine, through: str, open_store: Opens
) -> None:
    """Requests that the line keeps back until somebody else has written change nothing."""
    holder, successor = open_store(server.url, LONG), open_store(server.url, LONG)
    slow = open_store(through, LONG)
    lock = Lock(holder, "/lock", b"holder")
    lock.acquire(PATIENCE)
    writer = fenced(slow, lock)
    result(writer.put("/guarded", b"holder"))
    result(slow.put("/plain", b"holder"))
    line.hold()
    late = [writer.put("/guarded", b"late"), writer.transaction([bk.Put("/other", b"late")])]
    plain = slow.put("/plain", b"late")
    assert line.held.wait(PATIENCE)
    holder.close()
    stat = take_over(successor)
    result(successor.put("/plain", b"successor"))
    line.release()
    for future in late:
        lost = error(future)
        assert isinstance(lost, LockLostError)
        assert lost.outcome == "not_applied"
    assert guarded(successor) == (b"successor", stat.version)
    assert not result(successor.exists("/other"))
    # So late it was: what nobody fences has overwritten the successor's value.
    result(plain)
    successor.sync()
    found = result(successor.get("/plain"))
    assert found is not None
    assert found.value == b"late"


def test_a_holder_that_is_cut_off_for_longer_than_its_session(
    server: LocalServer, line: HeldLine, through: str, open_store: Opens
) -> None:
    """What it has sent, and sends again after its return, changes nothing."""
    holder, successor = open_store(through, SHORT), open_store(server.url, LONG)
    lock = Lock(holder, "/lock", b"holder")
    lock.acquire(PATIENCE)
    writer = fenced(holder, Trusting(lock))
    line.hold()
    late = [writer.put("/guarded", b"%d" % n) for n in range(20)]
    stat = take_over(successor)
    line.release()
    for future in late:
        assert isinstance(error(future), LockLostError | bk.IndeterminateError)
    assert lock.lost.wait(PATIENCE)
    assert isinstance(error(writer.put("/guarded", b"later")), LockLostError)
    assert guarded(successor) == (b"successor", stat.version)


STREAM: Final = """
import sys
import batchkeeper as bk
from batchkeeper.coordination import fenced
from batchkeeper.coordination import Lock
from batchkeeper.ops.errors import LockLostError

store = bk.open_store(sys.argv[1], session_timeout=float(sys.argv[2]))
lock = Lock(store, "/lock", b"stream")
while True:
    try:
        lock.acquire()
        writer = fenced(store, lock)
        writer.put("/guarded", b"stream").result()
        break
    except LockLostError:  # on a machine that stands still for a while
        try:
            lock.release()
        except LockLostError:
            pass
print("holds", flush=True)
number = 0

def source():
    global number
    while True:
        number += 1
        yield bk.Put("/guarded", b"stream")
        yield bk.Put(f"/stream/{number % 50}", b"stream")

for outcome in writer.apply_stream(source()):
    if isinstance(outcome.error, LockLostError):
        break
    assert outcome.ok or outcome.error.outcome == "unknown", outcome
else:
    raise AssertionError
print("lost", flush=True)
store.close(0)
"""


def test_a_process_that_is_stopped_in_a_stream_of_writes(
    server: LocalServer, open_store: Opens
) -> None:
    """It goes on when another one holds the lock, and not one of its writes takes effect."""
    successor = open_store(server.url, LONG)
    with child(STREAM, server.url, str(SHORT)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        process.send_signal(signal.SIGSTOP)
        stat = take_over(successor)
        before = [result(successor.put(f"/stream/{n}", b"new")) for n in range(50)]
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "lost\n"
        assert process.wait(PATIENCE) == 0
    assert guarded(successor) == (b"successor", stat.version)
    for n, put in enumerate(before):
        found = result(successor.get(f"/stream/{n}"))
        assert found is not None
        assert found.stat.version == put.version


def test_a_write_without_an_answer_is_settled(
    server: LocalServer, line: HeldLine, through: str, open_store: Opens
) -> None:
    """As any write: it is applied once, and ends with its stat, or as indeterminate."""
    holder, other = open_store(through, LONG), open_store(server.url, LONG)
    lock = Lock(holder, "/lock")
    lock.acquire(PATIENCE)
    writer = fenced(holder, lock)
    assert result(writer.put("/guarded", b"0")).version == 0
    line.swallowed.clear()
    line.swallows = True
    future = writer.put("/guarded", b"1")
    line.lose_an_answer(PATIENCE)  # On ZooKeeper, it may be that of a look before it.
    failed: Any = future.exception(PATIENCE)
    assert failed is None or failed.outcome == "unknown"
    store_has = guarded(other)
    assert store_has == (b"1", 1) or (failed and store_has == (b"0", 0))
    assert result(writer.put("/guarded", b"2")).version == store_has[1] + 1


def test_a_short_outage_ends_no_hold(server: LocalServer, open_store: Opens) -> None:
    """Writes during an outage that is shorter than the session take effect after it, in order."""
    store = open_store(server.url, LONG)
    lock = Lock(store, "/lock")
    lock.acquire(PATIENCE)
    writer = fenced(store, lock)
    result(writer.put("/guarded", b"first"))
    server.pause()
    updating = threading.Thread(target=lock.update, args=(b"new",))
    updating.start()
    futures = [writer.put("/guarded", b"%d" % n) for n in range(10)]
    server.resume()
    assert [result(future).version for future in futures] == list(range(1, 11))
    updating.join()
    assert guarded(store) == (b"9", 10)


def test_the_end_of_the_store_ends_the_writes(server: LocalServer, open_store: Opens) -> None:
    """Writes in flight when the store is closed end, also those that wait for a turn."""
    store = open_store(server.url, LONG)
    lock = Lock(store, "/lock")
    lock.acquire(PATIENCE)
    known = lock.check()
    late: Any = type("Late", (), {"check": lambda _self: known})()
    writer = fenced(store, late)
    lock.update(b"new")
    futures = [writer.put(f"/{n}", b"") for n in range(200)]
    server.pause()
    store.close(0)
    server.resume()
    for future in futures:
        failed: Any = future.exception(PATIENCE)
        assert failed is None or isinstance(failed, bk.MetadataStoreError)
    until(lambda: not any("fenced writes" in each.name for each in threading.enumerate()))
