"""The session of Spark: ``local[2]`` by default, with its files in one directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from ...pipeline import register
from ...pipeline.java import provide_java
from ...pipeline.jobs.spark_session import started


@contextmanager
def spark_session(directory: Path, master: str = "local[2]") -> Iterator[SparkSession]:
    """Yield a new session with the data source registered, and stop it afterwards.

    Args:
        directory: the folder for Spark's own files.
        master: the URL of the cluster. The driver of one that is not local takes its address and
            its Python for the executors from Spark's own configuration and variables.
    """
    provide_java()
    builder = (
        SparkSession.builder.master(master)
        .appName("batchkeeper bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory / "spark"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    )
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
    spark = started(builder)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        yield spark
    finally:
        spark.stop()
