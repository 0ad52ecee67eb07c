"""The keys and the formats in RocksDB.

Everything lies in the default column family. The key of a value is its path in UTF-8, without a
prefix, so RocksDB's order is the order of paths. Paths begin with a slash. The client's own keys do
not, so no path equals one:

- ``META_KEY`` holds ``META``. Every write batch writes it with the values, so no revision is used
  twice.
- ``batchkeeper/ephemeral/SESSION/PATH``, with an empty record, for each ephemeral value. The next
  opener finds with it the values that a killed process has left.
- ``batchkeeper/sequence/PARENT`` holds the next number of the sequential puts below a parent. It
  stays when the parent and its children go, so no number returns.

The format of a store says which of these it may contain. Format 1 has values and ``META_KEY`` only.
The first ephemeral or sequential put makes it format 2. Releases that know only format 1 would take
the keys above for foreign ones, would never remove what a killed process has left, and could not
read the records of ephemeral values. They refuse format 2 when they open the store. A store without
such values keeps format 1, so it can go back to an older release.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

__all__ = [
    "EPHEMERALS",
    "FORMATS",
    "META",
    "META_KEY",
    "OUTSIDE",
    "PLAIN_FORMAT",
    "SEQUENCE",
    "SESSIONS_FORMAT",
    "Meta",
    "ephemeral_key",
    "ephemerals_of",
    "sequence_key",
]

PLAIN_FORMAT: Final = 1
#: The format of stores that may contain ephemeral values and sequences.
SESSIONS_FORMAT: Final = 2
FORMATS: Final = (PLAIN_FORMAT, SESSIONS_FORMAT)

META_KEY: Final = b"batchkeeper"
META: Final = struct.Struct(">BQI")


class Meta(NamedTuple):
    """What a store keeps of itself, in the order of ``META``.

    Attributes:
        format: the format of the store.
        revision: the revision of the last change.
        largest: the size of the largest record ever put.
    """

    format: int
    revision: int
    largest: int


#: The record of a counter for sequential puts: the next number.
SEQUENCE: Final = struct.Struct(">Q")

#: The prefix of the keys that list ephemeral values.
EPHEMERALS: Final = b"batchkeeper/ephemeral/"
_SEQUENCES: Final = b"batchkeeper/sequence"

#: The ranges of keys outside the paths and this client's own keys. The last has no end.
OUTSIDE: Final[tuple[tuple[str, str | None], ...]] = (
    ("0", "batchkeeper"),
    ("batchkeeper\0", "batchkeeper/"),
    ("batchkeeper0", None),
)


def ephemerals_of(session: int) -> bytes:
    """Return the prefix of the keys that list the ephemeral values of a session."""
    return b"%s%016x" % (EPHEMERALS, session)


def ephemeral_key(session: int, key: bytes) -> bytes:
    """Return the key that lists an ephemeral value: that of its session and its own."""
    return b"%s%016x%s" % (EPHEMERALS, session, key)


def sequence_key(key: bytes) -> bytes:
    """Return the key of the counter for sequential puts of ``key``, one for each parent."""
    return _SEQUENCES + key[: key.rindex(b"/") or 1]
