# async:
# `_sync/shelves.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The records of tables: read, merged and written, one by one or many together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from ...batching import AsyncMetadataStore
from ...coordination.async_background import AsyncSignal
from ...ops.backoff import Backoff
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

_BACKOFF: Final = Backoff(first=0.002, longest=0.1)

#: Receives the value of a row, and returns the fields to put; ``None`` to leave it as it is. An
#: error that it raises is that of the row.
Change: TypeAlias = Callable[[VersionedValue], Mapping[str, bytes | None] | None]

# Makes the write of a row that was read; ``None``: it stays as it is.
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
        # Whether a read may miss what others have written.
        self._lags = "linearizable_reads" not in store.capabilities

    def check_open(self) -> None:
        """Check that the tables were not closed.

        Raises:
            StoreClosedError: they were.
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
        """Let later reads show what others have written before."""
        if self._lags:
            await self.store.sync()

    async def get(self, row: Row, *, certain: bool = True) -> GetResult:
        """Return what a row holds.

        Args:
            row: the row.
            certain: whether it is read again, after all that others have written before, if it
                seems to hold nothing on a store whose reads may lag.

        Raises:
            NoKeyError: it holds nothing.
        """
        found = await self.store.get(row.path)
        if found is None and certain and self._lags:
            await self.store.sync()
            found = await self.store.get(row.path)
        if found is None:
            raise row.missing()
        return found

    def shown(self, found: GetResult, fields: Collection[str] | None = None) -> VersionedValue:
        """Return the value that was found, or some fields of it.

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
        # No put leaves its row as it was.
        return [one for at in range(len(puts)) if (one := ended[at]) is not None]

    async def change_all(
        self, changes: Sequence[tuple[Row, Change]]
    ) -> list[Version | MetadataStoreError | None]:
        """Change rows, each only as long as nobody else has, in batches. A row occurs once.

        Returns the new version of each, ``None`` if its change has left it as it was, or its error,
        in the order given.
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
        """Remove records, whatever they are. Return the number of those that were there."""
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
        """Read a row and write what its change makes of it, until nobody else was quicker."""
        attempts = 0
        while True:
            stored = await self._states.read(row.path)
            write = None
            try:
                write = change(stored)
            except MetadataStoreError:
                if attempts or not self._lags:  # Otherwise, what was read may be outdated.
                    raise
            if write is not None:
                with suppress(BadVersionError):
                    return await async_execute(self.store, self._states, write)
            await self._pause(attempts)
            attempts += 1

    async def _change_all(self, changes: Mapping[int, tuple[Row, _Change]]) -> dict[int, _Ended]:
        """Change rows as ``_change`` does, and return how each has ended."""
        ended: dict[int, _Ended] = {}
        left = changes
        attempts = 0
        while left:
            try:
                if attempts:
                    await self._pause(attempts - 1)
                ended |= await self._change_some(left, retry=attempts > 0)
            except MetadataStoreError as error:  # Others may have changed already.
                return ended | {at: error.for_path(row.path) for at, (row, _) in left.items()}
            left = {at: change for at, change in left.items() if at not in ended}
            attempts += 1
        return ended

    async def _change_some(
        self, changes: Mapping[int, tuple[Row, _Change]], *, retry: bool
    ) -> dict[int, _Ended]:
        """Try to change rows; return how those ended that need no other attempt."""
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
                if retry or not self._lags:  # Otherwise, what was read may be outdated.
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
            if not isinstance(one, BadVersionError)  # Otherwise, somebody else was quicker.
        }

    async def _pause(self, attempts: int) -> None:
        """Wait before another attempt, and see to it that this reads what others have written."""
        await asyncio.sleep(_BACKOFF.pause(attempts))
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
        """Return a record that was read and must be at a version.

        Raises:
            NoKeyError: there is none.
            BadVersionError: it is at another version.
            DamagedRecordError: it cannot be read, and the version is not that of this error.
        """
        if stored is None:
            raise row.missing()
        record, damage = self._record(stored.found)
        actual = self._states.version(stored.found.stat, record.life)
        if version == actual or (version == Version.ANY and damage is None):
            return stored, record
        raise damage or row.moved(actual, version)

    def _record(self, found: GetResult) -> tuple[Record, DamagedRecordError | None]:
        """Return the record that a path holds, or why there is none."""
        try:
            return decoded(found), None
        except ValueDecodeError as error:
            version = self._states.version(found.stat, DAMAGED.life)
            return DAMAGED, DamagedRecordError(str(error), path=error.path, at=version)
