# async:
# `_sync/shelves.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Reads, merges and writes the records of tables, singly or in batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from ...batching import AsyncMetadataStore
from ...batching.async_background import AsyncSignal
from ...coordination.async_conflicts import AsyncConflicts
from ...ops.errors import (
    BadVersionError,
    MetadataStoreError,
    StoreClosedError,
    ValueDecodeError,
)
from ...ops.results import GetResult
from ..errors import IllegalOperationError
from .async_states import async_states_of
from .async_watchers import AsyncWatchers
from .async_writes import Written, async_execute, async_execute_all
from .errors import DamagedRecordError
from .records import DAMAGED, Record, StoredRecord, decoded, merged
from .results import VersionedValue
from .rows import Row, Write
from .versions import Version

__all__ = ["AsyncShelf", "Change"]

#: Receives the value of a row, and returns the fields to put, or ``None`` to leave the row
#: unchanged. If it raises, its error becomes the result of the row.
Change: TypeAlias = Callable[[VersionedValue], Mapping[str, bytes | None] | None]

# Builds the write of a row that was read; ``None`` leaves it unchanged.
_Change: TypeAlias = Callable[[StoredRecord | None], Write | None]
_Ended: TypeAlias = Version | MetadataStoreError | None


class AsyncShelf:
    """The records of some tables in a store.

    Args:
        store: the store.
        removals: the path for generations (see ``async_generations``).
    """

    def __init__(self, store: AsyncMetadataStore, removals: str) -> None:
        self.store = store
        self.closed = AsyncSignal()
        self._states = async_states_of(store, removals)
        self._watchers: dict[str, AsyncWatchers] = {}  # by the path of their table
        # Whether a read may miss writes of other clients.
        self._lags = "linearizable_reads" not in store.capabilities

    def check_open(self) -> None:
        """Check that the tables were not closed.

        Raises:
            StoreClosedError: the tables were closed.
        """
        if self.closed.is_set():
            raise StoreClosedError("the tables were closed")

    def close(self) -> None:
        """End the use of the tables, and their watchers."""
        self.closed.set()
        for watchers in [*self._watchers.values()]:
            watchers.close()

    def watchers(self, place: str) -> AsyncWatchers:
        """Return the watchers of the table at a path."""
        found = self._watchers.get(place)
        if found is None:
            found = AsyncWatchers(self.store, place, self.closed)
            found = self._watchers.setdefault(place, found)
        return found

    async def catch_up(self) -> None:
        """Make later reads show all earlier writes of other clients."""
        if self._lags:
            await self.store.sync()

    async def get(self, row: Row, *, certain: bool = True) -> GetResult:
        """Return the record of a row.

        Args:
            row: the row.
            certain: whether to catch up and read again if the row seems to be empty on a store
                whose reads may lag.

        Raises:
            NoKeyError: the row is empty.
        """
        found = await self.store.get(row.path)
        if found is None and certain and self._lags:
            await self.store.sync()
            found = await self.store.get(row.path)
        if found is None:
            raise row.missing()
        return found

    def shown(self, found: GetResult, fields: Collection[str] | None = None) -> VersionedValue:
        """Return a value that was read, or some of its fields.

        Raises:
            DamagedRecordError: it cannot be read.
        """
        record, damage = self._record(found)
        if damage is not None:
            raise damage
        value = record.fields
        if fields is not None:
            value = {name: value[name] for name in fields if name in value}
        return VersionedValue(value, self._states.version(found.stat, record.life))

    async def put(self, row: Row, changes: Mapping[str, bytes | None], version: Version) -> Version:
        """Change fields of a row; see ``Table.put``."""
        if version == Version.NEW:
            write = self._states.creation(row, merged({}, changes))
            try:
                written = await async_execute(self.store, self._states, write)
            except BadVersionError as error:
                raise row.exists() from error
        else:
            written = await self._change(row, self._put(row, changes, version))
        assert written is not None
        return written

    async def put_all(
        self, puts: Sequence[tuple[Row, Mapping[str, bytes | None], Version]]
    ) -> list[Version | MetadataStoreError]:
        """Change fields of rows as ``put`` does, in batches. A row occurs once.

        Returns the new version of each, or its error, in the order given.
        """
        self._check_all([row for row, _, _ in puts])
        news = {at: put for at, put in enumerate(puts) if put[2] == Version.NEW}
        creations = [
            self._states.creation(row, merged({}, fields)) for row, fields, _ in news.values()
        ]
        created = await async_execute_all(self.store, self._states, creations)
        ended: dict[int, _Ended] = {
            at: puts[at][0].exists() if isinstance(one, BadVersionError) else one
            for at, one in zip(news, created, strict=True)
        }
        ended |= await self._change_all(
            {at: (put[0], self._put(*put)) for at, put in enumerate(puts) if at not in news}
        )
        # A put always changes its row.
        return [one for at in range(len(puts)) if (one := ended[at]) is not None]

    async def change_all(
        self, changes: Sequence[tuple[Row, Change]]
    ) -> list[Version | MetadataStoreError | None]:
        """Change rows in batches, each unless another client has changed it. A row occurs once.

        Returns, in the order given, the new version of each row, ``None`` if the row is unchanged,
        or its error.
        """

        def made(row: Row, change: Change) -> _Change:
            def write(stored: StoredRecord | None) -> Write | None:
                stored, record = self._at(row, stored, Version.ANY)
                version = self._states.version(stored.found.stat, record.life)
                fields = change(VersionedValue(record.fields, version))
                return None if fields is None else self._merge(row, stored, record, fields)

            return write

        self._check_all([row for row, _ in changes])
        ended = await self._change_all(
            {at: (row, made(row, change)) for at, (row, change) in enumerate(changes)}
        )
        return [ended[at] for at in range(len(changes))]

    async def remove(self, row: Row, version: Version) -> None:
        """Remove a row; see ``Table.remove``."""

        def write(stored: StoredRecord | None) -> Write:
            return self._states.removal(row, self._at(row, stored, version)[0])

        await self._change(row, write)

    async def remove_all(self, paths: list[str]) -> int:
        """Remove records at any version. Return the number of records that existed."""
        return await self._states.remove_all(paths)

    # Inside

    def _check_all(self, rows: Sequence[Row]) -> None:
        """Check that the tables are open, and that each row occurs once."""
        self.check_open()
        paths: set[str] = set()
        for row in rows:
            if row.path in paths:
                raise IllegalOperationError(
                    f"key {row.key!r} of table {row.table!r} occurs twice in one call"
                )
            paths.add(row.path)

    async def _change(self, row: Row, change: _Change) -> Written:
        """Read a row and write its change, until no other client was faster."""
        conflicts = AsyncConflicts(self.store.operation_timeout, row.path)
        while True:
            stored = await self._states.read(row.path)
            write = None
            try:
                write = change(stored)
            except MetadataStoreError:
                if conflicts.attempts or not self._lags:  # Otherwise, the result may be stale.
                    raise
            if write is not None:
                with suppress(BadVersionError):
                    return await async_execute(self.store, self._states, write)
            await self._pause(conflicts)

    async def _change_all(self, changes: Mapping[int, tuple[Row, _Change]]) -> dict[int, _Ended]:
        """Change rows as ``_change`` does, and return the outcome of each."""
        ended: dict[int, _Ended] = {}
        left = changes
        conflicts = AsyncConflicts(self.store.operation_timeout, "some keys")
        while left:
            try:
                if left is not changes:
                    await self._pause(conflicts)
                ended |= await self._change_some(left, retry=conflicts.attempts > 0)
            except MetadataStoreError as error:  # Others may have changed already.
                return ended | {at: error.for_path(row.path) for at, (row, _) in left.items()}
            left = {at: change for at, change in left.items() if at not in ended}
        return ended

    async def _change_some(
        self, changes: Mapping[int, tuple[Row, _Change]], *, retry: bool
    ) -> dict[int, _Ended]:
        """Try to change rows; return the outcome of those that need no further attempt."""
        ended: dict[int, _Ended] = {}
        writes: dict[int, Write] = {}
        found = await self._states.read_all([row.path for row, _ in changes.values()])
        for stored, (at, (_, change)) in zip(found, changes.items(), strict=True):
            if isinstance(stored, MetadataStoreError):
                ended[at] = stored
                continue
            try:
                write = change(stored)
            except MetadataStoreError as error:
                if retry or not self._lags:  # Otherwise, the result may be stale.
                    ended[at] = error
                continue
            if write is None:
                ended[at] = None
            else:
                writes[at] = write
        written = await async_execute_all(self.store, self._states, [*writes.values()])
        return ended | {
            at: one
            for at, one in zip(writes, written, strict=True)
            if not isinstance(one, BadVersionError)  # Otherwise, another client was faster.
        }

    async def _pause(self, conflicts: AsyncConflicts) -> None:
        """Wait before the next attempt, and make sure that it reads the writes of others."""
        await conflicts.pause()
        await self.catch_up()

    def _put(self, row: Row, fields: Mapping[str, bytes | None], version: Version) -> _Change:
        def write(stored: StoredRecord | None) -> Write:
            stored, record = self._at(row, stored, version)
            return self._merge(row, stored, record, fields)

        return write

    def _merge(
        self, row: Row, stored: StoredRecord, record: Record, fields: Mapping[str, bytes | None]
    ) -> Write:
        record = record._replace(fields=merged(record.fields, fields))
        return self._states.replacement(row, stored, record)

    def _at(
        self, row: Row, stored: StoredRecord | None, version: Version
    ) -> tuple[StoredRecord, Record]:
        """Return a record that was read and must have a given version.

        Raises:
            NoKeyError: there is no record.
            BadVersionError: the record has another version.
            DamagedRecordError: it cannot be read, and the version is not the one in this error.
        """
        if stored is None:
            raise row.missing()
        record, damage = self._record(stored.found)
        actual = self._states.version(stored.found.stat, record.life)
        if version == actual or (version == Version.ANY and damage is None):
            return stored, record
        raise damage or row.moved(actual, version)

    def _record(self, found: GetResult) -> tuple[Record, DamagedRecordError | None]:
        """Return the record at a path, or the reason why there is none."""
        try:
            return decoded(found), None
        except ValueDecodeError as error:
            version = self._states.version(found.stat, DAMAGED.life)
            return DAMAGED, DamagedRecordError(str(error), path=error.path, at=version)
