"""Reads with Spark return the rows of a scan, in partitions, and on etcd of one revision."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import StructType, _parse_datatype_json_string

import batchkeeper as bk
from batchkeeper.pipeline.options import parse_options
from batchkeeper.pipeline.reader import StoreReader
from batchkeeper.pipeline.source import SCHEMA
from batchkeeper.stores import parse_url
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.testing.servers import EtcdServer

from ..contents import put_all
from ..proxy import Proxy

VALUES = {
    "/topics": b"of the prefix itself",
    "/topics/a": b"",
    "/topics/a/b": b"\x00\xff",
    "/topics/a!": b"before the slash",
    "/topics/\u00fcml\u00e4ut \u4e2d": "\u00fc".encode(),
    "/topics/large": b"x" * 300_000,
    **{f"/topics/n/{number:04}": b"%d" % number for number in range(500)},
}

# Goes round the paths and puts the number of the round into each, one after the other; says so at
# each round, and ends with its input.
WRITER = """
import sys, threading
import batchkeeper as bk

over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set())).start()
with bk.open_store(sys.argv[1]) as store:
    number = 0
    while not over.is_set():
        number += 1
        for place in range(int(sys.argv[2])):
            store.put(f"/round/{place:06}", b"%d" % number).result()
        print(number, flush=True)
"""


def filled(url: str) -> str:
    """Put the values into a store, and others beside them."""
    with bk.open_store(url) as store:
        put_all(store, {**VALUES, "/topics!": b"-", "/topics0/a": b"-"})
    return url


def load(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.read.format("batchkeeper").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def scanned(url: str, prefix: str, revision: int | None = None) -> list[tuple[object, ...]]:
    """Return the rows of a scan, as those of a read are; a read has nothing but puts."""
    with bk.open_store(url) as store:
        return [
            (
                *(path, value, stat.version, stat.revision),
                *(stat.created, stat.modified, stat.ephemeral, "put"),
            )
            for path, value, stat in store.scan(prefix, revision=revision)
        ]


def rows(df: DataFrame) -> list[tuple[object, ...]]:
    """Return the rows of a frame, in the order of paths."""
    found = ((row[0], bytes(row[1]), *row[2:]) for row in df.collect())
    return sorted(found, key=lambda row: str(row[0]).encode())


def refusal(df: Callable[[], object]) -> str:
    """Return the message for the user, which must not have a stack of Java or Python."""
    with pytest.raises(PySparkException) as caught:
        df()
    told = str(caught.value)
    assert "Traceback" not in told
    assert "\tat " not in told
    return told


@contextmanager
def pushing_filters(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    try:
        yield
    finally:
        spark.conf.unset(name)


@pytest.fixture(scope="module")
def etcd_url(etcd_server: EtcdServer) -> str:
    """An etcd with the values, which no test of this module changes."""
    return filled(f"{etcd_server.url}/read-with-spark")


# --- what is read


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper", "rocksdb"])
def test_a_read_is_a_scan(
    scheme: str, spark: SparkSession, fresh_url: Callable[[str], str]
) -> None:
    """Every row and column is what a scan gives, on each store, and each row comes once."""
    url = filled(fresh_url(scheme))
    found = rows(load(spark, url, prefix="/topics", partitions=3))
    assert found == scanned(url, "/topics")
    assert {row[0]: row[1] for row in found} == VALUES


def test_partitions_are_balanced_by_count(spark: SparkSession, etcd_url: str) -> None:
    """As many partitions as asked for hold about equally many rows."""
    df = load(spark, etcd_url, prefix="/topics", partitions=5)
    counts = Counter(row[0] for row in df.select(spark_partition_id()).collect())
    assert len(counts) == 5
    assert sum(counts.values()) == len(VALUES)
    assert max(counts.values()) <= 1.5 * len(VALUES) / 5


def test_an_empty_store_has_no_rows(spark: SparkSession, fresh_url: Callable[[str], str]) -> None:
    """Nothing under the prefix is a frame without rows, and no error."""
    df = load(spark, fresh_url("etcd"), prefix="/nothing")
    assert df.columns[:2] == ["path", "value"]
    assert df.collect() == []


def test_fewer_columns_can_be_asked_for(spark: SparkSession, etcd_url: str) -> None:
    """With a schema of some columns, in any order, only these are created and sent to Spark."""
    reader = spark.read.format("batchkeeper").option("url", etcd_url).option("prefix", "/topics/a")
    df = reader.schema("version bigint, path string").load()
    assert [tuple(row) for row in df.orderBy("path").collect()] == [
        (0, "/topics/a"),
        (0, "/topics/a/b"),
    ]


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_a_schema_without_values_spares_the_line_them(
    scheme: str,
    spark: SparkSession,
    fresh_url: Callable[[str], str],
    proxy: Callable[[str], Proxy],
) -> None:
    """Values are not fetched if no column needs them, with filter pushdown and without."""
    url = fresh_url(scheme)
    large = {f"/t/{number:03}": bytes(20_000) for number in range(200)}
    with bk.open_store(url) as store:
        put_all(store, large)
    host = parse_url(url).hosts[0]
    line = proxy(host)
    options = {"url": url.replace(host, line.address), "prefix": "/t", "partitions": "2"}
    columns = "path string, version bigint, revision bigint, created bigint, ephemeral boolean"
    reader = spark.read.format("batchkeeper").options(**options)
    expected = [(*row[:1], *row[2:5], row[6]) for row in scanned(url, "/t")]

    few = reader.schema(columns).load()
    assert sorted(tuple(row) for row in few.collect()) == expected
    with pushing_filters(spark):
        half = reader.schema(columns).load().where("path < '/t/100'")
        assert sorted(tuple(row) for row in half.collect()) == expected[:100]
    without = line.answered
    assert {row.path: bytes(row.value) for row in reader.schema(SCHEMA).load().collect()} == large

    assert without < 1_000_000
    assert line.answered - without > sum(map(len, large.values()))


def test_a_store_can_be_asked_in_sql(spark: SparkSession, etcd_url: str) -> None:
    """A view of the format returns the rows of a read with the same options."""
    options = f"OPTIONS (url '{etcd_url}', prefix '/topics/n')"
    spark.sql(f"CREATE TEMPORARY VIEW seen USING batchkeeper {options}")
    ((count, last),) = spark.sql("SELECT count(*), max(path) FROM seen").collect()
    assert (count, last) == (500, "/topics/n/0499")
    spark.sql("DROP VIEW seen")


# --- of which revision


def test_a_read_is_of_one_revision_while_others_write(
    spark: SparkSession, fresh_url: Callable[[str], str]
) -> None:
    """All partitions show one moment: at most one step of a concurrent round is visible."""
    url, places = fresh_url("etcd"), 400
    command = [sys.executable, "-c", WRITER, url, str(places)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "1\n"
        found = rows(load(spark, url, prefix="/round", partitions=8))
        with bk.open_store(url) as store:
            last = store.revision()
        writer.stdin.close()
    rounds = [int(str(row[1], "ascii")) for row in found]
    assert len(rounds) == places
    # Paths that the writer has passed in its round hold its number, those before it the one before.
    step = rounds.index(rounds[-1])
    assert rounds == [rounds[-1] + 1] * step + [rounds[-1]] * (places - step)
    newest = max(int(str(row[3])) for row in found)
    assert newest < last  # It did go on writing meanwhile.
    assert found == scanned(url, "/round", newest)


@pytest.mark.server
def test_a_task_that_is_tried_again_reads_the_same(fresh_url: Callable[[str], str]) -> None:
    """A second attempt at a partition gives the rows of the first, whatever has changed since."""
    url = filled(fresh_url("etcd"))
    reader = reader_of(url, prefix="/topics", partitions=2)
    _, second = reader.partitions()
    before = [batch.to_pylist() for batch in reader.read(second)]
    with bk.open_store(url) as store:
        store.delete_recursive("/topics/n").result()
        store.put("/topics/z", b"").result()
    assert [batch.to_pylist() for batch in reader.read(second)] == before


def test_an_old_revision_can_be_read(spark: SparkSession, fresh_url: Callable[[str], str]) -> None:
    """The option `revision` gives what was there then."""
    url = fresh_url("etcd")
    with bk.open_store(url) as store:
        old = store.put("/a", b"1").result()
        store.put("/a", b"2").result()
        store.put("/b", b"3").result()
    (row,) = load(spark, url, revision=old.revision).collect()
    assert (row.path, bytes(row.value), row.version, row.revision) == ("/a", b"1", 0, old.revision)


def test_a_compacted_revision_is_refused_on_the_driver(
    spark: SparkSession, own_etcd: Callable[..., EtcdServer]
) -> None:
    """No task starts for a compacted or a future revision."""
    server = own_etcd()
    with bk.open_store(server.url) as store:
        first = store.put("/a", b"1").result().revision
        planned = load(spark, server.url)
        assert planned.count() == 1
        second = store.put("/a", b"2").result().revision
    with grpc.insecure_channel(server.address) as channel:
        grpc_stubs.KVStub(channel).Compact(messages.CompactionRequest(revision=second))
    assert "compacted" in refusal(lambda: load(spark, server.url, revision=first).count())
    assert "does not exist yet" in refusal(lambda: load(spark, server.url, revision=10**9).count())
    # A frame keeps the revision that it was planned with, and here its tasks find that it is gone.
    with pytest.raises(PySparkException, match=r"RevisionCompactedError: .*compacted"):
        planned.count()
    assert load(spark, server.url).count() == 1


@pytest.mark.parametrize("scheme", ["zookeeper", "rocksdb"])
def test_a_store_without_revisions_says_so(
    scheme: str, spark: SparkSession, fresh_url: Callable[[str], str]
) -> None:
    """On a store without snapshots, the option `revision` is an error."""
    url = fresh_url(scheme)
    with bk.open_store(url) as store:
        store.put("/a", b"1").result()
    assert "UnsupportedError" in refusal(lambda: load(spark, url, revision=1).count())


# --- filters


# For each change, test_bounds.py has all filters, without Spark.
@pytest.mark.parametrize(
    ("condition", "partitions"),
    [
        ("path = '/topics/n/0007'", 1),
        pytest.param("path LIKE '/topics/n/00%'", None, marks=pytest.mark.full),
        pytest.param("path LIKE '/topics/n/%' AND version = 0", None, marks=pytest.mark.full),
        pytest.param(
            "path IN ('/topics/a', '/topics/n/0001', 'no path')", None, marks=pytest.mark.full
        ),
        ("path > '/topics/n/0498' AND path <= '/topics/\u00fc'", None),
        pytest.param("path >= '/topics/a/' AND path < '/topics/n/'", None, marks=pytest.mark.full),
        pytest.param("path < '/a'", 1, marks=pytest.mark.full),
        pytest.param("path = '/elsewhere'", 1, marks=pytest.mark.full),
        pytest.param("path <> '/topics/a' AND value IS NOT NULL", 4, marks=pytest.mark.full),
        pytest.param("path IS NULL OR path = '/topics'", None, marks=pytest.mark.full),
    ],
)
def test_filters_narrow_the_scan_and_change_nothing(
    condition: str, partitions: int | None, spark: SparkSession, etcd_url: str
) -> None:
    """The same rows pass, whether Spark pushes its filters down or not."""
    plain = load(spark, etcd_url, prefix="/topics", partitions=4).where(condition)
    expected = rows(plain)
    with pushing_filters(spark):
        pushed = load(spark, etcd_url, prefix="/topics", partitions=4).where(condition)
        assert rows(pushed) == expected
        if partitions is not None:
            assert pushed.rdd.getNumPartitions() == partitions


def test_filters_that_are_not_handed_over_are_spark_s_own(
    spark: SparkSession, etcd_url: str
) -> None:
    """Without Spark's setting a filtered read reads everything, and is no error."""
    df = load(spark, etcd_url, prefix="/topics", partitions=4).where("path = '/topics/n/0007'")
    assert df.rdd.getNumPartitions() == 4
    assert [row.path for row in df.collect()] == ["/topics/n/0007"]


# --- what is refused


def test_a_store_that_is_not_there_is_named(spark: SparkSession) -> None:
    """An address without a server is an error in one line, from the driver."""
    told = refusal(lambda: load(spark, "etcd://127.0.0.1:1", connect_timeout=0.5).count())
    assert "StoreUnavailableError: no answer from etcd at 127.0.0.1:1" in told


@pytest.mark.parametrize("query", ["", "?read_only=true", "?read_only=false"])
def test_a_directory_without_a_store_is_named(
    spark: SparkSession, tmp_path: Path, query: str
) -> None:
    """A wrong directory is an error, and nothing is made there, whatever the URL says."""
    told = refusal(lambda: load(spark, f"rocksdb://{tmp_path}/none{query}").count())
    assert f"no RocksDB store in {tmp_path}/none" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("memory://x", {}, "a memory:// store lives in one process"),
        pytest.param("etcd://", {}, "name at least one host", marks=pytest.mark.full),
        pytest.param(
            "ectd://127.0.0.1:1", {}, "unknown store scheme 'ectd'", marks=pytest.mark.full
        ),
        pytest.param(
            "etcd://127.0.0.1:1",
            {"prefix": "topics"},
            "a path must start with '/': 'topics'",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "etcd://127.0.0.1:1",
            {"colour": "red"},
            "unknown option 'colour'",
            marks=pytest.mark.full,
        ),
        ("etcd://127.0.0.1:1", {"password": "geheim"}, "'password' is refused"),
        ("etcd://me:geheim@127.0.0.1:1", {}, "must not contain a user or password"),
        ("etcd://127.0.0.1:1", {"password_env": "NOT_SET_HERE"}, "'NOT_SET_HERE'"),
    ],
)
def test_bad_options_are_refused_on_the_driver(
    url: str, options: dict[str, str], told: str, spark: SparkSession
) -> None:
    """A wrong option is named in one line before a task starts, and no secret is repeated."""
    said = refusal(lambda: load(spark, url, **options).count())
    assert told in said
    assert "geheim" not in said


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("path string, colour string", "a store has no column 'colour'"),
        ("path string, version int", "the column 'version' is bigint, not int"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    schema: str, told: str, spark: SparkSession, etcd_url: str
) -> None:
    """A schema of the caller's has columns of a store, with their types."""
    reader = spark.read.format("batchkeeper").option("url", etcd_url).schema(schema)
    assert told in refusal(lambda: reader.load().count())


def reader_of(url: str, **options: object) -> StoreReader:
    """Return a reader as Spark would have it made, of all columns."""
    columns = '"path","type":"string"', '"value","type":"binary"', '"revision","type":"long"'
    fields = ",".join(f'{{"name":{column},"nullable":false,"metadata":{{}}}}' for column in columns)
    schema = _parse_datatype_json_string(f'{{"type":"struct","fields":[{fields}]}}')
    assert isinstance(schema, StructType)
    return StoreReader(schema, parse_options({"url": url, **options}))
