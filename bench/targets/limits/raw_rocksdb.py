"""RocksDB's ceilings: a bare loop on rocksdict, batches of 1,000 with one sync each.

The loop includes what any put with versions needs: it reads the old records, all of a batch in one
multi-get, and checks them. Keys and records are encoded beforehand. Write batches cannot be,
because they follow the reads. The options are rocksdict's defaults.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.ops.operations import ABSENT

from ..work import Step

# As large as the header of a record of the RocksDB back end, with the version in it.
_HEADER: Final = struct.Struct(">I25x")


class _RocksDB:
    read_size = 1000

    def __init__(self, database: Any) -> None:
        self._database = database
        self._unsynced = WriteOptions()

    def write_size(self, _expected: int | None) -> int:
        return 1000

    def write(self, found: Sequence[Step], expected: int | None) -> tuple[Any, ...]:
        version = ABSENT if expected is None else expected
        header = _HEADER.pack(version + 1)
        old = None if version == ABSENT else _HEADER.pack(version)
        return self._write, [s.path.encode() for s in found], [header + s.value for s in found], old

    def read(self, found: Sequence[Step]) -> tuple[Any, ...]:
        header = _HEADER.pack(0)
        return self._read, [s.path.encode() for s in found], [header + s.value for s in found], None

    def replay(self, requests: Sequence[tuple[Any, ...]]) -> None:
        for call, keys, records, old in requests:
            call(keys, records, old)

    def _write(self, keys: list[bytes], records: list[bytes], old: bytes | None) -> None:
        found = self._database.get(keys)
        if old is None:
            fine = found.count(None) == len(found)
        else:
            fine = all(record is not None and record.startswith(old) for record in found)
        if not fine:
            raise WrongAnswerError(f"a ceiling found wrong old records: {found!r:.80}")
        batch = WriteBatch(raw_mode=True)
        for key, record in zip(keys, records, strict=True):
            batch[key] = record
        # On the disk, it is the same as a synced write.
        self._database.write(batch, self._unsynced)
        self._database.flush_wal(True)

    def _read(self, keys: list[bytes], records: list[bytes], _old: None) -> None:
        if self._database.get(keys) != records:
            raise WrongAnswerError("gets of a ceiling found something else")


@contextmanager
def opened(there: Target) -> Iterator[_RocksDB]:
    """Yield a ceiling on a RocksDB beside the store's own directory, on the same disk."""
    database = Rdict(f"{there.url.path}.raw", Options(raw_mode=True))
    try:
        yield _RocksDB(database)
    finally:
        database.close()
