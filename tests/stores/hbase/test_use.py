"""What stands above the HBase store, on a real server: see the tables in docs/hbase.md."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper import hubs
from batchkeeper.stores.backend import Tally
from batchkeeper.stores.hbase import reads
from batchkeeper.stores.hbase.cluster import Cluster
from batchkeeper.stores.hbase.forms import put
from batchkeeper.stores.hbase.layout import NO_ROW, Row
from batchkeeper.stores.hbase.requests import Requests, Written
from batchkeeper.stores.hbase.scans import Walk
from batchkeeper.testing.servers import HBaseServer
from batchkeeper.testing.servers.installing import install
from batchkeeper.testing.servers.releases import parse_release

from ...programs import run_python, spark_environment
from ...test_documents import run_examples
from ...waiting import PATIENCE, error, result, soon

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
        refused: list[Future[Any]] = [
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


def write_states(server: HBaseServer, table: bytes, states: dict[bytes, bytes]) -> None:
    """Write to a table as another program does."""
    cluster = Cluster([server.address], (b"default", table), "other", 10.0, Tally())
    now = time.time_ns() // 1_000_000
    with closing(cluster):
        ends = Requests(cluster).act(
            [*states],
            lambda place, region: put(
                region, [*states][place], NO_ROW, Row([*states.values()][place], time=now), b"v"
            ),
            soon(),
        )
    assert ends == [Written(True)] * len(states)


def test_rows_that_another_program_wrote(
    server: HBaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations on their paths fail alone. Scans count them, and a removal removes them."""
    url = f"{server.url}/foreign"
    with bk.open_store(url, connect_timeout=PATIENCE) as store:
        ours = [f"/t/{number}" for number in range(10)]
        assert all(outcome.ok for outcome in store.apply([bk.Put(path, b"") for path in ours]))
        theirs = {b"/t/junk": b"junk", b"/t/text": b"text" * 10, b"/u/junk/x": b"j", b"/t//": b"k"}
        write_states(server, b"foreign", theirs | {b"/t/empty": b""})
        for operation in (
            bk.Get("/t/junk"),
            bk.Exists("/t/text"),
            bk.Put("/t/junk", b""),
            bk.Put("/t/text", b"", bk.ABSENT),
            bk.Put("/t/text", b"", 3),
            bk.Put("/t/junk", b"", ephemeral=True),
            bk.Delete("/t/junk"),
        ):
            before, failed, after = store.apply([bk.Put("/t/0", b""), operation, bk.Get("/t/1")])
            assert before.ok
            assert after.ok
            assert failed.error is not None
            assert failed.error.path == operation.path
            assert f"did not write the value at {operation.path!r}" in str(failed.error)
        numbered = result(store.put("/n/", b"", sequential=True)).path
        write_states(
            server, b"foreign", {b"/n/0000000001": b"junk", b"/.batchkeeper/next/m": b"junk"}
        )
        numbers = [bk.Put(f"/{above}/", b"", sequential=True) for above in "mnn"]
        failed, *others = store.apply(numbers)
        assert "'/.batchkeeper/next/m'" in str(failed.error)
        paths = sorted([numbered, *(outcome.result.path for outcome in others)])
        assert paths == [f"/n/000000000{number}" for number in (0, 2, 3)]
        assert result(store.delete_recursive("/n")) == 4
        assert result(store.get("/t/empty")) is None
        assert result(store.get_children("/t")) == [path[3:] for path in ours]
        assert result(store.get_children("/u")) == []
        assert isinstance(error(store.delete("/u/junk")), bk.NotEmptyError)
        foreign = sorted(theirs)
        for values in (True, False):
            pages = [*store.scan_pages("/", values=values)]
            assert [path for page in pages for path in page.paths] == ours
            assert [key for page in pages for key in page.foreign] == foreign
        parts = store.split("/t", 3)
        assert [path for part in parts for path, _, _ in store.scan("/t", *part)] == ours
        command = ("-m", "batchkeeper", "--store", url)
        counted = run_python(*command, "count", "/", timeout=PATIENCE)
        assert (counted.returncode, counted.stdout) == (1, "10\n")
        assert "did not count 4" in counted.stderr
        result(store.put("/t/empty", b""))
        assert result(store.delete_recursive("/t")) == 13
        assert [key for page in store.scan_pages("/") for key in page.foreign] == [
            b"/t//",
            b"/u/junk/x",
        ]
        deleted = run_python(*command, "delete", "--foreign-keys", "/t//", timeout=PATIENCE)
        assert deleted.returncode == 0, deleted.stderr
        assert result(store.delete_recursive("/")) == 1
        assert not [*store.scan_pages("/")]
        assert result(store.put("/t/junk/5", b"", bk.ABSENT)).version == 0
        write_states(server, b"foreign", {b"/t/junk/0": b"junk"})
        monkeypatch.setattr(reads, "Walk", partial(Walk, rows=1))
        assert result(store.get_children("/t")) == ["junk"]


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


def record(number: int) -> str:
    """Return a line that ``load`` reads."""
    value = f"größe {number}" if number % 2 else {"base64": "AP//" * (number % 90)}
    return json.dumps({"path": f"/t/ä {number % 7}/{number}", "value": value})


def command(*arguments: str) -> Any:
    """Run a command, which must succeed, and return the JSON that it writes."""
    done = run_python("-m", "batchkeeper", *arguments, "-o", "json", timeout=600.0)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def contents(url: str) -> list[tuple[str, bytes]]:
    with bk.open_store(url, connect_timeout=PATIENCE) as store:
        return [(path, value) for path, value, _ in store.scan("/")]


def test_records_that_are_saved_and_restored(server: HBaseServer, tmp_path: Path) -> None:
    """The commands and the jobs of Spark take a table as they take any store."""
    records, saved, folder = tmp_path / "records", tmp_path / "saved.jsonl", tmp_path / "export"
    lines = [record(number) for number in range(20_000)]
    records.write_text("\n".join(lines))
    url, other = f"{server.url}/records", f"rocksdb://{tmp_path / 'rocksdb'}"
    assert command("load", str(records), "--store", url)["written"] == len(lines)
    done = run_python("-m", "batchkeeper", "scan", "/", "--store", url, "-o", "jsonl")
    saved.write_text(done.stdout)
    command("load", str(saved), "--store", other)
    assert len(contents(other)) == len(lines)
    assert contents(url) == contents(other)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in spark_environment().items():
            patch.setenv(variable, value)
        command("spark", "export", str(folder), "--store", url)
        back = f"{server.url}/back"
        assert command("spark", "restore", str(folder), "--store", back)["rows"] == len(lines)
        found = command("spark", "diff", url, back)
        assert (found["equal"], found["different"]) == (len(lines), 0)


def test_what_needs_more_is_refused_at_once(server: HBaseServer, tmp_path: Path) -> None:
    """The message says what is missing, and where it is; nothing is written."""
    with bk.open_store(f"{server.url}/refused", connect_timeout=PATIENCE) as store:
        managers = hubs.open_managers(store, "/region")
        held: Any = None  # The store is checked first.
        refused: dict[str, list[Callable[[], object]]] = {
            "watches": [
                lambda: bk.Lock(store, "/l"),
                lambda: bk.Semaphore(store, "/l", 2),
                lambda: bk.Election(store, "/l", b""),
                lambda: bk.LeaderWatch(store, "/l"),
                lambda: bk.MetadataCache(store, "/l"),
                lambda: hubs.AccessRules(store, "/r"),
                lambda: store.watch("/l"),
            ],
            "transactions": [
                lambda: bk.DoubleBarrier(store, "/l", 2),
                lambda: bk.WorkQueue(store, "/l"),
                lambda: bk.Group(store, "/l"),
                lambda: bk.fenced(store, held),
                lambda: hubs.Hosts(store, "/r"),
                lambda: hubs.TopicHub(store, "/r", "hub-1:1", hubs.FileLogs(tmp_path)),
                lambda: hubs.EphemeralOwnership(store, "/r"),
                lambda: hubs.open_ownership(store, managers, held),
                lambda: store.transaction([bk.Put("/l", b"")]),
            ],
            "snapshots": [lambda: list(store.scan("/", revision=1))],
            "history": [lambda: list(store.changes("/", 1, 2))],
        }
        before = [path for path, _, _ in store.scan("/")]
        for capability, calls in refused.items():
            for call in calls:
                with pytest.raises(bk.UnsupportedError, match=f"'{capability}'.*etcd"):
                    call()
        assert [path for path, _, _ in store.scan("/")] == before


def test_what_needs_no_more_works(server: HBaseServer) -> None:
    """Counters of several clients, in threads and tasks, and ownership by comparing."""
    url = f"{server.url}/works"

    def numbers(_: int) -> list[int]:
        with bk.open_store(url, connect_timeout=PATIENCE) as store:
            counter = bk.Counter(store, "/counter", block=7)
            return [counter.next() for _ in range(50)]

    async def async_number() -> int:
        async with bk.open_async_store(url, connect_timeout=PATIENCE) as store:
            return await bk.AsyncCounter(store, "/counter").next()

    with ThreadPoolExecutor(4) as pool:
        found = [number for some in pool.map(numbers, range(4)) for number in some]
    assert len({*found, asyncio.run(async_number())}) == 201
    run_examples("docs/hbase.md", url)
    with bk.open_store(url) as store, hubs.open_managers(store, "/hedwig/eu") as managers:
        owner = managers.ownership.read_owner_info("orders")
        assert owner is not None
        assert owner.value is not None
        assert owner.value.address == "hub-2:4080"
