"""Streams on real servers: changes as they come, each once; and rows written as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from batchkeeper import MetadataStore, open_store
from batchkeeper.ops import ABSENT, Change, Delete, InvalidSettingError, Put
from batchkeeper.pipeline.options import parse_options
from batchkeeper.pipeline.source import SCHEMA
from batchkeeper.pipeline.streams import ChangesReader
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.testing.servers import EtcdServer

from ..waiting import PATIENCE

ROW = "path string, value binary, expected_version bigint, op string"


class Seen(NamedTuple):
    """The batches that a query received."""

    batches: list[tuple[int, list[Change]]]

    @property
    def changes(self) -> list[Change]:
        return [change for _, changes in self.batches for change in changes]

    def take(self, df: DataFrame, batch: int) -> None:
        rows = df.select("path", "op", "value", "version", "revision", "ephemeral").collect()
        taken = [
            Change(*row[:2], None if row.value is None else bytes(row.value), *row[3:])
            for row in rows
        ]
        self.batches.append((batch, sorted(taken, key=lambda change: change.revision)))


class Source:
    """A store with changes, and queries over them that share a checkpoint."""

    def __init__(self, spark: SparkSession, store: MetadataStore, url: str, folder: Path) -> None:
        self.spark = spark
        self.store = store
        self.url = url
        self.checkpoint = folder / "checkpoint"
        self.first = store.put("/first", b"").result().revision

    def stream(self, **options: object) -> DataFrame:
        asked = {"url": self.url, "prefix": "/t", "starting_revision": self.first, **options}
        return self.spark.readStream.format("batchkeeper").options(**asked).load()

    def run(self, **options: object) -> Seen:
        """Process all that is there, and return what a query was handed."""
        seen = Seen([])
        finish(self.stream(**options).writeStream.foreachBatch(seen.take), self.checkpoint)
        return seen

    def history(self) -> list[Change]:
        return list(self.store.changes("/t", self.first, self.store.revision()))


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Make a checkpoint as if the driver had died before it noted that a batch was done."""
    for name in (str(batch), f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink()


def finish(writer: Any, checkpoint: Path) -> Any:
    """Run a query over what is there until it ends."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(PATIENCE)
    finally:
        query.stop()
    return query


@pytest.fixture
def source(
    spark: SparkSession, fresh_url: Callable[[str], str], tmp_path: Path
) -> Iterator[Source]:
    """An etcd with nothing of interest in it yet."""
    url = fresh_url("etcd")
    with open_store(url) as store:
        yield Source(spark, store, url, tmp_path)


OnEtcd = tuple[MetadataStore, ChangesReader]


@pytest.fixture
def store_on_etcd(fresh_url: Callable[[str], str]) -> Iterator[OnEtcd]:
    """A store and a reader of its changes, without Spark."""
    url = fresh_url("etcd")
    reader = ChangesReader(
        StructType([StructField("path", StringType())]), parse_options({"url": url})
    )
    with open_store(url) as store:
        yield store, reader


@pytest.fixture
def lone_source(
    spark: SparkSession, own_etcd: Callable[..., EtcdServer], tmp_path: Path
) -> Iterator[Source]:
    """The same on an etcd of this test alone.

    On the shared one, each lease that expires, of a client that another test has killed, is a new
    revision.
    """
    server = own_etcd()
    with open_store(server.url) as store:
        yield Source(spark, store, server.url, tmp_path)


# Reading


def test_each_change_is_seen_once_over_restarts(lone_source: Source) -> None:
    """A query restarted from its checkpoint continues; an open batch has the same rows again.

    A batch that was not noted as done is handed over again, whatever was changed since. With
    nothing new, there is no batch: reading, and opening the client, change nothing themselves.
    """
    source, store = lone_source, lone_source.store
    store.apply([Put("/t/a", b"1"), Put("/t/b", b"1"), Put("/other", b"1"), Put("/tt", b"1")])
    store.apply([Put("/t/a", b"2"), Delete("/t/b")])
    first = source.run()
    forget_commit(source.checkpoint, 0)
    store.apply([Delete("/t/a"), Put("/t/b", b"3"), Put("/t", b"own")])
    second = source.run()
    assert source.run().batches == []
    assert [batch for batch, _ in second.batches] == [0, 1]
    assert second.batches[0] == first.batches[0]
    assert second.changes == source.history()
    assert len(first.changes) == 4
    assert {(c.path, c.op, c.value, c.version) for c in second.batches[1][1]} == {
        ("/t/a", "delete", None, None),
        ("/t/b", "put", b"3", 0),
        ("/t", "put", b"own", 0),
    }


@pytest.mark.full
def test_batches_are_bounded_and_read_in_parts(source: Source) -> None:
    """A query that is far behind reads a few revisions at a time, in several tasks."""
    for i in range(10):
        source.store.put(f"/t/{i % 3}", b"%d" % i).result()
    batches = []

    def take(df: DataFrame, _: int) -> None:
        batches.append(df.select("revision").rdd.glom().collect())

    stream = source.stream(max_revisions_per_batch=4, partitions=2)
    finish(stream.writeStream.foreachBatch(take), source.checkpoint)
    assert [[len(part) for part in parts] for parts in batches] == [[2, 2], [2, 2], [1, 1]]
    revisions = [row.revision for parts in batches for part in parts for row in part]
    assert revisions == [change.revision for change in source.history()]


def test_a_new_query_starts_with_what_comes(source: Source) -> None:
    """Without a starting revision, a query receives the changes after its start."""
    source.store.put("/t/a", b"before").result()
    assert source.run(starting_revision=None).changes == []
    source.store.put("/t/a", b"after").result()
    assert [c.value for c in source.run(starting_revision=None).changes] == [b"after"]


def test_compacted_history_is_an_error_that_says_what_to_do(
    spark: SparkSession, own_etcd: Callable[..., EtcdServer], tmp_path: Path
) -> None:
    """The query fails on the driver, with the revisions and the way to continue."""
    server = own_etcd()
    with open_store(server.url) as store:
        source = Source(spark, store, server.url, tmp_path)
        compacted = [store.put("/t/a", b"%d" % i).result().revision for i in range(5)][3]
        compact(server, compacted)
        with pytest.raises(PySparkException) as caught:
            source.run()
    said = str(caught.value)
    assert f"compacted at revision {compacted} and" in said
    assert f"reached revision {source.first} and" in said
    assert "starting_revision" in said
    assert "Traceback" not in said


def compact(server: EtcdServer, revision: int) -> None:
    """Compact etcd at a revision."""
    with grpc.insecure_channel(server.address) as channel:
        request = messages.CompactionRequest(revision=revision, physical=True)
        grpc_stubs.KVStub(channel).Compact(request)


def test_another_store_than_that_of_the_checkpoint_is_refused(store_on_etcd: OnEtcd) -> None:
    """A store that has not reached the checkpoint's revision is refused as another one."""
    store, reader = store_on_etcd
    ahead = {"revision": store.revision() + 1}
    with pytest.raises(InvalidSettingError, match="not the store of the checkpoint"):
        reader.latestOffset(ahead, ReadAllAvailable())


def test_a_query_for_what_is_there_ends_at_what_was_there(store_on_etcd: OnEtcd) -> None:
    """Changes after it has begun are not read, however many."""
    store, reader = store_on_etcd
    begin = {"revision": store.put("/t/a", b"").result().revision}
    reader.prepareForTriggerAvailableNow()
    there = reader.latestOffset(begin, ReadAllAvailable())
    store.put("/t/b", b"").result()
    assert reader.latestOffset(begin, ReadAllAvailable()) == there


def test_where_a_stream_starts_has_to_be_there(source: Source) -> None:
    """A future starting revision, or the option revision, is refused on the driver."""
    asked = {"url": source.url, "starting_revision": source.store.revision() + 1}
    with pytest.raises(InvalidSettingError, match="the store is at revision"):
        ChangesReader(StructType.fromDDL(SCHEMA), parse_options(asked)).initialOffset()
    with pytest.raises(InvalidSettingError, match="pass starting_revision"):
        ChangesReader(StructType.fromDDL(SCHEMA), parse_options({"url": source.url, "revision": 1}))


def test_a_column_that_no_change_has_is_refused(source: Source) -> None:
    """A schema of the caller's own may leave columns out, and not add any."""
    options = parse_options({"url": source.url})
    ChangesReader(StructType.fromDDL("path string, op string"), options)
    for ddl in ("path string, size bigint", "path string, version int"):
        with pytest.raises(InvalidSettingError, match=r"a change has no column '(size|version)'"):
            ChangesReader(StructType.fromDDL(ddl), options)


def test_other_stores_have_no_stream_of_changes(
    spark: SparkSession, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """The query fails at once, with the reason."""
    stream = spark.readStream.format("batchkeeper").options(url=fresh_url("zookeeper")).load()
    writer = stream.writeStream.foreachBatch(lambda df, _: None)
    with pytest.raises(
        PySparkException, match="stream of changes needs a store with the capability 'history'"
    ):
        finish(writer, tmp_path / "checkpoint")


# Writing


class Sink:
    """A folder whose files become the batches of a query that writes them to a store."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.input = folder / "input"
        self.checkpoint = folder / "checkpoint"
        self.input.mkdir()

    def add(self, *rows: tuple[str, bytes | None, int | None, str]) -> None:
        """Add a file."""
        frame = self.spark.createDataFrame(list(rows), ROW)
        frame.coalesce(1).write.mode("append").parquet(str(self.input))

    def run(self, **options: object) -> Any:
        """Write what was not written yet."""
        rows = self.spark.readStream.schema(ROW).parquet(str(self.input))
        writer = rows.writeStream.format("batchkeeper")
        return finish(writer.options(url=self.url, **options), self.checkpoint)


@pytest.fixture
def sink(spark: SparkSession, fresh_url: Callable[[str], str], tmp_path: Path) -> Sink:
    """An empty store, and nothing to write yet."""
    return Sink(spark, fresh_url("etcd"), tmp_path)


def test_a_batch_that_is_written_again_does_conditional_rows_once(sink: Sink) -> None:
    """After a restart the rows of the last batch are there: neither twice, nor conflicts."""
    rows = [(f"/{i}", b"%d" % i, ABSENT, "put") for i in range(20)]
    sink.add(*rows, ("/plain", b"", None, "put"), ("/gone", b"", None, "put"))
    sink.run()
    sink.add(("/0", None, 0, "delete"), ("/1", b"new", 0, "put"), ("/gone", None, None, "delete"))
    sink.run()
    forget_commit(sink.checkpoint, 1)
    sink.run()
    with open_store(sink.url) as store:
        found = {path: (value, stat.version) for path, value, stat in store.scan("/")}
    expected = {f"/{i}": (b"%d" % i, 0) for i in range(2, 20)}
    assert found == {**expected, "/plain": (b"", 0), "/1": (b"new", 1)}


def test_a_row_that_fails_ends_the_query(sink: Sink) -> None:
    """The error names the row, and the query, batch and partition that it is in."""
    with open_store(sink.url) as store:
        store.put("/a", b"1").result()
        sink.add(("/a", b"2", 5, "put"), ("/b", b"1", ABSENT, "put"))
        with pytest.raises(PySparkException) as caught:
            sink.run()
        assert "'/a': conflict" in str(caught.value)
        assert "batch 0, partition 0" in str(caught.value)
        # The same batch again, and now the others are written before it fails.
        with pytest.raises(PySparkException, match="1 of 2 rows of batch 0 were not written"):
            sink.run(on_error="collect")
        assert store.get("/b").result().stat.version == 0
        sink.run(on_error="skip")
        assert store.get("/a").result().value == b"1"


def test_complete_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The output mode complete, which would replace the store with each batch, is refused."""
    counts = spark.readStream.format("rate").load().groupBy("value").count()
    rows = counts.selectExpr(
        "cast(value as string) path", "cast(cast(count as string) as binary) value"
    )
    writer = rows.writeStream.format("batchkeeper").outputMode("complete")
    with pytest.raises(PySparkException, match="written with outputMode append"):
        finish(writer.option("url", "etcd://127.0.0.1:1"), tmp_path / "checkpoint")


@pytest.mark.full
def test_changes_of_one_store_are_written_to_another(
    source: Source, fresh_url: Callable[[str], str], tmp_path: Path
) -> None:
    """A stream that is read is written as it is: a copy that follows its source."""
    target = fresh_url("zookeeper")
    store = source.store

    def follow() -> None:
        rows = source.stream().select("path", "value", "op")
        writer = rows.writeStream.format("batchkeeper").option("url", target)
        finish(writer, source.checkpoint)

    store.apply([Put(f"/t/{i}", b"1") for i in range(20)])
    store.apply([Put(f"/t/{i}", b"2") for i in range(10)])
    follow()
    store.apply([Delete(f"/t/{i}") for i in range(5)])
    store.apply([Put("/t/0", b"again")])
    follow()
    with open_store(target) as copy:
        copied = [(path, value) for path, value, _ in copy.scan("/t")]
    assert copied == [(path, value) for path, value, _ in store.scan("/t")]
    assert len(copied) == 16
