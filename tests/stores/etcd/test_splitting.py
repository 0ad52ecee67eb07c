"""Cutting a range of keys into equal parts, by counting."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.stores.etcd.reads.splitting import Bucket, cuts


class Keys:
    """A sorted set of keys that counts them as etcd does, and how many it had to look at."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = sorted(keys)
        self.calls = self.counted = self.read = 0

    def count(self, edges: Sequence[bytes]) -> list[Bucket]:
        self.calls += 1
        buckets = []
        for start, end in pairwise(edges):
            assert start < end
            low, high = bisect_left(self.keys, start), bisect_left(self.keys, end)
            self.counted += high - low
            first = self.keys[low] if low < high else b""
            buckets.append(Bucket(start, end, high - low, first))
        return buckets

    def some(self, bucket: Bucket, limit: int) -> list[bytes]:
        self.calls += 1
        self.read += limit
        low, high = bisect_left(self.keys, bucket.start), bisect_left(self.keys, bucket.end)
        return self.keys[low : min(high, low + limit)]

    def parts(self, n: int, **precision: int) -> list[int]:
        """Return how many keys there are in each part."""
        (bucket,) = self.count([b"/", b"0"])
        found = cuts(bucket, n, self.count, self.some, **precision)
        assert found == sorted(set(found))
        assert set(found) <= set(self.keys[1:])
        edges = [0, *(bisect_left(self.keys, cut) for cut in found), len(self.keys)]
        return [high - low for low, high in pairwise(edges)]


@given(
    st.sets(st.binary(max_size=6).map(b"/".__add__), max_size=60),
    st.integers(2, 8) | st.just(10**12),
    st.integers(0, 4),
)
def test_parts_are_equal(keys: set[bytes], n: int, few: int) -> None:
    """Parts of any keys differ by one, and there are as many as asked for if there are keys."""
    sizes = Keys(keys).parts(n, few=few, tolerance=0)
    assert sum(sizes) == len(keys)
    assert len(sizes) == max(1, min(n, len(keys)))
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 8, 50])
@pytest.mark.parametrize(
    "form",
    ["/{:08d}", "/t-{}", f"/{'x' * 200}/{{:06x}}/state", "/{0:02x}"],
    ids=["numbers", "without zeros", "long", "twice"],
)
def test_few_keys_are_looked_at(form: str, n: int) -> None:
    """Each key is counted a few times, and few are read, whatever they have in common."""
    many = 100_000
    store = Keys({form.format(number).encode() for number in range(many)})
    sizes = store.parts(n)
    mean = len(store.keys) / n
    assert len(sizes) == n
    assert all(0.85 * mean <= size <= 1.15 * mean for size in sizes)
    assert store.counted < 12 * many
    assert store.read < many / 2
    assert store.calls < 20 * n
