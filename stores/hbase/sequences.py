"""Sequential puts: a growing number below a parent, in the order in which the paths appear.

A row for each parent, among the client's own, has the next number, and what the last taker of
numbers creates with them: paths, states and values. Whoever takes the next ones first creates what
is still missing of these. So a path with a number appears after all those with smaller ones,
however slow their own client is, and a number that was taken is used even if that client has died.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ...ops.paths import OWN
from .layout import Row

__all__ = ["MOST_BYTES", "MOST_ENTRIES", "Entry", "Taken", "counter_path", "pack", "unpack"]

#: The most paths that one change of a counter creates, and the bytes of their values.
MOST_ENTRIES: Final = 500
MOST_BYTES: Final = 4 * 1024 * 1024

_NEXT: Final = struct.Struct(">q")
_ENTRY: Final = struct.Struct(">IIIqQ")


class Entry(NamedTuple):
    """A path to create.

    Attributes:
        path: the path, with its number.
        row: the state that it gets.
        value: its value.
    """

    path: str
    row: Row
    value: bytes


class Taken(NamedTuple):
    """The content of a counter.

    Attributes:
        after: the next number.
        entries: what its last taker creates.
    """

    after: int
    entries: Sequence[Entry]


def counter_path(parent: str) -> str:
    """Return the path of the counter of a parent."""
    return f"/{OWN}/next{'' if parent == '/' else parent}"


def pack(taken: Taken) -> bytes:
    """Return the value of a counter."""
    parts = [_NEXT.pack(taken.after)]
    for path, row, value in taken.entries:
        key = path.encode()
        sizes = len(key), len(row.state), len(value)
        parts += [_ENTRY.pack(*sizes, row.time, row.owner), key, row.state, value]
    return b"".join(parts)


def unpack(value: bytes) -> Taken:
    """Return what the value of a counter says; an empty one is new."""
    if not value:
        return Taken(0, ())
    entries: list[Entry] = []
    at = _NEXT.size
    while at < len(value):
        path, state, size, when, owner = _ENTRY.unpack_from(value, at)
        at += _ENTRY.size
        key, content = value[at : at + path], value[at + path : at + path + state]
        at += path + state
        row = Row(content, 1, 0, when, owner=owner)
        entries.append(Entry(key.decode(), row, value[at : at + size]))
        at += size
    return Taken(_NEXT.unpack_from(value)[0], entries)
