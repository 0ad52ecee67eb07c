"""The location of a key's record, its changes, and the errors that name the key."""

from __future__ import annotations

from typing import NamedTuple

from ...ops.errors import BadVersionError
from ...ops.operations import Delete, Part, Put
from ..errors import KeyExistsError, NoKeyError
from .versions import Version

__all__ = ["Row", "Write"]


class Row(NamedTuple):
    """The location of a key's record.

    Attributes:
        path: the path of the record.
        table: the name of the table.
        key: the key.
        beside: operations of the caller that take effect together with each change of the record,
            such as the check that a lock is held. If one of them is refused, so is the change, with
            ``TransactionRefusedError``. They are the first of its transaction.
    """

    path: str
    table: str
    key: str
    beside: tuple[Part, ...] = ()

    def missing(self) -> NoKeyError:
        """Return the error that the key does not exist."""
        return NoKeyError(f"table {self.table!r} has no key {self.key!r}", path=self.path)

    def exists(self) -> KeyExistsError:
        """Return the error that it already exists."""
        return KeyExistsError(f"table {self.table!r} has the key {self.key!r}", path=self.path)

    def moved(self, actual: Version, expected: Version) -> BadVersionError:
        """Return the error that it has another version."""
        return BadVersionError(
            f"key {self.key!r} of table {self.table!r} is at {actual!r}, not {expected!r}",
            path=self.path,
        )


class Write(NamedTuple):
    """A change of a row, on condition that no other client has changed it.

    Attributes:
        row: the row.
        op: puts or deletes its record.
        life: the life of the new record.
        guard: the operation that checks or advances its generation (see ``async_generations``).
    """

    row: Row
    op: Put | Delete
    life: int = 0
    guard: Part | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All operations that take effect together."""
        guard = () if self.guard is None else (self.guard,)
        return (*self.row.beside, *guard, self.op)
