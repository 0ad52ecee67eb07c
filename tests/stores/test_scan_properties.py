"""Scans, splits and deletes of the embedded stores, compared with a dictionary."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batchkeeper as bk
from batchkeeper.stores import memory
from batchkeeper.stores.rocksdb import walks

from ..waiting import PATIENCE

# Characters around "/" in the order of bytes, and of two and three bytes.
names = st.text("!-.0/a~é日", min_size=1, max_size=3).filter(
    lambda name: "/" not in name and name not in {".", ".."}
)
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
prefixes = st.just("/") | paths
changes = st.lists(st.tuples(paths, st.none() | st.binary(max_size=4)), max_size=40)


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[bk.MetadataStore]:
    """A store with pages so small that there are several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_PAGE", 3)
        patch.setattr(walks, "_PAGE_RECORDS", 3)
        unique = uuid.uuid4().hex
        url = f"rocksdb://{tmp_path / unique}?sync=false"
        if request.param == "memory":
            url = f"memory://{unique}"
        with bk.open_store(url) as opened:
            yield opened


def fill(store: bk.MetadataStore, changed: list[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """Empty the store, change it, and return what it holds."""
    store.delete_recursive("/").result(0)
    held: dict[str, bytes] = {}
    for path, value in changed:
        if value is not None:
            store.put(path, value).result(PATIENCE)
            held[path] = value
        elif path in held and not any(other.startswith(path + "/") for other in held):
            store.delete(path).result(PATIENCE)
            del held[path]
    return held


def under(prefix: str, held: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Return the expected result of a scan."""
    below = prefix.rstrip("/") + "/"
    found = [path for path in held if path == prefix or path.startswith(below)]
    return [(path, held[path]) for path in sorted(found, key=str.encode)]


# The store is emptied before each example.
same_store = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@same_store
@given(changes, prefixes, st.none() | paths, st.none() | paths)
def test_scans_give_what_is_there(
    store: bk.MetadataStore,
    changed: list[tuple[str, bytes | None]],
    prefix: str,
    start: str | None,
    end: str | None,
) -> None:
    """Any prefix and any bounds select what they say, in the order of bytes."""
    held = fill(store, changed)
    expected = [
        (path, value)
        for path, value in under(prefix, held)
        if (start is None or path.encode() >= start.encode())
        and (end is None or path.encode() < end.encode())
    ]
    found = list(store.scan(prefix, start, end))
    assert [(path, value) for path, value, _ in found] == expected
    assert all(stat.path == path for path, _, stat in found)
    pages = store.scan_pages(prefix, start, end, values=False)
    assert [stat for page in pages for stat in page] == [stat for _, _, stat in found]


@same_store
@given(changes, prefixes, st.integers(1, 6) | st.just(10**12))
def test_splits_meet_and_are_even(
    store: bk.MetadataStore, changed: list[tuple[str, bytes | None]], prefix: str, n: int
) -> None:
    """The ranges hold everything once, and equally many values but for one."""
    expected = under(prefix, fill(store, changed))
    ranges = store.split(prefix, n)
    assert (ranges[0].start, ranges[-1].end) == (None, None)
    assert all(before.end == after.start for before, after in pairwise(ranges))
    parts = [[(path, value) for path, value, _ in store.scan(prefix, *part)] for part in ranges]
    assert [found for part in parts for found in part] == expected
    sizes = [len(part) for part in parts]
    assert len(sizes) == max(1, min(n, len(expected)))
    assert max(sizes) - min(sizes) <= 1


@same_store
@given(changes, prefixes)
def test_deletes_take_the_whole_tree(
    store: bk.MetadataStore, changed: list[tuple[str, bytes | None]], prefix: str
) -> None:
    """All values under the path are gone, the rest is there, and the returned number is right."""
    held = fill(store, changed)
    gone = under(prefix, held)
    before = store.revision()
    assert store.delete_recursive(prefix).result(0) == len(gone)
    left = {path: value for path, value in held.items() if (path, value) not in gone}
    assert [(path, value) for path, value, _ in store.scan("/")] == under("/", left)
    top = {path.split("/")[1] for path in left}
    assert store.get_children("/").result(PATIENCE) == sorted(top)
    assert store.revision() >= before
    assert store.put("/new", b"").result(PATIENCE).revision > before
