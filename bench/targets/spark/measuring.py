"""Measures all rows in turn, in several rounds, each on a fresh server.

A server gets slower with the data it holds, and the benchmark writes millions of rows. So each
round has a fresh server, which all sides of its ratios share. Every second round runs in reverse
order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from batchkeeper.bench.conditions import as_document
from batchkeeper.bench.load.spark import spark_session
from batchkeeper.bench.rounds import Rounds, Show, alternating
from batchkeeper.bench.target import open_target

from ..rows import Results, Row
from . import Extent
from .rates import READS, WRITES, Work, write_parquet

# The rows of the warm-up, in which classes are loaded, workers forked and clients opened.
_WARM_UP: Final = 20_000


def measure(
    store: str,
    rows: Sequence[Row],
    extent: Extent,
    directory: Path,
    warn: Callable[[str], None],
    show: Show,
    found: list[tuple[dict[str, Any], Results]],
) -> None:
    """Measure rows of a kind of store; first, add the conditions and the results to ``found``.

    Raises:
        WrongAnswerError: a row was missing or wrong.
        MetadataStoreError: the store failed.
    """
    results, variants = Results(store, rows), {**WRITES, **READS}
    names = {name for row in rows for name in row.variants}
    reads = [name for name in READS if name in names]
    # Rows must be loaded before they are read.
    writes = [name for name in WRITES if name in names or name == "load"]
    rounds = Rounds(show, alternating)
    rounds.expect(1 + len(writes + reads) * extent.rounds)
    warm_up = Extent(min(_WARM_UP, extent.rows), min(_WARM_UP // 100, extent.plain_rows))
    directory.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(prefix="spark-", dir=directory.absolute()) as scratch,
        spark_session(Path(scratch)) as spark,
    ):
        for size in (warm_up, *[extent] * extent.rounds):
            counts = dict.fromkeys(variants, size.rows) | {"plain": size.plain_rows}
            with open_target(store, Path(scratch), warn) as target:
                work = Work(spark, target, Path(scratch) / "work", counts)
                for name in ("load", "plain"):
                    write_parquet(work.rows(name), work.there(name).root, counts[name])
                if size is warm_up:
                    found.append((as_document(target), results))
                    rounds.show("warming up")
                    for name in (*writes, *reads):
                        variants[name](work)
                else:
                    for name in rounds.turns(writes, reads):
                        results.add(name, variants[name](work))
                        results.counts[name] = counts[name]
                shutil.rmtree(work.scratch)
