"""``export``: a store's subtree to Parquet, with a manifest; ``restore``: back into a store."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from ..clients import opened
from ..options import SourceOptions
from ..source import STORED
from .folder import Folder
from .manifest import (
    DATA,
    MANIFEST,
    Manifest,
    PartFile,
    file_states,
    part_names,
    read_manifest,
    verify,
)
from .progress import Steps
from .session import JobError
from .summary import written
from .writing import write

__all__ = ["SNAPSHOTS", "export", "exported_rows", "restore", "stored_rows"]

#: Schemes of the stores that keep old revisions: everything that is read is of one.
SNAPSHOTS = ("etcd", "etcds")


def stored_rows(spark: SparkSession, given: dict[str, object]) -> DataFrame:
    """Return a store's subtree as a DataFrame, of options by their names."""
    # Without op, which is always the same here, and took a tenth of the time.
    reader = spark.read.format("batchkeeper").schema(STORED)
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, str(value))
    return reader.load()


def exported_rows(spark: SparkSession, folder: Folder, manifest: Manifest) -> DataFrame:
    """Return the rows of an export, of the files that its manifest names."""
    names = [f"{folder.uri.rstrip('/')}/{DATA}/{file.name}" for file in manifest.files]
    return spark.read.parquet(*names)


def export(
    spark: SparkSession,
    options: SourceOptions,
    given: dict[str, object],
    folder: Folder,
    steps: Steps,
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a store's subtree to a folder, and return the summary.

    Args:
        spark: where it is done.
        options: the store, and the prefix.
        given: the same, by the names of the data source.
        folder: where to; it has to be empty, or not there yet.
        steps: shown meanwhile.
        overwrite: replace what an earlier export has left in the folder.

    Raises:
        JobError: the folder holds something.
        PySparkException: a task failed.
    """
    if not overwrite and not folder.empty():
        raise JobError(
            f"{folder.uri} is not empty; --overwrite replaces an earlier export", "InputError"
        )
    if overwrite and not folder.empty() and not _is_export(folder):
        raise JobError(f"{folder.uri} is not empty, and no export", "InputError")
    exported = datetime.now(UTC).isoformat(timespec="seconds")
    with opened(options, read_only=True) as store:
        revision = options.revision or store.revision()
    snapshot = options.scheme in SNAPSHOTS
    if snapshot:
        given = {**given, "revision": revision}
    folder.remove(MANIFEST)
    steps.begin("exporting")
    begun = time.monotonic()
    mode = "overwrite" if overwrite else "errorifexists"
    data = f"{folder.uri.rstrip('/')}/{DATA}"
    stored_rows(spark, given).write.mode(mode).parquet(data)
    seconds = time.monotonic() - begun
    steps.begin("computing checksums")
    names = part_names(folder)
    states = file_states(spark, folder, names)
    counts = {row.file: row for row in _counts(spark.read.parquet(data), revision).collect()}
    files = [
        PartFile(
            name,
            rows=counts[name].rows if name in counts else 0,
            first=counts[name].first if name in counts else None,
            last=counts[name].last if name in counts else None,
            length=states[name].length,
            sha256=states[name].sha256,
        )
        for name in names
    ]
    for file in files:
        # The manifest is what a restore relies on, so it is not left to one count alone.
        if (there := folder.rows(f"{DATA}/{file.name}")) != file.rows:
            raise JobError(
                f"{folder.uri}: {file.rows} rows were counted in {DATA}/{file.name}, and it has "
                f"{there}: something else has changed it"
            )
    manifest = Manifest(
        url=options.url.partition("?")[0],
        prefix=options.prefix,
        revision=revision,
        snapshot=snapshot,
        changed_meanwhile=sum(row.changed for row in counts.values()),
        rows=sum(file.rows for file in files),
        ephemeral=sum(row.ephemeral for row in counts.values()),
        exported=exported,
        files=files,
    )
    folder.write(MANIFEST, manifest.dumps())
    return {
        "job": "export",
        "rows": manifest.rows,
        "revision": revision,
        "snapshot": snapshot,
        "changed_meanwhile": manifest.changed_meanwhile,
        "ephemeral": manifest.ephemeral,
        "files": len(files),
        "bytes": sum(file.length for file in files),
        "seconds": round(seconds, 3),
        "operations_per_second": round(manifest.rows / seconds),
    }


def restore(
    spark: SparkSession,
    folder: Folder,
    options: SourceOptions,
    steps: Steps,
    *,
    create_only: bool = False,
) -> dict[str, Any]:
    """Put the rows of an export into a store, and return the summary.

    What ended with a session in the store that was exported is left out.

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
    summary = written("restore", report, time.monotonic() - begun)
    return {**summary, "ephemeral_left_out": manifest.ephemeral}


def _is_export(folder: Folder) -> bool:
    return folder.read(MANIFEST) is not None or bool(folder.names(DATA))


def _counts(rows: DataFrame, revision: int) -> DataFrame:
    """Count what each file holds."""
    return rows.groupBy(F.col("_metadata.file_name").alias("file")).agg(
        F.count("*").alias("rows"),
        F.min("path").alias("first"),
        F.max("path").alias("last"),
        F.count_if(F.col("ephemeral")).alias("ephemeral"),
        F.count_if(F.col("revision") > revision).alias("changed"),
    )
