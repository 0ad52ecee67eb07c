"""The ranges that a scan asks etcd for: nothing is lost, and little is counted."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_left
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.stores.etcd.reads.page_ranges import PageRanges


class Keys:
    """A sorted set of keys that answers ranges as etcd does, and counts the keys it looks at."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = sorted(keys)
        self.pages = self.counted = 0

    def scan(self, start: bytes, stop: bytes, limit: int, **sizes: int) -> list[bytes]:
        """Scan with pages of up to ``limit`` keys, the first ones smaller."""
        found: list[bytes] = []
        windows = PageRanges(start, stop, **sizes)
        size = min(16, limit)
        while not windows.done:
            assert start <= windows.start < windows.end <= stop
            low, high = (bisect_left(self.keys, edge) for edge in (windows.start, windows.end))
            page = self.keys[low : min(high, low + size)]
            found += page
            self.pages += 1
            self.counted += high - low
            sample = [*page[:1], *page[1:-1:7], *page[1:][-1:]]
            windows.took(sample, len(page), high - low - len(page))
            size = min(size * 2, limit)
        return found


parts = st.text("ab-.0/9zé日", min_size=1, max_size=6)


@given(
    st.sets(st.lists(parts, min_size=1, max_size=4).map("/".join), max_size=80),
    st.integers(1, 5),
    st.integers(1, 8),
)
def test_every_key_is_found_once_and_in_order(keys: set[str], limit: int, ahead: int) -> None:
    """With pages of any size, and with any guesses, no key is lost or repeated."""
    sizes = {"ahead": ahead, "few": 1 + ahead // 4}
    store = Keys(f"/r/{key}".encode() for key in keys)
    assert store.scan(b"/r/", b"/r0", limit, **sizes) == store.keys
    below = [key for key in store.keys if b"/r/a" <= key < b"/r/b"]
    assert store.scan(b"/r/a", b"/r/b", limit, **sizes) == below


@given(st.sets(st.binary(min_size=1, max_size=12).map(b"/r/".__add__), max_size=60))
def test_keys_of_other_clients_are_found_too(keys: set[bytes]) -> None:
    """Keys may contain any bytes, also 0 and 255."""
    store = Keys(keys)
    assert store.scan(b"/r/", b"/r0", 4, ahead=3, few=1) == store.keys


def digest(number: int, size: int) -> str:
    return hashlib.md5(b"%d" % number).hexdigest()[:size]


MANY = 200_000
WORDS = ["alpha", "beta", "eu-west", "orders", "payments", "prod", "test", "users", "zebra"]
random_words = random.Random(1)

SHAPES: dict[str, Iterable[str]] = {
    "numbers": (f"/r/{n:08d}" for n in range(MANY)),
    "numbers without zeros": (f"/r/t-{n}" for n in range(MANY)),
    "digests": (f"/r/{digest(n, 32)}" for n in range(MANY)),
    "large directories": (f"/r/{digest(n // 10_000, 6)}/{n % 10_000:05d}" for n in range(MANY)),
    "small directories": (f"/r/{digest(n // 30, 12)}/t{n % 30}" for n in range(MANY)),
    "long names": (f"/r/{'x' * 60}/{n:09d}/state/info" for n in range(MANY)),
    "other scripts": (
        f"/r/日本/{chr(0x4E00 + n // 5_000)}{chr(0x4E00 + n % 5_000)}" for n in range(MANY)
    ),
    "words": ("/r/" + "/".join(random_words.choices(WORDS, k=3)) + f"/{n}" for n in range(MANY)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [*[*SHAPES][:-1], pytest.param([*SHAPES][-1], marks=pytest.mark.full)]
)
def test_little_is_counted(shape: str) -> None:
    """Pages have ends: without, they would count each key thirty times; twelve are acceptable."""
    store = Keys(key.encode() for key in SHAPES[shape])
    assert store.scan(b"/r/", b"/r0", 5_000) == store.keys
    assert store.counted < 12 * MANY
    # Twelve small ones at the start, forty, and what guesses that were too near add to that.
    assert store.pages < 600
