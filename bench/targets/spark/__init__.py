"""Spark at its limit: how much of a store's capacity the pipeline reaches.

Rates are compared with one process without Spark, or with Spark and the store's plain client, in
the same rounds.

- ``rows.toml``: the ratios and their targets
- ``measuring``: measures them, each round on a fresh server
- ``rates``: loads and reads the rows, through Spark, in one process and with the plain client
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..rows import Row, load_rows

_ROWS: Final = load_rows(Path(__file__).with_name("rows.toml"))
STORES: Final = tuple(dict.fromkeys(store for row in _ROWS for store in row.goals))
#: The parts that can be measured alone, with ``--only``.
PARTS: Final = tuple(dict.fromkeys(row.part for row in _ROWS))


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


def rows_of(store: str, parts: Sequence[str]) -> list[Row]:
    """Return the rows of a kind of store in these parts."""
    return [row for row in _ROWS if store in row.goals and row.part in parts]
