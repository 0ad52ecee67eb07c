"""How values lie in the table, for this client and for others that read it.

A row has the path in UTF-8 as its key, so that rows lie in the order of paths. It has two columns
of one family, which are written together:

=======  ===========================================================================================
column   value
=======  ===========================================================================================
``f:n``  big-endian: the number of changes of the path (8 bytes); the version of its value, -1 if it
         has none (8 bytes); the session that it ends with, or 0 (8 bytes); then the marks of the
         last changes, at most eight, the newest first (16 bytes each): a name that a client gives
         itself, and a number that it uses once.
``f:v``  the value.
=======  ===========================================================================================

Every change compares ``f:n`` with what its client has read, and replaces it. As no content of
``f:n`` ever comes back, a change is applied once at most, however often and however late it is
sent, and its mark tells that it was.

The time of both columns is given by the client: its clock in milliseconds, but at least one more
than before. It is the revision. So a change is never hidden by an earlier one, whatever the clocks
say, and the revisions of one path grow, also over a delete. Those of different paths compare as
well as the clocks of the clients agree.

A deleted path keeps ``f:n``, with the version -1, for an hour; then HBase removes it. No request is
late for so long: before that, the region of a server that hangs is another server's. Nor may the
clock of a client be so far behind, or it would put values with times from before the delete.
"""

from __future__ import annotations

import struct
import time
from typing import Final, NamedTuple

from ...ops.errors import MetadataStoreError, ValueTooLargeError
from ...ops.operations import ABSENT
from ...ops.paths import OWN
from ...ops.results import GetResult, Stat
from ..refusals import not_ours
from .wire.cells import Cell

__all__ = [
    "FAMILY",
    "FOREIGN",
    "MARKS",
    "NO_ROW",
    "OWNED",
    "SESSIONS",
    "STATE",
    "TOMBSTONE_MS",
    "VALUE",
    "VERSION_AT",
    "Row",
    "next_key",
    "rows_in",
    "session_key",
    "too_long",
]

FAMILY: Final = b"f"
STATE: Final = b"n"
VALUE: Final = b"v"
#: The version of a value whose ``f:n`` another program wrote.
FOREIGN: Final = -2
#: Where the version begins in ``f:n``.
VERSION_AT: Final = 8
#: The most marks that a row keeps.
MARKS: Final = 8
#: Milliseconds after which HBase removes what is left of a deleted path.
TOMBSTONE_MS: Final = 3_600_000

# A key has so many bytes at most (java.lang.Short.MAX_VALUE). The client's own rows have paths in
# their keys.
_MOST_KEY_BYTES: Final = 32_767
_MOST_PATH_BYTES: Final = 32_000
_MOST_OF_A_CHARACTER: Final = 3  # A path has none above U+FFFF.
_DIGITS: Final = 19  # of the greatest number that a sequential put can get

#: The rows of sessions, and those that name what each owns.
SESSIONS: Final = f"/{OWN}/sessions"
OWNED: Final = f"/{OWN}/owned"

_STATE_COLUMN: Final = FAMILY + b":" + STATE
_VALUE_COLUMN: Final = FAMILY + b":" + VALUE
_NUMBERS: Final = struct.Struct(">qqQ")
_MARK_SIZE: Final = 16
_MOST_CHANGES: Final = 1 << 48  # Text has greater numbers.


def session_key(owner: int) -> bytes:
    """Return the key of the row of a session."""
    return f"{SESSIONS}/{owner:016x}".encode()


def next_key(key: bytes) -> bytes:
    """Return the least key after one. Another client may have put one of the greatest length."""
    if len(key) < _MOST_KEY_BYTES:
        return key + b"\0"
    shorter = key.rstrip(b"\xff")
    return shorter[:-1] + bytes([shorter[-1] + 1])


def too_long(path: str, *, numbered: bool = False) -> ValueTooLargeError | None:
    """Return the error of an operation whose path cannot be a key; ``None`` if it can.

    Args:
        path: the path.
        numbered: whether a number follows it.
    """
    most = _MOST_PATH_BYTES - _DIGITS if numbered else _MOST_PATH_BYTES
    if len(path) * _MOST_OF_A_CHARACTER <= most or (size := len(path.encode())) <= most:
        return None
    return ValueTooLargeError(
        f"the path has {size} bytes; the hbase store accepts at most {most}", path=path
    )


class Row(NamedTuple):
    """What is known of a row.

    Attributes:
        state: the content of ``f:n``; empty if there is none.
        changes: the number of changes.
        version: the version of the value, ``ABSENT`` if there is none, or ``FOREIGN``.
        time: the time of the last change.
        value: the value, if it was asked for.
        owner: the session that the value ends with, or 0.
    """

    state: bytes = b""
    changes: int = 0
    version: int = ABSENT
    time: int = 0
    value: bytes = b""
    owner: int = 0

    def stat(self, path: str, own: int) -> Stat:
        """Return the stat of its value, as the client with the session ``own`` sees it."""
        ephemeral = self.owner != 0
        owned = ephemeral and self.owner == own
        # Half the cost of Stat(...).
        return tuple.__new__(Stat, (path, self.version, self.time, None, None, ephemeral, owned))

    def result(self, path: str, own: int) -> GetResult | MetadataStoreError | None:
        if self.version < 0:
            return None if self.version == ABSENT else not_ours(path)
        return GetResult(self.value, self.stat(path, own))

    def hidden(self) -> Row:
        """Return the row without its value, whose session has ended."""
        return self._replace(version=ABSENT, value=b"", owner=0)

    def changed(self, version: int, mark: bytes, owner: int = 0) -> Row:
        """Return the row after a change now."""
        changes = self.changes + 1
        earlier = b"" if self.version == FOREIGN else self.state[_NUMBERS.size :]
        marks = (mark + earlier)[: MARKS * _MARK_SIZE]
        now = max(time.time_ns() // 1_000_000, self.time + 1)
        state = _NUMBERS.pack(changes, version, owner) + marks
        return Row(state, changes, version, now, owner=owner)

    def has(self, change: Row) -> bool | None:
        """Say whether a change was made before this state; ``None`` if that is too long ago."""
        later = self.changes - change.changes
        if later < 0:
            return None  # The path was deleted, and forgotten.
        if self.time < change.time + later:
            return False  # Its time would be later: it grows with every change.
        start = _NUMBERS.size + later * _MARK_SIZE
        mark = self.state[start : start + _MARK_SIZE]
        first = change.state[_NUMBERS.size : _NUMBERS.size + _MARK_SIZE]
        return mark == first if mark else None


#: A row without anything.
NO_ROW: Final = Row()


def rows_in(cells: list[Cell]) -> list[tuple[bytes, Row]]:
    """Return the rows of cells, in order.

    An empty ``f:n`` is like a missing one, also to HBase's comparison: there is no value.
    """
    new, unpack = tuple.__new__, _NUMBERS.unpack_from  # Scans and gets read many.
    found: list[tuple[bytes, Row]] = []
    key: bytes | None = None
    state, changes, version, when, value, owner = NO_ROW
    for row, column, time_of_cell, content in cells:
        if row != key:
            if key is not None:
                found.append((key, new(Row, (state, changes, version, when, value, owner))))
            key = row
            state, changes, version, when, value, owner = NO_ROW
        if column == _STATE_COLUMN:
            state, when = content, time_of_cell
            if len(content) % _MARK_SIZE == _NUMBERS.size % _MARK_SIZE != len(content):
                changes, version, owner = unpack(content)
                if ABSENT <= version < changes < _MOST_CHANGES:  # Every put is a change.
                    continue
            if content:
                changes, version, owner = 0, FOREIGN, 0
        elif column == _VALUE_COLUMN:
            value = content
    if key is not None:
        found.append((key, new(Row, (state, changes, version, when, value, owner))))
    return found
