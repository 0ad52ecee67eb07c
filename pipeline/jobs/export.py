"""``export`` writes a store's subtree to Parquet, with a manifest; ``restore`` writes it back."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from ...ops.results import ForeignKeys, Range
from ..clients import opened
from ..options import SourceOptions
from ..reader import read_revision
from ..source import STORED
from ..throttle import parallelism
from .folder import Folder
from .manifest import DATA, MANIFEST, Manifest, PartFile, is_manifest, read_manifest, verify
from .parts import HIDDEN, NAMED, Part, write_parts
from .progress import Steps
from .spark_session import JobError
from .summary import left_out, written
from .writing import write

__all__ = ["Reading", "export", "exported_rows", "reading", "restore", "stored_rows"]


def stored_rows(spark: SparkSession, given: dict[str, object], columns: str = STORED) -> DataFrame:
    """Return a store's subtree as a DataFrame, of options by their names.

    Args:
        spark: the session.
        given: the options.
        columns: what is read; without ``value``, the store is not asked for values.
    """
    # Without op, which is always the same here, and took a tenth of the time.
    reader = spark.read.format("batchkeeper").schema(columns)
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, str(value))
    return reader.load()


class Reading(NamedTuple):
    """What a job reads of a store.

    Attributes:
        revision: of the store as the job begins.
        snapshot: whether the store can be read as of that revision.
        ranges: of paths; together all that there are.
    """

    revision: int
    snapshot: bool
    ranges: Sequence[Range]


def reading(options: SourceOptions, wanted: int) -> Reading:
    """Return what a job is to read of a store, in about as many ranges as are wanted.

    Raises:
        UnsupportedError: a revision is asked for, and the store keeps no old ones.
    """
    with opened(options, read_only=True) as store:
        read = read_revision(store, options.prefix, options.revision)
        # In this order: what is written between the two counts as changed meanwhile.
        revision = store.revision() if read is None else read
        return Reading(revision, read is not None, store.split(options.prefix, wanted))


def exported_rows(spark: SparkSession, folder: Folder, manifest: Manifest) -> DataFrame:
    """Return the rows of an export, of the files that its manifest names."""
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
        spark: where it is done.
        options: the store, and the prefix.
        folder: where to; it has to be empty, or not there yet.
        steps: shown meanwhile.
        overwrite: replace what an earlier export has left in the folder. It stays until all of
            the new one is written.

    Raises:
        JobError: the folder holds something.
        UnsupportedError: a revision is asked for, and the store keeps no old ones.
        PySparkException: a task failed.
    """
    _check_place(folder, overwrite=overwrite)
    exported = datetime.now(UTC).isoformat(timespec="seconds")
    steps.begin("exporting")
    begun = time.monotonic()
    wanted = options.partitions or 2 * (parallelism(spark) or 1)
    revision, snapshot, ranges = reading(options, wanted)
    _remove(folder, HIDDEN)  # What a driver has left that was killed.
    try:
        parts = write_parts(spark, options, ranges, revision, folder, snapshot=snapshot)
        folder.remove(MANIFEST)
        _remove(folder, NAMED)
        files = [_take(folder, part) for part in parts]
    finally:
        # What attempts have left that Spark gave up.
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
    """Give a part its name."""
    folder.move(f"{DATA}/{part.file}", f"{DATA}/{part.name}")
    return PartFile(part.name, part.rows, part.first, part.last, part.length, part.sha256)


def _remove(folder: Folder, names: re.Pattern[str]) -> None:
    """Remove files of an export, and nobody else's."""
    for name in folder.names(DATA):
        if names.fullmatch(name):
            folder.remove(f"{DATA}/{name}")


def restore(
    spark: SparkSession,
    folder: Folder,
    options: SourceOptions,
    steps: Steps,
    *,
    create_only: bool = False,
) -> dict[str, Any]:
    """Put the rows of an export into a store, and return the summary.

    What ended with a session in the store that was exported is left out. Keys that the export
    has left out, because they are not valid paths, are named in the summary again.

    Raises:
        JobError: there is no export, or it is not as its manifest says: nothing was written.
        PySparkException: a task failed.
    """
    steps.begin("checking")
    manifest = read_manifest(folder)
    verify(spark, folder, manifest)
    steps.begin("writing")
    rows = exported_rows(spark, folder, manifest).where(~F.col("ephemeral"))
    begun = time.monotonic()
    report = write(
        rows.select("path", "value"), lambda batches: batches, options, create_only=create_only
    )
    expected = manifest.rows - manifest.ephemeral
    if report.rows != expected:
        raise JobError(f"{folder.uri} holds {expected} rows, but {report.rows} were read")
    summary = written("restore", report, time.monotonic() - begun)
    return {
        **summary,
        "ephemeral_left_out": manifest.ephemeral,
        **left_out(manifest.foreign_keys, manifest.first_foreign_keys),
    }


def _check_place(folder: Folder, *, overwrite: bool) -> None:
    """See to it that an export may be written to a folder, and removes nothing else there.

    Raises:
        JobError: it may not.
    """
    there = folder.entries()
    if not there or (there == [DATA] and not folder.entries(DATA)):
        return
    others = [name for name in folder.entries(DATA) if not _ours(name)]
    data = folder.read(MANIFEST)
    if data is None:
        # As a driver leaves it that was killed.
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
