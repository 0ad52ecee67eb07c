"""Finds the names right below a path in etcd's flat space of keys, page by page.

etcd has no directories: all keys below a path are one range. This module decides which part of the
range to request next, and does no I/O. It avoids three causes of slow listings:

- Reading whole subtrees: after a name with keys below it, the next page starts behind the subtree,
  at the name and ``0``, the character after ``/``.
- Pages of the wrong size: small pages cost a round trip each, large pages read keys only to skip
  them. Pages grow while they end in small subtrees, and shrink while one subtree fills half of
  them.
- Counting: etcd counts all keys of a range, whatever the page's limit. If many keys are left, the
  next range ends early, at the first few bytes of the last name, with the last of these bytes
  incremented. An exhausted range widens the next one; a range that still has many keys narrows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["Listing"]

_SMALLEST: Final = 64
_LARGEST: Final = 10_000
# Counting this many keys costs etcd a few milliseconds.
_MANY: Final = 20_000


class Listing:
    """A listing under way. Request the keys of its range and pass them to ``take``, until done.

    Attributes:
        start: the first key to request.
        end: the key before which to stop.
        limit: the most keys to request.
        done: whether the listing is complete.
    """

    __slots__ = (
        "_below",
        "_kept",
        "_many",
        "_names",
        "_place",
        "_smallest",
        "_stop",
        "done",
        "end",
        "limit",
        "start",
    )

    def __init__(
        self,
        below: bytes,
        stop: bytes,
        limit: int = _SMALLEST,
        *,
        smallest: int = _SMALLEST,
        many: int = _MANY,
    ) -> None:
        self._smallest = smallest
        self._many = many
        self._below = below
        self._stop = stop
        self._names: set[bytes] = set()
        self._place = b""  # the name, or the first bytes of a name, that the listing has reached
        self._kept = 0  # how many of these bytes the range's end keeps; 0: no early end
        self.start = below
        self.end = stop
        self.limit = limit
        self.done = False

    def take(self, keys: Sequence[bytes], count: int) -> None:
        """Process a page: its keys, in order, and the number of keys in the whole range."""
        skip = len(self._below)
        # Without a prefix, the root has a key, "/", whose name is empty. So is the name of a key
        # with "//", which this package never writes.
        names = [key[skip:].partition(b"/")[0] for key in keys]
        self._names.update(names)
        left = count - len(keys)
        if left > 0 and keys:
            name, key = names[-1], keys[-1]
            in_subtree = len(key) > skip + len(name)
            self.start = self._below + name + b"0" if in_subtree else key + b"\0"
            run = len(names) - names.index(name)
            if in_subtree and run * 2 >= len(names):
                self.limit = max(self.limit // 2, self._smallest)
            else:
                self.limit = min(self.limit * 2, _LARGEST)
            self._place = name
            if left > self._many:
                # The first early end is the nearest one; later ones are a byte nearer each.
                self._kept = min(self._kept + 1, len(name)) if self._kept else len(name)
            else:
                self._kept = min(self._kept, len(name))
        elif self.end == self._stop:
            self.done = True
            return
        else:
            self.start = self.end
            self._place = _counted_up(self._place[: self._kept])
            self._kept -= 1
        edge = _counted_up(self._place[: self._kept]) if self._kept > 0 else b""
        self.end = self._below + edge if edge else self._stop

    def names(self) -> list[str]:
        """Return the names found so far, sorted by code points, which is also the order of UTF-8.

        Names that are not UTF-8 belong to keys that are not valid paths, and are left out.
        """
        found = []
        for name in self._names:
            try:
                text = name.decode()
            except UnicodeDecodeError:
                continue
            if text:
                found.append(text)
        found.sort()
        return found


def _counted_up(beginning: bytes) -> bytes:
    # No byte of UTF-8 is 0xFF. In other keys, those at the end are dropped, as etcd's own clients
    # do for the end of a prefix.
    beginning = beginning.rstrip(b"\xff")
    return beginning[:-1] + bytes([beginning[-1] + 1]) if beginning else b""
