"""Walks over a real ZooKeeper's tree: scans, splits, recursive deletes, and the revision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.security import make_acl

import batchkeeper as bk
from batchkeeper.ops import (
    AuthenticationError,
    IndeterminateError,
    Put,
    StoreClosedError,
    StoreUnavailableError,
)
from batchkeeper.ops.results import Range, ScanResult
from batchkeeper.stores import parse_url
from batchkeeper.stores.zookeeper import scans
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.reads import splitting
from batchkeeper.stores.zookeeper.reads.readahead import Read, ReadAhead
from batchkeeper.stores.zookeeper.reads.walk import TreeWalk
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection
from batchkeeper.stores.zookeeper.wire.errors import CONNECTION_LOSS
from batchkeeper.stores.zookeeper.wire.jute import (
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    MULTI,
    MULTI_READ,
)
from batchkeeper.stores.zookeeper.writes.writer import Writer
from batchkeeper.testing.servers import ZooKeeperServer

from ...contents import put_all
from ...proxy import Proxy
from ...waiting import PATIENCE, soon
from .opening import Requests, connected, end_session

_names = st.sampled_from(["a", "a-b", "a!", "b", "0", "~", "é", "\uff21", "a b"])
_paths = st.lists(_names, min_size=1, max_size=5).map(lambda names: "/" + "/".join(names))
# Large ones beside small and empty ones, for they are asked for in different ways.
_values = st.binary(max_size=3) | st.integers(1_000, 4_000).map(bytes)
_trees = st.dictionaries(_paths, _values, max_size=40)


@pytest.fixture
def backend_url(url: str) -> str:
    return url


@pytest.fixture
def own_server(own_zookeeper: Callable[..., ZooKeeperServer]) -> ZooKeeperServer:
    return own_zookeeper()


@pytest.fixture
def own_backend(own_server: ZooKeeperServer) -> Iterator[ZooKeeperBackend]:
    with closing(connected(own_server.url)) as backend:
        yield backend


def _reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """Return a list that grows by each read of a walk."""
    fill = ReadAhead.fill
    asked: list[Read] = []

    def note_and_fill(ahead: ReadAhead, next_read: Callable[[], Read | None]) -> None:
        def note() -> Read | None:
            if (read := next_read()) is not None:
                asked.append(read)
            return read

        fill(ahead, note)

    monkeypatch.setattr(ReadAhead, "fill", note_and_fill)
    return asked


def _windows(monkeypatch: pytest.MonkeyPatch, asked: list[Read]) -> list[int]:
    """Return a list that grows, with each page, by how many nodes are asked for and not given."""
    pages = TreeWalk.pages
    held = []

    def note_pages(walk: TreeWalk) -> Any:
        before = _nodes(asked)
        given = 0
        for page in pages(walk):
            given += len(page)
            held.append(_nodes(asked) - before - given)
            yield page

    monkeypatch.setattr(TreeWalk, "pages", note_pages)
    return held


def _nodes(asked: list[Read]) -> int:
    return sum(read.opcode != GET_CHILDREN for read in asked)


def _around_writes(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Callable[..., Any], Any, float], Any]
) -> None:
    """Let ``act`` answer each call of the writer; it gets the way to make that call."""
    write = Writer.write
    monkeypatch.setattr(Writer, "write", lambda writer, *call: act(partial(write, writer), *call))


def _fill(backend: ZooKeeperBackend, values: dict[str, bytes]) -> None:
    puts = [Put(path, value) for path, value in values.items()]
    for start in range(0, len(puts), 1000):
        answers = backend.write(puts[start : start + 1000], soon())
        assert not [answer for answer in answers if isinstance(answer, Exception)]


def _scanned(
    backend: ZooKeeperBackend, prefix: str = "/", within: Range | None = None
) -> list[ScanResult]:
    pages = backend.scans.scan(prefix, within or Range(), None, PATIENCE)
    return [result for page in pages for result in page]


def _found(
    backend: ZooKeeperBackend, prefix: str = "/", within: Range | None = None
) -> dict[str, bytes]:
    return {result.path: result.value for result in _scanned(backend, prefix, within)}


def _under(path: str, prefix: str) -> bool:
    return prefix == "/" or path == prefix or path.startswith(prefix + "/")


def _model(values: dict[str, bytes], prefix: str, within: Range) -> list[tuple[str, bytes]]:
    """The expected result of a scan, in byte order."""
    there = [(p, v) for p, v in values.items() if _under(p, prefix) and p in within]
    return sorted(there, key=lambda pair: pair[0].encode())


def _before_requests(
    connection: ZooKeeperConnection, act: Callable[[Requests], object]
) -> Callable[[], None]:
    """Pass all requests of walks to ``act`` before they are sent; return a function to end that."""
    begin = connection.begin

    def act_and_begin(requests: Requests, *args: Any, **options: Any) -> Any:
        act(requests)
        return begin(requests, *args, **options)

    connection.begin = act_and_begin  # type: ignore[method-assign]
    return lambda: setattr(connection, "begin", begin)


def _counts(values: dict[str, bytes], prefix: str, ranges: Sequence[Range]) -> list[int]:
    return [sum(_under(path, prefix) and path in each for path in values) for each in ranges]


@given(
    values=_trees,
    prefix=st.one_of(st.just("/"), _paths),
    start=st.none() | _paths,
    end=st.none() | _paths,
    n=st.integers(1, 5),
)
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_scan_gives_what_a_sorted_dict_would(
    backend: ZooKeeperBackend,
    values: dict[str, bytes],
    prefix: str,
    start: str | None,
    end: str | None,
    n: int,
) -> None:
    """Any part of any tree comes in the byte order of paths, whole or in the parts of a split."""
    backend.scans.delete_recursive("/", PATIENCE)
    _fill(backend, values)
    within = Range(start, end)

    results = _scanned(backend, prefix, within)
    found = [(path, value) for path, value, _ in results]
    stats = [
        stat for page in backend.scans.scan_stats(prefix, within, None, PATIENCE) for stat in page
    ]
    ranges = backend.scans.split(prefix, n, PATIENCE)
    parts = [(path, value) for each in ranges for path, value, _ in _scanned(backend, prefix, each)]

    assert found == _model(values, prefix, within)
    assert stats == [result.stat for result in results]
    assert len(ranges) <= n
    assert parts == _model(values, prefix, Range())
    assert backend.scans.delete_recursive(prefix, PATIENCE) == len(parts)
    rest = {path: value for path, value in values.items() if not _under(path, prefix)}
    assert _found(backend) == rest


def test_a_scan_of_a_flat_directory(backend: ZooKeeperBackend) -> None:
    """Twenty thousand children of one path come complete, in order, and in pages."""
    values = {f"/flat/{i * 7919 % 20_000:05}": b"%d" % i for i in range(20_000)}
    _fill(backend, values)

    pages = list(backend.scans.scan("/flat", Range(), None, PATIENCE))

    found = [(path, value) for page in pages for path, value, _ in page]
    assert found == sorted(values.items())
    assert max(map(len, pages)) <= 4096


def test_a_scan_of_a_bushy_tree_holds_a_bounded_part_of_it(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands of directories, only a few are read ahead, and none twice."""
    values = {f"/{i:04}/{j}/{name}": b"v" for i in range(1500) for j in range(3) for name in "xy"}
    _fill(backend, values)
    made = _reads(monkeypatch)
    held = _windows(monkeypatch, made)

    found = _scanned(backend)

    assert [result.path for result in found] == sorted(values)
    assert len(made) == len(set(made)) == 2 + 2 * 1500 + 2 * 4500 + 9000
    # So many on each of the two levels that have as many.
    assert 1000 < max(held) <= 2 * 2048 + 100


def test_a_scan_does_not_run_away_from_what_comes_next(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a walk follows a deep path, it reads only a bounded number of later nodes."""
    values = {"/a" + "/x" * i: b"v" for i in range(100)} | {f"/b/{i:05}": b"v" for i in range(9000)}
    _fill(backend, values)
    held = _windows(monkeypatch, _reads(monkeypatch))

    assert list(_found(backend)) == sorted(values)
    assert 1000 < max(held) <= 2048 + 100


def test_a_scan_leaves_out_what_is_not_the_callers(
    backend: ZooKeeperBackend, other: KazooClient
) -> None:
    """Parents without a value, also the chroot, and internal nodes are walked but not yielded."""
    _fill(backend, {"/a/b": b"1", "/empty": b"", "/zookeeper-not": b"2"})
    other.set("/", b"of the chroot")
    other.create("/zookeeper", b"reserved")
    other.create("/a/.batchkeeper", b"of a store below")
    other.create("/a/.batchkeeper/slots", b"too")

    assert _found(backend) == {"/a/b": b"1", "/empty": b"", "/zookeeper-not": b"2"}
    assert _found(backend, "/a") == {"/a/b": b"1"}
    assert _found(backend, "/a/b") == {"/a/b": b"1"}
    assert _found(backend, "/nowhere") == {}


def test_a_scan_gives_stats(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """Versions, revisions and times are those of the nodes, and ephemeral ones are marked."""
    _fill(backend, {"/a": b"0"})
    _fill(backend, {"/a": b"1"})
    other.create("/e", b"session", ephemeral=True)

    lasting, passing = _scanned(backend)

    stat = other.exists("/a")
    assert lasting.stat == ("/a", 1, stat.mzxid, stat.ctime, stat.mtime, False, False)
    assert passing.stat.ephemeral
    assert not passing.stat.owned
    (page,) = backend.scans.scan_stats("/", Range(), None, PATIENCE)
    assert [*page] == [lasting.stat, passing.stat]


def test_large_values_are_not_fetched_for_their_stats(
    url: str, other: KazooClient, proxy: Callable[[str], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan without values yields only stats, and the sizes of values do not delay it."""
    values = {f"/t/{i:03}": bytes(100_000) for i in range(200)} | {"/void": b""}
    line = proxy(parse_url(url).hosts[0])
    with bk.open_store(url.replace(parse_url(url).hosts[0], line.address)) as store:
        put_all(store, values)
        other.create("/.batchkeeper/x", bytes(100_000), makepath=True)
        held = _windows(monkeypatch, _reads(monkeypatch))

        before = line.answered
        stats = [stat for page in store.scan_pages("/", values=False) for stat in page]
        without = line.answered - before
        widest = max(held)
        found = [*store.scan("/")]
        full = line.answered - before - without

    assert stats == [result.stat for result in found]
    # Neither "/t" nor "/void" has any bytes, and only one of them has a value.
    assert [stat.path for stat in stats] == [*values]
    assert full > sum(map(len, values.values()))
    assert without < 100_000
    # With values, no more nodes than have 8 MiB would be held ahead of what comes next.
    assert widest * 100_000 > 10 << 20


def test_a_scan_reads_no_subtree_outside_its_range(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """Nodes that cannot lie in the range are neither read nor listed."""
    _fill(backend, {f"/{top}/{i}": b"v" for top in "abc" for i in range(100)})
    sent: list[bytes] = []
    _before_requests(connection, lambda requests: sent.extend(body for _, body in requests))

    found = _found(backend, "/", Range("/b/50", "/b/53"))

    assert list(found) == ["/b/50", "/b/51", "/b/52"]
    assert b"".join(sent).count(b"/a") == b"".join(sent).count(b"/c") == 0
    assert b"".join(sent).count(b"/b/") == 3

    for prefix, within in [("/a", Range("/b")), ("/b", Range(None, "/b-"))]:
        sent.clear()
        assert _found(backend, prefix, within) == {}
        # A sync, and the one node itself.
        assert len(sent) == 2


def test_a_node_that_vanishes_under_a_scan_is_left_out(
    backend: ZooKeeperBackend, other: KazooClient, connection: ZooKeeperConnection
) -> None:
    """A path that is removed after it was listed is not given, and no error."""
    _fill(backend, {"/a/1": b"1", "/a/2": b"2", "/a/3": b"3", "/b/1": b"4"})

    def remove(requests: Requests) -> None:
        if any(b"/a/2" in body for _, body in requests) and other.exists("/a/2"):
            other.delete("/a/2")

    _before_requests(connection, remove)

    assert _found(backend) == {"/a/1": b"1", "/a/3": b"3", "/b/1": b"4"}


def test_a_directory_that_vanishes_before_it_is_listed(
    backend: ZooKeeperBackend, other: KazooClient, connection: ZooKeeperConnection
) -> None:
    """A parent that is removed between its reading and its listing is given as it was read."""
    _fill(backend, {"/a": b"1", "/a/b": b"2"})

    def remove(requests: Requests) -> None:
        if any(opcode == GET_CHILDREN and body.endswith(b"/a\0") for opcode, body in requests):
            other.delete("/a", recursive=True)

    _before_requests(connection, remove)

    assert _found(backend) == {"/a": b"1"}


def test_a_scan_catches_up_before_it_reads(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """The walk begins after the server has caught up with all earlier writes."""
    _fill(backend, {"/a": b"1"})
    opcodes: list[int] = []
    _before_requests(connection, lambda requests: opcodes.extend(opcode for opcode, _ in requests))

    pages = backend.scans.scan("/", Range(), None, PATIENCE)
    assert opcodes == []
    list(pages)

    assert opcodes[:2] == [MULTI, GET_DATA]


def test_a_scan_that_is_closed_early_ends(backend: ZooKeeperBackend) -> None:
    """Requests that a scan has sent ahead do not delay later calls."""
    _fill(backend, {f"/{i:04}": b"v" for i in range(3000)})
    pages = backend.scans.scan("/", Range(), None, PATIENCE)
    assert next(pages)[0].path == "/0000"
    pages.close()

    assert len(_scanned(backend)) == 3000


def test_large_values_come_few_at_a_time(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """A walk that meets large values after small ones asks for fewer at a time from then on."""
    values = {f"/{i:04}": b"s" for i in range(1000)}
    values |= {f"/big-{i:03}": b"L" * 40_000 for i in range(900)}
    _fill(backend, values)
    counts: list[int] = []
    end = _before_requests(
        connection, lambda requests: counts.extend(body.count(b"/big") for _, body in requests)
    )

    found = _found(backend)
    end()

    assert found == values
    # The requests running when the first large value was seen; then about a megabyte each.
    asked = [count for count in counts if count]
    few = [count for count in asked if count * 40_000 <= 1_100_000]
    assert sum(asked) - sum(few) <= 512
    assert len(few) * 26 >= 900 - 512


def test_a_scan_begins_with_a_few_values(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """The sizes of the first values are unknown, so only a few are read at a time."""
    _fill(backend, {f"/big-{i:03}": b"L" * 100_000 for i in range(100)})
    counts: list[int] = []
    end = _before_requests(
        connection, lambda requests: counts.extend(body.count(b"/big") for _, body in requests)
    )

    assert len(_found(backend)) == 100
    end()
    assert max(counts) == 16
    assert sum(count > 11 for count in counts) == 1


def test_answers_that_do_not_arrive_together_are_asked_for_singly(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If multi-reads are lost repeatedly, a walk continues with single reads."""
    values = {f"/{i % 3}/{i}": b"%d" % i for i in range(300)}
    _fill(backend, values)
    begin = connection.begin
    lost = []

    def lose_multi_reads(requests: Requests, *args: Any, **options: Any) -> Any:
        finish = begin(requests, *args, **options)

        def finish_badly(deadline: float) -> Any:
            replies = finish(deadline)
            lost.extend(request for request in requests if request[0] == MULTI_READ)
            return [
                CONNECTION_LOSS if opcode == MULTI_READ else reply
                for (opcode, _), reply in zip(requests, replies, strict=True)
            ]

        return finish_badly

    monkeypatch.setattr(connection, "begin", lose_multi_reads)

    assert list(_found(backend).items()) == sorted(values.items())
    assert lost


def test_a_server_that_takes_short_requests_only(
    own_zookeeper: Callable[..., ZooKeeperServer],
) -> None:
    """A walk detects the limit of its multi-reads by itself."""
    server = own_zookeeper("-Djute.maxbuffer=4096")
    with closing(connected(server.url)) as backend:
        values = {f"/{'directory' * 5}/{'name' * 10}-{i:04}": b"%d" % i for i in range(600)}
        for path, value in values.items():
            _fill(backend, {path: value})

        assert list(_found(backend).items()) == sorted(values.items())
        assert backend.limits.request_bytes <= 4096


def test_what_may_not_be_read_is_named(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """A subtree without permission is left out, but not in silence; as a prefix, it is an error."""
    _fill(backend, {"/a/b": b"1", "/d/e": b"2"})
    other.create("/closed", b"")
    other.create("/closed/a", b"")
    other.set_acls("/closed", [make_acl("ip", "192.0.2.1", all=True)])

    def left_out(*within: str | None) -> list[bytes]:
        found = []
        for read in (backend.scans.scan, backend.scans.scan_stats):
            pages: Any = read("/", Range(*within), None, PATIENCE)
            found.append([key for page in pages for key in getattr(page, "foreign", ())])
        assert found[0] == found[1]
        return found[0]

    assert _found(backend) == {"/a/b": b"1", "/d/e": b"2"}
    assert left_out() == left_out("/closed/x") == [b"/closed"]
    # Ranges that together cover everything name it once.
    cuts = backend.scans.split("/", 2, PATIENCE)
    assert [key for within in cuts for key in left_out(*within)] == [b"/closed"]
    with pytest.raises(AuthenticationError):
        _scanned(backend, "/closed")
    with pytest.raises(AuthenticationError):
        backend.scans.split("/closed", 2, PATIENCE)


def test_a_server_that_restarts_under_a_scan(
    own_server: ZooKeeperServer, own_backend: ZooKeeperBackend
) -> None:
    """A walk waits for the server after a kill, and nothing is missing or repeated."""
    values = {f"/{i % 50:02}/{i:05}": b"%d" % i for i in range(20_000)}
    _fill(own_backend, values)
    found: list[tuple[str, bytes]] = []

    for number, page in enumerate(own_backend.scans.scan("/", Range(), None, PATIENCE)):
        found += [(path, value) for path, value, _ in page]
        if number == 5:
            own_server.kill()
            own_server.start()

    assert found == sorted(values.items())


def test_a_session_that_ends_under_a_scan(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection, zookeeper_server: ZooKeeperServer
) -> None:
    """A walk that continues in another session catches up in it, and repeats requests under way."""
    values = {f"/{i % 50:02}/{i:05}": b"%d" % i for i in range(10_000)}
    _fill(backend, values)
    opcodes: list[int] = []
    _before_requests(connection, lambda requests: opcodes.extend(opcode for opcode, _ in requests))
    pages = backend.scans.scan("/", Range(), None, PATIENCE)
    found = list(next(pages))
    lost = threading.Event()
    connection.attach(lambda moment: None if moment.state == "connected" else lost.set())
    end_session(backend, zookeeper_server.url)
    lost.wait()

    found += [result for page in pages for result in page]

    assert [(path, value) for path, value, _ in found] == sorted(values.items())
    assert opcodes.count(MULTI) >= 2


def test_a_server_that_stays_away_ends_a_scan(
    own_server: ZooKeeperServer, own_backend: ZooKeeperBackend
) -> None:
    """After the timeout the walk ends with an error; after a close at once."""
    _fill(own_backend, {f"/{i:05}": b"v" for i in range(3000)})
    pages = own_backend.scans.scan("/", Range(), None, 1.0)
    others = own_backend.scans.scan("/", Range(), None, PATIENCE)
    next(pages)
    next(others)
    own_server.kill()

    with pytest.raises(StoreUnavailableError):
        list(pages)
    own_backend.close()
    with pytest.raises(StoreClosedError):
        list(others)


def _flat() -> dict[str, bytes]:
    return {f"/flat/{i:05}": b"v" for i in range(20_000)}


def _deep() -> dict[str, bytes]:
    return {"/deep" + "/x" * i: b"v" for i in range(200)}


def _bushy() -> dict[str, bytes]:
    return {f"/bushy/{i:03}/{j}/{k}": b"v" for i in range(100) for j in range(10) for k in range(8)}


def test_a_split_is_balanced(backend: ZooKeeperBackend) -> None:
    """Flat, deep and bushy trees, and all of them together, fall into about equal parts."""
    trees = {"/flat": _flat(), "/deep": _deep(), "/bushy": _bushy()}
    values = {path: value for tree in trees.values() for path, value in tree.items()}
    _fill(backend, values)

    for n, (prefix, tree) in product((2, 7), [*trees.items(), ("/", values)]):
        ranges = backend.scans.split(prefix, n, PATIENCE)
        counts = _counts(tree, prefix, ranges)
        assert len(ranges) == n
        assert sum(counts) == len(tree)
        assert max(counts) <= 1.1 * len(tree) / n
        assert min(counts) >= 0.9 * len(tree) / n


@pytest.mark.parametrize(
    "n", [pytest.param(2, marks=pytest.mark.full), 5, pytest.param(16, marks=pytest.mark.full)]
)
def test_a_split_looks_at_a_sample_of_a_large_tree(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """A split's cost is bounded, and it estimates the nodes that it did not read."""
    flat, bushy = _flat(), _bushy()
    values = {**flat, **bushy}
    _fill(backend, values)
    bounds = splitting.Bounds(level_nodes=1000, nodes=3000, names=500)
    monkeypatch.setattr(scans, "split", partial(splitting.split, bounds=bounds))
    fetch = ReadAhead.fetch
    asked: list[Read] = []

    def note_and_fetch(ahead: ReadAhead, reads: Iterable[Read]) -> Any:
        reads = list(reads)
        asked.extend(reads)
        return fetch(ahead, reads)

    monkeypatch.setattr(ReadAhead, "fetch", note_and_fetch)

    for prefix, tree in {"/": values, "/bushy": bushy}.items():
        asked.clear()
        ranges = backend.scans.split(prefix, n, PATIENCE)
        counts = _counts(tree, prefix, ranges)
        assert len(ranges) == n
        assert max(counts) <= 1.4 * len(tree) / n
        assert sum(read.opcode == EXISTS for read in asked) <= 3000
        # Large directories and others, of two levels, and those at the top.
        names = sum(read.children for read in asked if read.path != "/flat")
        assert names <= 2 * 2 * 500 + 102


def test_a_split_of_little(backend: ZooKeeperBackend) -> None:
    """There are no more parts than values, and at least one; the bounds join."""
    assert backend.scans.split("/", 4, PATIENCE) == [Range()]
    assert backend.scans.split("/none", 4, PATIENCE) == [Range()]
    _fill(backend, {"/a": b"1", "/b/c": b"2", "/d": b"3"})

    ranges = backend.scans.split("/", 9, PATIENCE)

    assert _counts({"/a": b"", "/b/c": b"", "/d": b""}, "/", ranges) == [1, 1, 1]
    assert ranges[0].start is None
    assert ranges[-1].end is None
    assert all(one.end == next_one.start for one, next_one in pairwise(ranges))
    assert backend.scans.split("/", 1, PATIENCE) == [Range()]


def test_a_recursive_delete(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """Values and the parents without one go, and only values are counted."""
    _fill(backend, {"/a": b"1", "/a/b/c": b"2", "/a/b/d": b"", "/a-b": b"3", "/z/y": b"4"})

    assert backend.scans.delete_recursive("/a", PATIENCE) == 3
    assert other.exists("/a") is None
    assert _found(backend) == {"/a-b": b"3", "/z/y": b"4"}
    assert backend.scans.delete_recursive("/a", PATIENCE) == 0
    assert backend.scans.delete_recursive("/", PATIENCE) == 2
    assert _found(backend) == {}
    assert [name for name in other.get_children("/") if name != ".batchkeeper"] == []
    _fill(backend, {"/a": b"again"})


def test_a_recursive_delete_of_many(
    backend: ZooKeeperBackend,
    connection: ZooKeeperConnection,
    other: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More nodes than fit in one call and one multi are removed, the deepest first."""
    values = {f"/t/{i % 30}/{i}": b"v" for i in range(9000)}
    _fill(backend, values)
    conflicts = backend.tally.counts()["conflict"]
    begin = connection.begin
    first: list[str] = []
    multis: list[int] = []

    def note_and_write(write: Callable[..., Any], requests: Sequence[Any], deadline: float) -> Any:
        first.extend(request.path for request in requests if not multis)
        return write(requests, deadline)

    def note_and_begin(requests: Requests, *args: Any, **options: Any) -> Any:
        found = [body.count(b"/t/") for opcode, body in requests if opcode == MULTI]
        multis.extend(filter(None, found))  # An empty one catches up with the leader.
        return begin(requests, *args, **options)

    _around_writes(monkeypatch, note_and_write)
    connection.begin = note_and_begin  # type: ignore[method-assign]

    assert backend.scans.delete_recursive("/t", PATIENCE) == 9000
    assert max(multis) == 1000
    # Parents go as soon as nothing is left below them.
    assert "/t/0" in first
    assert other.exists("/t") is None
    assert backend.tally.counts()["conflict"] == conflicts


def test_a_recursive_delete_of_large_and_empty_values(
    backend: ZooKeeperBackend, connection: ZooKeeperConnection
) -> None:
    """Large values are not read, but empty values are still distinguished from missing ones."""
    values = {f"/v/{i:03}/x": b"L" * 10_000 if i % 3 else b"" for i in range(300)}
    _fill(backend, values)
    opcodes: list[int] = []
    end = _before_requests(
        connection, lambda requests: opcodes.extend(opcode for opcode, _ in requests)
    )

    removed = backend.scans.delete_recursive("/", PATIENCE)
    end()

    assert removed == 300
    assert EXISTS in opcodes


def test_what_is_hidden_survives_a_recursive_delete(
    backend: ZooKeeperBackend, other: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store's own nodes stay, and so do the parents that they need."""
    _fill(backend, {"/a/b": b"1", "/a/c/d": b"2", "/e": b"3"})
    other.create("/a/c/.batchkeeper", b"")
    other.create("/a/c/.batchkeeper/slots", b"")
    asked: list[str] = []

    def note_and_write(write: Callable[..., Any], requests: Sequence[Any], deadline: float) -> Any:
        asked.extend(request.path for request in requests)
        return write(requests, deadline)

    _around_writes(monkeypatch, note_and_write)

    assert backend.scans.delete_recursive("/", PATIENCE) == 3
    assert other.get_children("/a") == ["c"]
    assert other.get_children("/a/c/.batchkeeper") == ["slots"]
    assert sorted(asked) == ["/a/b", "/a/c/d", "/e"]


def test_a_recursive_delete_meets_other_clients(
    backend: ZooKeeperBackend, other: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes removed meanwhile are no error, and nodes created below are removed as well."""
    _fill(backend, {f"/t/{i}": b"v" for i in range(20)})
    calls = []

    def interfere(write: Callable[..., Any], *args: Any) -> Any:
        if not calls:
            other.delete("/t/3")
            other.create("/t/4/new", b"n")
        calls.append(args)
        return write(*args)

    _around_writes(monkeypatch, interfere)

    assert backend.scans.delete_recursive("/t", PATIENCE) == 20
    assert other.exists("/t") is None
    assert len(calls) == 2


def test_a_recursive_delete_ends_among_restless_clients(
    backend: ZooKeeperBackend, other: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree is not walked forever if another client keeps adding to it."""
    _fill(backend, {"/t/0": b"v"})
    calls = []

    def add_and_write(write: Callable[..., Any], *args: Any) -> Any:
        calls.append(args)
        other.create(f"/t/new-{len(calls)}", b"n")
        return write(*args)

    _around_writes(monkeypatch, add_and_write)

    assert backend.scans.delete_recursive("/t", PATIENCE) == 5
    assert len(calls) == 5
    assert other.get_children("/t") == ["new-5"]


def test_deletes_without_an_answer_are_found_out_about(
    backend: ZooKeeperBackend, other: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next walk shows the outcome of deletes without an answer, so that each counts once."""
    _fill(backend, {f"/t/{i}": b"v" for i in range(10)})
    calls = []

    def lose_answers(write: Callable[..., Any], requests: Any, deadline: float) -> Any:
        calls.append(len(requests))
        if len(calls) == 1:
            applied = write(requests[:4], deadline)
            assert applied == [None] * 4
            return [IndeterminateError("lost") for _ in requests]
        if len(calls) == 2:
            raise IndeterminateError("lost")
        return write(requests, deadline)

    _around_writes(monkeypatch, lose_answers)

    assert backend.scans.delete_recursive("/t", PATIENCE) == 10
    assert calls == [11, 7, 7]
    assert other.exists("/t") is None


def test_deletes_that_stay_unknown_are_said_to_be(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If deletes never get an answer, the outcome is unknown."""
    _fill(backend, {"/t/1": b"v"})
    _around_writes(
        monkeypatch, lambda _, requests, __: [IndeterminateError("lost")] * len(requests)
    )

    with pytest.raises(IndeterminateError):
        backend.scans.delete_recursive("/t", PATIENCE)


@pytest.mark.parametrize("applied", [0, 4])
def test_a_delete_that_fails_half_way_says_so(
    backend: ZooKeeperBackend, applied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If values are removed, the error is indeterminate, even if the first answer is a refusal."""
    _fill(backend, {f"/t/{i}": b"v" for i in range(10)})
    left = StoreUnavailableError("gone")

    def fail_after(write: Callable[..., Any], requests: Any, deadline: float) -> Any:
        return [left, *write(requests[:applied], deadline), *[left] * (len(requests) - applied - 1)]

    _around_writes(monkeypatch, fail_after)
    with pytest.raises(IndeterminateError if applied else StoreUnavailableError) as caught:
        backend.scans.delete_recursive("/t", PATIENCE)
    assert caught.value.path == "/t"
    assert len(_found(backend, "/t")) == 10 - applied


def test_a_walk_that_fails_behind_deletes_without_an_answer(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes may have been applied, so the error does not say that nothing was."""
    _fill(backend, {"/t/1": b"v"})

    def lose(write: Callable[..., Any], requests: Any, deadline: float) -> Any:
        backend.close()
        return [IndeterminateError("lost") for _ in requests]

    _around_writes(monkeypatch, lose)
    with pytest.raises(IndeterminateError, match="the store is closed"):
        backend.scans.delete_recursive("/t", PATIENCE)


def test_a_server_that_restarts_under_a_recursive_delete(
    own_server: ZooKeeperServer, own_backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete waits for the server after a kill, and each value counts once."""
    values = {f"/{i % 20}/{i:05}": b"v" for i in range(20_000)}
    _fill(own_backend, values)
    calls = []

    def kill_and_write(write: Callable[..., Any], *args: Any) -> Any:
        calls.append(args)
        if len(calls) != 3:
            return write(*args)
        killer = threading.Thread(target=lambda: (own_server.kill(), own_server.start()))
        killer.start()
        try:
            return write(*args)
        finally:
            killer.join()

    _around_writes(monkeypatch, kill_and_write)

    assert own_backend.scans.delete_recursive("/", PATIENCE) == 20_000
    assert _found(own_backend) == {}


def test_the_revision_lies_between_earlier_and_later_changes(
    backend: ZooKeeperBackend, other: KazooClient
) -> None:
    """Every later change has a greater one, and no earlier one."""
    for i in range(5):
        before = other.create(f"/{i}-before", b"", include_data=True)[1].mzxid
        revision = backend.scans.revision(PATIENCE)
        after = other.create(f"/{i}-after", b"", include_data=True)[1].mzxid
        assert before <= revision < after
