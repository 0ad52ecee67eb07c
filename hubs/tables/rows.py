"""The place of a key's record, and the errors that name the key."""

from __future__ import annotations

from typing import NamedTuple

from ...ops.errors import BadVersionError
from ..errors import KeyExistsError, NoKeyError
from .versions import Version

__all__ = ["Row"]


class Row(NamedTuple):
    """The place of a key's record.

    Attributes:
        path: the path of the record.
        table: the name of the table.
        key: the key.
    """

    path: str
    table: str
    key: str

    def missing(self) -> NoKeyError:
        """Return the error that the key is not there."""
        return NoKeyError(f"table {self.table!r} has no key {self.key!r}", path=self.path)

    def exists(self) -> KeyExistsError:
        """Return the error that it is there."""
        return KeyExistsError(f"table {self.table!r} has the key {self.key!r}", path=self.path)

    def moved(self, actual: Version, expected: Version) -> BadVersionError:
        """Return the error that it is at another version."""
        return BadVersionError(
            f"key {self.key!r} of table {self.table!r} is at {actual!r}, not {expected!r}",
            path=self.path,
        )
