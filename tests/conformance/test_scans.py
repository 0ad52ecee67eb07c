"""Scans on every store: their results, the order, and the keys that they leave out."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterable
from itertools import pairwise

import pytest

import batchkeeper as bk
from batchkeeper.ops import ScanResult

from ..contents import put_all
from ..programs import run_python
from ..waiting import PATIENCE

# In the byte order of UTF-8. A longer name, such as one with "-x" appended, comes before the paths
# below the name.
ORDERED = [
    "/topics",
    "/topics!",
    "/topics-x",
    "/topics-x/1",
    "/topics/a",
    "/topics/a b",
    "/topics/a-b",
    "/topics/a/b/c",
    "/topics/a0",
    "/topics/é",
    "/topics/日本",
    "/topics/\uff5e",
    "/topics0",
    "/topics2",
]


@pytest.fixture
def batching() -> bk.BatchingConfig:
    """The settings with batching on, which scans do not use."""
    return bk.BatchingConfig()


def put(store: bk.MetadataStore, paths: Iterable[str]) -> None:
    """Put paths, whose values are their own names."""
    put_all(store, {path: path.encode() for path in paths})


def paths(found: Iterable[ScanResult]) -> list[str]:
    return [path for path, _, _ in found]


def test_a_scan_gives_everything_in_the_order_of_bytes(store: bk.MetadataStore) -> None:
    """All paths come once, with their values, in the byte order of UTF-8."""
    put(store, reversed(ORDERED))
    found = list(store.scan("/"))
    assert paths(found) == ORDERED
    assert [value.decode() for _, value, _ in found] == ORDERED


def test_a_scan_gives_the_stats(store: bk.MetadataStore) -> None:
    """The stat of a path is what a get answers."""
    for _ in range(3):
        put(store, ["/a/b"])
    put(store, ["/a/c"])
    store.put("/a/d", b"").result(PATIENCE)
    for path, value, stat in store.scan("/a"):
        assert (value, stat) == store.get(path).result(PATIENCE)
    assert [found.stat.version for found in store.scan("/a")] == [2, 0, 0]


def test_pages_hold_what_a_scan_gives(store: bk.MetadataStore) -> None:
    """The pages' columns and their results are those of the scan, within a range as well."""
    put(store, [*ORDERED, "/topics/a"])
    for start, end in [(None, None), ("/topics/a", "/topics/é")]:
        expected = [*store.scan("/topics", start, end)]
        pages = [*store.scan_pages("/topics", start, end)]
        assert [result for page in pages for result in page] == expected
        assert [page[0] for page in pages] == [result for page in pages for result in page[:1]]
        columns = [
            column
            for page in pages
            for column in zip(page.paths, page.values, page.versions, page.revisions, strict=True)
        ]
        assert columns == [
            (path, value, stat.version, stat.revision) for path, value, stat in expected
        ]


def test_a_scan_without_values_gives_the_same_stats(store: bk.MetadataStore) -> None:
    """Paths and stats are those of a full scan, whatever the omitted values."""
    put(store, [*ORDERED, "/topics/a", "/a/b/c"])
    sizes = {"/topics/a/empty": 0, "/topics/a/large": 5_000, "/topics/large": 200_000}
    put(store, sizes)
    values = {path: bytes(size) for path, size in sizes.items()}
    put_all(store, values)
    for prefix, start, end in [
        ("/", None, None),
        ("/topics", None, None),
        ("/topics", "/topics/a", "/topics/é"),
        ("/topics/a/large", None, None),
        ("/missing", None, None),
    ]:
        expected = [*store.scan(prefix, start, end)]
        pages = [*store.scan_pages(prefix, start, end, values=False)]
        assert [stat for page in pages for stat in page] == [found.stat for found in expected]
        assert [path for page in pages for path in page.paths] == paths(expected)
        assert all(type(page) is bk.StatPage and page.values is None for page in pages)


def test_a_scan_without_values_is_a_scan(store: bk.MetadataStore) -> None:
    """A scan without values comes in pages, can be closed early, and takes bounds and revisions."""
    many = [f"/many/{number:05d}" for number in range(12_000)]
    put(store, many)
    pages = store.scan_pages("/", values=False)
    first = next(pages)
    assert 0 < len(first) < len(many)
    assert [*first.paths, *(path for page in pages for path in page.paths)] == many
    unfinished = store.scan_pages("/", values=False)
    next(unfinished)
    unfinished.close()
    assert next(unfinished, None) is None
    with pytest.raises(bk.InvalidPathError):
        store.scan_pages("a", values=False)
    with pytest.raises(bk.InvalidSettingError, match="values must be True or False, not 'no'"):
        store.scan_pages("/", values="no")  # type: ignore[call-overload]
    revision = store.revision()
    put(store, many[:10])
    newest = store.scan_pages("/", many[8], many[12], values=False)
    assert [stat.version for page in newest for stat in page] == [1, 1, 0, 0]
    if "snapshots" in store.capabilities:
        old = store.scan_pages("/", many[8], many[12], revision, values=False)
        assert [stat.version for page in old for stat in page] == [0] * 4


def test_a_prefix_is_made_of_whole_names(store: bk.MetadataStore) -> None:
    """A prefix covers its own path and what is below it, and no name that only begins with it."""
    put(store, ORDERED)
    below = [path for path in ORDERED if path.startswith("/topics/")]
    assert paths(store.scan("/topics")) == ["/topics", *below]
    assert paths(store.scan("/topics-x")) == ["/topics-x", "/topics-x/1"]
    assert paths(store.scan("/topics/a")) == ["/topics/a", "/topics/a/b/c"]
    assert paths(store.scan("/topics/a/b")) == ["/topics/a/b/c"]
    assert paths(store.scan("/top")) == []
    assert paths(store.scan("/missing")) == []


def test_a_start_is_included_and_an_end_is_not(store: bk.MetadataStore) -> None:
    """Bounds are paths in the order of bytes, whether there is a value or not."""
    put(store, ORDERED)
    for low, start in enumerate(ORDERED):
        assert paths(store.scan("/", start=start)) == ORDERED[low:]
        assert paths(store.scan("/", end=start)) == ORDERED[:low]
    assert paths(store.scan("/", "/topics-x", "/topics/a")) == ["/topics-x", "/topics-x/1"]
    assert paths(store.scan("/", "/topics-y", "/topics/a b")) == ["/topics/a"]
    assert paths(store.scan("/topics", "/topics!", "/topics/a b")) == ["/topics/a"]
    assert paths(store.scan("/topics", "/topics/a", "/topics/a")) == []
    assert paths(store.scan("/topics", "/topics2", "/topics")) == []
    assert paths(store.scan("/topics", "/a", "/b")) == []


def test_ranges_next_to_each_other_meet(store: bk.MetadataStore) -> None:
    """Wherever a scan is cut in two, the parts give all, and nothing twice."""
    put(store, ORDERED)
    for cut in ["/a", *ORDERED, "/topics/a/b", "/z"]:
        assert paths(store.scan("/", end=cut)) + paths(store.scan("/", cut)) == ORDERED


def test_an_empty_store_has_nothing_to_scan(store: bk.MetadataStore) -> None:
    """Scans do not show the internal keys of a store."""
    assert list(store.scan("/")) == []


def test_many_pages_are_given_whole(store: bk.MetadataStore) -> None:
    """Thousands of values, and values of different sizes, come complete and in order."""
    small = [bk.Put(f"/many/{number:05d}", b"%d" % number) for number in range(6_000)]
    large = [bk.Put(f"/many/{number:05d}/x", bytes(100_000)) for number in range(0, 6_000, 200)]
    assert all(outcome.ok for outcome in store.apply([*small, *large]))
    expected = sorted((op.path, op.value) for op in [*small, *large])
    assert [(path, value) for path, value, _ in store.scan("/many")] == expected


def test_a_scan_may_be_given_up(store: bk.MetadataStore) -> None:
    """Closing a scan ends it, and the store goes on, and can be closed."""
    put(store, (f"/many/{number:05d}" for number in range(3_000)))
    scan = store.scan("/")
    assert next(scan).path == "/many/00000"
    scan.close()
    assert next(scan, None) is None
    unfinished = store.scan("/")
    assert next(unfinished).path == "/many/00000"
    assert store.get("/many/00001").result(PATIENCE) is not None


@pytest.mark.slow
def test_a_scan_does_not_outlive_its_store(store: bk.MetadataStore) -> None:
    """After the close a scan under way raises for its next page, and a new one at once."""
    put(store, (f"/many/{number:05d}" for number in range(20_000)))
    scan = store.scan("/")
    next(scan)
    store.close()
    with pytest.raises(bk.StoreClosedError):
        list(scan)
    with pytest.raises(bk.StoreClosedError):
        store.scan("/")


FORKED = """
import os, sys, warnings
import batchkeeper as bk

warnings.simplefilter("ignore", DeprecationWarning)
paths = [f"/many/{number:05d}" for number in range(15_000)]
with bk.open_store(sys.argv[1]) as store:
    assert all(outcome.ok for outcome in store.apply([bk.Put(path, b"") for path in paths]))
    begun, new, pages = store.scan("/"), store.scan("/"), store.scan_pages("/")
    first, page = next(begun), next(pages)
    child = os.fork()
    if child == 0:
        refused = 0
        for scan in (begun, new, pages):
            try:
                # The rest of the page that was there may still be given.
                list(scan)
            except bk.StoreClosedError:
                refused += 1
        begun.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert [first.path, *(path for path, _, _ in begun)] == paths
    assert [path for path, _, _ in new] == paths
    assert [*page.paths, *(path for page in pages for path in page.paths)] == paths
"""


@pytest.mark.slow
def test_a_scan_raises_in_a_forked_child(store_url: str) -> None:
    """A scan is refused in a forked child, and continues in the parent."""
    ended = run_python("-c", FORKED, store_url, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr


def test_writes_beside_a_scan_do_not_disturb_it(store: bk.MetadataStore) -> None:
    """Paths changed meanwhile may be there or not; all others come once, in order."""
    lasting = [f"/t/{number:05d}" for number in range(0, 4_000, 2)]
    changing = [f"/t/{number:05d}" for number in range(1, 4_000, 2)]
    put(store, lasting)
    put(store, ["/t"])
    stopped = threading.Event()

    def write() -> None:
        while not stopped.is_set():
            for batch in range(0, len(changing), 200):
                some = changing[batch : batch + 200]
                store.apply([bk.Put(path, b"") for path in some])
                store.apply([bk.Delete(path) for path in some])
                if stopped.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            found = paths(store.scan("/t"))
            assert found == sorted(set(found))
            assert set(lasting) | {"/t"} <= set(found)
            assert set(found) <= {*lasting, *changing, "/t"}
    finally:
        stopped.set()
        writer.join()


@pytest.mark.call
@pytest.mark.parametrize("bad", ["", "a", "/a/", "/a//b", "/.batchkeeper", "/zookeeper"])
def test_bad_paths_are_refused_by_the_call(store: bk.MetadataStore, bad: str) -> None:
    """An invalid prefix or bound raises at once, from each of the calls."""
    for call in (
        lambda: store.scan(bad),
        lambda: store.scan("/", start=bad),
        lambda: store.scan("/", end=bad),
        lambda: store.split(bad, 2),
        lambda: store.delete_recursive(bad),
    ):
        with pytest.raises(bk.InvalidPathError):
            call()


@pytest.mark.call
@pytest.mark.parametrize("bad", [-1, True, 1.5, "1"])
def test_bad_revisions_are_refused_by_the_call(store: bk.MetadataStore, bad: int) -> None:
    """A revision is a number from 0 up."""
    with pytest.raises(bk.InvalidSettingError):
        store.scan("/", revision=bad)


def test_the_revision_grows_with_every_change(store: bk.MetadataStore) -> None:
    """Every later change has a greater revision than the store had, and no earlier one has."""
    store.revision()
    for _ in range(3):
        changed = store.put("/a", b"").result(PATIENCE)
        before = store.revision()
        assert before >= changed.revision
        assert store.put("/a", b"").result(PATIENCE).revision > before


# --- splits


def parts_of(store: bk.MetadataStore, prefix: str, n: int) -> list[list[str]]:
    """Split a prefix, and scan each of the ranges."""
    ranges = store.split(prefix, n)
    assert 1 <= len(ranges) <= n
    assert ranges[0].start is None
    assert ranges[-1].end is None
    assert all(before.end == after.start for before, after in pairwise(ranges))
    return [paths(store.scan(prefix, *found)) for found in ranges]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20])
def test_a_split_covers_everything_once(store: bk.MetadataStore, n: int) -> None:
    """The ranges meet, and together have all paths of the prefix, even if there are few."""
    assert parts_of(store, "/topics", n)[0] == []
    put(store, ORDERED)
    for prefix in ("/", "/topics", "/topics-x", "/topics/a", "/missing"):
        parts = parts_of(store, prefix, n)
        assert [path for part in parts for path in part] == paths(store.scan(prefix))


# Each of them is a different way to be uneven.
SHAPES: dict[str, list[str]] = {
    "numbers": [f"/d/{number:06d}" for number in range(2_000)],
    "one long prefix": [f"/d/{'deep/' * 12}{number}" for number in range(2_000)],
    "skewed": [
        *(f"/d/a/{number}" for number in range(100)),
        *(f"/d/m/{number:x}/{leaf}" for number in range(25) for leaf in range(70)),
        *(f"/d/z/{number}" for number in range(150)),
    ],
    "hashed": [f"/d/{hashlib.md5(b'%d' % n).hexdigest()}" for n in range(2_000)],
    "other scripts": [f"/d/日{chr(0x4E00 + number)}/é" for number in range(2_000)],
    "chains": [f"/d/{'x' * (1 + number % 200)}/{number}" for number in range(2_000)],
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_split_is_even(store: bk.MetadataStore, shape: str) -> None:
    """Ranges of many values differ from their mean by at most a fifth, whatever the paths."""
    expected = sorted(SHAPES[shape])
    put(store, [*SHAPES[shape], "/c", "/e/f"])
    for n in (2, 5):
        parts = parts_of(store, "/d", n)
        assert [path for part in parts for path in part] == expected
        assert len(parts) == n
        mean = len(expected) / n
        assert all(0.8 * mean <= len(part) <= 1.2 * mean for part in parts), list(map(len, parts))


def test_a_split_into_more_ranges_than_there_are_values(store: bk.MetadataStore) -> None:
    """There are hardly more ranges than values, and further ones are not computed."""
    put(store, ORDERED)
    parts = parts_of(store, "/", 10**12)
    assert [path for part in parts for path in part] == ORDERED
    assert len(parts) <= len(ORDERED) + 5  # Keys of the client itself count on etcd.
    assert store.split("/missing", 10**12) == [(None, None)]


@pytest.mark.call
@pytest.mark.parametrize("bad", [0, -1, True, 1.5, None])
def test_a_split_is_into_some_parts(store: bk.MetadataStore, bad: int) -> None:
    """An invalid number of ranges is refused by the call."""
    with pytest.raises(bk.InvalidSettingError):
        store.split("/", bad)


# --- deletes of whole trees


def test_a_tree_is_deleted(store: bk.MetadataStore) -> None:
    """The path and all below it are deleted, its neighbours stay, and the number is returned."""
    put(store, ORDERED)
    below = [path for path in ORDERED if path == "/topics" or path.startswith("/topics/")]
    assert store.delete_recursive("/topics").result(0) == len(below)
    rest = [path for path in ORDERED if path not in below]
    assert paths(store.scan("/")) == rest
    assert store.get_children("/").result(PATIENCE) == sorted({p.split("/")[1] for p in rest})
    assert store.delete_recursive("/topics").result(0) == 0
    assert store.put("/topics/a", b"", expected_version=bk.ABSENT).result(PATIENCE).version == 0


def test_everything_is_deleted(store: bk.MetadataStore) -> None:
    """The root stands for the whole store. The store still works, and its revisions still grow."""
    put(store, ORDERED)
    revision = store.revision()
    assert store.delete_recursive("/").result(0) == len(ORDERED)
    assert list(store.scan("/")) == []
    assert store.get_children("/").result(PATIENCE) == []
    stat = store.put("/topics", b"").result(PATIENCE)
    assert stat.version == 0
    assert stat.revision > revision


def test_a_large_tree_is_deleted_in_batches(store: bk.MetadataStore) -> None:
    """Thousands of values on several levels are deleted, whatever the limit of a request."""
    tree = [f"/t/{number % 7}/{number:05d}" for number in range(5_000)]
    put(store, [*tree, "/t", "/t/3", "/s", "/t-", "/u"])
    assert store.delete_recursive("/t").result(0) == 5_002
    assert paths(store.scan("/")) == ["/s", "/t-", "/u"]


def test_deletes_beside_writers(store: bk.MetadataStore) -> None:
    """Values put meanwhile may stay; all earlier values are deleted, and nothing fails."""
    old = [f"/t/{number:05d}" for number in range(3_000)]
    put(store, old)
    stopped = threading.Event()

    def write() -> None:
        while not stopped.is_set():
            store.apply([bk.Put(f"/t/{number:05d}x", b"") for number in range(0, 3_000, 50)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert store.delete_recursive("/t").result(0) >= len(old)
    finally:
        stopped.set()
        writer.join()
    assert not set(old) & set(paths(store.scan("/t")))
    assert store.delete_recursive("/t").result(0) <= 60


# --- asyncio


def test_a_scan_with_asyncio(store_url: str) -> None:
    """The asynchronous scan gives the same, and leaves the loop free."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), bk.open_async_store(store_url) as store:
            outcomes = await store.apply([bk.Put(path, b"") for path in ORDERED])
            assert all(outcome.ok for outcome in outcomes)
            assert [path async for path, _, _ in store.scan("/")] == ORDERED
            found = [path async for path, _, _ in store.scan("/topics-x", end="/topics-x/1")]
            assert found == ["/topics-x"]
            full = [found async for page in store.scan_pages("/topics") for found in page]
            assert full == [found async for found in store.scan("/topics")]
            pages = [page async for page in store.scan_pages("/topics", values=False)]
            assert [stat for page in pages for stat in page] == [found.stat for found in full]
            assert await store.revision() >= 0
            assert len(await store.split("/", 3)) == 3
            assert await store.delete_recursive("/topics-x") == 2
            with pytest.raises(bk.InvalidPathError):
                store.scan("a")
            scan = store.scan("/")
            assert (await anext(scan)).path == "/topics"
            await scan.aclose()

    asyncio.run(main())
