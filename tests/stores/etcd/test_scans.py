"""Scans of a real etcd: one revision, answers of any size, faults, and keys that stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores import parse_url
from batchkeeper.stores.etcd.reads import scans as module
from batchkeeper.stores.etcd.reads import splitting
from batchkeeper.stores.etcd.reads.pages import Page, PendingPage
from batchkeeper.stores.etcd.reads.scans import Scans
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.errors import UnansweredError
from batchkeeper.stores.etcd.wire.lineage import Lineage
from batchkeeper.stores.etcd.wire.members import Credentials
from batchkeeper.testing.servers import EtcdServer

from ...contents import contents, put_all
from ...programs import run_python
from ...proxy import Proxy
from ...waiting import PATIENCE, soon, until
from ..foreign import etcd_client
from ..secured import secured
from .opening import calls_to_etcd

MIB = 1024 * 1024


@pytest.fixture
def url(fresh_url: Callable[[str], str], etcd_server: object) -> str:
    """The URL of an empty store."""
    return fresh_url("etcd")


@pytest.fixture
def store(url: str) -> Iterator[bk.MetadataStore]:
    """An empty store."""
    with bk.open_store(url) as opened:
        yield opened


def put(store: bk.MetadataStore, values: dict[str, bytes]) -> int:
    """Put values; return a revision at which they are all there."""
    put_all(store, values)
    return store.revision()


# --- one revision


def test_all_pages_are_of_the_first_ones_revision(store: bk.MetadataStore) -> None:
    """The rest of a scan does not show changes made after its first page."""
    old = {f"/t/{number:05d}": b"old" for number in range(20_000)}
    put(store, old)
    scan = store.scan("/t")
    found = [next(scan)]
    new = dict.fromkeys(list(old)[::3], b"new") | {
        f"/t/{n:05d}x": b"" for n in range(0, 20_000, 50)
    }
    put(store, new)
    assert all(outcome.ok for outcome in store.apply([bk.Delete(p) for p in list(old)[1::3]]))
    found += scan
    assert {path: value for path, value, _ in found} == old
    assert len(found) == len(old)


def test_several_scans_see_one_revision(store: bk.MetadataStore) -> None:
    """With a revision, parts scanned at different times fit together."""
    old = {f"/t/{number:05d}": b"old" for number in range(3_000)}
    revision = put(store, old)
    ranges = store.split("/t", 4)
    found: dict[str, bytes] = {}
    for number, part in enumerate(ranges):
        put(store, dict.fromkeys(list(old)[number::5], b"%d" % number))
        store.delete(f"/t/{2_990 + number:05d}").result(PATIENCE)
        found |= contents(store, "/t", start=part.start, end=part.end, revision=revision)
    assert found == old


def test_a_compacted_revision_is_refused(own_etcd: Callable[..., EtcdServer]) -> None:
    """The error names the revision, the oldest one there is, and what to do."""
    server = own_etcd()
    with bk.open_store(server.url) as store, etcd_client(server.url) as (client, _):
        first = put(store, {"/a": b"1"})
        for value in range(50):
            oldest = store.put("/a", b"%d" % value).result(PATIENCE).revision
        put(store, {"/a": b"2"})
        client.compact(oldest)
        with pytest.raises(bk.RevisionCompactedError) as caught:
            list(store.scan("/", revision=first))
        assert caught.value.oldest == oldest
        assert f"no longer keeps revision {first}:" in str(caught.value)
        assert f"the oldest readable revision is {oldest}." in str(caught.value)
        assert contents(store, "/", revision=oldest) == {"/a": b"49"}


def test_a_compaction_ends_a_scan_with_an_error(own_etcd: Callable[..., EtcdServer]) -> None:
    """A scan whose revision is compacted raises: it neither ends early nor changes its revision."""
    server = own_etcd()
    with bk.open_store(server.url) as store, etcd_client(server.url) as (client, _):
        # More than a stream sends ahead.
        put(store, {f"/t/{number:05d}": bytes(2_000) for number in range(20_000)})
        scan = store.scan("/t")
        assert next(scan).path == "/t/00000"
        client.compact(store.put("/a", b"").result(PATIENCE).revision)
        with pytest.raises(bk.RevisionCompactedError, match="was compacted"):
            list(scan)


def test_a_revision_to_come_is_refused(store: bk.MetadataStore) -> None:
    """A scan of a future revision is refused, because its result would change later."""
    put(store, {"/a": b""})
    with pytest.raises(
        bk.InvalidSettingError, match="revision 9,999,999 does not exist yet; etcd's newest is"
    ):
        list(store.scan("/", revision=9_999_999))
    with pytest.raises(bk.InvalidSettingError, match="begin at 1"):
        list(store.scan("/", revision=0))


# --- answers of any size


def test_large_values_behind_small_ones(
    store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is too large, after many small values, is read in parts, without repeats."""
    calls = calls_to_etcd(monkeypatch)
    values = {f"/t/{number:05d}": b"%d" % number for number in range(4_000)}
    values |= {f"/t/large-{number:02d}": bytes([number]) * MIB for number in range(40)}
    put(store, values)
    calls.clear()
    for _ in range(2):
        seen = 0
        for path, value, _ in store.scan("/t"):
            assert value == values[path]
            seen += 1
        assert seen == len(values)
    assert calls == []  # Every page came at the first attempt, or was asked for as a smaller one.


def test_long_paths_count_as_much_as_values(
    store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come close to 4 MiB, with any contents; keys alone may be too many for one, too."""
    values = {f"/t/{number:05d}{'x' * 9_000}": b"" for number in range(5_000)}
    put(store, values)
    sizes: list[int] = []
    result = PendingPage.result

    def noting(self: PendingPage) -> Page:
        found = result(self)
        sizes.append(found.size)
        return found

    monkeypatch.setattr(PendingPage, "result", noting)
    assert contents(store, "/t") == values
    assert max(sizes) < 5 * MIB
    monkeypatch.setattr(module, "_DELETED_AT_ONCE", 5_000)  # 45 MB, and 32 MiB are taken in
    assert store.delete_recursive("/t").result(0) == 5_000


def test_paths_that_fill_requests(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If several paths exceed one request, they are counted and removed one by one."""
    server = own_etcd("--max-request-bytes", "16384")
    values = {f"/t/{'x' * 4_500}{number}": b"" for number in range(8)}
    with bk.open_store(server.url) as store:
        put(store, values)
        monkeypatch.setattr(splitting, "_FEW", 1)
        assert [len(list(store.scan("/t", *part))) for part in store.split("/t", 2)] == [4, 4]
        assert store.delete_recursive("/t").result(0) == 8
        assert contents(store, "/") == {}


# --- without values


def test_values_are_not_sent_for_their_stats(
    url: str, store: bk.MetadataStore, proxy: Callable[[str], Proxy]
) -> None:
    """A scan without values transfers only keys and numbers."""
    put(store, {f"/t/{number:03d}": bytes(40_000) for number in range(300)})
    line = proxy(parse_url(url).hosts[0])
    with bk.open_store(url.replace(parse_url(url).hosts[0], line.address)) as through:
        before = line.answered
        stats = [stat for page in through.scan_pages("/", values=False) for stat in page]
        without = line.answered - before
        found = [*through.scan("/")]
        full = line.answered - before - without
    assert stats == [result.stat for result in found]
    assert len(stats) == 300
    assert full > 300 * 40_000
    assert without < 100_000


def test_pages_of_keys_say_nothing_about_values(
    store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of the next page depends on earlier pages of its kind, with or without values."""
    asked: list[tuple[bool, int]] = []
    begin = EtcdConnection.begin

    def noting(self: EtcdConnection, request: Any, timeout: float) -> Any:
        if request.limit:  # Leases are asked for without one, where keys do not tell (3.7).
            asked.append((request.keys_only, request.limit))
        return begin(self, request, timeout)

    monkeypatch.setattr(EtcdConnection, "begin", noting)
    put(store, {f"/t/{number:02d}": bytes(MIB) for number in range(12)})
    put(store, {f"/k/{number:05d}": b"" for number in range(4_000)})
    for _ in range(2):
        assert sum(map(len, store.scan_pages("/k", values=False))) == 4_000
    keys_first, keys_last = asked[0], asked[-1]
    asked.clear()
    for _ in range(2):
        assert sum(map(len, store.scan_pages("/t"))) == 12
    values_first, values_last = asked[0], asked[-1]
    asked.clear()
    assert sum(map(len, store.scan_pages("/k", values=False))) == 4_000
    assert keys_first == (True, 1_000)
    assert asked[0] >= keys_last > (True, 2_000)
    assert values_first == (False, 16)
    assert values_last == (False, 3)  # As many as 4 MiB hold.


def test_an_answer_of_long_keys_comes_in_parts(store: bk.MetadataStore) -> None:
    """A page of keys that is too large to receive is requested again as smaller ones."""
    long = {f"/t/{number:03d}/{'x' * 200_000}": b"" for number in range(200)}
    put(store, long)
    found = [path for page in store.scan_pages("/t", values=False) for path in page.paths]
    assert found == [*long]


# --- faults


def test_a_scan_outlives_its_server(own_etcd: Callable[..., EtcdServer]) -> None:
    """A server that is killed and comes back in the middle of a scan is waited for."""
    server = own_etcd()
    with bk.open_store(server.url) as store:
        old = {f"/t/{number:05d}": b"%d" % number for number in range(20_000)}
        put(store, old)
        # A kill may take what an etcd before 3.5.5 has acknowledged in the last moments, also out
        # of the middle of it (etcd #13766, #14370). In an orderly end all of it goes to the disk.
        server.restart()
        scan = store.scan("/t")
        found = [next(scan) for _ in range(5)]
        server.kill()
        server.start()
        found += scan
        assert {path: value for path, value, _ in found} == old
        assert len(found) == len(old)


def test_a_dead_server_ends_a_scan_in_time(own_etcd: Callable[..., EtcdServer]) -> None:
    """Without a server, a scan ends with the same error as a get."""
    server = own_etcd()
    with bk.open_store(server.url) as store:
        # More than a stream sends ahead.
        put(store, {f"/t/{number:05d}": bytes(2_000) for number in range(20_000)})
        scan = store.scan("/t", timeout=2.0)  # enough for a page, on a slow machine too
        next(scan)
        server.kill()
        with pytest.raises(bk.StoreUnavailableError):
            list(scan)
        for call in (
            lambda: list(store.scan("/t", timeout=0.2)),
            lambda: store.split("/t", 2, timeout=0.2),
            lambda: store.revision(timeout=0.2),
            lambda: store.delete_recursive("/t", timeout=0.2).result(0),
        ):
            with pytest.raises(bk.StoreUnavailableError):
                call()


def test_a_delete_whose_answer_is_lost_goes_on(
    url: str, proxy: Callable[[str], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that was removed without an answer is not counted, but everything is removed."""
    line = proxy(parse_url(url).hosts[0])
    through = url.replace(parse_url(url).hosts[0], line.address)
    with bk.open_store(url) as direct, bk.open_store(through) as store:
        put(direct, {f"/t/{number:05d}": b"" for number in range(4_500)})
        call, removals = EtcdConnection.call, []

        def losing(self: EtcdConnection, method: Any, *args: Any, **more: Any) -> Any:
            if method == "txn":
                removals.append(method)
                if len(removals) == 3:
                    line.swallows = True
            return call(self, method, *args, **more)

        monkeypatch.setattr(EtcdConnection, "call", losing)
        counts: list[int] = []
        thread = Thread(target=lambda: counts.append(store.delete_recursive("/t").result(0)))
        thread.start()
        assert line.swallowed.wait(PATIENCE)
        # The swallowed answer may be a page requested ahead; the third batch must be gone.
        until(lambda: len(contents(direct, "/t")) <= 1_500)
        line.restore()
        thread.join(PATIENCE)
        assert counts == [3_500]
        assert contents(direct, "/") == {}


def test_a_delete_that_gets_no_answer_at_all_may_have_happened(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost answer, an error that says that nothing was sent is not the outcome."""
    with bk.open_store(url) as store:
        put(store, {"/t/a": b""})
        call = EtcdConnection.call
        failures: list[Exception] = [bk.StoreUnavailableError("gone"), UnansweredError("lost")]

        def failing(self: EtcdConnection, method: Any, *args: Any, **more: Any) -> Any:
            if method == "txn":
                raise failures.pop()
            return call(self, method, *args, **more)

        monkeypatch.setattr(EtcdConnection, "call", failing)
        with pytest.raises(bk.IndeterminateError) as caught:
            store.delete_recursive("/t").result()
        assert caught.value.outcome == "unknown"
        assert not failures


# --- whose keys are left alone


FOREIGN = [
    b"/.batchkeeper/write-ids",
    b"/a/.batchkeeper/write-ids",
    b"/a/deep/.batchkeeper",
    b"/a//b",
    b"/a/\xff\xfe",
    b"/a/line\nfeed",
    b"/a/x\n/a/y",
    b"/a/",
    b"/",
    b"/zookeeper/x",
]


@pytest.mark.parametrize(
    "foreign", [*([key] for key in FOREIGN), FOREIGN], ids=[*map(repr, FOREIGN), "all"]
)
def test_keys_that_are_no_paths_are_not_seen(
    store: bk.MetadataStore, url: str, foreign: list[bytes]
) -> None:
    """Internal keys, at any depth, and keys that are not valid paths are left out and kept."""
    put(store, {"/a": b"1", "/a/b": b"2", "/é": b"3", "/z": b"4"})
    with etcd_client(url) as (client, prefix):
        for key in foreign:
            client.put(prefix.encode() + key, b"theirs")
        assert contents(store, "/") == {"/a": b"1", "/a/b": b"2", "/z": b"4", "/é": b"3"}
        stats = [stat for page in store.scan_pages("/", values=False) for stat in page]
        assert stats == [found.stat for found in store.scan("/")]
        for part in store.split("/", 20)[1:]:
            assert next(store.scan("/", *part)).path == part.start
        assert store.delete_recursive("/").result(0) == 4
        assert contents(store, "/") == {}
        left = {meta.key for _, meta in client.get_prefix(prefix + "/", keys_only=True)}
        assert {prefix.encode() + key for key in foreign} <= left


@pytest.mark.server
def test_other_prefixes_are_not_touched(fresh_url: Callable[[str], str]) -> None:
    """A whole store consists of the keys below its prefix, not of all that begin with it."""
    url = fresh_url("etcd")
    with bk.open_store(url) as store, bk.open_store(url + "-2") as neighbour:
        put(store, {"/a": b"ours"})
        put(neighbour, {"/a": b"theirs"})
        assert contents(store, "/") == {"/a": b"ours"}
        assert store.delete_recursive("/").result(0) == 1
        assert contents(neighbour, "/") == {"/a": b"theirs"}


def test_what_is_not_permitted_is_an_error_of_the_login(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    """Each of the calls raises the same error as a get, and no internal one."""
    server = own_etcd()
    with bk.open_store(server.url + "/theirs") as store:
        revision = put(store, {"/a": b""})
    secured(server)
    options: Any = {"username": "limited", "password": "limited's"}
    with bk.open_store(server.url + "/theirs", **options) as store:
        for call in (
            store.get("/a").result,
            lambda: list(store.scan("/")),
            lambda: list(store.scan("/", revision=revision)),
            lambda: list(store.changes("/", 1, revision)),
            lambda: store.split("/", 2),
            store.revision,
            store.delete_recursive("/").result,
        ):
            with pytest.raises(bk.AuthenticationError):
                call()


def test_what_is_newer_than_the_page_is_spared(
    store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that appears between keys under removal stays, and they are removed."""
    put(store, {f"/t/{number}": b"" for number in range(10)})
    call = EtcdConnection.call

    def late(self: EtcdConnection, method: Any, *args: Any, **more: Any) -> Any:
        if method == "txn":  # The keys are listed.
            monkeypatch.undo()
            with ThreadPoolExecutor(1) as pool:  # As another client, which is no part of this call.
                pool.submit(put, store, {"/t/4-new": b"new", "/t/7": b"changed"}).result()
        return call(self, method, *args, **more)

    monkeypatch.setattr(EtcdConnection, "call", late)
    assert store.delete_recursive("/t").result(0) == 10
    assert contents(store, "/") == {"/t/4-new": b"new"}


def test_a_key_with_a_lease_is_ephemeral(store: bk.MetadataStore, url: str) -> None:
    """Scans and gets say which values are ephemeral."""
    with etcd_client(url) as (client, prefix):
        client.put(f"{prefix}/leased", b"", lease=client.lease(60))
        client.put(f"{prefix}/lasting", b"")
    assert {found.path: found.stat.ephemeral for found in store.scan("/")} == {
        "/lasting": False,
        "/leased": True,
    }
    (page,) = store.scan_pages("/", values=False)
    assert [*zip(page.paths, page.ephemeral, strict=True)] == [
        ("/lasting", False),
        ("/leased", True),
    ]
    for path, value, stat in store.scan("/"):
        assert store.get(path).result(PATIENCE) == (value, stat)


# --- forks

LOCKED_AT_THE_FORK = """
import gc, os, sys, threading, time, warnings
import grpc
import batchkeeper as bk

warnings.simplefilter("ignore")
with bk.open_store(sys.argv[1]) as store:
    revision = store.revision()
    paths = [f"/many/{number:05d}" for number in range(15_000)]
    assert all(outcome.ok for outcome in store.apply([bk.Put(path, b"") for path in paths]))
    scan, watch = store.scan("/"), store.changes("/", revision, store.revision())
    found, changed = [next(scan).path], [next(watch).path]
    live, session = store.watch("/live"), store._engine._backend.session
    session.listen(print)
    while session.valid_until() < time.monotonic():
        time.sleep(0.01)
    locks = [
        call._state.condition for call in gc.get_objects() if isinstance(call, grpc.Call)
    ]
    assert len(locks) >= 3
    locked, forked = threading.Event(), threading.Event()

    def hold():
        for lock in locks:
            lock.acquire()
        locked.set()
        forked.wait()
        for lock in locks:
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait()
    child = os.fork()
    if child == 0:
        try:
            list(scan)
        except bk.StoreClosedError as error:
            print(error)
        watch.close()
        live.close()
        session.close(0.0)
        del scan, watch, live, session
        gc.collect()
        sys.exit(0)
    forked.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found + [path for path, _, _ in scan] == paths
    assert sorted(changed + [change.path for change in watch]) == paths
    store.put("/live", b"")
    assert next(live).kind == "created"
    assert session.state == "connected"
"""


def test_a_child_ends_whatever_was_locked_at_the_fork(url: str) -> None:
    """Nothing is continued in a forked child, where a lock of gRPC may be held forever."""
    ended = run_python("-c", LOCKED_AT_THE_FORK, url, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert "open it here" in ended.stdout


# --- a full server


@pytest.mark.server
def test_a_full_etcd_can_be_emptied(tmp_path: Path) -> None:
    """Beyond its quota etcd refuses transactions; scans, splits and deletes go on without."""
    directory = tmp_path / "etcd"
    values = {f"/t/{number:04d}": b"" for number in range(3_000)}
    with EtcdServer(directory) as server, bk.open_store(server.url) as store:
        put(store, values)
    full = EtcdServer(directory, flags=("--quota-backend-bytes", "1"))
    with full as server, bk.open_store(server.url) as store:
        with pytest.raises(bk.MetadataStoreError, match="space exceeded"):
            store.put("/a", b"").result(PATIENCE)
        assert contents(store, "/") == values
        assert len(store.split("/t", 4)) == 4
        assert store.delete_recursive("/t").result(0) == len(values)
        assert contents(store, "/") == {}


def test_few_operations_in_a_transaction_are_enough(own_etcd: Callable[..., EtcdServer]) -> None:
    """A low --max-txn-ops makes a split slower, but not worse."""
    server = own_etcd("--max-txn-ops", "8")
    with bk.open_store(server.url) as store:
        put(store, {f"/t/{number:05d}": b"" for number in range(2_000)})
        sizes = [len(list(store.scan("/t", *part))) for part in store.split("/t", 4)]
        assert all(400 <= size <= 600 for size in sizes)
        assert sum(sizes) == 2_000
        assert store.delete_recursive("/t").result(0) == 2_000


def test_a_late_copy_of_a_removal_removes_nothing_newer(
    store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that a member has held back arrives after the removal, and after a later put."""
    put(store, {"/a": b"old"})
    call, sent = EtcdConnection.call, []

    def noting(self: EtcdConnection, *args: Any, **more: Any) -> Any:
        if args[0] in {"txn", "delete_range"}:
            sent.append((self, *args[:2]))
        return call(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(EtcdConnection, "call", noting)
        assert store.delete_recursive("/a").result(0) == 1
    store.put("/a", b"new", bk.ABSENT).result()
    for connection, method, request in sent:
        call(connection, method, request, soon(), write=True)
    assert contents(store) == {"/a": b"new"}


def test_a_removal_that_was_never_sent_is_not_unknown(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    """A server that went after its keys were listed: nothing was removed, and the error says so."""
    server = own_etcd()
    with closing(EtcdConnection((server.address,), Credentials())) as connection:
        connection.open(soon())
        scans = Scans(connection, "", lambda _lease: False, Lineage(connection))
        server.kill()
        for _ in range(2):  # The first call may find the connection as it was.
            with pytest.raises(bk.MetadataStoreError) as caught:
                next(scans._remove([b"/a", b"/b"], 1, 0.5))
        assert type(caught.value) is bk.StoreUnavailableError


@pytest.mark.parametrize("size", [65, 1_000, 7_919, 10_000, 65_536])
def test_the_sample_of_a_page_is_of_all_its_parts(size: int) -> None:
    """Whatever the number of keys, the first, the last and some of each eighth are in it."""
    sample = module._sample([b"%d" % number for number in range(size)])
    places = sorted(map(int, sample))
    assert (places[0], places[-1]) == (0, size - 1)
    assert all(sum(place * 8 // size == part for place in places) >= 6 for part in range(8))
