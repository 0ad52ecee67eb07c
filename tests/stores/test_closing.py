"""A store that is closed while its server owes answers: every error names the close."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores import parse_url
from batchkeeper.testing.servers import SERVERS, LocalServer

from ..proxy import Proxy
from ..waiting import PATIENCE, error, until


@pytest.mark.server
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "single"])
@pytest.mark.parametrize("name", SERVERS)
def test_operations_without_an_answer_name_the_close(
    name: str,
    batched: bool,
    fresh_url: Callable[[str], str],
    proxy: Callable[[str], Proxy],
) -> None:
    """No lost connection or removed stream is blamed, because the caller has closed the store."""
    url = fresh_url(name)
    address = parse_url(url).hosts[0]
    between = proxy(address)
    store = bk.open_store(
        url.replace(address, between.address),
        bk.BatchingConfig(enabled=batched, max_in_flight=4),
    )
    store.put("/a", b"").result(PATIENCE)
    between.swallows = True
    writes = [store.put(f"/{n}", b"") for n in range(20)]
    reads = [store.get(f"/{n}") for n in range(100, 120)]
    assert between.swallowed.wait(PATIENCE)
    # That may have been the answer to a read. A write is unknown once it was sent.
    with bk.open_store(url) as direct:
        until(lambda: direct.get_children("/").result(PATIENCE) != ["a"], "no write arrives")
    store.close(timeout=0)
    errors = [error(future) for future in (*writes, *reads)]
    assert {type(found) for found in errors[:20]} <= {bk.IndeterminateError, bk.StoreClosedError}
    assert bk.IndeterminateError in {type(found) for found in errors[:20]}
    assert {type(found) for found in errors[20:]} == {bk.StoreClosedError}
    assert [str(found) for found in errors if "closed" not in str(found).lower()] == []
    assert [str(found) for found in errors if "Stream" in str(found) or "lost" in str(found)] == []


@pytest.mark.server
@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda store: [*store.scan("/")], id="scan"),
        pytest.param(lambda store: [*store.scan_pages("/", values=False)], id="scan-pages"),
        pytest.param(lambda store: store.split("/", 4), id="split"),
        pytest.param(lambda store: store.revision(), id="revision"),
        pytest.param(lambda store: store.delete_recursive("/a").result(), id="delete-recursive"),
        pytest.param(lambda store: store.apply([bk.Get("/a")])[0], id="apply"),
        pytest.param(lambda store: [*store.changes("/", 1, store.revision())], id="changes"),
    ],
)
def test_calls_beside_operations_name_the_close(
    name: str,
    call: Callable[[bk.MetadataStore], Any],
    shared_servers: Callable[[str], LocalServer],
    proxy: Callable[[str], Proxy],
) -> None:
    """Scans, splits, removals and bulk calls under way end with the same reason."""
    address = shared_servers(name).url.partition("://")[2].partition("/")[0]
    between = proxy(address)
    store = bk.open_store(f"{name}://{between.address}/closing")
    store.put("/a", b"").result(PATIENCE)
    between.swallows = True

    def run() -> bk.MetadataStoreError | None:
        with suppress(bk.UnsupportedError):
            try:
                found = call(store)
            except bk.MetadataStoreError as raised:
                return raised
            assert isinstance(found, bk.Outcome)
            return found.error
        return None

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        waits = between.swallowed.wait(PATIENCE) if not running.done() else True
        assert waits
        store.close(timeout=0)
        found = running.result(PATIENCE)
    if found is None:  # etcd alone has a history.
        assert "history" not in store.capabilities
        return
    assert "closed" in str(found)
    assert "lost" not in str(found)
    assert isinstance(found, bk.StoreClosedError | bk.IndeterminateError)


@pytest.mark.parametrize("scheme", ["etcd", "zk"])
def test_an_opening_that_is_given_up_ends(scheme: str) -> None:
    """A task that gives up is free, the loop can end, and threads and connections are gone."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"

        async def give_up() -> None:
            opening = asyncio.ensure_future(bk.open_async_store(url, connect_timeout=600))
            accepted, _ = await asyncio.to_thread(silent.accept)
            with accepted:
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
                accepted.settimeout(PATIENCE)
                with suppress(ConnectionError):
                    while await asyncio.to_thread(accepted.recv, 4096):
                        pass  # until the client closes the connection

        before = {*threading.enumerate()}
        asyncio.run(asyncio.wait_for(give_up(), PATIENCE))
        until(lambda: {*threading.enumerate()} <= before)
