"""The number of tasks that Spark runs at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["parallelism"]


def parallelism(spark: SparkSession) -> int | None:
    """Return the number of tasks that Spark runs at a time by default, or ``None`` if unknown."""
    try:
        configured = spark.conf.get("spark.default.parallelism", None)
        return int(configured or spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context, and raises errors of several kinds.
        return None
