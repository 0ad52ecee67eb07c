"""Work queues and barriers on real servers: killed or stopped workers, and outages."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import DoubleBarrier, WorkQueue
from batchkeeper.ops.errors import LockLostError
from batchkeeper.testing.servers import SERVERS, LocalServer

from ..proxy import Proxy
from ..waiting import PATIENCE, result, until
from .recipes import SHORT, begun, worker

pytestmark = pytest.mark.server

#: Claims a job, says so, and continues on a signal: reports ``held`` and how ``done`` ends.
CLAIM = """
import sys
import batchkeeper as bk
from batchkeeper.coordination import WorkQueue
with bk.open_store(sys.argv[1], session_timeout=float(sys.argv[2])) as store:
    job = WorkQueue(store, "/q").claim()
    print(job.value.decode(), job.fencing_token, flush=True)
    sys.stdin.readline()
    print(job.held, flush=True)
    try:
        job.done()
    except bk.MetadataStoreError as error:
        print(type(error).__name__, flush=True)
    else:
        print("done", flush=True)
    job.release()
    print("released", flush=True)
    sys.stdin.readline()
"""

#: Enters a barrier for two, says so, and stays.
ENTER = """
import sys
import batchkeeper as bk
from batchkeeper.coordination import DoubleBarrier
with bk.open_store(sys.argv[1], session_timeout=float(sys.argv[2])) as store:
    DoubleBarrier(store, "/b", 2).enter()
    print("entered", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """The URL of an empty store on each kind of server."""
    return fresh_url(request.param)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_worker_that_is_killed(url: str) -> None:
    """The jobs and the place of a killed worker are free at the end of its session."""
    with bk.open_store(url) as store:
        queue = WorkQueue(store, "/q")
        queue.put(b"job")
        barrier = DoubleBarrier(store, "/b", 2)
        waiting = begun(barrier.enter)
        with worker(CLAIM, url, SHORT) as claimer, worker(ENTER, url, SHORT) as enterer:
            value, token = line(claimer).split()
            assert value == "job"
            assert line(enterer) == "entered"
            result(waiting)
            claimer.kill()
            enterer.kill()
        with queue.claim(PATIENCE) as job:
            assert job.value == b"job"
            assert job.attempt >= 2
            assert job.fencing_token > int(token)
        assert queue.size() == 0
        barrier.leave(PATIENCE)


def test_a_worker_that_is_stopped(url: str) -> None:
    """A worker that slept through the end of its session can neither finish nor free the job."""
    with bk.open_store(url) as store:
        queue = WorkQueue(store, "/q")
        queue.put(b"job")
        with worker(CLAIM, url, SHORT) as process:
            _, token = line(process).split()
            os.kill(process.pid, signal.SIGSTOP)
            job = queue.claim(PATIENCE)
            assert job.attempt >= 2
            assert job.fencing_token > int(token)
            go_on(process)
            os.kill(process.pid, signal.SIGCONT)
            assert line(process) == "False"
            assert line(process) == "LockLostError"
            assert line(process) == "released"
            assert queue.size() == 1
            assert len(result(store.get_children("/q/claims"))) == 1
            job.done()
            assert queue.size() == 0


def test_an_outage_that_is_shorter_than_the_session(
    server: LocalServer, waits: Callable[[], int]
) -> None:
    """A worker keeps its job, waits on for the next one, and then gets that."""
    with bk.open_store(server.url, session_timeout=60) as store:
        queue = WorkQueue(store, "/q")
        queue.put(b"job")
        job = queue.claim(PATIENCE)
        waiting = begun(queue.claim, PATIENCE)
        until(lambda: waits() == 1)
        server.restart()
        until(lambda: _done(job))
        assert not waiting.done()
        until(lambda: _put(queue))
        assert result(waiting).value == b"next"


def _done(job: Any) -> bool:
    """Try to finish a job; a server that has just begun may not answer at once."""
    try:
        job.done()
    except LockLostError:
        raise
    except bk.MetadataStoreError:
        return False
    return True


def _put(queue: WorkQueue) -> bool:
    try:
        queue.put(b"next")
    except bk.MetadataStoreError:
        return False
    return True


def test_a_worker_that_is_cut_off(
    server: LocalServer, proxy: Callable[[str], Proxy], waits: Callable[[], int]
) -> None:
    """A worker that cannot reach the server does not hold its job by the time another gets it."""
    between = proxy(server.address)
    with (
        bk.open_store(server.url) as store,
        bk.open_store(f"{server.name}://{between.address}", session_timeout=SHORT) as cut_off,
    ):
        queue = WorkQueue(store, "/q")
        queue.put(b"job")
        lost = WorkQueue(cut_off, "/q").claim(PATIENCE)
        waiting = begun(queue.claim, PATIENCE)
        until(lambda: waits() == 1)
        between.drops = between.swallows = True
        job = result(waiting)
        assert not lost.held
        assert job.fencing_token > lost.fencing_token
        between.restore()
        assert isinstance(until(lambda: _end_of(lost)), LockLostError)
        job.done()
        assert queue.size() == 0


def _end_of(job: Any) -> bk.MetadataStoreError | None:
    """Return the error of ``done``, or ``None`` while the server cannot be reached."""
    try:
        job.done()
    except LockLostError as error:
        return error
    except bk.MetadataStoreError:
        return None
    raise AssertionError("a lost job was done")


def test_a_claim_whose_answer_is_lost(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """A claim without an answer leaves the job to one worker, in the same session."""
    between = proxy(server.address)
    with bk.open_store(f"{server.name}://{between.address}", session_timeout=60) as store:
        queue = WorkQueue(store, "/q")
        queue.put_all([b"1", b"2"])
        queue.claim(PATIENCE).done()
        between.swallows = True
        claiming = begun(queue.claim, PATIENCE)
        between.lose_an_answer(PATIENCE)
        job = result(claiming)
        job.done()
        assert result(store.get_children("/q/claims")) == []
        assert queue.size() == 0
