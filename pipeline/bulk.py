"""Bulk updates with an outcome for each row: a frame in, a frame out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from ..ops.errors import InvalidSettingError
from .failures import plain_errors
from .options import SourceOptions, parse_options
from .partition import write_partition
from .row_report import RowCounts
from .rows import Columns, columns_of
from .throttle import rate_of

__all__ = ["OUTCOMES", "bulk_apply"]

#: The columns of what :func:`bulk_apply` returns.
OUTCOMES: Final = "path string, status string, version bigint, error string"

_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("status", pa.string()),
        ("version", pa.int64()),
        ("error", pa.string()),
    ]
)


def bulk_apply(df: DataFrame, url: str, **options: object) -> DataFrame:
    """Put and delete the rows of a frame, and return how each of them ended.

    It works in classic sessions and in those of Spark Connect; batchkeeper is installed on the
    executors, too. What holds for conditional rows, and what for the others, is said at
    :class:`batchkeeper.pipeline.writer.BatchWriter`.

    Args:
        df: the columns ``path`` (string) and ``value`` (binary); where wanted, ``expected_version``
            (bigint; null for unconditional rows, -1 for a path that must hold no value) and ``op``
            (``put``, which null stands for, or ``delete``, which takes no value).
        url: the store's.
        options: those of the data source, see :class:`batchkeeper.pipeline.options.SourceOptions`.
            There is no ``on_error``: every row has its own.

    Returns:
        A frame with one row for each row of ``df``, within a partition in the same order: ``path``,
        ``status`` (see :data:`batchkeeper.pipeline.row_report.Status`), ``version`` (of the path
        afterwards, where it is known) and ``error`` (null for the rows that are done). It is lazy,
        as every frame is: each action on it writes the rows. Write the outcomes somewhere, or
        cache them, before looking at them in several ways.

    Raises:
        InvalidSettingError: a column or an option is not one that can be used.
        UnsupportedError: the store cannot be used from Spark.
    """
    given = {name.lower() for name in options}
    if "on_error" in given:
        raise InvalidSettingError("bulk_apply takes no on_error: it returns the error of each row")
    parsed = parse_options({"url": url, **options})
    columns = columns_of((field.name, field.dataType.simpleString()) for field in df.schema.fields)
    rate = rate_of(parsed, df.sparkSession)
    return df.mapInArrow(_applier(parsed, columns, rate), OUTCOMES)


def _applier(
    options: SourceOptions, columns: Columns, rate: float | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what the tasks run. It is pickled, with the options and nothing else."""

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = write_partition(batches, columns, options, rate, RowCounts())
        with plain_errors(), closing(partition):
            for outcomes in partition:
                arrays = [
                    pa.array(column, field.type)
                    for column, field in zip(zip(*outcomes, strict=True), _SCHEMA, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    return apply
