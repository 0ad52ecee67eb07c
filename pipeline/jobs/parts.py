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

__all__ = ["HIDDEN", "Part", "write_parts"]

#: The name of an attempt's file until Spark has accepted the attempt.
HIDDEN: Final = re.compile(r"\.part-\d{5,}\.[0-9a-f]{32}")

# The most rows and bytes of a row group. A task holds two in memory.
_GROUP_ROWS: Final = 50_000
_GROUP_BYTES: Final = 32 * 1024 * 1024
# The columns with repeated values, for dictionary encoding. Paths never repeat, and values seldom,
# so a dictionary would not make them smaller.
_REPEATED: Final = ["version", "revision", "created", "modified", "ephemeral"]
_COMPRESSION: Final = "snappy"

# The column op is always the same here.
_SCHEMA: Final = pa.schema([(name, kind) for name, (_, kind) in COLUMNS.items() if name != "op"])


class Part(NamedTuple):
    """The file that an attempt has written for one range.

    Attributes:
        number: the number of the range.
        file: the hidden name of the file in ``data/``.
        rows: the number of rows, which are sorted by path.
        first, last: the first and the last path; ``None`` if there are no rows.
        length: the length of the file in bytes.
        sha256: the SHA-256 of the file as it was written, in hexadecimal.
        ephemeral: the number of ephemeral rows.
        changed: the number of rows newer than the export's revision.
        foreign_keys: the number of keys in the range that are not valid paths, and so have no row.
        first_foreign_keys: the first of these keys.
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
        """The final name of the file, which no other export has."""
        return f"part-{self.number:05}-{self.file[-32:]}.parquet"


# The columns in which a task reports its parts to the driver.
_PARTS: Final = pa.schema(
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
_PARTS_DDL: Final = (
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
    """Write the values of each range to a file in ``data/``, one task for each; return the parts.

    Args:
        spark: the session.
        options: the store and the prefix.
        ranges: ranges of paths that together cover the whole subtree.
        revision: the revision of the export.
        folder: the folder of the export; the files get hidden names there.
        snapshot: whether to read the store at that revision.

    Raises:
        JobError: the tasks did not report each range exactly once.
        PySparkException: a task failed.
    """
    uri = folder.uri

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        there = Folder(uri)
        with client(options, read_only=True) as store:
            # Without it, ZooKeeper may answer this session with an older state than the caller saw.
            store.sync()
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    start, end = ranges[number]
                    scan = store.scan_pages(
                        options.prefix, start, end, revision if snapshot else None
                    )
                    with closing(scan) as pages:
                        part = _write_part(number, pages, revision, there)
                    yield pa.RecordBatch.from_pylist([part._asdict()], _PARTS)

    numbers = spark.range(0, len(ranges), 1, len(ranges))
    found = numbers.mapInArrow(task, _PARTS_DDL).collect()
    parts = sorted((Part(*row) for row in found), key=lambda part: part.number)
    # An export without one of the ranges would look like a smaller store.
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
