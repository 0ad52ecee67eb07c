"""bulk_apply: one outcome for each row, on real stores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from batchkeeper import InvalidSettingError, UnsupportedError, open_store
from batchkeeper.pipeline import bulk_apply
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.backend import PlainRead

from ..waiting import soon

SCHEMA = "path string, value binary, expected_version bigint, op string"


@pytest.mark.parametrize("scheme", ["rocksdb", "etcd", "zookeeper"])
def test_each_row_has_its_outcome(
    spark: SparkSession, fresh_url: Callable[[str], str], scheme: str
) -> None:
    """Rows come back in order with status, version and error, independent of their neighbours."""
    url = fresh_url(scheme)
    with open_store(url) as store:
        store.put("/stale", b"theirs").result()
        store.put("/stale", b"theirs").result()
        store.put("/done", b"mine").result()
    rows = [
        ("/new", bytearray(b"1"), -1, None),
        ("/stale", bytearray(b"mine"), 0, "put"),
        ("/done", bytearray(b"mine"), -1, "put"),
        ("/any", bytearray(b""), None, "put"),
        (None, bytearray(b""), None, "put"),
        ("/gone", None, 3, "delete"),
        ("/missing", None, None, "delete"),
        ("/new", bytearray(b"2"), 0, "put"),
    ]
    df = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    outcomes = bulk_apply(df, url).collect()
    assert [(row.path, row.status, row.version) for row in outcomes] == [
        ("/new", "ok", 0),
        ("/stale", "conflict", None),
        ("/done", "already_applied", 0),
        ("/any", "ok", 0),
        (None, "error", None),
        ("/gone", "already_applied", None),
        ("/missing", "not_found", None),
        ("/new", "conflict", None),
    ]
    assert outcomes[1].error.startswith("BadVersionError: '/stale' is at version 1")
    assert outcomes[4].error == "InvalidPathError: the path is null"
    assert [row.error is None for row in outcomes] == [
        row.status in {"ok", "already_applied", "not_found"} for row in outcomes
    ]


def test_a_path_that_is_no_text_is_an_error_of_its_row(
    spark: SparkSession, fresh_url: Callable[[str], str]
) -> None:
    """Spark casts any bytes to text: the rows beside such a one are written."""
    rows = spark.createDataFrame([(b"/a\xff",), (b"/b",)], "path binary").coalesce(1)
    df = rows.selectExpr("cast(path as string) as path", "binary('v') as value")
    outcomes = bulk_apply(df, fresh_url("etcd")).collect()
    assert [(row.path, row.status) for row in outcomes] == [(r"/a\xff", "error"), ("/b", "ok")]


def test_partitions_keep_their_rows_in_order(
    spark: SparkSession, fresh_url: Callable[[str], str]
) -> None:
    """Large partitions come back row by row; an empty one costs nothing."""
    df = spark.range(0, 25_000, 1, 2).selectExpr("'/' || id as path", "binary('v') as value")
    none = df.where("path = 'nothing'")
    outcomes = bulk_apply(df.union(none), fresh_url("etcd"), max_ops=500).collect()
    assert [row.path for row in outcomes] == [f"/{n}" for n in range(25_000)]
    assert {(row.status, row.version) for row in outcomes} == {("ok", 0)}


def test_a_directory_is_written_by_one_task(
    spark: SparkSession, fresh_url: Callable[[str], str]
) -> None:
    """If another process has a RocksDB directory open, the error says so, and what to do."""
    url = fresh_url("rocksdb")
    df = spark.createDataFrame([("/a", bytearray(b""), None, None)], SCHEMA).coalesce(1)
    with (
        open_store(url),
        pytest.raises(PySparkException, match=r"only one task .* df\.coalesce\(1\)"),
    ):
        bulk_apply(df, url).collect()


def test_tasks_share_a_budget(spark: SparkSession, fresh_url: Callable[[str], str]) -> None:
    """Those of all jobs take their time from one value in the store, which others do not see."""
    rows = [(f"/{number}", bytearray(b""), None, None) for number in range(20)]
    df = spark.createDataFrame(rows, SCHEMA).repartition(2)
    url = fresh_url("etcd")
    for options in ({}, {"rate_tasks": 2}, {"rate_budget": "mine"}):
        outcomes = bulk_apply(df, url, rate_limit=1000, **options).collect()
        assert {outcome.status for outcome in outcomes} == {"ok"}
    with closing(connect(url, ConnectOptions())) as backend:
        budgets = [PlainRead(f"/.batchkeeper/rates/{name}") for name in ("spark", "mine")]
        assert all(backend.read(budgets, soon()))
    with open_store(url) as store:
        assert len(store.get_children("/").result()) == 20


def test_what_is_wrong_is_told_at_the_call(spark: SparkSession) -> None:
    """Columns and options are checked by the call itself, with errors that can be caught."""
    df = spark.createDataFrame([("/a", bytearray(b""), None, None)], SCHEMA)
    url = "etcd://127.0.0.1:1"
    with pytest.raises(InvalidSettingError, match="no on_error"):
        bulk_apply(df, url, on_error="skip")
    message = r"unknown option 'max_opps': did you mean 'max_ops'\?"
    with pytest.raises(InvalidSettingError, match=message):
        bulk_apply(df, url, max_opps=3)
    with pytest.raises(InvalidSettingError, match="'value' is missing"):
        bulk_apply(df.drop("value"), url)
    with pytest.raises(UnsupportedError, match="lives in one process"):
        bulk_apply(df, "memory://x")
