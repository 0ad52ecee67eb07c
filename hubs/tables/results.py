"""What tables return, and what callers give them."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from .versions import Version

__all__ = ["Entry", "Order", "VersionedValue"]

#: The order in which a cursor returns keys: that of their bytes in UTF-8, or the reverse.
Order: TypeAlias = Literal["ascending", "descending"]


class VersionedValue(NamedTuple):
    """The value of a key, and its version."""

    value: dict[str, bytes]
    version: Version


class Entry(NamedTuple):
    """A key of a table, with its value and its version."""

    key: str
    value: dict[str, bytes]
    version: Version
