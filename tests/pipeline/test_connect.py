"""Spark Connect: the same calls from a client without a JVM."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import batchkeeper as bk

from ..programs import run_python, spark_environment

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from batchkeeper.pipeline import bulk_apply, register

url = sys.argv[1]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert "connect" in type(spark).__module__
register(spark)
source = spark.read.format("batchkeeper").option("url", url).option("prefix", "/a").load()
copy = source.selectExpr("concat('/copy', path) AS path", "value").coalesce(1)
copy.write.format("batchkeeper").option("url", url).mode("append").save()
print(bulk_apply(copy, url).groupBy("status").count().collect())
try:
    spark.read.format("batchkeeper").option("url", url).option("colour", "red").load().count()
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.full
@pytest.mark.server
def test_reads_writes_and_bulk_calls_work_over_connect(
    fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A Connect session reads, writes, applies in bulk, and shows a bad option in one line."""
    url = fresh_url("rocksdb")
    with bk.open_store(url) as store:
        store.apply([bk.Put(f"/a/{number}", b"%d" % number) for number in range(20)])
    done = run_python("-c", PROGRAM, url, cwd=tmp_path, env={**os.environ, **spark_environment()})
    assert done.returncode == 0, done.stderr
    counted, refused, *_ = done.stdout.splitlines()
    assert counted == "[Row(status='ok', count=20)]"
    assert "InvalidSettingError: unknown option 'colour'" in refused
    assert "Traceback" not in done.stdout
    with bk.open_store(url) as store:
        found = {path: (value, stat.version) for path, value, stat in store.scan("/copy")}
    assert found == {f"/copy/a/{number}": (b"%d" % number, 1) for number in range(20)}
