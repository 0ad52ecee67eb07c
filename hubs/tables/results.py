"""The results of tables, and the types of arguments."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from .versions import Version

__all__ = ["Entry", "EventType", "Order", "VersionedValue", "Watcher"]

#: The order of a cursor's keys: by their bytes in UTF-8, or the reverse.
Order: TypeAlias = Literal["ascending", "descending"]


class EventType(StrEnum):
    """A kind of change of a key."""

    CHANGED = "changed"
    """It was created, or put again."""

    REMOVED = "removed"
    """It was removed."""


#: Receives the key and the kind of change. In asyncio, it may be a coroutine function.
Watcher: TypeAlias = Callable[[str, EventType], object]


class VersionedValue(NamedTuple):
    """The value of a key, and its version."""

    value: dict[str, bytes]
    version: Version


class Entry(NamedTuple):
    """A key of a table, with its value and its version."""

    key: str
    value: dict[str, bytes]
    version: Version
