"""The variants that rows compare: each measures figures in a place of its own.

A function becomes a variant by a decorator, or several variants by several::

    @variant("claims in paths", "paths", least=20_000)
    @variant("claims in tables", "tables", least=20_000)
    def claims_of_one_call(there: Target, count: int, layout: Layout) -> Figures: ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from batchkeeper.bench.target import Target

from ..rows import Figures, Row

#: Measures an approximate number of operations.
Measure: TypeAlias = Callable[[Target, int], Figures]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to use a store, to be measured.

    Attributes:
        name: its name in the rows.
        measure: measures it.
        grows: whether it leaves more paths on the server.
        times: the factor by which it takes longer than other variants.
        least: the fewest operations of one measurement, also the number for the first try.
        fixed: whether every measurement has this number, so that none has to be tried.
    """

    name: str
    measure: Measure
    grows: bool = True
    times: float = 1.0
    least: int = 200
    fixed: bool = False


#: The variants of all stores, by name. The raw ceilings are beside them, in ``raw``.
VARIANTS: Final[dict[str, Variant]] = {}


def variant(
    name: str, *arguments: Any, **attributes: Any
) -> Callable[[Callable[..., Figures]], Callable[..., Figures]]:
    """Make a variant of a function of a place, a number of operations, and further arguments.

    The attributes are those of :class:`Variant`.
    """

    def register(measure: Callable[..., Figures]) -> Callable[..., Figures]:
        way = measure if not arguments else lambda there, count: measure(there, count, *arguments)
        VARIANTS[name] = Variant(name, way, **attributes)
        return measure

    return register


def in_order(rows: Sequence[Row]) -> list[str]:
    """Return the variants of rows, the two sides of each ratio as near to each other as can be."""
    order: list[str] = []
    for row in rows:
        for name in row.variants:
            if name not in order:
                known = [order.index(other) for other in row.variants if other in order]
                order.insert(known[0] + 1 if known else len(order), name)
    return order
