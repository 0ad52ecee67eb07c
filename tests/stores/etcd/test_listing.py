"""The pages of a get_children: complete, and few."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.stores.etcd.reads.listing import Listing


class Keys:
    """A sorted set of keys that answers ranges as etcd does, and counts the keys it looks at."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = sorted(keys)
        self.pages = self.read = self.counted = 0

    def names_below(self, below: bytes, limit: int = 64, **sizes: int) -> list[str]:
        """List with pages, the first one of ``limit`` keys."""
        listing = Listing(below, below[:-1] + b"0", limit, **sizes)
        while not listing.done:
            assert below <= listing.start < listing.end <= below[:-1] + b"0"
            first = bisect_left(self.keys, listing.start)
            found = self.keys[first : bisect_left(self.keys, listing.end)]
            page = found[: listing.limit]
            self.pages += 1
            self.read += len(page)
            self.counted += len(found)
            listing.take(page, len(found))
        return listing.names()

    def plain_names_below(self, below: bytes) -> list[str]:
        """List by looking at every key."""
        names = {key[len(below) :].split(b"/")[0] for key in self.keys if key.startswith(below)}
        return sorted(name.decode() for name in names if name)


# Characters around "/" in the order of bytes, and some of two and three bytes.
parts = st.text("ab-.0/é日", max_size=4)


@given(
    st.sets(st.lists(parts, min_size=1, max_size=4).map("/".join), max_size=60),
    st.integers(1, 4),
    st.integers(0, 6),
)
def test_every_name_is_found(keys: set[str], smallest: int, many: int) -> None:
    """With pages of any size, even ended early, no name is lost or repeated."""
    store = Keys(f"/r/{key}".encode() for key in keys)
    names = store.names_below(b"/r/", limit=smallest, smallest=smallest, many=many)
    assert names == store.plain_names_below(b"/r/")


@given(st.sets(st.binary(max_size=3).map(b"/r/".__add__), max_size=40), st.integers(0, 3))
def test_keys_of_other_clients_do_no_harm(keys: set[bytes], many: int) -> None:
    """Keys that are not UTF-8, or with empty parts, are left out and end no listing early."""
    store = Keys({*keys, b"/r/zz"})
    names = store.names_below(b"/r/", limit=1, smallest=1, many=many)
    assert "zz" in names
    assert "" not in names


def test_names_are_in_the_order_of_their_bytes() -> None:
    """A name and the names that continue it are in order, whatever lies below them."""
    store = Keys(b"/r/%b" % key.encode() for key in ("a", "a/x", "a-b", "a0", "é", "日", "a.b/c"))
    assert store.names_below(b"/r/", limit=1) == ["a", "a-b", "a.b", "a0", "é", "日"]


def test_deep_trees_are_not_read_whole() -> None:
    """Of a hundred subtrees of a thousand keys each, a small part is read."""
    store = Keys(b"/r/tree-%03d/%04d" % (tree, leaf) for tree in range(100) for leaf in range(1000))
    assert len(store.names_below(b"/r/")) == 100
    assert store.read < 10_000
    assert store.pages < 250


def test_etcd_is_not_made_to_count_everything_for_each_page() -> None:
    """Pages have ends: two hundred without would count each key a hundred times."""
    store = Keys(b"/r/tree-%03d/%04d" % (tree, leaf) for tree in range(200) for leaf in range(1000))
    store.names_below(b"/r/")
    assert store.counted < 20 * len(store.keys)


def test_large_directories_come_in_large_pages() -> None:
    """A hundred thousand names take a few dozen pages, and little counting."""
    store = Keys(b"/r/%08d" % number for number in range(100_000))
    assert len(store.names_below(b"/r/")) == 100_000
    assert store.pages < 60
    assert store.counted < 10 * len(store.keys)


def test_small_subtrees_are_read_through() -> None:
    """If each name has a few keys below it, pages grow: a jump for each name would cost more."""
    store = Keys(b"/r/%05d/%d" % (name, leaf) for name in range(5_000) for leaf in range(3))
    assert len(store.names_below(b"/r/")) == 5_000
    assert store.pages < 20
