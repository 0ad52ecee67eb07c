"""Frames written to real stores: outcomes, retries, and servers that go away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.functions import lit, raise_error
from pyspark.sql.types import StructType

from batchkeeper import open_store
from batchkeeper.pipeline import bulk_apply
from batchkeeper.pipeline.options import parse_options
from batchkeeper.pipeline.row_report import Report
from batchkeeper.pipeline.source import BatchkeeperSource
from batchkeeper.pipeline.writer import BatchWriter, Written
from batchkeeper.testing.servers import EtcdServer, LocalServer

from ..contents import contents


def rows_of(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """A frame of creates: /t/0, /t/1 and so on, with their numbers as values."""
    columns = "'/t/' || id as path", "cast(string(id) as binary) as value"
    return spark.range(0, count, 1, partitions).selectExpr(*columns, "-1L as expected_version")


def write(df: DataFrame, url: Any, mode: Any = "append", **options: object) -> None:
    given = {name: str(value) for name, value in options.items()}
    df.write.format("batchkeeper").option("url", url).options(**given).mode(mode).save()


@pytest.fixture(params=["rocksdb", "etcd", "zookeeper"])
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    return fresh_url(request.param)


@pytest.fixture
def etcd_url(fresh_url: Callable[[str], str]) -> str:
    return fresh_url("etcd")


def test_rows_are_written(spark: SparkSession, url: str) -> None:
    """Puts and deletes of several partitions reach the store, a RocksDB directory from one."""
    with open_store(url) as store:
        store.put("/gone", b"").result()
    df = spark.range(0, 3000, 1, 3).selectExpr(
        "cast(string(id) as binary) as value",
        "if(id = 7, 'delete', 'put') as op",
        "if(id = 7, '/gone', '/t/' || id) as path",
    )
    write(df.coalesce(1) if url.startswith("rocksdb") else df, url)
    with open_store(url) as store:
        assert contents(store) == {f"/t/{n}": b"%d" % n for n in range(3000) if n != 7}


# What is conditional differs on ZooKeeper; the rows of RocksDB come from one task.
@pytest.mark.parametrize(
    "url", ["rocksdb", pytest.param("etcd", marks=pytest.mark.full), "zookeeper"], indirect=True
)
def test_good_rows_are_written_beside_stale_ones(spark: SparkSession, url: str) -> None:
    """With collect, the job writes all other rows, and then fails with counts and first errors."""
    with open_store(url) as store:
        for _ in range(2):
            store.put("/t/5", b"theirs").result()
    df = rows_of(spark, 50, 1)
    with pytest.raises(PySparkException) as caught:
        write(df, url, on_error="collect")
    assert "1 of 50 rows were not written" in str(caught.value)
    assert "'/t/5': conflict: BadVersionError: '/t/5' is at version 1" in str(caught.value)
    expected = {f"/t/{n}": b"%d" % n for n in range(50)} | {"/t/5": b"theirs"}
    with open_store(url) as store:
        assert contents(store) == expected
    # Again, as after a failure of the job: what is there counts as done.
    write(df, url, on_error="skip")
    with pytest.raises(PySparkException, match=r"'/t/5': conflict: .* The 49 other rows"):
        write(df, url)
    with open_store(url) as store:
        assert contents(store) == expected


def test_no_error_shows_a_value(spark: SparkSession, etcd_url: str) -> None:
    """Values may be secrets: errors have paths only."""
    schema = "path string, value binary, expected_version bigint, op string"
    rows = [("/a", bytearray(b"s3cret"), 7, None), ("/b//", bytearray(b"s3cret"), None, "put")]
    with pytest.raises(PySparkException, match="2 of 2 rows") as caught:
        write(spark.createDataFrame(rows, schema).coalesce(1), etcd_url, on_error="collect")
    assert "s3cret" not in str(caught.value)


class _DyingWriter(DataSourceArrowWriter):
    """A writer whose process dies once in the middle of a partition."""

    def __init__(self, writer: DataSourceWriter, marker: str) -> None:
        self._writer = writer
        self._marker = marker

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        def batches() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(iterator):
                if number == 2:
                    # The first attempt that comes here makes the file, and is gone.
                    try:
                        os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        pass
                    else:
                        os._exit(1)
                yield batch

        return self._writer.write(cast("Any", batches()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)


class Dying(BatchkeeperSource):
    """The data source with a writer that dies; its option ``marker`` names a file."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        marker = self.options.pop("marker")
        return _DyingWriter(super().writer(schema, overwrite), marker)


def test_a_task_that_was_killed_is_run_again(
    spark: SparkSession, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """Rows that the first attempt wrote count as done, on stores with sessions and without."""
    spark.dataSource.register(Dying)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        for scheme in ("etcd", "zookeeper"):
            url, marker = fresh_url(scheme), tmp_path / scheme
            df = rows_of(spark, 1000)
            df.write.format("dying").option("url", url).option("marker", str(marker)).mode(
                "append"
            ).save()
            assert marker.exists()
            with open_store(url) as store:
                assert contents(store) == {f"/t/{n}": b"%d" % n for n in range(1000)}
                found = store.get("/t/0").result()
            assert found is not None
            assert found.stat.version == 0
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.parametrize("kind", [pytest.param("etcd", marks=pytest.mark.full), "zookeeper"])
def test_a_server_that_is_killed_and_restarted_loses_no_row(
    spark: SparkSession, request: pytest.FixtureRequest, kind: str
) -> None:
    """The rows under way end with their outcomes, and the job continues by itself."""
    server: LocalServer = request.getfixturevalue(f"own_{kind}")()
    df = rows_of(spark, 4000)
    outcomes = bulk_apply(df, server.url, rate_limit=2000, rate_tasks=2)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(outcomes.collect)
        with open_store(server.url) as store:
            while not store.exists("/t/300").result():
                assert not job.done()
        server.kill()
        server.start()
        assert {row.status for row in job.result()} <= {"ok", "already_applied"}
    # An etcd before 3.5.5 may lose to the kill what it had acknowledged; a second run puts it back,
    # and takes the rest for done.
    write(df, server.url)
    with open_store(server.url) as store:
        assert {found.path: (found.value, found.stat.version) for found in store.scan("/t")} == {
            f"/t/{n}": (b"%d" % n, 0) for n in range(4000)
        }


def test_overwrite_leaves_what_the_job_has_written(spark: SparkSession, url: str) -> None:
    """Older values under the prefix are deleted at the end; values beside it stay."""
    with open_store(url) as store:
        for path in ("/t/old", "/t/kept", "/t/deep/old", "/to", "/other"):
            store.put(path, b"old").result()
    df = spark.createDataFrame(
        [("/t/kept", bytearray(b"new")), ("/t/new", bytearray(b"new"))],
        "path string, value binary",
    )
    write(df.coalesce(1), url, "overwrite", prefix="/t")
    with open_store(url) as store:
        assert contents(store) == {
            "/other": b"old",
            "/t/kept": b"new",
            "/t/new": b"new",
            "/to": b"old",
        }


def test_a_failed_overwrite_deletes_nothing(spark: SparkSession, etcd_url: str) -> None:
    """If a row cannot be written, at once or at the end, all older values stay."""
    with open_store(etcd_url) as store:
        store.put("/t/old", b"old").result()
    df = spark.createDataFrame(
        [("/t/new", bytearray(b"new")), ("/outside", bytearray(b"new"))],
        "path string, value binary",
    )
    for on_error, message in (
        ("fail", "outside the prefix"),
        ("collect", "nothing was deleted"),
    ):
        with pytest.raises(PySparkException, match=message):
            write(df.coalesce(1), etcd_url, "overwrite", prefix="/t", on_error=on_error)
    with open_store(etcd_url) as store:
        assert contents(store) == {"/t/new": b"new", "/t/old": b"old"}


@pytest.mark.parametrize(
    ("mode", "columns", "options", "error"),
    [
        ("append", "path", {}, "the column 'value' is missing"),
        ("append", "path, string(value) as value", {}, "'value' is string, but must be binary"),
        ("append", "path, value, 1 as version", {}, "cannot write the column 'version'"),
        # For each change: test_bulk_apply.py.
        pytest.param(
            "append",
            "path, value",
            {"max_opps": 9},
            "did you mean 'max_ops'?",
            marks=pytest.mark.full,
        ),
        ("append", "path, value", {"url": "memory://x"}, "lives in one process"),
        (
            "append",
            "path, value",
            {"url": "etcd://127.0.0.1:1", "connect_timeout": 1},
            "StoreUnavailableError",
        ),
        ("overwrite", "path, value", {}, "overwrite needs a prefix"),
        pytest.param(
            "overwrite",
            "path, value",
            {"url": "etcd://h:1/"},
            "overwrite needs a prefix",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "overwrite",
            "path, value",
            {"url": "rocksdb:///none/x"},
            "overwrite needs a prefix",
            marks=pytest.mark.full,
        ),
        ("overwrite", "*", {"prefix": "/t"}, "only unconditional rows"),
        ("overwrite", "path, value", {"prefix": "/t", "on_error": "skip"}, "cannot skip rows"),
    ],
)
def test_what_is_wrong_is_told_before_a_row_is_written(
    spark: SparkSession,
    etcd_server: EtcdServer,
    mode: str,
    columns: str,
    options: dict[str, object],
    error: str,
) -> None:
    """Columns, options and the store are checked on the driver, and no task starts."""
    # A task that started would fail with an error of its own.
    bad = rows_of(spark, 1).withColumn(
        "path", raise_error(lit("a task has started")).cast("string")
    )
    df = bad.selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException) as caught:
        write(df, **{"url": etcd_server.url, "mode": mode, **options})
    assert error in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "a task has started" not in str(caught.value)


def test_abort_says_what_stays(
    fresh_url: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """A failed job's log reports its partitions and the older values."""
    options = parse_options({"url": fresh_url("rocksdb"), "prefix": "/t"})
    schema = StructType().add("path", "string").add("value", "binary")
    writer = BatchWriter(schema, options, overwrite=True)
    ended = Written(Report({"ok": 3}))
    writer.abort([ended, None])
    assert "partitions_ended=1 partitions_unknown=1" in caplog.text
    assert "3 rows: 3 ok" in caplog.text
    assert "No older value is deleted" in caplog.text
    caplog.clear()
    writer.abort([ended, ended])
    assert "Some or all of the older values are deleted" in caplog.text
