"""The sides of a comparison: the rows of a store or an export, and the keys left out of them.

The tasks that read a store's rows also count the keys that are not valid paths. So each task ends
with one more row for these keys: it has no path, and its value contains the count. No row of a
store has this form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from ...ops.results import ForeignKeys, printable
from ..clients import client
from ..foreign import counted
from ..options import SourceOptions
from ..parallelism import parallelism
from ..reader import COLUMNS, record_batches
from .export import exported_rows, reading
from .folder import Folder
from .inputs import Batches
from .manifest import read_manifest, verify
from .places import Store

__all__ = ["LeftOut", "Side", "parse_left_out", "side"]

_NAMES: Final = ("path", "value", "revision", "ephemeral")
_SCHEMA: Final = pa.schema([(name, COLUMNS[name][1]) for name in _NAMES])
_DDL: Final = ", ".join(f"{name} {COLUMNS[name][0].simpleString()}" for name in _NAMES)


class LeftOut(NamedTuple):
    """Keys that are not valid paths.

    Attributes:
        number: the number of these keys; ``None`` if they were not counted.
        first: the first of these keys, as text.
    """

    number: int | None
    first: Sequence[str]


class Side(NamedTuple):
    """One side of a comparison.

    Attributes:
        rows: the rows of the side. For a store, they include a row without a path from each task
            that left out keys.
        left_out: the keys that an export has left out; ``None`` for a store, whose rows count them.
    """

    rows: DataFrame
    left_out: LeftOut | None


def side(spark: SparkSession, given: Store | Folder, prefix: str) -> Side:
    """Return one side, below a prefix.

    The manifest of an export names only the first keys that were left out. If it does not name all,
    all count, even those outside the prefix.

    Raises:
        JobError: the folder holds no export, or it does not match its manifest.
    """
    if isinstance(given, Store):
        return Side(_stored(spark, given.options), None)
    manifest = read_manifest(given)
    verify(spark, given, manifest)
    rows = exported_rows(spark, given, manifest)
    number, first = manifest.foreign_keys, manifest.first_foreign_keys
    if prefix != "/":
        rows = rows.where((F.col("path") == prefix) | F.col("path").startswith(prefix + "/"))
        if number == len(first):  # All are named, so those below the prefix can be counted.
            below = printable(f"{prefix}/".encode())  # as the manifest names keys
            first = [name for name in first if name.startswith(below)]
            number = len(first)
    return Side(rows, LeftOut(number, first))


def _stored(spark: SparkSession, options: SourceOptions) -> DataFrame:
    plan = reading(options, options.partitions or 2 * (parallelism(spark) or 1))

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        with client(options, read_only=True) as store:
            # Without it, ZooKeeper may answer this session with an older state than the caller saw.
            store.sync()
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    start, end = plan.ranges[number]
                    revision = plan.revision if plan.snapshot else None
                    foreign = ForeignKeys()
                    scan = store.scan_pages(options.prefix, start, end, revision)
                    with closing(scan) as found:
                        pages = counted(found, foreign)
                        yield from record_batches(
                            pages, _SCHEMA, options.batch_rows, options.batch_bytes
                        )
                    if foreign.count:
                        said = json.dumps([foreign.count, [key.hex() for key in foreign.first]])
                        yield pa.RecordBatch.from_pylist([{"value": said.encode()}], schema=_SCHEMA)

    ranges = spark.range(0, len(plan.ranges), 1, len(plan.ranges))
    return ranges.mapInArrow(task, _DDL)


def parse_left_out(value: bytes) -> tuple[int, list[str]]:
    """Parse the value of a row without a path: the number of keys, and the first in hexadecimal.

    In hexadecimal, keys sort in byte order.
    """
    count, first = json.loads(value)
    return count, first
