"""Walks over RocksDB's keys. Each walk sees the keys as they were when it began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocksdict import Rdict, RdictIter, ReadOptions

from ...ops.errors import StoreClosedError

__all__ = ["KeyWalk"]

_PAGE_RECORDS: Final = 1_000
_PAGE_BYTES: Final = 4 * 1024 * 1024
# What is read ahead of a walk from the disk: it reads everything there is, in its order.
_READAHEAD: Final = 2 * 1024 * 1024


class KeyWalk:
    """A walk over stretches of keys, in their order.

    An open one holds on to RocksDB itself, which cannot be opened anew as long as there is one, and
    to all the files that it may yet read.

    Args:
        db: must stay open until the walk is closed.
        stretches: each from its first key up to its second, in order; ``None`` for no end.

    Attributes:
        done: whether it has come to the end.
    """

    def __init__(self, db: Rdict, stretches: Sequence[tuple[str, str | None]]) -> None:
        self._stretches = [
            (start.encode(), None if end is None else end.encode())
            for start, end in reversed(stretches)
        ]
        self.done = not stretches
        self._iterator: RdictIter | None = None
        if self.done:
            return
        # The bound also keeps a seek from walking over everything that was deleted behind it and
        # is not compacted away yet. In rocksdict 0.3.29 it lies in memory of the options, which
        # therefore live as long as the iterator.
        self._options = ReadOptions()
        if (last := self._stretches[0][1]) is not None:
            self._options.set_iterate_upper_bound(last)
        self._options.set_readahead_size(_READAHEAD)
        self._iterator = db.iter(self._options)
        self._iterator.seek(self._stretches[-1][0])

    def page(self, first: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return the next keys with their records; none only if it is done.

        Args:
            first: how many bytes are wanted of each record: 0 for none, which then is not read, and
                ``None`` for all.
        """
        iterator = self._iterator
        if iterator is None:
            if self.done:
                return []
            raise StoreClosedError("the RocksDB store was closed during a scan")
        found: list[tuple[bytes, bytes]] = []
        room = _PAGE_BYTES
        while self._stretches:
            end = self._stretches[-1][1]
            while len(found) < _PAGE_RECORDS and room > 0 and iterator.valid():
                key = iterator.key()
                if end is not None and key >= end:
                    break
                # rocksdict copies a record whole or not at all; so a page has read no more than
                # so many bytes, and holds what was wanted of them.
                record = b"" if first == 0 else iterator.value()
                found.append((key, record[:first]))
                room -= len(record)
                iterator.next()
            else:
                if iterator.valid():
                    return found  # full
                iterator.status()
                break
            self._stretches.pop()
            if self._stretches:
                iterator.seek(self._stretches[-1][0])
        self.done = True
        self.close()
        return found

    def close(self) -> None:
        """Let RocksDB go."""
        self._iterator = None
