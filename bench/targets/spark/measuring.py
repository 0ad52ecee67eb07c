"""Measures all rows in turn, in several rounds, each on a fresh server.

A server gets slower with the data it holds, and the benchmark writes millions of rows. So each
round has a fresh server, which all sides of its ratios share. Every second round runs in reverse
order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from batchkeeper.bench.conditions import as_document
from batchkeeper.bench.load.spark import spark_session
from batchkeeper.bench.rounds import Rounds, Show, alternating
from batchkeeper.bench.target import Target, open_target

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
    names = {name for row in rows for name in row.variants}
    reads = [name for name in READS if name in names]
    # Rows must be loaded before they are read.
    writes = [name for name in WRITES if name in names or (reads and name == "load")]
    jobs = [job for job in _JOBS if f"memory of {job}" in names]
    rounds = Rounds(show, alternating)
    rounds.expect(bool(writes) + len(writes + reads) * extent.rounds + 2 * len(jobs))
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="spark-", dir=directory.absolute()) as scratch:
        measuring = _Measuring(Results(store, rows), extent, Path(scratch), warn, rounds)
        if writes:
            measuring.rates(writes, reads)
        if jobs:
            measuring.memory(jobs)
    return measuring.conditions, measuring.results


@dataclass
class _Measuring:
    results: Results
    extent: Extent
    scratch: Path
    warn: Callable[[str], None]
    rounds: Rounds
    conditions: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def _fresh(self) -> Iterator[Target]:
        with open_target(self.results.store, self.scratch, self.warn) as target:
            self.conditions = as_document(target)
            yield target

    def rates(self, writes: Sequence[str], reads: Sequence[str]) -> None:
        variants, extent = {**WRITES, **READS}, self.extent
        warm_up = Extent(min(_WARM_UP, extent.rows), min(_WARM_UP // 100, extent.plain_rows))
        with spark_session(self.scratch) as spark:
            for size in (warm_up, *[extent] * extent.rounds):
                counts = dict.fromkeys(variants, size.rows) | {"plain": size.plain_rows}
                with self._fresh() as target:
                    work = Work(spark, target, self.scratch / "work", counts)
                    for name in ("load", "plain"):
                        work.prepare(name)
                    if size is warm_up:
                        self.rounds.show("warming up")
                        for name in (*writes, *reads):
                            variants[name](work)
                    else:
                        for name in self.rounds.turns(writes, reads):
                            self.results.add(name, variants[name](work))
                            self.results.counts[name] = counts[name]
                    shutil.rmtree(work.scratch)

    def memory(self, jobs: Sequence[str]) -> None:
        with self._fresh() as target:
            for suffix, count in ((", a tenth", self.extent.rows // 10), ("", self.extent.rows)):
                there = replace(target, root=f"{target.root}/{count}")
                place = self.scratch / f"memory-{count}"
                parquet = write_parquet(place / "rows", there.root, count)
                for job in jobs:
                    name = f"memory of {job}{suffix}"
                    self.rounds.show(name)
                    found = peaks(job, there.url.text, there.root, parquet, place / job)
                    self.results.add(name, found)
                    self.results.counts[name] = count
                check_loaded(there, count)
                shutil.rmtree(place)
