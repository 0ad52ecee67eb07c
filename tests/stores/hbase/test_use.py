"""What stands above the HBase store, on a real server: see the tables in docs/hbase.md."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import HBaseServer
from batchkeeper.testing.servers.installing import install
from batchkeeper.testing.servers.releases import parse_release

from ...waiting import PATIENCE, error, result

pytestmark = [pytest.mark.soak, pytest.mark.server]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseServer]:
    """An HBase for the tests of this module."""
    install(parse_release("hbase@2.6"))
    with HBaseServer(tmp_path_factory.mktemp("hbase")) as made:
        yield made


def test_clients_that_open_a_missing_table_at_the_same_time(server: HBaseServer) -> None:
    """One creates it, and the others find that out at once."""

    def put(number: int) -> int:
        with bk.open_store(f"{server.url}/new", connect_timeout=PATIENCE) as store:
            return result(store.put(f"/{number}", b"")).version

    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(put, range(8))] == [0] * 8
    assert time.monotonic() - began < PATIENCE / 2


def test_a_path_that_is_too_long_for_a_key(server: HBaseServer) -> None:
    """It is refused at once, and alone; the longest one can be used in any way."""
    with bk.open_store(f"{server.url}/long", connect_timeout=PATIENCE) as store:
        long = "/" + "x" * 32_000
        refused = [
            store.put(long, b""),
            store.put(long, b"", sequential=True),
            store.delete(long),
            store.get(long),
            store.get_children(long),
        ]
        beside = store.put("/beside", b"")
        assert {type(error(future)) for future in refused} == {bk.ValueTooLargeError}
        assert result(beside).version == 0
        with pytest.raises(bk.ValueTooLargeError, match=r"32001 bytes; .* at most 32000"):
            list(store.scan(long))
        longest = long[:-1]
        assert result(store.put(longest, b"", ephemeral=True)).owned
        assert result(store.get_children("/")) == ["beside", longest[1:]]
        assert [path for path, _, _ in store.scan(longest)] == [longest]
        result(store.delete(longest))
        numbered = result(store.put(longest[:-19], b"", sequential=True)).path
        assert result(store.get_children(numbered)) == []
        assert result(store.delete_recursive(numbered)) == 1


def test_an_address_that_is_silent(server: HBaseServer) -> None:
    """It leaves time for the next one; alone, the error says which servers a URL may name."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        url = f"hbase://{address},{server.address}/silent"
        with bk.open_store(server.url + "/silent", connect_timeout=PATIENCE) as store:
            assert result(store.put("/a", b"")).version == 0
        with bk.open_store(url, connect_timeout=10.0) as store:
            assert result(store.put("/a", b"")).version == 1
        with pytest.raises(bk.StoreUnavailableError, match="and not its ZooKeeper"):
            bk.open_store(f"hbase://{address}/silent", connect_timeout=0.5)
