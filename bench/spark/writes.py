"""Loads rows: through the data source, in one process, and with the plain client."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from ...ops.operations import Put
from ...stores.registry import parse_url, store_kind
from ..baseline import PLAIN_CLIENTS
from ..limits.ours import check_outcomes, seed
from ..limits.work import Figures, Stopwatch
from ..target import Target
from .work import check_flat, check_loaded, rows

__all__ = ["apply", "load", "plain", "write"]

_WARM_UP: Final = 5_000


def load(spark: SparkSession, there: Target, parquet: Path, count: int) -> Figures:
    """Load a Parquet directory with ``rows(there.root, count)`` through the data source writer."""
    frame = spark.read.parquet(str(parquet))
    begun = time.perf_counter()
    write(frame, there.url.text)
    seconds = time.perf_counter() - begun
    check_loaded(there, count)
    return {"rate": count / seconds}


def write(frame: DataFrame, url: str) -> None:
    """Append rows to a store. It raises unless all rows succeed."""
    frame.write.format("batchkeeper").option("url", url).mode("append").save()


def apply(there: Target, count: int) -> Figures:
    """Put the same rows from this process, in one ``apply``.

    For ``rate``, the operations are created before the clock starts. ``making`` includes their
    creation.
    """
    with there.open() as store:
        seed(store, [*rows(f"{there.root}-warm-up", min(count, _WARM_UP))])
        made = [*rows(there.root, count)]
        with Stopwatch() as making:
            ready = [Put(path, value) for path, value in made]
        with Stopwatch() as watch:
            outcomes = store.apply(ready)
        check_outcomes(outcomes, count)
    check_loaded(there, count)
    seconds = [count / found.figures(count)["rate"] for found in (making, watch)]
    return {"rate": count / seconds[1], "making": count / sum(seconds)}


class _PlainWriter:
    """Writes rows without a connector: a client for each partition, and a put for each row."""

    def __init__(self, url: str, root: str) -> None:
        self._url = url
        self._root = root

    def __call__(self, found: Iterable[Any]) -> None:
        url = parse_url(self._url)
        with PLAIN_CLIENTS[store_kind(url).scheme].connect(url, self._root) as put:
            for path, value in found:
                # Spark passes binary values as a bytearray, but the clients take bytes.
                put(path, bytes(value))


def plain(spark: SparkSession, there: Target, parquet: Path, count: int) -> Figures:
    """Put rows with the plain client. Each of the two tasks puts one after the other."""
    frame = spark.read.parquet(str(parquet)).select("path", "value")
    begun = time.perf_counter()
    frame.foreachPartition(_PlainWriter(there.url.text, there.root))
    seconds = time.perf_counter() - begun
    check_flat(there, count)
    return {"rate": count / seconds}
