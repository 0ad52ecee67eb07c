"""The tasks of an export. Each reads a range of paths and writes it into a file.

The rows never leave the task that reads them. Spark's own Parquet writer would send them to Java,
which doubles the cost of an export. A task cannot know whether it is the only one that writes its
range, because an attempt that Spark has given up may still be writing. So every attempt writes a
hidden file of its own. The driver gives the final names to the files of the attempts that Spark has
accepted, and removes the others.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import compute, parquet
from pyspark.sql import SparkSession

from ...ops.results import ForeignKeys, Range, ScanPage
from ..clients import client
from ..foreign import counted
from ..options import SourceOptions
from ..reader import COLUMNS, record_batches
from .folder import Folder
from .inputs import Batches
from .manifest import DATA
from .spark_session import JobError

__all__ = ["HIDDEN", "NAMED", "Part", "write_parts"]

#: What the file of an attempt is called, and what it is called when Spark has taken the attempt.
HIDDEN: Final = re.compile(r"\.part-\d{5,}\.[0-9a-f]{32}")
NAMED: Final = re.compile(r"part-\d{5,}\.parquet")

# Rows and bytes of a row group: what a task holds in memory, twice.
_GROUP_ROWS: Final = 50_000
_GROUP_BYTES: Final = 32 * 1024 * 1024
# The columns whose values come again and again. Paths never do, and values seldom: to look for the
# same ones would be in vain.
_REPEATED: Final = ["version", "revision", "created", "modified", "ephemeral"]
_COMPRESSION: Final = "snappy"

# Without op, which is always the same here.
_SCHEMA: Final = pa.schema([(name, kind) for name, (_, kind) in COLUMNS.items() if name != "op"])


class Part(NamedTuple):
    """What an attempt has written of one range.

    Attributes:
        number: of the range.
        file: its hidden name in ``data/``.
        rows: in the order of their paths.
        first, last: the first and the last path, ``None`` if there are no rows.
        length: of the file, in bytes.
        sha256: of the file as it was written, in hexadecimal.
        ephemeral: rows that end with a session.
        changed: rows that are newer than the export's revision.
        foreign_keys: keys in the range that are not valid paths, and are in no row.
        first_foreign_keys: the first ones.
    """

    number: int
    file: str
    rows: int
    first: str | None
    last: str | None
    length: int
    sha256: str
    ephemeral: int
    changed: int
    foreign_keys: int
    first_foreign_keys: list[bytes]

    @property
    def name(self) -> str:
        """What the file is called in the end."""
        return f"part-{self.number:05}.parquet"


_TOLD: Final = pa.schema(
    [
        ("number", pa.int64()),
        ("file", pa.string()),
        ("rows", pa.int64()),
        ("first", pa.string()),
        ("last", pa.string()),
        ("length", pa.int64()),
        ("sha256", pa.string()),
        ("ephemeral", pa.int64()),
        ("changed", pa.int64()),
        ("foreign_keys", pa.int64()),
        ("first_foreign_keys", pa.list_(pa.binary())),
    ]
)
_TOLD_DDL: Final = (
    "number bigint, file string, rows bigint, first string, last string, length bigint, "
    "sha256 string, ephemeral bigint, changed bigint, foreign_keys bigint, "
    "first_foreign_keys array<binary>"
)


def write_parts(
    spark: SparkSession,
    options: SourceOptions,
    ranges: Sequence[Range],
    revision: int,
    folder: Folder,
    *,
    snapshot: bool,
) -> list[Part]:
    """Write what lies in ranges of paths below ``data/``, a task for each; return what they wrote.

    Args:
        spark: where the tasks run.
        options: the store, and the prefix.
        ranges: together all that there is.
        revision: of the export.
        folder: where the files go, under hidden names.
        snapshot: whether all is read as of that revision.

    Raises:
        JobError: a range was not told of, or more than once.
        PySparkException: a task failed.
    """
    uri = folder.uri

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        there = Folder(uri)
        with client(options, read_only=True) as store:
            # ZooKeeper may answer this session from before what the job's caller has seen.
            store.sync()
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    start, end = ranges[number]
                    scan = store.scan_pages(
                        options.prefix, start, end, revision if snapshot else None
                    )
                    with closing(scan) as pages:
                        part = _write_part(number, pages, revision, there)
                    yield pa.RecordBatch.from_pylist([part._asdict()], _TOLD)

    numbers = spark.range(0, len(ranges), 1, len(ranges))
    found = numbers.mapInArrow(task, _TOLD_DDL).collect()
    parts = sorted((Part(*row) for row in found), key=lambda part: part.number)
    # An export that lacks a range would look like a smaller store.
    if [part.number for part in parts] != list(range(len(ranges))):
        raise JobError(f"{len(parts)} of {len(ranges)} ranges were reported as written")
    return parts


def _write_part(
    number: int,
    pages: Iterator[ScanPage],
    revision: int,
    folder: Folder,
) -> Part:
    foreign = ForeignKeys()
    batches = record_batches(counted(pages, foreign), _SCHEMA, _GROUP_ROWS, _GROUP_BYTES)
    file = f".part-{number:05}.{uuid.uuid4().hex}"
    first = last = None
    rows = ephemeral = changed = 0
    with (
        folder.output(f"{DATA}/{file}") as output,
        parquet.ParquetWriter(
            output, _SCHEMA, compression=_COMPRESSION, use_dictionary=_REPEATED
        ) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            paths = batch.column("path")
            first = paths[0].as_py() if first is None else first
            last = paths[-1].as_py()
            rows += batch.num_rows
            ephemeral += compute.sum(batch.column("ephemeral")).as_py()
            newer = compute.greater(batch.column("revision"), revision)
            changed += compute.sum(newer).as_py()
    left_out = (foreign.count, foreign.first)
    return Part(number, file, rows, first, last, *output.state(), ephemeral, changed, *left_out)
