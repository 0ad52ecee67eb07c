"""One Spark session for all tests of the pipeline, on two cores of this machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from batchkeeper.pipeline import register

from ..programs import spark_environment


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic session with the data source. It does not need a Java on this machine."""
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in spark_environment().items():
            patch.setenv(variable, value)
        builder = (
            SparkSession.builder.master("local[2, 2]")  # A task may fail once.
            .appName("batchkeeper-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
        )
        with warnings.catch_warnings():
            # Python 3.12 and newer warn of a fork in a process with threads, and pyspark forks to
            # start Java.
            warnings.simplefilter("ignore", DeprecationWarning)
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        register(session)
        yield session
        session.stop()
        # Otherwise, Java would run until this process ends.
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
