"""Runs one job in a separate process with its own Spark, so that its memory can be watched.

::

    python -m batchkeeper.bench.spark.job load URL ROOT PARQUET DIRECTORY

loads a Parquet directory into a store. With ``export``, it writes the values below the root to
another directory. Then it prints the bytes that the JVM holds, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from .reads import export_to
from .session import spark_session
from .writes import write

__all__ = ["main"]

# The JVM collects only when its heap is full. A small heap shows whether the data of a job fits.
_HEAP: Final = "512m"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job."""
    job, url, root, parquet, directory = sys.argv[1:] if argv is None else argv
    if job not in ("load", "export"):
        sys.exit(f"no such job: {job}")
    with spark_session(Path(directory), memory=_HEAP) as spark:
        if job == "load":
            write(spark.read.parquet(parquet), url)
        else:
            export_to(spark, url, root, Path(directory) / "exported")
        held = _held(spark)
    sys.stdout.write(json.dumps({"jvm": held}) + "\n")
    return 0


def _held(spark: SparkSession) -> int:
    """Return the bytes of the JVM's heap that are in use after a collection."""
    # The stubs declare every attribute of the JVM as a callable.
    lang: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    lang.System.gc()
    runtime = lang.Runtime.getRuntime()
    held: int = runtime.totalMemory() - runtime.freeMemory()
    return held


if __name__ == "__main__":
    sys.exit(main())
