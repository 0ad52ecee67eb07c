# Made from async_states.py by `python tools/faces.py`: change that file, and run this command.
"""How a table changes a key on condition that no other client has changed it.

A put reads the record of its key, changes some fields, and writes it back on condition that no
other client has changed it in the meantime. The condition must also fail if the key was removed and
put again. Where a put can expect a revision, the revision is the condition, because revisions are
never reused. For ZooKeeper, see ``generations``.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

from ....batching import MetadataStore
from ....ops.errors import MetadataStoreError, NotFoundError
from ....ops.operations import ABSENT, Delete, Get, Put
from ....ops.results import GetResult, Stat
from ..records import Record, StoredRecord, encoded
from ..rows import Row, Write
from ..versions import Version
from .generations import ByGeneration

__all__ = ["ByRevision", "States", "states_of"]


class States(Protocol):
    """Reads records, and builds their conditional writes."""

    def version(self, stat: Stat, life: int) -> Version:
        """Return the version of a record that was read or written."""

    def read(self, path: str) -> StoredRecord | None:
        """Read a record in order to replace or remove it; ``None`` if there is no record."""

    def read_all(self, paths: Sequence[str]) -> list[StoredRecord | MetadataStoreError | None]:
        """Read records in batches. Return the error of each that failed."""

    def creation(self, row: Row, fields: dict[str, bytes]) -> Write:
        """Return the write that creates the record of a row."""

    def replacement(self, row: Row, stored: StoredRecord, record: Record) -> Write:
        """Return the write that replaces a record that was read."""

    def removal(self, row: Row, stored: StoredRecord) -> Write:
        """Return the write that removes a record that was read."""

    def outdated(self, write: Write) -> None:
        """Note that the guard of a write did not hold."""

    def removed(self, write: Write) -> None:
        """Note that a removal has taken effect."""

    def remove_all(self, paths: list[str]) -> int:
        """Remove records at any version. Return the number of records that existed."""


class ByRevision:
    """The version of a key is the revision of its path.

    Paths changed together share a revision, so a version also names the path.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def version(self, stat: Stat, life: int) -> Version:
        return Version(zlib.crc32(stat.path.encode()), stat.revision)

    def read(self, path: str) -> StoredRecord | None:
        found = self._store.get(path).result()
        return None if found is None else StoredRecord(found)

    def read_all(self, paths: Sequence[str]) -> list[StoredRecord | MetadataStoreError | None]:
        outcomes = self._store.apply([Get(path) for path in paths])
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

    def remove_all(self, paths: list[str]) -> int:
        outcomes = self._store.apply([Delete(path) for path in paths])
        for outcome in outcomes:
            if outcome.error is not None and not isinstance(outcome.error, NotFoundError):
                raise outcome.error
        return sum(outcome.ok for outcome in outcomes)


def states_of(store: MetadataStore, place: str) -> States:
    """Return the ``States`` for a store. Generations are stored below ``place``."""
    if "expected_revisions" in store.capabilities:
        return ByRevision(store)
    return ByGeneration(store, place)
