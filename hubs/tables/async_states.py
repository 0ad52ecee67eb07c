# async:
# `states.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""How a table changes a key only as long as nobody else has.

A put reads the record of its key, changes some fields, and writes it back on the condition that
nobody has changed it meanwhile. That must also hold if the key was removed meanwhile and put again.
Where a put may expect a revision, that is the condition, because revisions never come back. For
ZooKeeper, see ``async_generations``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from ...batching import AsyncMetadataStore
from ...ops.errors import BadVersionError, MetadataStoreError, NotFoundError
from ...ops.operations import ABSENT, Delete, Get, Put
from ...ops.results import GetResult, Stat
from .async_generations import AsyncByGeneration
from .records import Record, Seen, encoded
from .versions import Version

__all__ = ["AsyncByRevision", "AsyncStates", "async_states_of"]


class AsyncStates(Protocol):
    """Conditional writes of records."""

    def version(self, found: GetResult, record: Record) -> Version:
        """Return the version of a record that was read."""

    async def read(self, path: str) -> Seen | None:
        """Read a record that may be replaced or removed then; ``None`` if there is none."""

    async def create(self, path: str, fields: dict[str, bytes]) -> Version:
        """Write the first record of a key.

        Raises:
            BadVersionError: the key is there.
        """

    async def replace(self, path: str, seen: Seen, record: Record) -> Version:
        """Write another record instead of one that ``read`` has found.

        Raises:
            BadVersionError: it is not there any more.
        """

    async def remove(self, path: str, seen: Seen) -> None:
        """Remove a record that ``read`` has found.

        Raises:
            BadVersionError: it is not there any more.
        """

    async def remove_all(self, paths: list[str]) -> int:
        """Remove records, whatever they are. Return the number of those that were there."""

    async def read_all(self, paths: Sequence[str]) -> list[Seen | MetadataStoreError | None]:
        """Read records as ``read`` does, in batches. Return the error of each that failed."""

    async def create_all(
        self, records: Sequence[tuple[str, dict[str, bytes]]]
    ) -> list[Version | MetadataStoreError]:
        """Write records as ``create`` does, in batches. Return the error of each that failed."""

    async def replace_all(
        self, records: Sequence[tuple[str, Seen, Record]]
    ) -> list[Version | MetadataStoreError]:
        """Write records as ``replace`` does, in batches. Return the error of each that failed."""


class AsyncByRevision:
    """The revision of a path is the version of its key.

    Paths that are changed together share a revision, so a version also tells the path.
    """

    def __init__(self, store: AsyncMetadataStore) -> None:
        self._store = store

    def version(self, found: GetResult, record: Record) -> Version:
        return _version(found.stat)

    async def read(self, path: str) -> Seen | None:
        found = await self._store.get(path)
        return None if found is None else Seen(found)

    async def create(self, path: str, fields: dict[str, bytes]) -> Version:
        stat = await self._store.put(path, encoded(Record(fields)), ABSENT)
        return _version(stat)

    async def replace(self, path: str, seen: Seen, record: Record) -> Version:
        revision = seen.found.stat.revision
        value = encoded(record._replace(life=0))
        stat = await self._store.put(path, value, expected_revision=revision)
        return _version(stat)

    async def remove(self, path: str, seen: Seen) -> None:
        try:
            await self._store.delete(path, expected_revision=seen.found.stat.revision)
        except NotFoundError as error:
            raise BadVersionError(str(error), path=path) from error

    async def remove_all(self, paths: list[str]) -> int:
        outcomes = await self._store.apply([Delete(path) for path in paths])
        for outcome in outcomes:
            if outcome.error is not None and not isinstance(outcome.error, NotFoundError):
                raise outcome.error
        return sum(outcome.ok for outcome in outcomes)

    async def read_all(self, paths: Sequence[str]) -> list[Seen | MetadataStoreError | None]:
        outcomes = await self._store.apply([Get(path) for path in paths])
        return [
            Seen(outcome.result) if isinstance(outcome.result, GetResult) else outcome.error
            for outcome in outcomes
        ]

    async def create_all(
        self, records: Sequence[tuple[str, dict[str, bytes]]]
    ) -> list[Version | MetadataStoreError]:
        return await self._put_all(
            Put(path, encoded(Record(fields)), ABSENT) for path, fields in records
        )

    async def replace_all(
        self, records: Sequence[tuple[str, Seen, Record]]
    ) -> list[Version | MetadataStoreError]:
        return await self._put_all(
            Put(path, encoded(record._replace(life=0)), expected_revision=seen.found.stat.revision)
            for path, seen, record in records
        )

    async def _put_all(self, puts: Iterable[Put]) -> list[Version | MetadataStoreError]:
        ended: list[Version | MetadataStoreError] = []
        for outcome in await self._store.apply(puts):
            stat = outcome.result
            if isinstance(stat, Stat):
                ended.append(_version(stat))
            elif outcome.error is not None:
                ended.append(outcome.error)
        return ended


def _version(stat: Stat) -> Version:
    return Version(zlib.crc32(stat.path.encode()), stat.revision)


def async_states_of(store: AsyncMetadataStore, place: str) -> AsyncStates:
    """Return how records are changed in a store. Generations are below ``place``."""
    if "expected_revisions" in store.capabilities:
        return AsyncByRevision(store)
    return AsyncByGeneration(store, place)
