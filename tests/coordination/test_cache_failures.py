"""Caches on real servers, which are killed, cut off or restarted, and in stopped processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import MetadataCache
from batchkeeper.ops.serdes import json_serde
from batchkeeper.testing.servers import LocalServer

from ..proxy import Proxy
from ..waiting import PATIENCE, until
from .caching import Thread, is_cached, warm


@pytest.fixture(params=["etcd", "zookeeper"])
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """The URL of an empty store on a shared server."""
    return fresh_url(request.param)


@pytest.fixture
def programs() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python program with its arguments; it is ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def put(store: bk.MetadataStore, value: int) -> None:
    store.put("/a/b", b"%d" % value).result(PATIENCE)


def behind(server: LocalServer, line: Proxy) -> str:
    """Return the URL of a server behind a proxy."""
    return server.url.replace(server.address, line.address)


def test_an_outage(server: LocalServer) -> None:
    """In an outage nothing is served from the cache; after it, all changes are seen, and a gap."""
    with (
        bk.open_store(server.url, session_timeout=30, operation_timeout=2) as store,
        bk.open_store(server.url, session_timeout=30) as other,
        MetadataCache(store, "/a", json_serde) as cache,
    ):
        put(other, 1)
        until(lambda: cache.get("/a/b") == 1)
        warm(cache, "/a/b")
        gaps: list[str] = []
        cache.add_listener(lambda event: gaps.append(event.kind))
        server.stop()
        until(lambda: not is_cached(cache, "/a/b"))
        with pytest.raises(bk.MetadataStoreError) as raised:
            cache.get("/a/b")
        assert raised.value.retriable
        server.start()
        until(lambda: writes(other, 2))
        until(lambda: reads(cache, 2))
        until(lambda: "gap" in gaps)
        warm(cache, "/a/b")
        assert cache.get("/a/b") == 2
        put(other, 3)
        until(lambda: cache.get("/a/b") == 3)


def writes(store: bk.MetadataStore, value: int) -> bool:
    """Try to write a value."""
    try:
        put(store, value)
    except bk.MetadataStoreError:
        return False
    return True


def reads(cache: MetadataCache[Any], value: int) -> bool:
    """Say whether a read succeeds and shows a value."""
    try:
        return bool(cache.get("/a/b") == value)
    except bk.MetadataStoreError:
        return False


def test_a_cut_connection(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """Writes of others while the connection is cut are seen after it, and nothing goes back."""
    line = proxy(server.address)
    with (
        bk.open_store(behind(server, line), session_timeout=30) as store,
        bk.open_store(server.url) as other,
        MetadataCache(store, "/a", json_serde) as cache,
    ):
        for value in range(0, 10, 2):
            put(other, value)
            line.cut()
            put(other, value + 1)
            done = threading.Event()

            def read(done: threading.Event = done) -> int:
                seen = 0
                while not done.is_set():
                    try:
                        found = cache.get("/a/b")
                    except bk.MetadataStoreError:
                        continue
                    assert found is not None
                    assert found >= seen
                    seen = found
                return seen

            reading = Thread(read)
            until(lambda value=value: reads(cache, value + 1))  # type: ignore[misc]
            done.set()
            assert reading.result() in (0, value, value + 1)


def test_a_lost_session(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """If the server ends the session in an outage, the cache is empty, and then current again."""
    line = proxy(server.address)
    with (
        bk.open_store(behind(server, line), session_timeout=2) as store,
        bk.open_store(server.url) as other,
        MetadataCache(store, "/a", json_serde) as cache,
    ):
        events: list[str] = []
        store.add_session_listener(events.append)
        store.put("/mine", b"", ephemeral=True).result(PATIENCE)
        put(other, 1)
        until(lambda: cache.get("/a/b") == 1)
        warm(cache, "/a/b")
        line.drops = line.swallows = True
        until(lambda: not other.exists("/mine").result(PATIENCE))
        put(other, 2)
        line.restore()
        until(lambda: "session_lost" in events)
        until(lambda: reads(cache, 2))
        until(lambda: "session_reestablished" in events)
        warm(cache, "/a/b")
        assert cache.get("/a/b") == 2
        put(other, 3)
        until(lambda: cache.get("/a/b") == 3)


# Prints each new value that it reads through its cache, until its input ends.
READER = """
import sys, threading
import batchkeeper as bk
from batchkeeper.coordination import MetadataCache

ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
with bk.open_store(sys.argv[1], session_timeout=float(sys.argv[2])) as store:
    store.put("/mine", b"", ephemeral=True).result()
    with MetadataCache(store, "/a") as cache:
        seen = None
        while not ended.wait(0.001):
            try:
                value = cache.get("/a/b")
            except bk.MetadataStoreError:
                continue
            if value != seen:
                print(int(value or 0), flush=True)
                seen = value
"""


@pytest.mark.parametrize("session_timeout", [2, 30])
def test_a_process_that_stops(
    server: LocalServer,
    programs: Callable[..., subprocess.Popen[str]],
    session_timeout: int,
) -> None:
    """A process that was stopped, for longer than its session or not, ends with what is current."""
    with bk.open_store(server.url) as other:
        put(other, 1)
        process = programs(READER, server.url, str(session_timeout))
        assert process.stdout is not None
        assert int(process.stdout.readline()) == 1
        for value in (2, 3):
            os.kill(process.pid, signal.SIGSTOP)
            put(other, value * 10)
            if session_timeout == 2 and value == 3:
                until(lambda: not other.exists("/mine").result(PATIENCE))
            put(other, value * 10 + 1)
            os.kill(process.pid, signal.SIGCONT)
            seen = [int(process.stdout.readline())]
            while seen[-1] != value * 10 + 1:
                seen.append(int(process.stdout.readline()))
            assert seen == sorted(seen)


# Updates a path through its cache, a number of times.
UPDATER = """
import sys
import batchkeeper as bk
from batchkeeper.coordination import MetadataCache
from batchkeeper.ops.serdes import json_serde

with bk.open_store(sys.argv[1]) as store, MetadataCache(store, "/a", json_serde) as cache:
    cache.get("/a/n")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[2])):
        cache.read_modify_update_or_create("/a/n", lambda n: (n or 0) + 1)
    print("done", flush=True)
"""


def test_processes_lose_no_update(url: str, programs: Callable[..., subprocess.Popen[str]]) -> None:
    """Processes that update one path at the same time all succeed (Pulsar #23686)."""
    processes = [programs(UPDATER, url, "25") for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
    with bk.open_store(url) as store:
        found = store.get("/a/n").result(PATIENCE)
        assert found is not None
        assert (int(found.value), found.stat.version) == (100, 99)
