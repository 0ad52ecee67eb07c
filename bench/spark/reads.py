"""Reads rows back: through the data source, and with a bare loop of ranges in one process."""

from __future__ import annotations

import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Observation, SparkSession
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import length, lit
from pyspark.sql.functions import sum as sum_of

from ...pipeline.jobs import export as jobs
from ...pipeline.jobs.folder import Folder
from ...pipeline.jobs.manifest import DATA
from ...pipeline.jobs.progress import Steps
from ...pipeline.options import parse_options
from ...stores.etcd.protos import messages
from ..limits.work import VALUE_BYTES, Figures, Stopwatch
from ..target import Target
from ..workload import WrongAnswerError

__all__ = ["bare_loop", "export", "export_to", "read"]

# About the number of keys in one range. Without an end, etcd would count all keys that follow.
_PAGE: Final = 10_000
_TIMEOUT: Final = 60.0


def export_to(spark: SparkSession, url: str, root: str, directory: Path) -> None:
    """Run the job ``export`` on the values of a store below ``root``."""
    options = parse_options({"url": url, "prefix": root})
    jobs.export(spark, options, Folder(str(directory)), Steps())


def export(spark: SparkSession, there: Target, parquet: Path, scratch: Path) -> Figures:
    """Export the rows that were loaded from a Parquet directory, and compare them with it."""
    directory = scratch / "exported"
    try:
        begun = time.perf_counter()
        export_to(spark, there.url.text, there.root, directory)
        seconds = time.perf_counter() - begun
        found, expected = (_sorted(each) for each in (directory / DATA, parquet))
        if any(found[name] != expected[name] for name in expected.column_names):
            raise WrongAnswerError(
                f"{expected.num_rows} rows were loaded below {there.root}, but the "
                f"{found.num_rows} exported rows differ from them"
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {"rate": expected.num_rows / seconds}


def _sorted(directory: Path) -> pa.Table:
    return pq.read_table(directory).sort_by("path")


def read(spark: SparkSession, there: Target, count: int) -> Figures:
    """Read all loaded rows without writing them. Spark produces every column of every row."""
    seen = Observation()
    frame = jobs.stored_rows(spark, {"url": there.url.text, "prefix": there.root}).observe(
        seen, count_of(lit(1)).alias("rows"), sum_of(length("value")).alias("bytes")
    )
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begun
    if seen.get != {"rows": count, "bytes": count * VALUE_BYTES}:
        raise WrongAnswerError(f"{count} rows were loaded below {there.root}: read {seen.get}")
    return {"rate": count / seconds}


def bare_loop(there: Target, parquet: Path) -> Figures:
    """Read the same rows in this process, range after range, at one revision.

    The loop knows the keys, so each range ends 10,000 keys ahead. It takes the key and the value of
    each record out of the answers.
    """
    prefix = there.url.prefix()
    keys = [(prefix + path).encode() for path in _paths(parquet)]
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
        with Stopwatch() as watch:
            for (first, last), end in zip(pairwise(bounds), ends, strict=True):
                request = messages.RangeRequest(key=keys[first], range_end=end, revision=revision)
                answer = call(request, timeout=_TIMEOUT)
                revision = revision or answer.header.revision
                found = [(kv.key, kv.value) for kv in answer.kvs]
                if len(found) != last - first or found[-1][0] != keys[last - 1]:
                    raise WrongAnswerError(f"a range from {keys[first]!r} held {len(found)} keys")
    return {"rate": watch.figures(len(keys))["rate"]}


def _paths(parquet: Path) -> list[str]:
    found: list[str] = pq.read_table(parquet, columns=["path"])["path"].to_pylist()
    return sorted(found)
