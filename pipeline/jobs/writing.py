"""Writes a job's rows to a store, and returns one report of their outcomes."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from ...ops.operations import ABSENT, Exists
from ..clients import client
from ..options import SourceOptions
from ..partition import write_partition
from ..row_report import Report, RowCounts, first_failed
from ..rows import Columns
from .inputs import Batches
from .spark_session import JobError

__all__ = ["REPORT_DDL", "REPORT_SCHEMA", "preview", "report_batch", "total", "write"]

REPORT_DDL: Final = "report binary"
REPORT_SCHEMA: Final = pa.schema([("report", pa.binary())])


def write(
    frame: DataFrame,
    parse: Callable[[Batches], Batches],
    options: SourceOptions,
    *,
    create_only: bool = False,
) -> Report:
    """Put rows into a store, and return the report of their outcomes.

    Args:
        frame: the input of the tasks.
        parse: turns the input into batches with the columns ``path`` and ``value``. Rows without a
            path are left out.
        options: the store and its settings.
        create_only: keep existing values: their rows are conflicts.

    Raises:
        PySparkException: a task failed. With ``on_error=fail``, a task fails at the first row that
            cannot be written.
    """
    expected = ABSENT if create_only else None

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        tally = RowCounts()
        rows = (_put_rows(batch, expected) for batch in parse(batches))
        for outcomes in write_partition(rows, Columns(0, 1, 2), options, tally):
            failed = first_failed(outcomes) if options.on_error == "fail" else None
            if failed is not None:
                raise JobError(f"{failed.path!r}: {failed.error}")
        yield report_batch(tally.report())

    # An embedded store is open for writing in one process at a time.
    one = frame.coalesce(1) if options.embedded else frame
    return total(row.report for row in one.mapInArrow(task, REPORT_DDL).collect())


def preview(
    job: str,
    frame: DataFrame,
    parse: Callable[[Batches], Batches],
    options: SourceOptions,
    *,
    create_only: bool = False,
) -> dict[str, Any]:
    """Return the summary of a dry run: how many rows would create a value, or meet one.

    The arguments are those of :func:`write`. Nothing is written.
    """

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        tally = Counter[bool]()
        with client(options, read_only=True) as store:
            for batch in parse(batches):
                paths = [path for path in batch.column("path").to_pylist() if path is not None]
                for outcome in store.apply(map(Exists, paths)):
                    if outcome.error is not None:
                        raise JobError(f"{outcome.op.path!r}: {outcome.error}")
                    tally[outcome.result is True] += 1
        yield pa.RecordBatch.from_pylist([{"new": tally[False], "old": tally[True]}])

    found = frame.mapInArrow(task, "new bigint, old bigint").collect()
    existing = "would_conflict" if create_only else "would_replace"
    new, old = sum(row.new for row in found), sum(row.old for row in found)
    return {"job": job, "dry_run": True, "would_create": new, existing: old}


def _put_rows(batch: pa.RecordBatch, expected: int | None) -> pa.RecordBatch:
    path, value = batch.column("path"), batch.column("value")
    if path.null_count:
        there = path.is_valid()
        path, value = path.filter(there), value.filter(there)
    versions = pa.array([expected] * len(path), pa.int64())
    return pa.RecordBatch.from_arrays(
        [path, value, versions], names=["path", "value", "expected_version"]
    )


def report_batch(report: Report) -> pa.RecordBatch:
    """Return a report as the batch that a task yields to the driver."""
    return pa.RecordBatch.from_pydict({"report": [pickle.dumps(report)]}, schema=REPORT_SCHEMA)


def total(reports: Iterator[bytes]) -> Report:
    """Return the sum of the reports that the tasks returned."""
    return Report.total(pickle.loads(report) for report in reports)  # noqa: S301 - our own tasks'
