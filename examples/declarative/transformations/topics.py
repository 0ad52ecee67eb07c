"""Two tables: the current contents of a store, and its changes."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

# The URL is read where the tables are defined. It contains no login: for that, see the options
# password_env and password_file.
URL = os.environ.get("BATCHKEEPER_URL", "etcd://127.0.0.1:2379")


def session() -> SparkSession:
    """Return the session of the run."""
    active = SparkSession.getActiveSession()
    assert active is not None
    return active


@dp.materialized_view(comment="Each topic with the hub that owns it, all of one revision.")
def topics() -> DataFrame:
    """Read the store. Each run computes the table again."""
    rows = session().read.format("batchkeeper").option("url", URL).option("prefix", "/topics")
    return rows.load().select(
        expr("substring(path, length('/topics/') + 1)").alias("topic"),
        col("value").cast("string").alias("owner"),
        "version",
        "revision",
    )


@dp.table(comment="Each change of an owner, once.")
def moves() -> DataFrame:
    """Follow the store (etcd). Each run adds the changes since the previous run."""
    rows = session().readStream.format("batchkeeper").option("url", URL)
    # Start with the first change ever. If etcd was compacted, start after a revision that it still
    # has.
    rows = rows.option("prefix", "/topics").option("starting_revision", 0)
    return rows.load().select(
        "revision", "path", "op", col("value").cast("string").alias("owner"), "version"
    )
