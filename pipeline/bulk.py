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

#: The columns of the frame that :func:`bulk_apply` returns.
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
    """Put and delete the rows of a frame, and return the outcome of each row.

    The call works in classic sessions and over Spark Connect. Batchkeeper must be installed on the
    executors, too. :class:`batchkeeper.pipeline.writer.BatchWriter` explains the guarantees for
    conditional and for other rows.

    Args:
        df: a frame with the columns ``path`` (string) and ``value`` (binary), and optionally
            ``expected_version`` (bigint; null for unconditional rows, -1 for a path that must hold
            no value) and ``op`` (``put``, the default for null, or ``delete``, which takes no
            value).
        url: the store's URL.
        options: the options of the data source, see
            :class:`batchkeeper.pipeline.options.SourceOptions`. ``on_error`` is refused, because
            every row is returned with its own error.

    Returns:
        A frame with one row for each row of ``df``, in the same order within a partition: ``path``,
        ``status`` (see :data:`batchkeeper.pipeline.row_report.Status`), ``version`` (of the path
        afterwards, if known) and ``error`` (null for rows that are done). The frame is lazy: each
        action on it writes the rows again. Save or cache it before you use it several times.

    Raises:
        InvalidSettingError: a column or an option is invalid.
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
    """Return the function that the tasks run. It is pickled with its options and nothing else."""

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
