"""Other clients' keys that are not valid paths: left out, but never without a report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError, NoNodeError
from kazoo.protocol.serialization import Create
from kazoo.security import OPEN_ACL_UNSAFE
from rocksdict import Options, Rdict

import batchkeeper as bk
from batchkeeper.ops.results import key_named, printable
from batchkeeper.stores import parse_url
from batchkeeper.stores.etcd.watches import changes as etcd_changes
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.errors import EtcdRefusedError
from batchkeeper.stores.etcd.wire.members import Credentials
from batchkeeper.stores.etcd.wire.protos import messages
from batchkeeper.stores.keys import sort_keys
from batchkeeper.testing.servers import EtcdServer, ZooKeeperServer

from ..contents import put_all
from ..waiting import soon
from .foreign import KEYS, OUTSIDE, OWN, put_raw, put_records
from .secured import secured

PATHS = ["/a", "/a/b", "/a/d", "/b", "/zookeepers"]


@pytest.fixture(params=["etcd", "rocksdb"])
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """A store with keys of any client, with paths and without."""
    made = fresh_url(request.param)
    fill(made)
    return made


def fill(url: str) -> None:
    put_raw(url, dict.fromkeys((*KEYS, *OWN), b"theirs"))
    with bk.open_store(url) as store:
        for path in PATHS:
            store.put(path, b"ours").result()


def theirs(url: str, below: bytes = b"/") -> list[bytes]:
    """Return the foreign keys there: RocksDB holds none of this client's own."""
    keys = sorted([*KEYS, *OWN]) if url.startswith("rocksdb") else KEYS
    return [key for key in keys if key.startswith(below)]


def outside(url: str) -> list[bytes]:
    """Put foreign keys into a store without a prefix, and return them."""
    put_raw(url, dict.fromkeys(OUTSIDE, b"theirs"))
    return OUTSIDE


def foreign_of(store: bk.MetadataStore, *where: Any, values: bool = True) -> list[bytes]:
    return [key for page in store.scan_pages(*where, values=values) for key in page.foreign]


# --- scans


def test_a_scan_counts_what_it_leaves_out_and_names_the_first_ones(url: str) -> None:
    """A scan yields the paths as usual, and its iterator reports the foreign keys."""
    with bk.open_store(url) as store:
        scan = store.scan("/")
        assert [found.path for found in scan] == PATHS
        assert scan.foreign.count == len(theirs(url))
        assert scan.foreign.first == theirs(url)[:10]
        below = store.scan("/a")
        assert [found.path for found in below] == PATHS[:3]
        assert below.foreign.count == len(theirs(url, b"/a/"))
        assert below.foreign.first == theirs(url, b"/a/")[:10]


@pytest.mark.parametrize("values", [True, False])
def test_pages_hold_the_keys_that_lie_in_their_part(url: str, values: bool) -> None:
    """With values and without, each key is in one page, unchanged, without the store's prefix."""
    with bk.open_store(url) as store:
        assert foreign_of(store, "/", values=values) == theirs(url)
        assert foreign_of(store, "/none", values=values) == []
        (page,) = store.scan_pages("/a/c", values=values)
        assert (list(page), [*page.foreign]) == ([], [b"/a/c/", b"/a/c/.."])


def test_a_task_is_told_as_a_thread_is(url: str) -> None:
    """The asynchronous iterator counts them, too."""

    async def main() -> None:
        async with bk.open_async_store(url) as store:
            scan = store.scan("/")
            assert [found.path async for found in scan] == PATHS
            assert (scan.foreign.count, scan.foreign.first) == (len(theirs(url)), theirs(url)[:10])
            assert [key async for page in store.scan_pages("/") for key in page.foreign] == theirs(
                url
            )

    asyncio.run(main())


@pytest.mark.slow
def test_the_ranges_of_a_split_hold_each_of_them_once(url: str) -> None:
    """Ten thousand in one stretch, more than a page, add up over the ranges."""
    mass = [b"/c//%04d" % number for number in range(10_000)]
    put_raw(url, dict.fromkeys(mass, b""))
    outer = outside(url) if url.startswith("rocksdb") else []
    with bk.open_store(url) as store:
        put_all(store, {f"/d/{number}": b"" for number in range(3_000)})
        ranges = store.split("/", 5)
        assert len(ranges) > 1
        parts = [foreign_of(store, "/", *part) for part in ranges]
        found = [key for part in parts for key in part]
        assert found == sorted([*theirs(url), *mass, *outer])
        scan = store.scan("/c")
        assert (list(scan), scan.foreign.count) == ([], len(mass))
        assert scan.foreign.first == mass[:10]


def test_a_store_without_a_prefix_counts_keys_without_a_slash(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    """Without a prefix, a scan of / counts all keys in etcd; with one, only those below it."""
    server = own_etcd()
    fill(server.url)
    outer = outside(server.url)
    with bk.open_store(server.url) as store:
        scan = store.scan("/")
        assert [found.path for found in scan] == PATHS
        assert scan.foreign.count == len(KEYS) + len(outer)
        assert foreign_of(store, "/") == sorted([*KEYS, *outer])
        assert foreign_of(store, "/", None, "/a/c") == sorted(
            key for key in [*KEYS, *outer] if key < b"/a/c"
        )
        assert foreign_of(store, "/", "/a/c") == sorted(
            key for key in [*KEYS, *outer] if key >= b"/a/c"
        )
        # Omitted keys belong to the scan's revision, too.
        revision = store.revision()
        put_raw(server.url, {b"later": b"", b"/a/later/": b""})
        assert sum(len(page.foreign) for page in store.scan_pages("/", revision=revision)) == (
            len(KEYS) + len(outer)
        )
    with bk.open_store(f"{server.url}/a") as store:
        assert foreign_of(store, "/", None, None, revision) == [
            key.removeprefix(b"/a") for key in KEYS if key.startswith(b"/a/")
        ]


def test_keys_that_a_login_may_not_read_are_not_its_own(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    """A user who may read what lies below / alone scans it as before, without an error."""
    server = own_etcd()
    fill(server.url)
    outside(server.url)
    secured(server, b"/", b"0")
    with bk.open_store(server.url, username="limited", password="limited's") as store:
        assert foreign_of(store, "/") == KEYS
    limited = Credentials(username="limited", password="limited's")
    with closing(EtcdConnection([server.address], limited)) as connection:
        everything = messages.RangeRequest(key=b"\0", range_end=b"\0", limit=1)
        with pytest.raises(EtcdRefusedError):
            connection.call("range", everything, soon(), write=False)


# --- what else reads and removes


def test_a_recursive_delete_leaves_them_alone(url: str) -> None:
    """A delete does not remove keys that callers cannot see."""
    with bk.open_store(url) as store:
        assert store.delete_recursive("/a").result() == 3
        assert store.delete_recursive("/").result() == 2
        assert foreign_of(store, "/") == theirs(url)
        scan = store.scan("/")
        assert (list(scan), scan.foreign.count) == ([], len(theirs(url)))


def test_names_of_children_make_valid_paths(url: str) -> None:
    """get_children returns only valid names."""
    with bk.open_store(url) as store:
        assert store.get_children("/").result() == ["a", "b", "zookeepers"]
        # There is a name "c", because a key lies below it; nothing is at it, and nothing below.
        assert store.get_children("/a").result() == ["b", "c", "d"]
        assert store.get_children("/a/c").result() == []


# --- RocksDB


def test_rocksdb_counts_keys_without_a_slash(fresh_url: Callable[[str], str]) -> None:
    """A directory is one store: keys beside its paths are counted, but not its own record."""
    url = fresh_url("rocksdb")
    fill(url)
    put_raw(url, dict.fromkeys([b"", *outside(url)], b""))
    with bk.open_store(url) as store:
        assert foreign_of(store, "/") == sorted([b"", *theirs(url), *OUTSIDE])
        assert foreign_of(store, "/a", values=False) == theirs(url, b"/a/")


@pytest.mark.slow
@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"theirs",
        b"\x03" + bytes(28) + b"a later format",
        # As if in our format, with numbers that no store of ours has.
        b"\x01" + b"\xff" * 40,
        b"\x01" + bytes(4) + b"\x80" + bytes(23),
        b"\x01\x80" + bytes(27),
        b"\x01" + bytes(12) + b"\x80" + bytes(15),
        b"\x01" + bytes(20) + b"\x80" + bytes(7),
    ],
)
def test_a_value_that_batchkeeper_has_not_written_is_an_error_in_words(
    fresh_url: Callable[[str], str], record: bytes
) -> None:
    """Its path is named, by whatever meets it, and no neighbour comes to harm."""
    url = fresh_url("rocksdb")
    put_records(url, {b"/t/theirs": record})
    with bk.open_store(url) as store:
        assert store.put("/t/ours", b"1").result().version == 0
        theirs, ours = store.apply([bk.Get("/t/theirs"), bk.Get("/t/ours")])
        assert ours.result.value == b"1"  # type: ignore[union-attr]
        written, refused = store.apply([bk.Put("/t/ours", b"2"), bk.Put("/t/theirs", b"2")])
        assert written.ok
        (deleted,) = store.apply([bk.Delete("/t/theirs")])
        for outcome in (theirs, refused, deleted):
            assert type(outcome.error) is bk.MetadataStoreError
            assert outcome.error.path == "/t/theirs"
            assert "batchkeeper did not write the value at '/t/theirs'" in str(outcome.error)
        for values in (True, False):
            with pytest.raises(
                bk.MetadataStoreError, match="did not write the value at '/t/theirs'"
            ):
                list(store.scan_pages("/", values=values))
        assert store.get_children("/t").result() == ["ours", "theirs"]


def test_a_directory_with_other_column_families_is_refused(
    fresh_url: Callable[[str], str],
) -> None:
    """A directory with other column families is refused: scans and exports would leave them out."""
    url = fresh_url("rocksdb")
    with bk.open_store(url) as store:
        store.put("/a", b"").result()
    directory = parse_url(url).path
    database = Rdict(directory, Options(raw_mode=True))
    database.create_column_family("other", Options(raw_mode=True)).close()
    database.close()
    for suffix in ("", "?read_only=true"):
        with pytest.raises(bk.InvalidSettingError, match=r"column families .*\(other\)"):
            bk.open_store(url + suffix)


# --- ZooKeeper and memory


def test_zookeeper_refuses_them_itself(
    fresh_url: Callable[[str], str], zookeeper_server: ZooKeeperServer
) -> None:
    """The server itself refuses such nodes from every client."""
    chroot = parse_url(fresh_url("zookeeper")).prefix()
    client = KazooClient(zookeeper_server.address)
    client.start()
    try:
        client.create(f"{chroot}/a", b"", makepath=True)
        for name in ("/a/", "/a//b", "/a/./b", "/a/..", "/\x01", "/\x7f", "/\U0001f600", "/\uf000"):
            ended = client.handler.async_result()
            client._call(Create(chroot + name, b"", OPEN_ACL_UNSAFE, 0), ended)
            # No node: not even the parent of such a path can be made.
            with pytest.raises((BadArgumentsError, NoNodeError)):
                ended.get(60)
    finally:
        client.stop()
        client.close()


@pytest.mark.server
def test_a_node_with_a_reserved_name_is_counted(
    fresh_url: Callable[[str], str], zookeeper_server: ZooKeeperServer
) -> None:
    """Nobody can reach it: a scan counts it, and a listing leaves it out."""
    url = fresh_url("zookeeper")
    put_raw(url, {b"/a/b": b"fine", b"/a/.batchkeeper-x": b"theirs"})
    with bk.open_store(url) as store:
        scan = store.scan("/")
        assert [path for path, _, _ in scan] == ["/a", "/a/b"]
        assert (scan.foreign.count, scan.foreign.first) == (1, [b"/a/.batchkeeper-x"])
        assert store.get_children("/a").result() == ["b"]


def test_a_node_called_zookeeper_below_a_chroot_is_counted(
    fresh_url: Callable[[str], str], zookeeper_server: ZooKeeperServer
) -> None:
    """Only nodes that the server lets clients create count, and not its own ones at the root."""
    url = fresh_url("zookeeper")
    put_raw(url, {b"/a/zookeeper": b"fine", b"/zookeeper/x/y": b"theirs", b"/zookeeper/z": b""})
    theirs = [b"/zookeeper/x/y", b"/zookeeper/z"]
    with bk.open_store(url) as store:
        store.put("/b", b"").result()
        store.put("/zookeepers", b"").result()
        scan = store.scan("/")
        assert [found.path for found in scan][-3:] == ["/a/zookeeper", "/b", "/zookeepers"]
        # kazoo's makepath gives parents an empty value.
        assert [key for key in foreign_of(store, "/") if key in theirs] == theirs
        assert scan.foreign.count == len(foreign_of(store, "/", values=False)) == 4
        assert foreign_of(store, "/", "/b") == foreign_of(store, "/")
        assert foreign_of(store, "/", None, "/b") == foreign_of(store, "/a") == []
        store.delete_recursive("/").result()
        assert scan.foreign.count == len(foreign_of(store, "/")) == 4
        assert store.get_children("/").result() == []
    with bk.open_store(zookeeper_server.url) as store:
        parsed = parse_url(url)
        assert foreign_of(store, parsed.prefix()) == []


def test_what_the_client_keeps_for_itself_is_not_counted(store_url: str) -> None:
    """Write ids and slots are not foreign keys, on any store."""
    with bk.open_store(store_url) as store:
        put_all(store, {f"/a/{number}": b"" for number in range(300)})
        scan = store.scan("/")
        assert len(list(scan)) == 300
        assert scan.foreign == bk.ForeignKeys()
        assert foreign_of(store, "/", values=False) == []


# --- changes


@pytest.fixture(params=["as it is", "all keys"])
def history(
    request: pytest.FixtureRequest,
    own_etcd: Callable[..., EtcdServer],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """An etcd that reports its progress, and one that does not."""
    if request.param == "all keys":
        monkeypatch.setattr(etcd_changes, "tells_progress", lambda _: False)
    return own_etcd().url


def test_changes_of_such_keys_are_counted(history: str) -> None:
    """Each change of a foreign key under the prefix is counted once, beside those of paths."""
    with bk.open_store(history) as store:
        before = store.put("/a/first", b"").result().revision
        put_raw(history, dict.fromkeys((*KEYS, *OWN, *OUTSIDE), b"1"))
        put_raw(history, {b"/a//b": b"2"})
        after = store.put("/a/last", b"").result().revision
        everything = store.changes("/", before, after)
        assert [change.path for change in everything] == ["/a/last"]
        assert everything.foreign.count == len(KEYS) + len(OUTSIDE) + 1
        assert everything.foreign.first == KEYS[:10]
        below = store.changes("/a", before, after)
        assert [change.path for change in below] == ["/a/last"]
        assert below.foreign.count == len([key for key in KEYS if key.startswith(b"/a/")]) + 1
        assert (list(store.changes("/none", before, after))) == []
    with bk.open_store(f"{history}/a") as store:
        rooted = store.changes("/", before, after)
        assert [change.path for change in rooted] == ["/last"]
        assert rooted.foreign.count == below.foreign.count

    async def main() -> None:
        async with bk.open_async_store(history) as store:
            changes = store.changes("/a", before, after)
            assert [change.path async for change in changes] == ["/a/last"]
            assert changes.foreign == below.foreign

    asyncio.run(main())


# --- the parts


def test_keys_are_sorted_each_for_itself() -> None:
    """Among paths, foreign keys and our own, each key goes where it belongs, in its order."""
    keys = sorted([*KEYS, *OWN, *OUTSIDE, *(path.encode() for path in PATHS)])
    found = sort_keys(keys)
    assert found.paths == PATHS
    assert found.of(keys) == [path.encode() for path in PATHS]
    assert found.foreign == sorted([*KEYS, *OUTSIDE])
    assert sort_keys([]).paths == []
    # Two keys that look like three paths when they are joined by newlines, and two that do not.
    for trap in ([b"/a\n/b"], [b"/a\n/b", b"/c"], [b"/a", b"/b\n"]):
        assert [*sort_keys(trap).foreign] == [key for key in trap if b"\n" in key]


def test_keys_are_counted_and_ten_of_them_kept() -> None:
    """Memory stays bounded, whatever their number, and counts of parts add up in their order."""
    one, other = bk.ForeignKeys(), bk.ForeignKeys()
    one.add([b"%d" % number for number in range(7)])
    other.add([b"%d" % number for number in range(100, 120)])
    assert (other.count, len(other.first)) == (20, 10)
    one.merge(other)
    assert one.count == 27
    assert one.first == [b"%d" % number for number in [*range(7), 100, 101, 102]]


def test_a_key_is_printed_as_a_shell_reads_it() -> None:
    """Text stays unchanged, and characters that control a terminal are escaped."""
    names = {
        b"/a//b": "/a//b",
        "/ü \U0001f600".encode(): "/ü \U0001f600",
        b"/a\n\x1b\xff": r"/a\x0a\x1b\xff",
        b"/it's\\": r"/it\x27s\x5c",
        "/\u2028\u200b".encode(): r"/\xe2\x80\xa8\xe2\x80\x8b",
    }
    assert [printable(key) for key in names] == [*names.values()]
    assert [key_named(name.encode()) for name in names.values()] == [*names]
    with pytest.raises(bk.InvalidPathError, match="backslash"):
        key_named(rb"/it\s")
    keys = bk.ForeignKeys()
    keys.add([*names])
    assert keys.names() == [*names.values()]


def test_a_scan_is_a_generator(url: str) -> None:
    """A scan's iterator can be closed, dropped and thrown into, and then releases its store."""
    with bk.open_store(url) as store:
        scan = store.scan("/")
        assert next(scan).path == "/a"
        assert scan.send(None).path == "/a/b"
        scan.close()
        assert list(scan) == []
        again = store.scan("/")
        next(again)
        with pytest.raises(KeyError, match="mine"):
            again.throw(KeyError("mine"))
        assert next(again, None) is None

        async def main() -> None:
            async with bk.open_async_store("memory://generator") as other:
                await other.put("/a", b"")
                results = other.scan("/")
                assert (await anext(results)).path == "/a"
                with pytest.raises(KeyError, match="mine"):
                    await results.athrow(KeyError("mine"))
                assert [found async for found in results] == []

        asyncio.run(main())
