# async:
# `_sync/states.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""How a table changes a key only as long as nobody else has.

A put reads the record of its key, changes some fields, and writes it back on the condition that
nobody has changed it meanwhile. That must also hold if the key was removed meanwhile and put again.
Where a put may expect a revision, that is the condition, because revisions never come back. For
ZooKeeper, see ``async_generations``.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

from ...batching import AsyncMetadataStore
from ...ops.errors import MetadataStoreError, NotFoundError
from ...ops.operations import ABSENT, Delete, Get, Put
from ...ops.results import GetResult, Stat
from .async_generations import AsyncByGeneration
from .records import Record, StoredRecord, encoded
from .rows import Row, Write
from .versions import Version

__all__ = ["AsyncByRevision", "AsyncStates", "async_states_of"]


class AsyncStates(Protocol):
    """Reads records, and says how they are changed."""

    def version(self, stat: Stat, life: int) -> Version:
        """Return the version of a record that was read or written."""

    async def read(self, path: str) -> StoredRecord | None:
        """Read a record that may be replaced or removed then; ``None`` if there is none."""

    async def read_all(
        self, paths: Sequence[str]
    ) -> list[StoredRecord | MetadataStoreError | None]:
        """Read records in batches. Return the error of each that failed."""

    def creation(self, row: Row, fields: dict[str, bytes]) -> Write:
        """Return the write of the first record of a row."""

    def replacement(self, row: Row, stored: StoredRecord, record: Record) -> Write:
        """Return the write of another record instead of one that was read."""

    def removal(self, row: Row, stored: StoredRecord) -> Write:
        """Return the removal of a record that was read."""

    def outdated(self, write: Write) -> None:
        """Note that the guard of a write did not hold."""

    def removed(self, write: Write) -> None:
        """Note that a removal has taken effect."""

    async def remove_all(self, paths: list[str]) -> int:
        """Remove records, whatever they are. Return the number of those that were there."""


class AsyncByRevision:
    """The revision of a path is the version of its key.

    Paths that are changed together share a revision, so a version also tells the path.
    """

    def __init__(self, store: AsyncMetadataStore) -> None:
        self._store = store

    def version(self, stat: Stat, life: int) -> Version:
        return Version(zlib.crc32(stat.path.encode()), stat.revision)

    async def read(self, path: str) -> StoredRecord | None:
        found = await self._store.get(path)
        return None if found is None else StoredRecord(found)

    async def read_all(
        self, paths: Sequence[str]
    ) -> list[StoredRecord | MetadataStoreError | None]:
        outcomes = await self._store.apply([Get(path) for path in paths])
        return [
            StoredRecord(outcome.result) if isinstance(outcome.result, GetResult) else outcome.error
            for outcome in outcomes
        ]

    def creation(self, row: Row, fields: dict[str, bytes]) -> Write:
        return Write(row, Put(row.path, encoded(Record(fields)), ABSENT))

    def replacement(self, row: Row, stored: StoredRecord, record: Record) -> Write:
        value = encoded(record._replace(life=0))
        return Write(row, Put(row.path, value, expected_revision=stored.found.stat.revision))

    def removal(self, row: Row, stored: StoredRecord) -> Write:
        return Write(row, Delete(row.path, expected_revision=stored.found.stat.revision))

    def outdated(self, write: Write) -> None:
        pass

    def removed(self, write: Write) -> None:
        pass

    async def remove_all(self, paths: list[str]) -> int:
        outcomes = await self._store.apply([Delete(path) for path in paths])
        for outcome in outcomes:
            if outcome.error is not None and not isinstance(outcome.error, NotFoundError):
                raise outcome.error
        return sum(outcome.ok for outcome in outcomes)


def async_states_of(store: AsyncMetadataStore, place: str) -> AsyncStates:
    """Return how records are changed in a store. Generations are below ``place``."""
    if "expected_revisions" in store.capabilities:
        return AsyncByRevision(store)
    return AsyncByGeneration(store, place)
