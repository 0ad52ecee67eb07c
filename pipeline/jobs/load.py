"""``load``: writes JSON lines, CSV or Parquet to a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from ..options import SourceOptions
from .inputs import Checked, check, listed, read
from .progress import Steps
from .spark_session import JobError, explain
from .summary import written
from .writing import preview, write

__all__ = ["load"]


def load(
    spark: SparkSession,
    names: Sequence[str],
    kind: str,
    options: SourceOptions,
    steps: Steps,
    *,
    create_only: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Put the records of files into a store, and return the summary.

    All rows are checked before the first is written. With ``dry_run``, none is.

    Raises:
        JobError: a file cannot be read, or a row is bad and ``on_error`` is ``fail``. Nothing was
            written.
        PySparkException: a task failed.
    """
    steps.begin("checking")
    try:
        given = read(spark, names, kind)
        checked = check(given)
    except JobError:
        raise
    except Exception as error:  # Spark's errors have several classes, and may not name the file.
        reason = explain(error)[0]
        raise JobError(f"{listed(names)} cannot be read: {reason}", "InputError") from error
    if checked.bad and options.on_error == "fail":
        raise JobError(_refusal(checked), "InputError")
    if dry_run:
        summary = preview("load", given.raw, given.parse, options, create_only=create_only)
        return {**summary, "bad_rows": checked.bad}
    steps.begin("writing")
    begun = time.monotonic()
    report = write(given.raw, given.parse, options, create_only=create_only)
    if report.rows != checked.rows:
        raise JobError(
            f"{listed(names)} changed during the load: {checked.rows} rows were checked, and "
            f"{report.rows} written"
        )
    summary = written("load", report, time.monotonic() - begun)
    summary["bad_rows"] = checked.bad
    if options.on_error == "collect":
        summary["first_bad_rows"] = [
            f"{bad.file}:{bad.row}: {bad.reason}" for bad in checked.examples
        ]
    return summary


def _refusal(checked: Checked) -> str:
    first = checked.examples[0]
    more = f" (and {checked.bad - 1} more bad rows)" if checked.bad > 1 else ""
    return f"{first.file}:{first.row}: {first.reason}{more}; nothing was written"
