"""The HTTP server of metrics: what it shows, to whom, and how long."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import select
import socket
import urllib.error
import urllib.request
import warnings
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.observability import MetricsServer, serve_metrics

from ..programs import run_python
from ..waiting import PATIENCE, until

WITHOUT_PROMETHEUS = """
import sys, urllib.error, urllib.request
sys.modules["prometheus_client"] = None
import batchkeeper as bk
from batchkeeper.observability import serve_metrics
with bk.open_store("memory://x") as store, serve_metrics(store, port=0) as served:
    assert b"metrics" in urllib.request.urlopen(served.url + "/metrics.json").read()
    try:
        urllib.request.urlopen(served.url + "/metrics")
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
"""


def page(served: MetricsServer, path: str) -> tuple[str, bytes]:
    """Return the type and the body of a page."""
    with urllib.request.urlopen(f"{served.url}{path}", timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read()


def connected(served: MetricsServer) -> socket.socket:
    return socket.create_connection((served.host, served.port), timeout=PATIENCE)


def listens(served: MetricsServer) -> bool:
    with socket.socket() as client:
        return client.connect_ex((served.host, served.port)) == 0


def test_the_page_has_the_metrics_of_the_store(store: bk.MetadataStore) -> None:
    """The JSON is that of `to_dict`, with the store, the process and the session."""
    with serve_metrics(store, port=0, name="mine") as served:
        kind, body = page(served, "/metrics.json")
        assert kind == "application/json"
        found: dict[str, Any] = json.loads(body)
        assert (found["format"], found["store"], found["pid"]) == (1, "mine", os.getpid())
        assert found["session"]["state"] == "connected"
        assert found["metrics"] == json.loads(json.dumps(store.metrics().to_dict()))
        kind, body = page(served, "/metrics")
        assert kind.startswith("text/plain")
        assert b'batchkeeper_operations_total{kind="put",store="mine"} 21.0' in body
        with pytest.raises(urllib.error.HTTPError, match="404"):
            page(served, "/other")


def test_a_web_page_that_names_this_machine_reads_nothing(store: bk.MetadataStore) -> None:
    """A request has to name an address or localhost, unless remote ones are allowed."""

    def status(served: MetricsServer, host: str) -> int:
        client = http.client.HTTPConnection(served.host, served.port, timeout=PATIENCE)
        with closing(client):
            client.request("GET", "/metrics.json", headers={"Host": host})
            return client.getresponse().status

    for allowed, wrong in ((False, 421), (True, 200)):
        with serve_metrics(store, port=0, allow_remote=allowed) as served:
            for host in ("127.0.0.1:9100", "localhost", "LOCALHOST:1", "[::1]:9"):
                assert status(served, host) == 200
            for host in ("evil.example:9100", "127.0.0.1.evil.example", "[", ""):
                assert status(served, host) == wrong


def test_a_slow_client_is_cut_off(store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends a byte now and then has no more time than others."""
    monkeypatch.setattr("batchkeeper.observability.server._PATIENCE", 0.3)
    with (
        serve_metrics(store, port=0) as served,
        connected(served) as client,
        suppress(ConnectionError),
    ):
        while not select.select([client], [], [], 0.05)[0]:
            client.send(b"G")
        assert client.recv(1) == b""


def test_connections_beyond_the_most_are_refused(store: bk.MetadataStore) -> None:
    """They are closed at once, and there is room again when another one has ended."""
    with serve_metrics(store, port=0) as served, ExitStack() as clients:
        for _ in range(32):
            clients.enter_context(connected(served))
        with connected(served) as further, suppress(ConnectionError):
            assert further.recv(1) == b""
        clients.close()

        def answers() -> bool:
            with suppress(OSError):
                return bool(page(served, "/metrics.json"))
            return False

        until(answers)


def test_the_server_ends_with_its_store_or_before() -> None:
    """After either close nothing listens, and a second close does no harm."""
    with bk.open_store("memory://served") as store:
        first, second = serve_metrics(store, port=0), serve_metrics(store, port=0)
        assert listens(first)
        first.close()
        assert (listens(first), listens(second)) == (False, True)
    assert not listens(second)
    second.close()
    with pytest.raises(bk.StoreClosedError):
        serve_metrics(store, port=0)


def test_a_store_for_tasks_is_served_as_well() -> None:
    """The loop need not run for it, and the close of the store ends it."""

    async def use() -> MetricsServer:
        async with bk.open_async_store("memory://tasks") as store:
            await store.put("/a", b"")
            served = serve_metrics(store, port=0)
            assert json.loads(page(served, "/metrics.json")[1])["metrics"]["operations"] == {
                "put": 1
            }
            return served

    assert not listens(asyncio.run(use()))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_reach_has_to_be_allowed(host: str, store: bk.MetadataStore) -> None:
    """The refusal names the address and the remedy."""
    with pytest.raises(bk.InvalidSettingError, match="allow_remote=True"):
        serve_metrics(store, port=0, host=host)


def test_an_allowed_address_is_used(store: bk.MetadataStore) -> None:
    """Loopback needs no leave, under any of its names; `allow_remote` changes nothing there."""
    for host in ("127.0.0.1", "127.0.0.2", "localhost"):
        with serve_metrics(store, port=0, host=host, allow_remote=True) as served:
            assert listens(served)


@pytest.mark.parametrize("port", [-1, 65536, "9100", True, None])
def test_a_port_that_is_none_is_refused(port: Any, store: bk.MetadataStore) -> None:
    """The message has the value."""
    with pytest.raises(bk.InvalidSettingError, match=f"{port!r}"):
        serve_metrics(store, port=port)


def test_a_port_in_use_is_refused_and_named(store: bk.MetadataStore) -> None:
    """The message names the port and the remedy, and the first server goes on."""
    with serve_metrics(store, port=0) as first:
        with pytest.raises(bk.InvalidSettingError, match=f":{first.port}: Address already in use"):
            serve_metrics(store, port=first.port)
        assert listens(first)


def test_without_prometheus_the_page_says_how_to_get_it() -> None:
    """The JSON is there; the page for Prometheus names the extra."""
    done = run_python("-c", WITHOUT_PROMETHEUS, check=True)
    assert done.stdout.startswith("501 ")
    assert "pip install 'batchkeeper[prometheus]'" in done.stdout


def test_a_forked_child_lets_go_of_the_port() -> None:
    """While the child lives, the port of the closed server can be used again."""
    store = bk.open_store("memory://forked")
    served = serve_metrics(store, port=0)
    ready, over = os.pipe(), os.pipe()
    gc.disable()  # See forks.py.
    with warnings.catch_warnings():
        # Python warns of forking with threads, which is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(over[0], 1)
        os._exit(0)
    gc.enable()
    try:
        os.read(ready[0], 1)
        store.close()
        with socket.socket() as other:
            other.bind((served.host, served.port))
            other.listen()
    finally:
        os.write(over[1], b"x")
        os.waitpid(child, 0)
        for end in (*ready, *over):
            os.close(end)
