"""The rows of the table: the figures to compare, and the targets to reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...stores.kinds import BUILT_IN
from ..limits.rows import Goal, Row

__all__ = ["PARTS", "STORES", "jobs_of", "rows_of"]

STORES: Final = ("etcd", "zookeeper")
#: The parts that can be measured alone, with ``--only``.
PARTS: Final = ("load", "export", "memory")

# The memory for all rows may be at most this many times the memory for a tenth of them.
_FLAT: Final = Goal(1.25)
_MEMORY: Final = {
    "worker": "the largest Python worker's peak",
    "driver": "the driver's Python: peak",
    "jvm": "the driver's JVM: what it holds after a collection",
}
# A JVM's heap grows to its limit before it is collected. So this figure says little, and is only
# shown beside the others.
_JVM_PEAK: Final = "jvm peak"


def jobs_of(store: str) -> Sequence[str]:
    """Return the jobs that are measured on a kind of store.

    ``export`` is among them only if the store has snapshots, because it is compared with a bare
    loop that reads one revision.
    """
    return ("load", "export") if "snapshots" in BUILT_IN[store].capabilities else ("load",)


def rows_of(store: str, parts: Sequence[str]) -> list[Row]:
    """Return the rows of a kind of store in these parts."""
    found: list[Row] = []
    if "load" in parts:
        found += _load(store)
    if "export" in parts and "export" in jobs_of(store):
        found.append(_export(store))
    if "memory" in parts:
        for job in jobs_of(store):
            found += _memory(store, job)
    return found


def _load(store: str) -> list[Row]:
    return [
        Row(
            "load",
            "load through the data source, against one process with apply",
            ("load", "rate"),
            ("apply", "rate"),
            {store: Goal(0.6)},
            beside={"one process with apply, the making of its puts included": ("apply", "making")},
        ),
        Row(
            "load-plain",
            "the same, against foreachPartition with the plain client",
            ("load", "rate"),
            ("plain", "rate"),
            {store: Goal(15)},
        ),
    ]


def _export(store: str) -> Row:
    return Row(
        "export",
        "export to Parquet, against one process with a bare loop of ranges",
        ("export", "rate"),
        ("bare loop", "rate"),
        {store: Goal(0.6)},
        beside={"the data source read, and nothing written": ("read", "rate")},
    )


def _memory(store: str, job: str) -> Iterator[Row]:
    for name, said in _MEMORY.items():
        yield Row(
            f"{job}-{name}",
            f"memory of {job}: {said}, against that for a tenth of the rows",
            (f"memory of {job}", name),
            (f"memory of {job}, a tenth", name),
            {store: _FLAT},
            less=True,
            beside={
                f"{which}: the JVM's resident peak": (f"memory of {job}{suffix}", _JVM_PEAK)
                for which, suffix in (("all rows", ""), ("a tenth of the rows", ", a tenth"))
            }
            if name == "jvm"
            else {},
        )
