"""Measures all rows in turn, in several rounds, each on a fresh server.

A server gets slower with the data it holds, and the benchmark writes millions of rows. So each
round has a fresh server, which all sides of its ratios share. Every second round runs in reverse
order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from pyspark.sql import SparkSession

from ..limits.rounds import Results
from ..limits.work import Figures
from ..target import Target, open_target
from .memory import peaks
from .reads import bare_loop, export, read
from .rows import jobs_of, rows_of
from .session import spark_session
from .work import check_loaded, flat_rows, rows, write_parquet
from .writes import apply, load, plain

__all__ = ["Extent", "Found", "measure", "quick", "steps_of"]

_Turn: TypeAlias = tuple[str, Callable[[], Figures]]

# The rows of the warm-up, in which classes are loaded, workers forked and clients opened.
_WARM_UP_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a measurement.

    Attributes:
        rows: the number of rows to load and export.
        plain_rows: the number of rows that the plain client puts, which takes about as long.
        rounds: the number of rounds; each measures everything once.
    """

    rows: int = 1_000_000
    plain_rows: int = 20_000
    rounds: int = 3


def quick(rounds: int) -> Extent:
    """Return an extent that only shows that everything works. Its figures mean nothing."""
    return Extent(2_500, 200, rounds)


@dataclass(frozen=True, slots=True)
class Found:
    """The results for one kind of store, and the last server that was measured."""

    target: Target
    results: Results


def steps_of(store: str, parts: Sequence[str], extent: Extent) -> int:
    """Return the number of calls of ``step`` in :func:`measure`."""
    reads = 3 if "export" in parts and "export" in jobs_of(store) else 0
    writes = 3 if "load" in parts else bool(reads)
    rounds = (writes + reads) * extent.rounds + 1 if writes else 0
    memory = 2 * len(jobs_of(store)) if "memory" in parts else 0
    return rounds + memory


def measure(
    store: str,
    parts: Sequence[str],
    extent: Extent,
    directory: Path,
    warn: Callable[[str], None],
    step: Callable[[str], None],
) -> Found:
    """Measure all rows of a kind of store. ``step`` receives a description of each step.

    Raises:
        WrongAnswerError: a row was missing or wrong.
        MetadataStoreError: the store failed.
    """
    results = Results(store, rows_of(store, parts))
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="spark-", dir=directory.absolute()) as scratch:
        if "load" in parts or "export" in parts:
            target = _rounds(results, parts, extent, Path(scratch), warn, step)
        if "memory" in parts:
            target = _memory(results, extent, Path(scratch), warn, step)
    return Found(target, results)


def _rounds(
    results: Results,
    parts: Sequence[str],
    extent: Extent,
    scratch: Path,
    warn: Callable[[str], None],
    step: Callable[[str], None],
) -> Target:
    with spark_session(scratch) as spark:
        for number in range(-1, extent.rounds):
            warming_up = number < 0
            if warming_up:
                step("warming up")
            rows_now = min(extent.rows, _WARM_UP_ROWS) if warming_up else extent.rows
            plain_now = min(extent.plain_rows, 200) if warming_up else extent.plain_rows
            with open_target(results.store, scratch, warn) as target:
                work = _Work(spark, target, scratch / f"round{number:02d}", rows_now, plain_now)
                for name, turn in work.turns(parts, backwards=number % 2 == 1):
                    if not warming_up:
                        step(f"round {number + 1} of {extent.rounds}: {name}")
                    figures = turn()
                    if not warming_up:
                        _add(results, name, figures)
                        results.counts[name] = plain_now if name == "plain" else rows_now
                shutil.rmtree(work.scratch)
    return target


class _Work:
    """The work on one server: the rows to load, and the operations to time."""

    def __init__(
        self, spark: SparkSession, target: Target, scratch: Path, count: int, plain_count: int
    ) -> None:
        self.scratch = scratch
        self._spark = spark
        self._count = count
        self._plain_count = plain_count
        self._load, self._apply, self._plain = (
            replace(target, root=f"{target.root}/{name}") for name in ("load", "apply", "plain")
        )
        self._parquet = write_parquet(scratch / "rows", rows(self._load.root, count), count)
        plain_rows = flat_rows(self._plain.root, plain_count)
        self._plain_parquet = write_parquet(scratch / "plain", plain_rows, plain_count)

    def turns(self, parts: Sequence[str], *, backwards: bool) -> list[_Turn]:
        """Return the functions to call, in order. Rows are written before they are read."""
        spark, there = self._spark, self._load
        writes: list[_Turn] = [("load", partial(load, spark, there, self._parquet, self._count))]
        if "load" in parts:
            writes += [
                ("apply", partial(apply, self._apply, self._count)),
                (
                    "plain",
                    partial(plain, spark, self._plain, self._plain_parquet, self._plain_count),
                ),
            ]
        reads: list[_Turn] = []
        if "export" in parts and "export" in jobs_of(there.name):
            reads = [
                ("read", partial(read, spark, there, self._count)),
                ("export", partial(export, spark, there, self._parquet, self.scratch)),
                ("bare loop", partial(bare_loop, there, self._parquet)),
            ]
        return [*reversed(writes), *reversed(reads)] if backwards else writes + reads


def _memory(
    results: Results,
    extent: Extent,
    scratch: Path,
    warn: Callable[[str], None],
    step: Callable[[str], None],
) -> Target:
    with open_target(results.store, scratch, warn) as target:
        for suffix, count in ((", a tenth", extent.rows // 10), ("", extent.rows)):
            there = replace(target, root=f"{target.root}/{count}")
            place = scratch / f"memory-{count}"
            parquet = write_parquet(place / "rows", rows(there.root, count), count)
            for job in jobs_of(results.store):
                name = f"memory of {job}{suffix}"
                step(name)
                found = peaks(job, there.url.text, there.root, parquet, place / job)
                _add(results, name, found)
                results.counts[name] = count
            check_loaded(there, count)
            shutil.rmtree(place)
    return target


def _add(results: Results, name: str, figures: Figures) -> None:
    for figure, value in figures.items():
        results.figures.setdefault((name, figure), []).append(value)
