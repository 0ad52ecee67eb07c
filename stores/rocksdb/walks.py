"""Walks over RocksDB's keys. Each walk sees the keys as they were when it began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocksdict import Rdict, RdictIter, ReadOptions

from ...ops.errors import StoreClosedError

__all__ = ["KeyWalk"]

_PAGE_RECORDS: Final = 1_000
_PAGE_BYTES: Final = 4 * 1024 * 1024
# Bytes that RocksDB reads ahead from the disk, because a walk reads everything in order.
_READAHEAD: Final = 2 * 1024 * 1024


class KeyWalk:
    """A walk over stretches of keys, in order.

    An open walk keeps RocksDB itself alive, so the store cannot be opened again meanwhile, and all
    files that the walk may still read.

    Args:
        db: the database; it must stay open until the walk is closed.
        stretches: for each, its first key and the key before which it ends, or ``None`` for no end.
            They are in order.
        hidden: keys to leave out.

    Attributes:
        done: whether the walk has reached its end.
    """

    def __init__(
        self,
        db: Rdict,
        stretches: Sequence[tuple[str, str | None]],
        hidden: frozenset[bytes] = frozenset(),
    ) -> None:
        self._hidden = hidden
        self._stretches = [
            (start.encode(), None if end is None else end.encode())
            for start, end in reversed(stretches)
        ]
        self.done = not stretches
        self._iterator: RdictIter | None = None
        if self.done:
            return
        # The bound also keeps a seek from walking over deleted, uncompacted keys behind it. In
        # rocksdict 0.3.29, it lies in memory of the options, so they must live as long as the
        # iterator.
        self._options = ReadOptions()
        if (last := self._stretches[0][1]) is not None:
            self._options.set_iterate_upper_bound(last)
        self._options.set_readahead_size(_READAHEAD)
        self._iterator = db.iter(self._options)
        self._iterator.seek(self._stretches[-1][0])

    def page(self, first: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return the next keys with their records; an empty page only at the end.

        Args:
            first: the number of bytes to return of each record. With 0, records are not read at
                all; with ``None``, they are returned whole.
        """
        iterator = self._iterator
        if iterator is None:
            if self.done:
                return []
            raise StoreClosedError("the RocksDB store was closed during a scan")
        hidden = self._hidden
        found: list[tuple[bytes, bytes]] = []
        room = _PAGE_BYTES
        while self._stretches:
            end = self._stretches[-1][1]
            while len(found) < _PAGE_RECORDS and room > 0 and iterator.valid():
                key = iterator.key()
                if end is not None and key >= end:
                    break
                if key in hidden:
                    iterator.next()
                    continue
                # rocksdict copies a record whole or not at all. So a page has read at most
                # _PAGE_BYTES and one more record, and keeps only the wanted bytes.
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
        """Release RocksDB."""
        self._iterator = None
