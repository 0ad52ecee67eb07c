"""Measures all rows in turn, in several rounds, each on a fresh server.

A server gets slower with the data it holds, and the benchmark writes millions of rows. So each
round has a fresh server, which all sides of its ratios share. Every second round runs in reverse
order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from batchkeeper.bench.conditions import as_document
from batchkeeper.bench.live import Show
from batchkeeper.bench.load.spark import spark_session
from batchkeeper.bench.rounds import Rounds, alternating
from batchkeeper.bench.target import open_target

from ..rows import Results, Row
from . import Extent
from .data import check_loaded, write_parquet
from .memory import peaks
from .rates import READS, WRITES, Work

# The rows of the warm-up, in which classes are loaded, workers forked and clients opened.
_WARM_UP: Final = 20_000
_JOBS: Final = ("load", "export")


def measure(
    store: str,
    rows: Sequence[Row],
    extent: Extent,
    directory: Path,
    warn: Callable[[str], None],
    show: Show,
) -> tuple[dict[str, Any], Results]:
    """Measure rows of a kind of store; return the conditions and the results.

    Raises:
        WrongAnswerError: a row was missing or wrong.
        MetadataStoreError: the store failed.
        JobFailedError: a job in a separate process failed.
    """
    results = Results(store, rows)
    names = {name for row in rows for name in row.variants}
    reads = [name for name in READS if name in names]
    # Rows must be loaded before they are read.
    writes = [name for name in WRITES if name in names or (reads and name == "load")]
    jobs = [job for job in _JOBS if f"memory of {job}" in names]
    rounds = Rounds(show, alternating)
    rounds.expect(bool(writes) + len(writes + reads) * extent.rounds + 2 * len(jobs))
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="spark-", dir=directory.absolute()) as scratch:
        place = Path(scratch)
        if writes:
            conditions = _rates(results, writes, reads, extent, place, warn, rounds)
        if jobs:
            conditions = _memory(results, jobs, extent, place, warn, rounds)
    return conditions, results


def _rates(
    results: Results,
    writes: Sequence[str],
    reads: Sequence[str],
    extent: Extent,
    scratch: Path,
    warn: Callable[[str], None],
    rounds: Rounds,
) -> dict[str, Any]:
    variants = {**WRITES, **READS}
    warm_up = Extent(min(_WARM_UP, extent.rows), min(_WARM_UP // 100, extent.plain_rows))
    with spark_session(scratch) as spark:
        for size in (warm_up, *[extent] * extent.rounds):
            counts = dict.fromkeys(variants, size.rows) | {"plain": size.plain_rows}
            with open_target(results.store, scratch, warn) as target:
                conditions = as_document(target)
                work = Work(spark, target, scratch / "work", counts)
                for name in ("load", "plain"):
                    work.prepare(name)
                if size is warm_up:
                    rounds.show("warming up")
                    for name in (*writes, *reads):
                        variants[name](work)
                else:
                    for name in rounds.turns(writes, reads):
                        results.add(name, variants[name](work))
                        results.counts[name] = counts[name]
                shutil.rmtree(work.scratch)
    return conditions


def _memory(
    results: Results,
    jobs: Sequence[str],
    extent: Extent,
    scratch: Path,
    warn: Callable[[str], None],
    rounds: Rounds,
) -> dict[str, Any]:
    with open_target(results.store, scratch, warn) as target:
        conditions = as_document(target)
        for suffix, count in ((", a tenth", extent.rows // 10), ("", extent.rows)):
            there = replace(target, root=f"{target.root}/{count}")
            place = scratch / f"memory-{count}"
            parquet = write_parquet(place / "rows", there.root, count)
            for job in jobs:
                name = f"memory of {job}{suffix}"
                rounds.show(name)
                results.add(name, peaks(job, there.url.text, there.root, parquet, place / job))
                results.counts[name] = count
            check_loaded(there, count)
            shutil.rmtree(place)
    return conditions
