"""``export`` writes a store's subtree to Parquet, with a manifest; ``restore`` writes it back."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from ...ops.results import ForeignKeys, Range
from ..clients import opened
from ..options import SourceOptions
from ..parallelism import parallelism
from ..reader import read_revision
from ..source import STORED
from .folder import Folder
from .manifest import (
    DATA,
    MANIFEST,
    NAMED,
    Manifest,
    PartFile,
    is_manifest,
    read_manifest,
    verify,
)
from .parts import HIDDEN, Part, write_parts
from .progress import Steps
from .spark_session import JobError
from .summary import left_out, written
from .writing import preview, write

__all__ = ["Reading", "check_place", "export", "exported_rows", "reading", "restore", "stored_rows"]


def stored_rows(spark: SparkSession, given: dict[str, object], columns: str = STORED) -> DataFrame:
    """Return a store's subtree as a DataFrame.

    Args:
        spark: the session.
        given: the options of the data source, by name.
        columns: the columns to read; without ``value``, the store sends no values.
    """
    # The column op is always the same here, and took a tenth of the time.
    reader = spark.read.format("batchkeeper").schema(columns)
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, str(value))
    return reader.load()


class Reading(NamedTuple):
    """The revision and the ranges that a job reads.

    Attributes:
        revision: the revision of the store at the start of the job.
        snapshot: whether the job reads the store at that revision.
        ranges: ranges of paths that together cover the whole subtree.
    """

    revision: int
    snapshot: bool
    ranges: Sequence[Range]


def reading(options: SourceOptions, wanted: int) -> Reading:
    """Return the revision and about ``wanted`` ranges for a job that reads a store.

    Raises:
        UnsupportedError: a revision is given, but the store keeps no old revisions.
    """
    with opened(options, read_only=True) as store:
        read = read_revision(store, options.prefix, options.revision)
        # The revision first: writes between the two calls then count as changed meanwhile.
        revision = store.revision() if read is None else read
        return Reading(revision, read is not None, store.split(options.prefix, wanted))


def exported_rows(spark: SparkSession, folder: Folder, manifest: Manifest) -> DataFrame:
    """Return the rows of an export, from the files that its manifest names."""
    return spark.read.parquet(*(folder.for_spark(DATA, file.name) for file in manifest.files))


def export(
    spark: SparkSession,
    options: SourceOptions,
    folder: Folder,
    steps: Steps,
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a store's subtree to a folder, and return the summary.

    Args:
        spark: the session.
        options: the store and the prefix.
        folder: the folder to write. It must be empty or missing.
        steps: shows the progress.
        overwrite: replace an earlier export in the folder. It stays until the new one is complete.

    Raises:
        JobError: the folder is not empty.
        UnsupportedError: a revision is given, but the store keeps no old revisions.
        PySparkException: a task failed.
    """
    check_place(folder, overwrite=overwrite)
    exported = datetime.now(UTC).isoformat(timespec="seconds")
    steps.begin("exporting")
    begun = time.monotonic()
    wanted = options.partitions or 2 * (parallelism(spark) or 1)
    revision, snapshot, ranges = reading(options, wanted)
    _remove(folder, HIDDEN)  # A killed driver has left them.
    try:
        parts = write_parts(spark, options, ranges, revision, folder, snapshot=snapshot)
        files = [_take(folder, part) for part in parts]
    finally:
        # Attempts that Spark gave up have left them.
        _remove(folder, HIDDEN)
    foreign = ForeignKeys()
    for part in parts:
        foreign.merge(ForeignKeys(part.foreign_keys, [*map(bytes, part.first_foreign_keys)]))
    manifest = Manifest(
        url=options.url.partition("?")[0],
        prefix=options.prefix,
        revision=revision,
        snapshot=snapshot,
        changed_meanwhile=sum(part.changed for part in parts),
        rows=sum(part.rows for part in parts),
        ephemeral=sum(part.ephemeral for part in parts),
        exported=exported,
        files=files,
        foreign_keys=foreign.count,
        first_foreign_keys=foreign.names(),
    )
    folder.write(MANIFEST, manifest.dumps())
    # Only now, so that at every moment one of the two exports is there, and whole.
    _remove(folder, NAMED, {file.name for file in files})
    seconds = time.monotonic() - begun
    return {
        "job": "export",
        "rows": manifest.rows,
        "revision": revision,
        "snapshot": snapshot,
        "changed_meanwhile": manifest.changed_meanwhile,
        "ephemeral": manifest.ephemeral,
        **left_out(foreign.count, foreign.names()),
        "files": len(files),
        "bytes": sum(file.length for file in files),
        "seconds": round(seconds, 3),
        "operations_per_second": round(manifest.rows / seconds),
    }


def _take(folder: Folder, part: Part) -> PartFile:
    """Give a part its final name."""
    folder.move(f"{DATA}/{part.file}", f"{DATA}/{part.name}")
    return PartFile(part.name, part.rows, part.first, part.last, part.length, part.sha256)


def _remove(folder: Folder, names: re.Pattern[str], kept: Collection[str] = ()) -> None:
    """Remove the files of an export whose names match a pattern, and no other files."""
    for name in folder.names(DATA):
        if names.fullmatch(name) and name not in kept:
            folder.remove(f"{DATA}/{name}")


def restore(
    spark: SparkSession,
    folder: Folder,
    options: SourceOptions,
    steps: Steps,
    *,
    create_only: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Put the rows of an export into a store, and return the summary. ``dry_run`` puts none.

    Ephemeral values of the exported store are left out. The summary repeats the keys that the
    export left out because they are not valid paths.

    Raises:
        JobError: the folder holds no export, or it does not match its manifest. Nothing was
            written.
        PySparkException: a task failed.
    """
    steps.begin("checking")
    manifest = read_manifest(folder)
    verify(spark, folder, manifest)
    stored = exported_rows(spark, folder, manifest).where(~F.col("ephemeral"))
    rows = stored.select("path", "value")
    if dry_run:
        return preview("restore", rows, lambda given: given, options, create_only=create_only)
    steps.begin("writing")
    begun = time.monotonic()
    report = write(rows, lambda given: given, options, create_only=create_only)
    expected = manifest.rows - manifest.ephemeral
    if report.rows != expected:
        raise JobError(f"{folder.uri} holds {expected} rows, but {report.rows} were read")
    summary = written("restore", report, time.monotonic() - begun)
    return {
        **summary,
        "ephemeral_left_out": manifest.ephemeral,
        **left_out(manifest.foreign_keys, manifest.first_foreign_keys),
    }


def check_place(folder: Folder, *, overwrite: bool) -> None:
    """Check that an export may be written to a folder without removing other files.

    Raises:
        JobError: it may not.
    """
    there = folder.entries()
    if not there or (there == [DATA] and not folder.entries(DATA)):
        return
    others = [name for name in folder.entries(DATA) if not _ours(name)]
    data = folder.read(MANIFEST)
    if data is None:
        # A killed driver leaves these files.
        ours = not others and set(there) <= {DATA, f".{MANIFEST}.unfinished"}
    else:
        ours = is_manifest(data)
    if not ours:
        raise JobError(f"{folder.uri} is not empty and not an export", "InputError")
    if not overwrite:
        raise JobError(
            f"{folder.uri} is not empty; --overwrite replaces an earlier export", "InputError"
        )
    if others:
        raise JobError(
            f"{folder.uri} holds an export, but {DATA}/{others[0]} is not one of its files",
            "InputError",
        )


def _ours(name: str) -> bool:
    return bool(NAMED.fullmatch(name) or HIDDEN.fullmatch(name))
