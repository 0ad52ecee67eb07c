"""``diff``: what two sides hold differently, each of them a store or an export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from .export import exported_rows, stored_rows
from .folder import Folder
from .inputs import Batches
from .manifest import read_manifest, verify
from .places import Store
from .progress import Steps

__all__ = ["Comparison", "compare", "diff", "side"]

#: How the two sides stand at a path.
_KINDS: Final = ("only_left", "only_right", "different", "equal", "ephemeral")
# What a path may be reported as, one by one.
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
        counts: paths that are ``only_left``, ``only_right``, ``different`` or ``equal``, and
            those that hold something ``ephemeral`` and nothing else, which are not compared.
        changed: of each kind, paths whose left value is newer than the revision that was given.
        examples: the first paths of each kind that differ, in their order.
    """

    counts: dict[str, int]
    changed: dict[str, int]
    examples: dict[str, Sequence[str]]

    @property
    def same(self) -> bool:
        """Whether no path differs."""
        return not any(self.counts[kind] for kind in _UNLIKE)


def side(spark: SparkSession, given: Store | Folder, prefix: str) -> DataFrame:
    """Return the rows of one side, below a prefix.

    Raises:
        JobError: the folder holds no export, or one that is not as its manifest says.
    """
    if isinstance(given, Store):
        return stored_rows(spark, given.given)
    manifest = read_manifest(given)
    verify(spark, given, manifest)
    rows = exported_rows(spark, given, manifest)
    if prefix == "/":
        return rows
    return rows.where((F.col("path") == prefix) | F.col("path").startswith(prefix + "/"))


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
        left: with the columns of the data source.
        right: likewise.
        since: count what is newer than this revision on the left.
        ephemeral: compare what ends with a session, too.
        show: how many paths of each kind are named.
    """
    # Digests, so that values are not moved to where they are compared.
    digest = F.sha2("value", 256)
    kept = digest if ephemeral else F.when(~F.col("ephemeral"), digest)
    changed = F.lit(False) if since is None else F.col("revision") > since
    one = left.select("path", kept.alias("left"), changed.alias("changed"))
    other = right.select("path", kept.alias("right"))
    joined = one.join(other, "path", "full_outer").select(
        "path",
        F.coalesce("changed", F.lit(False)).alias("changed"),
        F.when(F.col("left").isNull() & F.col("right").isNull(), "ephemeral")
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
        for batch in batches:
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
    counts = dict.fromkeys(_KINDS, 0)
    newer = dict.fromkeys(_KINDS, 0)
    examples: dict[str, list[str]] = {kind: [] for kind in _KINDS if kind in _UNLIKE}
    for part in parts:
        counts[part.kind] += part.rows
        newer[part.kind] += part.changed
        if part.kind in _UNLIKE:
            examples[part.kind] += part.examples
    return Comparison(
        counts, newer, {kind: sorted(paths)[:show] for kind, paths in examples.items()}
    )


def diff(
    left: DataFrame, right: DataFrame, steps: Steps, *, ephemeral: bool, show: int
) -> tuple[bool, dict[str, Any]]:
    """Compare two sides; return whether they are the same, and the summary."""
    steps.begin("comparing")
    found = compare(left, right, ephemeral=ephemeral, show=show)
    counts = dict(found.counts)
    counts["ephemeral_left_out"] = counts.pop("ephemeral")
    return found.same, {
        "job": "diff",
        "same": found.same,
        **counts,
        **{f"paths_{kind}": paths for kind, paths in found.examples.items() if paths},
    }
