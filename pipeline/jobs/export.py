"""``export``: a store's subtree to Parquet, with a manifest; ``restore``: back into a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from ..clients import opened
from ..options import SourceOptions
from ..source import STORED
from ..throttle import parallelism
from .folder import Folder
from .manifest import DATA, MANIFEST, Manifest, PartFile, read_manifest, verify
from .parts import Part, write_parts
from .progress import Steps
from .session import JobError
from .summary import written
from .writing import write

__all__ = ["SNAPSHOTS", "export", "exported_rows", "restore", "stored_rows"]

#: Schemes of the stores that keep old revisions: everything that is read is of one.
SNAPSHOTS = ("etcd", "etcds")


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


def exported_rows(spark: SparkSession, folder: Folder, manifest: Manifest) -> DataFrame:
    """Return the rows of an export, of the files that its manifest names."""
    names = [f"{folder.uri.rstrip('/')}/{DATA}/{file.name}" for file in manifest.files]
    return spark.read.parquet(*names)


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
    steps.begin("exporting")
    begun = time.monotonic()
    wanted = options.partitions or 2 * (parallelism(spark) or 1)
    with opened(options, read_only=True) as store:
        # In this order: what is written between the two counts as changed meanwhile.
        revision = options.revision or store.revision()
        ranges = store.split(options.prefix, wanted)
    folder.remove(MANIFEST)
    folder.clear(DATA)
    snapshot = options.scheme in SNAPSHOTS
    parts = write_parts(spark, options, ranges, revision, folder, snapshot=snapshot)
    files = [_take(folder, part) for part in parts]
    _remove_others(folder, files)
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
        "files": len(files),
        "bytes": sum(file.length for file in files),
        "seconds": round(seconds, 3),
        "operations_per_second": round(manifest.rows / seconds),
    }


def _take(folder: Folder, part: Part) -> PartFile:
    """Give a part its name."""
    folder.move(f"{DATA}/{part.file}", f"{DATA}/{part.name}")
    return PartFile(part.name, part.rows, part.first, part.last, part.length, part.sha256)


def _remove_others(folder: Folder, files: Sequence[PartFile]) -> None:
    """Remove what attempts have left that Spark gave up."""
    ours = {file.name for file in files}
    for name in folder.names(DATA):
        if name not in ours:
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
