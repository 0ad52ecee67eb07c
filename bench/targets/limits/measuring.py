"""Measures all variants that the rows need, in turn, in several rounds.

The two sides of a ratio are measured next to each other in every round, every second round runs in
reverse order, and a ratio compares medians over the same rounds.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from batchkeeper.bench.rounds import Rounds, Show, alternating
from batchkeeper.bench.target import Target
from batchkeeper.stores.registry import parse_url

from ..rows import Results, Row, load_rows

# These make the variants.
from . import coordination, hubs, others, puts, raw_hbase  # noqa: F401
from .raw import ceiling
from .variants import VARIANTS, Variant, in_order

ROWS: Final = load_rows(Path(__file__).with_name("rows.toml"))
#: The measured kinds of stores: those with a goal.
STORES: Final = tuple(dict.fromkeys(store for row in ROWS for store in row.goals))

# A variant is tried with more and more operations, until it takes this part of the time for one
# measurement.
_GROWTH: Final = 6
_ENOUGH: Final = 0.3


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a measurement.

    Attributes:
        rounds: the number of rounds; each measures every variant once.
        seconds: the approximate duration of one measurement.
        most: the most operations of one measurement, even if it ends early.
        most_growing: the same for variants that leave paths behind, by the kind of store. ZooKeeper
            keeps all paths in Java's heap.
    """

    rounds: int = 5
    seconds: float = 0.8
    most: int = 1_000_000
    most_growing: dict[str, int] = field(
        default_factory=lambda: {
            "etcd": 150_000,
            "zookeeper": 40_000,
            "rocksdb": 500_000,
            "hbase": 100_000,
        }
    )


def quick(rounds: int) -> Extent:
    """Return an extent that only shows that everything works. Its figures mean nothing."""
    few = 600
    return Extent(rounds, 0.02, few, dict.fromkeys(STORES, few))


def rows_of(store: str, names: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a kind of store, or only those with the given names."""
    return [row for row in ROWS if store in row.goals and (names is None or row.name in names)]


def needed(store: str, rows: Sequence[Row]) -> list[Variant]:
    """Return the variants that the rows compare. Compared variants are neighbours."""
    return [
        ceiling(store, name) if name.startswith("raw ") else VARIANTS[name]
        for name in in_order(rows)
    ]


def measure(target: Target, extent: Extent, show: Show, results: Results) -> None:
    """Measure all rows of the results, which keep what was measured, whatever ends it.

    Raises:
        WrongAnswerError: an answer was wrong.
        MetadataStoreError: the store failed.
    """
    variants = {variant.name: variant for variant in needed(target.name, results.rows)}
    rounds = Rounds(show, alternating)
    rounds.expect((1 + extent.rounds) * len(variants))
    places = map("{:04d}".format, itertools.count())
    for name, variant in variants.items():
        rounds.show(f"trying: {name}")
        results.counts[name] = _try(target, variant, extent, places)
    for _ in range(extent.rounds):
        for name in rounds.turns(list(variants)):
            with _fresh_place(target, next(places)) as there:
                results.add(name, variants[name].measure(there, results.counts[name]))


def _try(target: Target, variant: Variant, extent: Extent, places: Iterator[str]) -> int:
    """Return the number of operations for the wanted duration."""
    most = extent.most_growing[target.name] if variant.grows else extent.most
    count = min(variant.least, most)
    while not variant.fixed:
        with _fresh_place(target, next(places)) as there:
            rate = variant.measure(there, count)["rate"]
        if count == most or count / rate >= extent.seconds * _ENOUGH:
            return min(most, max(variant.least, int(rate * extent.seconds * variant.times)))
        count = min(count * _GROWTH, most)
    return count


@contextmanager
def _fresh_place(target: Target, label: str) -> Iterator[Target]:
    """Yield the target with an empty root.

    On a server, the root is a folder. Data of earlier measurements slows both sides of a ratio
    alike, because they take turns. An embedded store gets a separate directory, which is removed
    afterwards, because its data would slow only the side that put it there.
    """
    if not target.kind.local_directory:
        yield replace(target, root=f"{target.root}/{label}")
        return
    directory = Path(target.url.path).parent / label
    directory.mkdir()
    try:
        text = f"{target.kind.scheme}://{quote(str(directory / 'store'))}"
        yield replace(target, url=parse_url(text))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
