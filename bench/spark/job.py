"""One job in a process and a Spark of its own, for its memory to be watched.

::

    python -m batchkeeper.bench.spark.job load URL ROOT PARQUET DIRECTORY

loads a Parquet directory into a store (``export``: writes what is below the root to another one),
and prints as JSON what the JVM held afterwards.
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

# The JVM fills its heap before it collects: so it gets little, and what does not fit shows.
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
    """Return the bytes of the JVM's heap that a collection leaves."""
    # Typed as callables, all of them, whatever is found there.
    lang: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    lang.System.gc()
    runtime = lang.Runtime.getRuntime()
    held: int = runtime.totalMemory() - runtime.freeMemory()
    return held


if __name__ == "__main__":
    sys.exit(main())
