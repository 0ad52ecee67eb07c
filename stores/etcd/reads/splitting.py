"""Decides where to cut a range of keys so that the parts have equally many.

etcd counts the keys of a range, in a fifth of a microsecond per key, and shows nothing else about
their distribution. So the split counts buckets, divides those that contain a cut, and counts again.
It divides a bucket in two ways, in turns. Both work for keys that share a long beginning:

- along its first key: the keys that share all of it, all but its last byte, all but two, and so on.
  One pass finds the place where the keys of the bucket differ;
- by the byte at that place.

This module does no I/O, except through the function for counting that it receives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

__all__ = ["Bucket", "Count", "Keys", "cuts"]


class Bucket(NamedTuple):
    """The keys from ``start`` up to ``end``: their number, and the first one."""

    start: bytes
    end: bytes
    size: int
    first: bytes


#: Counts the keys between each edge and the next.
Count: TypeAlias = Callable[[Sequence[bytes]], Sequence[Bucket]]
#: Returns the first keys of a bucket, up to the given number.
Keys: TypeAlias = Callable[[Bucket, int], Sequence[bytes]]

# A bucket with at most this many keys is read instead of being divided.
_FEW: Final = 2_000
# The allowed error of a range's ends, as a part of its size.
_TOLERANCE: Final = 1 / 20
# The bytes after a place, tried one by one. They include all later bytes of ASCII.
_BYTES: Final = 100


def cuts(
    bucket: Bucket,
    n: int,
    count: Count,
    keys: Keys,
    *,
    few: int = _FEW,
    tolerance: float = _TOLERANCE,
) -> list[bytes]:
    """Return up to ``n - 1`` keys that cut a bucket into parts with about equally many keys."""
    buckets = [bucket]
    total = bucket.size
    n = min(n, total)  # each part has a key, and the work is limited to that many parts
    slack = int(total / max(1, n) * tolerance)
    found: list[bytes] = []
    for part in range(1, n):
        target = total * part // n
        while True:
            # The number of keys before each bucket. A second count may differ a little.
            before = [0]
            for one in buckets:
                before.append(before[-1] + one.size)
            index = min(max(bisect_left(before, target + 1) - 1, 0), len(buckets) - 1)
            chosen = buckets[index]
            offset = target - before[index]
            if offset <= slack:
                cut = chosen.first
                break
            if chosen.size - offset <= slack and index + 1 < len(buckets):
                cut = buckets[index + 1].first
                break
            if chosen.size <= few:
                read = keys(chosen, offset + 1)
                cut = read[-1] if read else chosen.first
                break
            buckets[index : index + 1] = [b for b in _divided(chosen, count) if b.size]
        if cut > bucket.first and (not found or cut > found[-1]):
            found.append(cut)
    return found


def _divided(bucket: Bucket, count: Count) -> list[Bucket]:
    """Divide a bucket along its first key, and its largest part by the byte at which it differs."""
    first = bucket.first
    edges = [bucket.start, first + b"\0"]
    edges += [after for size in range(len(first), 0, -1) if (after := _after(first[:size]))]
    along = list(count(_within(edges, bucket)))
    index = max(range(len(along)), key=lambda i: along[i].size)
    largest = along[index]
    # All keys of the part share the bytes before the last byte of its start.
    place = len(largest.start) - 1
    if index and largest.size > 1:
        shared, byte = largest.first[:place], largest.first[place]
        stop = min(byte + _BYTES, 0x100)
        edges = [largest.start, *(shared + bytes([b]) for b in range(byte + 1, stop))]
        along[index : index + 1] = count(_within(edges, largest))
    return along


def _within(edges: Sequence[bytes], bucket: Bucket) -> list[bytes]:
    inside = {edge for edge in edges if bucket.start < edge < bucket.end}
    return [bucket.start, *sorted(inside), bucket.end]


def _after(beginning: bytes) -> bytes:
    """Return the first key after all keys that start with ``beginning``; ``b""`` without one."""
    beginning = beginning.rstrip(b"\xff")
    return beginning[:-1] + bytes([beginning[-1] + 1]) if beginning else b""
