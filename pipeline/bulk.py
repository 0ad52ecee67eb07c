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

    ``batchkeeper.pipeline.bulk_apply`` documents arguments and result, ``SourceOptions`` the
    options, ``BatchWriter`` the guarantees, and ``row_report.Status`` the statuses.
    """
    given = {name.lower() for name in options}
    if "on_error" in given:
        raise InvalidSettingError("bulk_apply takes no on_error: it returns the error of each row")
    parsed = parse_options({"url": url, **options})
    columns = columns_of((field.name, field.dataType.simpleString()) for field in df.schema.fields)
    return df.mapInArrow(_applier(parsed, columns), OUTCOMES)


def _applier(
    options: SourceOptions, columns: Columns
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that the tasks run. It is pickled with its options and nothing else."""

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = write_partition(batches, columns, options, RowCounts())
        with plain_errors(), closing(partition):
            for outcomes in partition:
                arrays = [
                    pa.array(column, field.type)
                    for column, field in zip(zip(*outcomes, strict=True), _SCHEMA, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    return apply
