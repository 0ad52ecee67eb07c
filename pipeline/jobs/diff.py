"""``diff``: compares two sides. Each is a store or an export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from ...ops.results import printable
from ..foreign import nothing_at
from .inputs import Batches
from .progress import Steps
from .sides import LeftOut, Side, parse_left_out
from .summary import left_out

__all__ = ["Comparison", "compare", "diff"]

# The results of comparing the two sides at a path.
_KINDS: Final = ("only_left", "only_right", "different", "equal", "ephemeral")
# The kinds of rows that count the keys left out of a side, and the side.
_FOREIGN: Final = {"foreign_left": "left", "foreign_right": "right"}
_NAMED: Final = 10  # the most such keys to name, for each side
# The kinds whose paths are reported one by one.
_UNLIKE: Final = frozenset(("only_left", "only_right", "different"))

_DDL: Final = "kind string, rows bigint, changed bigint, examples array<string>"
_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("changed", pa.int64()),
        ("examples", pa.list_(pa.string())),
    ]
)


class Comparison(NamedTuple):
    """How two sides differ.

    Attributes:
        counts: the numbers of paths in each state: ``only_left``, ``only_right``, ``different`` or
            ``equal``, and of paths with only ``ephemeral`` values, which are not compared.
        changed: for each kind, the number of paths whose left value is newer than the given
            revision.
        examples: the first differing paths of each kind, sorted.
        left_out: for each side, the keys left out, as counted by its rows.
    """

    counts: dict[str, int]
    changed: dict[str, int]
    examples: dict[str, Sequence[str]]
    left_out: dict[str, LeftOut]

    @property
    def same(self) -> bool:
        """Whether no path differs."""
        return not any(self.counts[kind] for kind in _UNLIKE)


def compare(
    left: DataFrame,
    right: DataFrame,
    *,
    since: int | None = None,
    ephemeral: bool = False,
    show: int = 20,
) -> Comparison:
    """Compare two sides by path and value, in one pass over each.

    Args:
        left: rows with the columns of the data source; see :mod:`.sides` for rows without a path.
        right: the same for the other side.
        since: count left values newer than this revision.
        ephemeral: compare ephemeral values, too.
        show: the most paths of each kind to name.
    """
    # Compare digests, so that Spark does not move the values between its tasks.
    digest = F.sha2("value", 256)
    kept = digest if ephemeral else F.when(~F.col("ephemeral"), digest)
    changed = F.lit(False) if since is None else F.col("revision") > since
    # A null path equals no other, so the join keeps rows without a path unchanged.
    said = F.when(F.col("path").isNull(), F.col("value"))
    one = left.select(
        "path", kept.alias("left"), changed.alias("changed"), said.alias("foreign_left")
    )
    other = right.select("path", kept.alias("right"), said.alias("foreign_right"))
    joined = one.join(other, "path", "full_outer").select(
        "path",
        F.coalesce("foreign_left", "foreign_right").alias("said"),
        F.coalesce("changed", F.lit(False)).alias("changed"),
        F.when(F.col("foreign_left").isNotNull(), "foreign_left")
        .when(F.col("foreign_right").isNotNull(), "foreign_right")
        .when(F.col("left").isNull() & F.col("right").isNull(), "ephemeral")
        .when(F.col("right").isNull(), "only_left")
        .when(F.col("left").isNull(), "only_right")
        .when(F.col("left") != F.col("right"), "different")
        .otherwise("equal")
        .alias("kind"),
    )

    def count(batches: Batches) -> Iterator[pa.RecordBatch]:
        rows: Counter[str] = Counter()
        newer: Counter[str] = Counter()
        found: dict[str, list[str]] = {kind: [] for kind in _UNLIKE}
        for given in batches:
            yield from _left_out(given)
            batch = given.filter(given.column("said").is_null())
            kinds = batch.column("kind").to_pylist()
            flags = batch.column("changed").to_pylist()
            rows.update(kinds)
            newer.update(kind for kind, flag in zip(kinds, flags, strict=True) if flag)
            if _UNLIKE.isdisjoint(kinds):
                continue
            for kind, path in zip(kinds, batch.column("path").to_pylist(), strict=True):
                if kind in _UNLIKE:
                    found[kind].append(path)
            found = {kind: sorted(paths)[:show] for kind, paths in found.items()}
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "kind": kind,
                    "rows": number,
                    "changed": newer[kind],
                    "examples": found.get(kind, []),
                }
                for kind, number in rows.items()
            ],
            schema=_SCHEMA,
        )

    parts = joined.mapInArrow(count, _DDL).collect()
    counts = dict.fromkeys((*_KINDS, *_FOREIGN), 0)
    newer = dict.fromkeys((*_KINDS, *_FOREIGN), 0)
    examples: dict[str, list[str]] = {kind: [] for kind in (*_UNLIKE, *_FOREIGN)}
    for part in parts:
        counts[part.kind] += part.rows
        newer[part.kind] += part.changed
        if part.kind in examples:
            examples[part.kind] += part.examples
    return Comparison(
        {kind: counts[kind] for kind in _KINDS},
        {kind: newer[kind] for kind in _KINDS},
        {kind: sorted(examples[kind])[:show] for kind in _KINDS if kind in _UNLIKE},
        {
            name: LeftOut(counts[kind], _texts(sorted(examples[kind])[:_NAMED]))
            for kind, name in _FOREIGN.items()
        },
    )


def _texts(keys: Sequence[str]) -> list[str]:
    return [printable(bytes.fromhex(key)) for key in keys]


def _left_out(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the counts that rows without a path contain."""
    for row in batch.filter(batch.column("said").is_valid()).to_pylist():
        number, first = parse_left_out(row["said"])
        found = {"kind": row["kind"], "rows": number, "changed": 0, "examples": first}
        yield pa.RecordBatch.from_pylist([found], schema=_SCHEMA)


def diff(
    left: Side,
    right: Side,
    steps: Steps,
    *,
    ephemeral: bool,
    show: int,
    prefix: str,
    allow_foreign_keys: bool = False,
) -> tuple[bool, dict[str, Any]]:
    """Compare two sides, and return whether they are the same, with the summary.

    If a side has left out keys, they are the same only with ``allow_foreign_keys``. If no side has
    a key at or below the prefix, it raises ``NotFoundError``.
    """
    steps.begin("comparing")
    found = compare(left.rows, right.rows, ephemeral=ephemeral, show=show)
    keys = {name: found.left_out[name] for name in _FOREIGN.values()}
    for name, one in (("left", left), ("right", right)):
        if one.left_out is not None:
            keys[name] = one.left_out
    whole = allow_foreign_keys or not any(some.number for some in keys.values())
    same = found.same and whole
    counts = dict(found.counts)
    if not any(counts.values()) and not any(some.number for some in keys.values()):
        raise nothing_at(prefix)
    counts["ephemeral_left_out"] = counts.pop("ephemeral")
    summary: dict[str, Any] = {"job": "diff", "same": same, **counts}
    for name, some in keys.items():
        summary |= left_out(some.number, some.first, name)
    summary |= {f"paths_{kind}": paths for kind, paths in found.examples.items() if paths}
    return same, summary
