"""Measures all rows in turn, in several rounds, each on a fresh server.

A server gets slower with the data it holds, and the benchmark writes millions of rows. So each
round has a fresh server, which all sides of its ratios share. Every second round runs in reverse
order.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil

from batchkeeper.bench.children import child
from batchkeeper.bench.conditions import as_document
from batchkeeper.bench.load.spark import spark_session
from batchkeeper.bench.rounds import Rounds, Show, alternating
from batchkeeper.bench.target import Target, open_target
from batchkeeper.ops.errors import StoreUnavailableError

from ..rows import Figures, Results, Row
from . import Extent
from .rates import READS, WRITES, Work, check_loaded, export_to, write, write_parquet

# The rows of the warm-up, in which classes are loaded, workers forked and clients opened.
_WARM_UP: Final = 20_000
_JOBS: Final = ("load", "export")
# The seconds between two looks. Linux records the peak of each process, so a look only has to come
# before the process ends.
_LOOK: Final = 0.05
# The JVM collects only when its heap is full. A small heap shows whether the data of a job fits.
_HEAP: Final = "512m"
_TAIL: Final = 20


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
        StoreUnavailableError: a job in a separate process failed.
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


# The memory of a job, which runs in its own Spark in another process and is watched from here:


def peaks(job: str, url: str, root: str, parquet: Path, directory: Path) -> Figures:
    """Run a job in a separate process, and return the memory of its processes in bytes.

    ``load`` loads a Parquet directory into a store; ``export`` writes the values below the root to
    another directory. ``worker`` is the peak of the largest Python worker, ``driver`` the peak of
    the driver's Python, ``jvm peak`` the peak of the driver's JVM, and ``jvm`` what it holds after
    the job.

    Raises:
        StoreUnavailableError: the job failed. The message has the end of its output.
    """
    directory.mkdir(parents=True)
    seen = {"driver": 0.0, "jvm peak": 0.0, "worker": 0.0}
    log = directory / "log"
    try:
        with child(_run, job, url, root, parquet, directory, log) as running:
            running.begin()
            while not running.has_sent(_LOOK):
                for kind, peak in _look(running.pid):
                    seen[kind] = max(seen[kind], peak)
            held = running.receive()
    except StoreUnavailableError as error:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
        raise StoreUnavailableError(f"{job} failed:\n{tail}") from error
    return {**seen, "jvm": float(held)}


def _look(driver: int) -> Iterator[tuple[str, float]]:
    """Yield the kind and the peak of a process and of each of its descendants."""
    with suppress(psutil.Error):
        yield "driver", _peak(driver)
        for process in psutil.Process(driver).children(recursive=True):
            if _runs_java(process):
                yield "jvm peak", _peak(process.pid)
            elif any(map(_runs_java, process.parents())):
                yield "worker", _peak(process.pid)


def _runs_java(process: psutil.Process) -> bool:
    # Not by its name: before it runs another program, a child has that of one of Java's threads,
    # and Java's memory.
    return Path(process.exe()).name == "java"


def _peak(pid: int) -> float:
    with suppress(OSError):  # It has ended.
        if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
            return float(found[1]) * 1024
    return 0.0


# In another process:


def _run(
    parent: Connection, job: str, url: str, root: str, parquet: Path, directory: Path, log: Path
) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    parent.send("ready")
    parent.recv()
    if job not in ("load", "export"):
        raise ValueError(f"no such job: {job}")
    with spark_session(directory, memory=_HEAP) as spark:
        if job == "load":
            write(spark.read.parquet(str(parquet)), url)
        else:
            export_to(spark, url, root, directory / "exported")
        # The stubs declare every attribute of the JVM as a callable.
        lang: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
        lang.System.gc()
        runtime = lang.Runtime.getRuntime()
        held = runtime.totalMemory() - runtime.freeMemory()
    parent.send(held)
