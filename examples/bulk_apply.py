"""Moves all topics of one hub to another, and says which could not be moved.

::

    python examples/bulk_apply.py etcd://127.0.0.1:2379 hub-1 hub-2

A topic whose owner has changed since it was read is left as it is, and reported: its row is put
only if the path is still at the version that was read. Running it again does no harm.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit

from batchkeeper.pipeline import bulk_apply, register


def main(url: str, old: str, new: str) -> int:
    """Return 0 if all topics were moved, and 1 if there are some that were not."""
    spark = SparkSession.builder.appName("move topics").getOrCreate()
    register(spark)
    topics = spark.read.format("batchkeeper").option("url", url).option("prefix", "/topics").load()
    moves = topics.where(col("value") == lit(old.encode())).select(
        "path", lit(new.encode()).alias("value"), col("version").alias("expected_version")
    )
    # Each action on the outcomes would write the rows again, so they are taken once.
    outcomes = bulk_apply(moves, url, max_in_flight=2).collect()
    left = [outcome for outcome in outcomes if outcome.status not in ("ok", "already_applied")]
    for outcome in left:
        print(f"{outcome.path}: {outcome.status}: {outcome.error}")
    print(f"{len(outcomes) - len(left)} topics moved, {len(left)} not")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
