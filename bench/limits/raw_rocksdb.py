"""RocksDB's ceilings: a bare loop on rocksdict, batches of 1,000 with one sync each.

The loop includes what any put with versions needs: it reads the old records, all of a batch in one
multi-get, and checks them. Keys and records are encoded beforehand. Write batches cannot be,
because they follow the reads. The options are rocksdict's defaults.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any, Final, TypeAlias

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from ...ops.operations import ABSENT
from ..target import Target
from ..workload import WrongAnswerError
from .ceilings import Ceiling
from .work import EXPECTATIONS, Figures, Item, Stopwatch, items, parts, work

__all__ = ["CEILINGS"]

_BATCH: Final = 1000
_SEEDED: Final = 10_000
# As large as the header of a record of the RocksDB back end, with the version in it.
_HEADER: Final = struct.Struct(">I25x")
_VERSION: Final = struct.Struct(">I")

_SYNCED: Final = WriteOptions()
_SYNCED.sync = True
_UNSYNCED: Final = WriteOptions()

#: Writes a batch to a database, and returns when it is on the disk.
_Write: TypeAlias = Callable[[Any, WriteBatch], None]

#: The keys of a batch, their records, and the first bytes of the records that they replace.
_Batch: TypeAlias = tuple[list[bytes], list[bytes], bytes | None]


def _puts(write: _Write, there: Target, count: int) -> Figures:
    """Measure puts of fresh keys."""
    made = work(there.root, count)
    warm_up, timed = _batches(made.warm_up, ABSENT), _batches(made.timed, ABSENT)
    with _database(there) as database:
        _replay(database, warm_up, write)
        with Stopwatch(there) as watch:
            _replay(database, timed, write)
        return watch.figures(count)


def _conditional_puts(write: _Write, there: Target, count: int) -> Figures:
    """Measure puts of fresh keys, then of the same keys at their next versions."""
    made = work(there.root, max(1, count // 3))
    warm_up, timed = (
        [batch for expected in EXPECTATIONS for batch in _batches(found, expected)]
        for found in (made.warm_up, made.timed)
    )
    with _database(there) as database:
        _replay(database, warm_up, write)
        with Stopwatch(there) as watch:
            _replay(database, timed, write)
        return watch.figures(len(made.timed) * len(EXPECTATIONS))


def _gets_one_by_one(there: Target, count: int) -> Figures:
    """Measure gets of existing keys, with a call for each."""

    def get(database: Any, asked: Sequence[tuple[bytes, bytes]]) -> None:
        get = database.get
        for key, record in asked:
            if get(key) != record:
                raise WrongAnswerError(f"a get of a ceiling found something else at {key!r}")

    return _gets(there, count, get)


def _gets_of_many(there: Target, count: int) -> Figures:
    """Measure gets of existing keys, with as many in a call as there are puts in a batch."""

    def get(database: Any, asked: Sequence[tuple[bytes, bytes]]) -> None:
        for part in parts(asked, _BATCH):
            if database.get([key for key, _ in part]) != [record for _, record in part]:
                raise WrongAnswerError("gets of a ceiling found something else")

    return _gets(there, count, get)


def _gets(there: Target, count: int, get: Any) -> Figures:
    seeded = items(there.root, min(count, _SEEDED))
    with _database(there) as database:
        _replay(database, _batches(seeded, ABSENT), _synced)
    known = [(path.encode(), _HEADER.pack(0) + value) for path, value in seeded]
    asked = [*islice(cycle(known), count)]
    with _database(there) as database:
        get(database, known)
        with Stopwatch(there) as watch:
            get(database, asked)
        return watch.figures(count)


def _batches(found: Sequence[Item], expected: int) -> list[_Batch]:
    """Return the batches that put each item at the version after the expected one."""
    header = _HEADER.pack(expected + 1)
    old = None if expected == ABSENT else _VERSION.pack(expected)
    return [
        ([path.encode() for path, _ in part], [header + value for _, value in part], old)
        for part in parts(found, _BATCH)
    ]


def _replay(database: Any, batches: Sequence[_Batch], write: _Write) -> None:
    for keys, records, old in batches:
        found = database.get(keys)
        if old is None:
            fine = found.count(None) == len(found)
        else:
            fine = all(record is not None and record.startswith(old) for record in found)
        if not fine:
            raise WrongAnswerError(f"a ceiling found wrong old records: {found!r:.80}")
        batch = WriteBatch(raw_mode=True)
        for key, record in zip(keys, records, strict=True):
            batch[key] = record
        write(database, batch)


def _synced(database: Any, batch: WriteBatch) -> None:
    database.write(batch, _SYNCED)


def _written_and_flushed(database: Any, batch: WriteBatch) -> None:
    """Write a batch, and sync the log in a separate call. The effect on the disk is the same."""
    database.write(batch, _UNSYNCED)
    database.flush_wal(True)


@contextmanager
def _database(there: Target) -> Iterator[Any]:
    """Open a RocksDB beside the store's own directory, on the same disk."""
    database = Rdict(f"{there.url.path}.raw", Options(raw_mode=True))
    try:
        yield database
    finally:
        database.close()


def _ways(measure: Callable[[_Write, Target, int], Figures]) -> Ceiling:
    return {
        "synced writes": partial(measure, _synced),
        "writes, each followed by a sync of the log": partial(measure, _written_and_flushed),
    }


#: See :func:`.ceilings.ceilings`.
CEILINGS: Final[Mapping[str, Ceiling]] = {
    "puts": _ways(_puts),
    "conditional puts": _ways(_conditional_puts),
    "gets": {"one by one": _gets_one_by_one, "1,000 a call": _gets_of_many},
}
