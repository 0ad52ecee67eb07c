"""Reads a store in partitions, all of one revision if the store supports that."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .. import InvalidSettingError, MetadataStore
from ..ops.results import ForeignKeys, Range, ScanPage, StatPage
from .bounds import Bounds
from .clients import client, opened
from .failures import plain_errors
from .foreign import counted, warn_of_foreign
from .options import SourceOptions

__all__ = ["COLUMNS", "StorePartition", "StoreReader", "read_revision", "record_batches"]

#: The columns of a read, with their types in Spark and in Arrow.
COLUMNS: Final[dict[str, tuple[types.DataType, pa.DataType]]] = {
    "path": (types.StringType(), pa.string()),
    "value": (types.BinaryType(), pa.binary()),
    "version": (types.LongType(), pa.int64()),
    "revision": (types.LongType(), pa.int64()),
    "created": (types.LongType(), pa.int64()),
    "modified": (types.LongType(), pa.int64()),
    "ephemeral": (types.BooleanType(), pa.bool_()),
    "op": (types.StringType(), pa.string()),
}


class StorePartition(InputPartition):
    """The range of paths that one task reads (``None`` for no paths), and the revision."""

    def __init__(self, within: Range | None, revision: int | None) -> None:
        super().__init__(within)
        self.within = within
        self.revision = revision


class StoreReader(DataSourceReader):
    """Reads the values under the prefix, for one action.

    Attributes:
        bounds: the bounds between which paths are read.

    Raises:
        InvalidSettingError: the schema has a column that stores do not have, or a wrong type; or an
            option is for streams only.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        for name in ("starting_revision", "max_revisions_per_batch"):
            if getattr(options, name) is not None:
                raise InvalidSettingError(f"{name} is for streams (readStream): pass revision")
        self._fields = [_field(field) for field in schema.fields]
        self._options = options
        self.bounds = Bounds(options.prefix)

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the revision, and split the paths into ranges. Spark calls it once, on the driver.

        Together, the ranges cover all possible paths, so they also fit revisions with other paths.
        """
        wanted = self._options.partitions or 2 * (os.cpu_count() or 1)
        prefix = self.bounds.prefix
        with plain_errors(), opened(self._options, read_only=True) as store:
            revision = read_revision(store, prefix, self._options.revision)
            ranges = self.bounds.within(store.split(prefix, wanted))
        # If the list is empty, Spark reads a partition of its own instead.
        return [StorePartition(within, revision) for within in ranges or (None,)]

    def read(self, partition: InputPartition) -> Generator[pa.RecordBatch]:
        """Yield the rows of a partition. On a snapshot, each attempt yields the same rows."""
        if not isinstance(partition, StorePartition):
            raise TypeError(f"not a partition of a store: {partition!r}")
        if partition.within is None:
            return
        options, (start, end) = self._options, partition.within
        schema = pa.schema(self._fields)
        with plain_errors(), client(options, read_only=True) as store:
            # Without it, ZooKeeper may answer this session with an older state than the caller saw.
            store.sync()
            scan = store.scan_pages(
                self.bounds.prefix,
                start,
                end,
                partition.revision,
                values="value" in schema.names,
            )
            foreign = ForeignKeys()
            with closing(scan) as found:
                pages = counted(found, foreign)
                yield from record_batches(pages, schema, options.batch_rows, options.batch_bytes)
            warn_of_foreign(foreign, "not read")


def record_batches(
    pages: Iterable[ScanPage | StatPage], schema: pa.Schema, rows: int, size: int
) -> Generator[pa.RecordBatch]:
    """Gather the pages of a scan into Arrow batches with the columns of ``schema``.

    Args:
        pages: the pages.
        schema: columns of :data:`COLUMNS`; without ``value`` if the pages have no values.
        rows: the most rows of a batch.
        size: the most bytes of a batch; a larger row has a batch of its own.
    """
    gathered: list[pa.RecordBatch] = []
    count = held = 0
    for page in pages:
        for part in _parts(_batch(page, schema), page, rows, size):
            if gathered and (count + part.num_rows > rows or held + part.nbytes > size):
                yield _joined(gathered)
                gathered, count, held = [], 0, 0
            gathered.append(part)
            count += part.num_rows
            held += part.nbytes
    if gathered:
        yield _joined(gathered)


def _batch(page: ScanPage | StatPage, schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "path": page.paths,
        "value": page.values,
        "version": page.versions,
        "revision": page.revisions,
        "created": page.created,
        "modified": page.modified,
        "ephemeral": page.ephemeral,
        "op": pa.repeat("put", len(page)),
    }
    arrays = [
        pa.nulls(len(page), field.type)
        if (column := columns[field.name]) is None
        else pa.array(column, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parts(
    batch: pa.RecordBatch, page: ScanPage | StatPage, rows: int, size: int
) -> Iterator[pa.RecordBatch]:
    """Split a page's batch that is larger than the limits."""
    if batch.num_rows <= rows and batch.nbytes <= size:
        if batch.num_rows:
            yield batch
        return
    start = held = 0
    values = page.values if page.values is not None else repeat(b"", len(page))
    for place, (path, value) in enumerate(zip(page.paths, values, strict=True)):
        more = len(path) + len(value)
        if place > start and (place - start == rows or held + more > size):
            yield batch.slice(start, place - start)
            start, held = place, 0
        held += more
    yield batch.slice(start)


def _joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return whole


def _field(field: types.StructField) -> pa.Field:
    spark, arrow = COLUMNS.get(field.name, (None, None))
    if spark is None:
        raise InvalidSettingError(
            f"a store has no column {field.name!r} (its columns: {', '.join(COLUMNS)})"
        )
    if field.dataType != spark:
        raise InvalidSettingError(
            f"the column {field.name!r} is {spark.simpleString()}, not "
            f"{field.dataType.simpleString()}"
        )
    return pa.field(field.name, arrow, field.nullable)


def read_revision(store: MetadataStore, prefix: str, given: int | None) -> int | None:
    """Return the revision that all tasks read: the given one, or the newest.

    Without a given revision, it returns ``None`` if the store has no snapshots.

    Raises:
        RevisionCompactedError: the store no longer keeps the given revision.
        InvalidSettingError: the given revision does not exist yet.
        UnsupportedError: a revision is given, but the store has no snapshots.
    """
    if given is None:
        return store.revision() if "snapshots" in store.capabilities else None
    # Reading the value at the prefix raises the error if the revision cannot be read.
    scan = store.scan_pages(prefix, end=f"{prefix} ", revision=given, values=False)
    with closing(scan) as found:
        next(found, None)
    return given
