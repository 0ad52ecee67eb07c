# async:
# `_sync/generations.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""How a table on ZooKeeper changes a key on condition that no other client has changed it.

ZooKeeper only supports conditions on versions, and versions restart with each creation.

- Each record has a random number, its *life*, which it keeps until it is removed. The life is part
  of its version, so a version of a key is never reused.
- To make sure that a write affects only the life that was read, all keys share some *generations*:
  paths whose versions grow with each removal. A removal puts to the generation of its key. A put
  that replaces a value checks the generation, in one transaction with the put itself.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from ...batching import AsyncMetadataStore
from ...batching.async_background import AsyncGate
from ...coordination.async_conflicts import AsyncConflicts
from ...ops.errors import (
    BadVersionError,
    MetadataStoreError,
    TransactionRefusedError,
)
from ...ops.operations import ABSENT, Check, Delete, Exists, Get, Put
from ...ops.results import GetResult, Result, Stat
from .records import DAMAGED, Record, StoredRecord, encoded
from .rows import Row, Write
from .versions import Version

__all__ = ["AsyncByGeneration"]

# With more generations, fewer keys conflict with each other, but emptying a table takes one
# transaction per generation.
_GENERATIONS: Final = 256
# A forked child does not repeat the numbers of its parent.
_RANDOM: Final = random.SystemRandom()
# The largest number of keys that one transaction removes.
_PAGE: Final = 500

_T = TypeVar("_T")


class AsyncByGeneration:
    """The version of a key consists of the life of its record and the version of its path.

    Args:
        store: the store.
        place: the path below which the generations are.
    """

    def __init__(self, store: AsyncMetadataStore, place: str) -> None:
        self._store = store
        self._place = place
        # The known versions of the generations, and the session in which they were read. A write
        # that expects an outdated version is refused, so any thread may read and set them.
        self._known: dict[str, int] = {}
        self._session: object = None
        # A reader of a generation, which may create it, holds its gate.
        self._gates: dict[str, AsyncGate] = {}

    def version(self, stat: Stat, life: int) -> Version:
        return Version(life, stat.version)

    async def read(self, path: str) -> StoredRecord | None:
        while True:
            # In this order: a removal of what is read here advances the generation.
            session = await self._enter_session()
            generation = await self._generation(self._at(path))
            found = await self._store.get(path)
            if self._store.session.id == session:
                return None if found is None else StoredRecord(found, generation)

    async def read_all(
        self, paths: Sequence[str]
    ) -> list[StoredRecord | MetadataStoreError | None]:
        while True:
            session = await self._enter_session()
            generations = await self._generations([self._at(path) for path in paths])
            outcomes = await self._store.apply([Get(path) for path in paths])
            if self._store.session.id == session:
                return [
                    StoredRecord(outcome.result, generation)
                    if isinstance(outcome.result, GetResult)
                    else outcome.error
                    for outcome, generation in zip(outcomes, generations, strict=True)
                ]

    def creation(self, row: Row, fields: dict[str, bytes]) -> Write:
        record = Record(fields, _RANDOM.getrandbits(63))
        return Write(row, Put(row.path, encoded(record), ABSENT), record.life)

    def replacement(self, row: Row, stored: StoredRecord, record: Record) -> Write:
        if record.life == DAMAGED.life:
            record = record._replace(life=_RANDOM.getrandbits(63))
        put = Put(row.path, encoded(record), stored.found.stat.version)
        return Write(row, put, record.life, Check(self._at(row.path), stored.generation))

    def removal(self, row: Row, stored: StoredRecord) -> Write:
        delete = Delete(row.path, stored.found.stat.version)
        return Write(row, delete, 0, Put(self._at(row.path), b"", stored.generation))

    def outdated(self, write: Write) -> None:
        if write.guard is not None:
            self._known.pop(write.guard.path, None)

    def removed(self, write: Write) -> None:
        guard = write.guard
        if guard is not None and guard.expected_version is not None:
            self._known[guard.path] = guard.expected_version + 1

    async def remove_all(self, paths: list[str]) -> int:
        by_generation: defaultdict[str, list[Delete]] = defaultdict(list)
        for path in paths:
            by_generation[self._at(path)].append(Delete(path))
        removed = 0
        for at, deletes in by_generation.items():
            for some in _pages(deletes):
                removed += await self._remove_some(at, some)
        return removed

    async def _remove_some(self, at: str, deletes: Sequence[Delete]) -> int:
        """Remove the records of one generation, at any version."""
        left = deletes
        conflicts = AsyncConflicts(self._store.operation_timeout, at)
        while left:
            generation = await self._generation(at)
            try:
                await self._store.transaction([Put(at, b"", generation), *left])
            except TransactionRefusedError as refused:
                await conflicts.pause(refused)
            else:
                self._known[at] = generation + 1
                break
            # Another client has removed some of them, or other keys.
            self._known.pop(at, None)
            await self._store.sync()
            there = await self._apply([Exists(delete.path) for delete in left])
            left = [delete for delete, found in zip(left, there, strict=True) if found]
        return len(left)

    async def _enter_session(self) -> str | None:
        """Return the current session. After this, reads show everything that was written before it.

        All reads of one ``read`` use one session: the next session may begin on a server that lags
            behind the server of this one.
        """
        session = self._store.session.id
        if session != self._session:
            await self._store.sync()
            if session != self._session:  # Otherwise, other calls may have read generations in it.
                self._known, self._session = {}, session
        return session

    async def _generation(self, at: str) -> int:
        """Return the version of a generation."""
        known = self._known.get(at)
        if known is not None:
            return known
        # A hub may claim thousands of topics at once, whose keys share few generations.
        gate = self._gates.setdefault(at, AsyncGate())
        async with gate:
            known = self._known.get(at)
            return (await self._generations([at]))[0] if known is None else known

    async def _generations(self, places: Sequence[str]) -> list[int]:
        """Return the versions of generations.

        Missing generations are created: checking that a path is missing would cost ZooKeeper two
            changes in each transaction.
        """
        # Any thread may reset what is known.
        cached = {at: self._known.get(at) for at in places}
        known = {at: version for at, version in cached.items() if version is not None}
        conflicts = AsyncConflicts(self._store.operation_timeout, self._place)
        while unknown := [*{*places} - known.keys()]:
            results = await self._apply([Get(at) for at in unknown])
            missing = [at for at, found in zip(unknown, results, strict=True) if found is None]
            results += await self._apply([Put(at, b"", ABSENT) for at in missing])
            for found in results:
                stat = found.stat if isinstance(found, GetResult) else found
                if isinstance(stat, Stat):
                    known[stat.path] = self._known[stat.path] = stat.version
            if len(known) < len({*places}):
                await conflicts.pause()  # Another client has created one meanwhile.
                await self._store.sync()
        return [known[at] for at in places]

    async def _apply(self, ops: Sequence[Exists | Get | Put]) -> list[Result]:
        """Return the results of operations; ``None`` for a put that was refused."""
        outcomes = await self._store.apply(ops)
        for outcome in outcomes:
            if outcome.error is not None and not isinstance(outcome.error, BadVersionError):
                raise outcome.error
        return [outcome.result for outcome in outcomes]

    def _at(self, path: str) -> str:
        return f"{self._place}/{zlib.crc32(path.encode()) % _GENERATIONS}"


def _pages(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yield the items in parts that fit into one transaction."""
    for start in range(0, len(items), _PAGE):
        yield items[start : start + _PAGE]
