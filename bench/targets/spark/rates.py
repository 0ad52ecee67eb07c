"""Loads rows and reads them back: through Spark, in one process, and with the plain client.

The rows are prepared before the clock starts, and checked afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import length, lit
from pyspark.sql.functions import sum as sum_of

from batchkeeper.bench.load.peers import PEERS
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError, put_value
from batchkeeper.ops.operations import Get, GetChildren, Operation, Put
from batchkeeper.ops.results import GetResult
from batchkeeper.pipeline.jobs import export as jobs
from batchkeeper.pipeline.jobs.folder import Folder
from batchkeeper.pipeline.jobs.manifest import DATA
from batchkeeper.pipeline.jobs.progress import Steps
from batchkeeper.pipeline.options import parse_options
from batchkeeper.stores.etcd.wire.protos import messages

from ..limits.puts import PLAIN, check_outcomes, seed
from ..rows import Figures
from ..work import VALUE_BYTES, stopwatch

# The paths of one folder. The check lists its names, and ZooKeeper's answers have at most 1 MiB.
_FOLDER: Final = 1000
# The rows of one Parquet file, as an earlier job might write them.
_FILE_ROWS: Final = 100_000
# All paths are read back, but only one in this number of values.
_SAMPLED: Final = 97
_WARM_UP: Final = 5_000
# About the number of keys in one range. Without an end, etcd would count all keys that follow.
_PAGE: Final = 10_000
_TIMEOUT: Final = 60.0


def rows(root: str, numbers: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """Yield a path in a folder below ``root`` for each number, each with a different value."""
    for number in numbers:
        yield f"{_folder(root, number)}/{number}", put_value(number, VALUE_BYTES)


def _folder(root: str, number: int) -> str:
    return f"{root}/{number // _FOLDER:04d}"


def write_parquet(directory: Path, root: str, count: int) -> Path:
    """Write rows as ``path string, value binary``, in at least two files; return the directory."""
    directory.mkdir(parents=True)
    size = max(1, min(_FILE_ROWS, -(-count // 2)))
    for start in range(0, count, size):
        paths, values = zip(*rows(root, range(start, min(start + size, count))), strict=True)
        table = pa.table({"path": pa.array(paths, pa.string()), "value": pa.array(values)})
        pq.write_table(table, directory / f"part-{start:09d}.parquet")
    return directory


def check_loaded(there: Target, count: int) -> None:
    """Check that the store holds exactly ``count`` rows below the root.

    Raises:
        WrongAnswerError: a row is missing or unexpected, or a value or version is wrong.
    """
    starts = range(0, count, _FOLDER)
    lists: list[Operation] = [GetChildren(_folder(there.root, start)) for start in starts]
    sampled = range(0, count, _SAMPLED)
    gets: list[Operation] = [Get(path) for path, _ in rows(there.root, sampled)]
    with there.open() as store:
        store.sync()
        for start, outcome in zip(starts, store.apply(lists), strict=True):
            numbers = range(start, min(start + _FOLDER, count))
            names = outcome.result if outcome.ok else outcome.error
            if names != sorted(map(str, numbers)):
                raise WrongAnswerError(
                    f"{len(numbers)} rows below {_folder(there.root, start)}: found {names!r:.200}"
                )
        for number, outcome in zip(sampled, store.apply(gets), strict=True):
            found = outcome.result
            if (
                not isinstance(found, GetResult)
                or found.value != put_value(number, VALUE_BYTES)
                or found.stat.version != 0
            ):
                raise WrongAnswerError(f"row {number} was put once: found {outcome!r:.200}")


@dataclass(frozen=True, slots=True)
class Work:
    """The work on one server.

    Attributes:
        spark: the session.
        target: the server.
        scratch: a folder for files.
        counts: the number of rows by variant.
    """

    spark: SparkSession
    target: Target
    scratch: Path
    counts: Mapping[str, int]

    def there(self, name: str) -> Target:
        """Return the place into which a variant writes."""
        return replace(self.target, root=f"{self.target.root}/{name}")

    def rows(self, name: str) -> Path:
        """Return the directory with the rows that a variant loads."""
        return self.scratch / name


def write(frame: DataFrame, url: str) -> None:
    """Append rows to a store. It raises unless all rows succeed."""
    frame.write.format("batchkeeper").option("url", url).mode("append").save()


def export_to(spark: SparkSession, url: str, root: str, directory: Path) -> None:
    """Run the job ``export`` on the values of a store below ``root``."""
    options = parse_options({"url": url, "prefix": root})
    jobs.export(spark, options, Folder(str(directory)), Steps())


def _load(work: Work) -> Figures:
    """Load the rows through the data source writer."""
    frame = work.spark.read.parquet(str(work.rows("load")))
    with stopwatch() as watch:
        write(frame, work.target.url.text)
    check_loaded(work.there("load"), work.counts["load"])
    return {"rate": work.counts["load"] / watch.seconds}


def _apply(work: Work) -> Figures:
    """Put as many rows from this process, in one ``apply`` of operations that are there already."""
    there, count = work.there("apply"), work.counts["apply"]
    with there.open() as store:
        seed(store, [*rows(f"{there.root}-warm-up", range(min(count, _WARM_UP)))])
        ready = [Put(path, value) for path, value in rows(there.root, range(count))]
        with stopwatch() as watch:
            outcomes = store.apply(ready)
        check_outcomes(outcomes, count)
    check_loaded(there, count)
    return {"rate": count / watch.seconds}


def _plain(work: Work) -> Figures:
    """Put rows with the plain client: one for each of the two tasks, and a put for each row."""
    there, count = work.there("plain"), work.counts["plain"]
    url, root, peer = there.url.text, there.root, PLAIN[there.kind.scheme]

    # Spark's workers get it as it is, because they cannot import this module.
    def put_all(found: Iterable[Any]) -> None:
        with PEERS[peer].open(url, root) as client:
            put = getattr(client, "put_new", client.put)
            for path, value in found:
                # Spark passes binary values as a bytearray, but the clients take bytes.
                put(path, bytes(value)).result()

    frame = work.spark.read.parquet(str(work.rows("plain"))).select("path", "value")
    with stopwatch() as watch:
        frame.foreachPartition(put_all)
    check_loaded(there, count)
    return {"rate": count / watch.seconds}


def _read(work: Work) -> Figures:
    """Read all loaded rows without writing them. Spark produces every column of every row."""
    there, count = work.there("load"), work.counts["load"]
    seen = Observation()
    frame = jobs.stored_rows(work.spark, {"url": there.url.text, "prefix": there.root}).observe(
        seen, count_of(lit(1)).alias("rows"), sum_of(length("value")).alias("bytes")
    )
    with stopwatch() as watch:
        frame.write.format("noop").mode("overwrite").save()
    if seen.get != {"rows": count, "bytes": count * VALUE_BYTES}:
        raise WrongAnswerError(f"{count} rows were loaded below {there.root}: read {seen.get}")
    return {"rate": count / watch.seconds}


def _export(work: Work) -> Figures:
    """Export the rows that were loaded, and compare them."""
    there, directory = work.there("load"), work.scratch / "exported"
    try:
        with stopwatch() as watch:
            export_to(work.spark, there.url.text, there.root, directory)
        found, expected = (
            pq.read_table(each).sort_by("path") for each in (directory / DATA, work.rows("load"))
        )
        if any(found[name] != expected[name] for name in expected.column_names):
            raise WrongAnswerError(
                f"{expected.num_rows} rows were loaded below {there.root}, but the "
                f"{found.num_rows} exported rows differ from them"
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {"rate": expected.num_rows / watch.seconds}


def _bare_loop(work: Work) -> Figures:
    """Read the same rows in this process, range after range, at one revision.

    The loop knows the keys, so each range ends 10,000 keys ahead. It takes the key and the value of
    each record out of the answers.
    """
    there = work.there("load")
    paths = pq.read_table(work.rows("load"), columns=["path"])["path"].to_pylist()
    keys = [(there.url.prefix() + path).encode() for path in sorted(paths)]
    bounds = [*range(0, len(keys), _PAGE), len(keys)]
    ends = [*keys[_PAGE::_PAGE], keys[-1] + b"\0"]
    # The largest answers have a few MiB, more than gRPC's default limit.
    options = (("grpc.max_receive_message_length", -1),)
    with grpc.insecure_channel(there.url.addresses(2379)[0], options=options) as channel:
        call: Any = channel.unary_unary(
            "/etcdserverpb.KV/Range",
            request_serializer=messages.RangeRequest.SerializeToString,
            response_deserializer=messages.RangeResponse.FromString,
        )
        call(messages.RangeRequest(key=keys[0]), timeout=_TIMEOUT)  # connects
        revision = 0
        with stopwatch() as watch:
            for (first, last), end in zip(pairwise(bounds), ends, strict=True):
                request = messages.RangeRequest(key=keys[first], range_end=end, revision=revision)
                answer = call(request, timeout=_TIMEOUT)
                revision = revision or answer.header.revision
                found = [(kv.key, kv.value) for kv in answer.kvs]
                if len(found) != last - first or found[-1][0] != keys[last - 1]:
                    raise WrongAnswerError(f"a range from {keys[first]!r} held {len(found)} keys")
    return {"rate": len(keys) / watch.seconds}


#: The variants that write rows, and those that read what ``load`` has written.
WRITES: Final[Mapping[str, Callable[[Work], Figures]]] = {
    "load": _load,
    "apply": _apply,
    "plain": _plain,
}
READS: Final[Mapping[str, Callable[[Work], Figures]]] = {
    "read": _read,
    "export": _export,
    "bare loop": _bare_loop,
}
