"""``copy``: copies a store's subtree into another store, and can resume after a kill.

The source is cut into ranges of paths. One task reads, writes and reports each range. Values of the
target are kept, unless ``--overwrite`` is given. A value that is already the same counts as copied,
so a range that was copied in part is copied again. At the end both sides are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from ... import MetadataStore
from ...ops.operations import ABSENT, Get
from ...ops.results import GetResult, ScanResult, printable
from ..clients import client
from ..options import SourceOptions
from ..parallelism import parallelism
from ..row_report import Report, RowCounts, RowOutcome
from ..rows import Columns, RowWriter
from ..sending import may_pass
from .diff import compare
from .export import reading, stored_rows
from .folder import Folder
from .inputs import Batches
from .places import Store
from .progress import Steps
from .spark_session import JobError
from .state import PLAN, REPORT, CopyPlan, done_ranges, range_name, read_plan
from .summary import left_out, written
from .writing import REPORT_DDL, report_batch, total

__all__ = ["check_sides", "copy", "preview", "saved_plan"]

# The most rows and bytes that a task reads before it writes them.
_CHUNK_ROWS: Final = 10_000
_CHUNK_BYTES: Final = 16 * 1024 * 1024
_NAMED: Final = 10  # the most differing paths in the summary
# The status of a key that is not a valid path. It occurs only in the report.
_FOREIGN: Final = "foreign"
# The fewest ranges. A kill costs the work on the ranges under way, so small ranges lose less.
_RANGES: Final = 32

_REPORT: Final = pa.schema(
    [
        ("path", pa.string()),
        ("source_version", pa.int64()),
        ("target_version", pa.int64()),
        ("status", pa.string()),
        ("error", pa.string()),
    ]
)


def copy(
    spark: SparkSession,
    source: Store,
    target: Store,
    folder: Folder,
    steps: Steps,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> tuple[bool, dict[str, Any]]:
    """Copy, verify, and return whether the target now equals the source, with the summary.

    Raises:
        JobError: the state belongs to another copy, or there is none to resume.
        UnsupportedError: a revision is given, but the source keeps no old revisions.
        PySparkException: a task failed. The finished ranges stay recorded.
    """
    plan = _plan(spark, source, target, folder, resume=resume, overwrite=overwrite)
    done = done_ranges(folder, plan)
    left = [number for number in range(len(plan.ranges)) if number not in done]
    steps.begin("copying")
    begun = time.monotonic()
    report = _copy_ranges(spark, plan, left, source.options, target.options, folder.uri)
    seconds = time.monotonic() - begun
    steps.begin("verifying")
    place = f"{folder.uri.rstrip('/')}/{REPORT}"
    rows = spark.read.parquet(folder.for_spark(REPORT))
    outcomes = _outcomes(rows)
    foreign = outcomes.pop(_FOREIGN, 0)
    first = rows.where(F.col("status") == _FOREIGN).orderBy("path").limit(_NAMED).collect()
    fine, verified = _verify(spark, plan, source, target, rows)
    summary = written("copy", report, seconds)
    summary |= {
        "ranges_done_before": len(done),
        "ephemeral_left_out": outcomes.pop("ephemeral", 0),
        **left_out(foreign, [row.path for row in first]),
        "paths": outcomes,
        "revision": plan.revision,
        "snapshot": plan.snapshot,
        **verified,
        "report": place,
    }
    return fine, summary


def preview(
    spark: SparkSession, source: Store, target: Store, steps: Steps, *, overwrite: bool = False
) -> dict[str, Any]:
    """Return the summary of a dry run, which compares both sides and writes nothing."""
    steps.begin("comparing")
    left = stored_rows(spark, source.given)
    found = compare(left, stored_rows(spark, {**target.given, "revision": None}))
    different = "would_replace" if overwrite else "would_conflict"
    return {
        "job": "copy",
        "dry_run": True,
        "would_create": found.counts["only_left"],
        different: found.counts["different"],
        "equal": found.counts["equal"],
        "only_in_target": found.counts["only_right"],
        f"paths_{different}": [*found.examples["different"]],
    }


def check_sides(source: Store, target: Store) -> None:
    """Refuse a copy whose target has another prefix: all paths are written as they are.

    Raises:
        JobError: it has.
    """
    if source.options.prefix != target.options.prefix:
        raise JobError(
            f"a copy has one prefix for both sides, not {source.options.prefix!r} and "
            f"{target.options.prefix!r}: pass --prefix instead of the option prefix",
            "InputError",
        )


def saved_plan(
    source: Store, target: Store, folder: Folder, *, resume: bool, overwrite: bool
) -> CopyPlan | None:
    """Return the plan of this copy to resume, or ``None`` for a new copy.

    Raises:
        JobError: the state belongs to another copy, or there is none to resume.
    """
    found = read_plan(folder)
    asked = (source.options.url, target.options.url, source.options.prefix, overwrite)
    if found is not None:
        if not resume:
            raise JobError(
                f"{folder.uri} holds the state of a copy: pass --resume to continue it, or another "
                "--state to begin a new one",
                "InputError",
            )
        if asked != (found.source, found.target, found.prefix, found.overwrite):
            overwriting = " with --overwrite" if found.overwrite else ""
            raise JobError(
                f"{folder.uri} holds the state of another copy, of {found.prefix} from "
                f"{found.source} to {found.target}{overwriting}",
                "InputError",
            )
        if source.options.revision not in (None, found.revision):
            raise JobError(
                f"{folder.uri} holds the state of a copy of revision {found.revision:,}, not of "
                f"revision {source.options.revision:,}",
                "InputError",
            )
        return found
    if resume:
        raise JobError(f"nothing to resume: {folder.uri} has no {PLAN}", "InputError")
    if not folder.empty():
        raise JobError(f"{folder.uri} is not empty and holds no state of a copy", "InputError")
    return None


def _plan(
    spark: SparkSession,
    source: Store,
    target: Store,
    folder: Folder,
    *,
    resume: bool,
    overwrite: bool,
) -> CopyPlan:
    """Return the plan of this copy: the plan to resume, or a new plan, which is saved."""
    found = saved_plan(source, target, folder, resume=resume, overwrite=overwrite)
    if found is not None:
        for name in folder.names(REPORT):
            if name.startswith("."):  # A killed task has left it.
                folder.remove(f"{REPORT}/{name}")
        return found
    wanted = source.options.partitions or max(_RANGES, 4 * (parallelism(spark) or 1))
    revision, snapshot, ranges = reading(source.options, wanted)
    plan = CopyPlan(
        source=source.options.url,
        target=target.options.url,
        prefix=source.options.prefix,
        revision=revision,
        snapshot=snapshot,
        overwrite=overwrite,
        ranges=ranges,
    )
    folder.write(PLAN, plan.dumps())
    return plan


def _copy_ranges(
    spark: SparkSession,
    plan: CopyPlan,
    numbers: Sequence[int],
    source: SourceOptions,
    target: SourceOptions,
    state: str,
) -> Report:
    if not numbers:
        return Report()

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        folder = Folder(state)
        with client(source, read_only=True) as here, client(target) as there:
            # Without it, ZooKeeper may answer this session with an older state than the caller saw.
            here.sync()
            for batch in batches:
                for place in batch.column("id").to_pylist():
                    # A writer for each range: ranges have no paths in common.
                    tally = RowCounts()
                    writer = RowWriter(
                        there,
                        Columns(0, 1, 2),
                        tally,
                        parents_count=target.parents_count,
                    )
                    _copy_range(plan, numbers[place], here, there, writer, folder)
                    yield report_batch(tally.report())

    # An embedded store is open for writing in one process at a time.
    tasks = 1 if target.embedded else len(numbers)
    ranges = spark.range(0, len(numbers), 1, tasks)
    return total(row.report for row in ranges.mapInArrow(task, REPORT_DDL).collect())


def _outcomes(rows: DataFrame) -> dict[str, int]:
    """Count paths by status, including those of earlier runs of this copy."""
    return {row.status: row["count"] for row in rows.groupBy("status").count().collect()}


def _verify(
    spark: SparkSession, plan: CopyPlan, source: Store, target: Store, report: DataFrame
) -> tuple[bool, dict[str, Any]]:
    """Compare the source with the target; at the plan's revision if the source has snapshots."""
    revision = plan.revision if plan.snapshot else None
    given = {**source.given, "revision": revision}
    left = stored_rows(spark, given)
    right = stored_rows(spark, {**target.given, "revision": None})  # A revision is the source's.
    found = compare(left, right, since=None if plan.snapshot else plan.revision)
    removed = 0
    if not plan.snapshot:
        copied = report.where(~F.col("status").isin("ephemeral", _FOREIGN)).select("path")
        there = stored_rows(spark, given, "path string not null")
        removed = copied.join(there, "path", "left_anti").count()
    counts = found.counts
    fine = not (counts["only_left"] or counts["different"] or removed)
    return fine, {
        "verified": fine,
        "verification": {
            "equal": counts["equal"],
            "missing": counts["only_left"],
            "different": counts["different"],
            "only_in_target": counts["only_right"],
        },
        "changed_meanwhile": sum(found.changed.values()) + removed,
        "unlike": [*found.examples["only_left"], *found.examples["different"]][:_NAMED],
    }


# --- in the tasks


def _copy_range(
    plan: CopyPlan,
    number: int,
    here: MetadataStore,
    there: MetadataStore,
    writer: RowWriter,
    folder: Folder,
) -> None:
    within = plan.ranges[number]
    revision = plan.revision if plan.snapshot else None
    found = here.scan_pages(plan.prefix, within.start, within.end, revision)
    with closing(found), folder.table(f"{REPORT}/{range_name(number)}", _REPORT) as report:

        def results() -> Iterator[ScanResult]:
            for page in found:
                if page.foreign:
                    report.write_batch(_foreign(page.foreign))
                yield from page

        for rows in _chunks(results()):
            kept = [row for row in rows if not row.stat.ephemeral]
            outcomes = _write(kept, there, writer, None if plan.overwrite else ABSENT)
            report.write_batch(_report_rows(rows, outcomes))


def _chunks(rows: Iterable[ScanResult]) -> Iterator[list[ScanResult]]:
    chunk: list[ScanResult] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.value)
        if len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _write(
    rows: Sequence[ScanResult], there: MetadataStore, writer: RowWriter, expected: int | None
) -> list[RowOutcome]:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row.path for row in rows], pa.string()),
            pa.array([row.value for row in rows], pa.binary()),
            pa.array([expected] * len(rows), pa.int64()),
        ],
        names=["path", "value", "expected_version"],
    )
    outcomes = [outcome for part in writer.write(batch) for outcome in part]
    for outcome in outcomes:
        if outcome.error is not None and may_pass(outcome.error):
            # The range is not recorded as done: Spark retries its task, or the copy is resumed.
            raise JobError(f"{outcome.path!r}: {outcome.error}")
    return _same_counts(rows, outcomes, there)


def _same_counts(
    rows: Sequence[ScanResult], outcomes: list[RowOutcome], there: MetadataStore
) -> list[RowOutcome]:
    """Count conflicts with an equal value as copied, at any version.

    An earlier attempt may have created the value, and ZooKeeper may create a parent at version 1.
    """
    places = [place for place, outcome in enumerate(outcomes) if outcome.status == "conflict"]
    looks = there.apply([Get(rows[place].path) for place in places]) if places else []
    for place, look in zip(places, looks, strict=True):
        found = look.result
        if isinstance(found, GetResult) and found.value == rows[place].value:
            outcomes[place] = RowOutcome(rows[place].path, "already_applied", found.stat.version)
    return outcomes


def _foreign(keys: Sequence[bytes]) -> pa.RecordBatch:
    """Return report rows for keys that cannot be copied, because they are not valid paths."""
    rows = [{"path": printable(key), "status": _FOREIGN} for key in keys]
    return pa.RecordBatch.from_pylist(rows, schema=_REPORT)


def _report_rows(rows: Sequence[ScanResult], outcomes: Sequence[RowOutcome]) -> pa.RecordBatch:
    ended = iter(outcomes)
    table = [
        (row.path, row.stat.version, None, "ephemeral", None)
        if row.stat.ephemeral
        else (row.path, row.stat.version, (end := next(ended)).version, end.status, end.error)
        for row in rows
    ]
    columns = zip(*table, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _REPORT, strict=True)],
        schema=_REPORT,
    )
