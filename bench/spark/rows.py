"""The rows of the table: what is measured against what, and what is to be reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..limits.rows import Goal, Row

__all__ = ["PARTS", "STORES", "rows_of"]

STORES: Final = ("etcd", "zookeeper")
#: What can be measured by itself, for ``--only``.
PARTS: Final = ("load", "export", "memory")

# How many times the memory for a tenth of the rows may be taken for all of them.
_FLAT: Final = Goal(1.25)
_MEMORY: Final = {
    "worker": "the largest Python worker's peak",
    "driver": "the driver's Python: peak",
    "jvm": "the driver's JVM: what it holds after a collection",
}
# A JVM's heap grows to its bound before anything is collected, so this one says little: shown only.
_JVM_PEAK: Final = "jvm peak"


def rows_of(store: str, parts: Sequence[str]) -> list[Row]:
    """Return the rows that a kind of store has in these parts."""
    found: list[Row] = []
    if "load" in parts:
        found += _load(store)
    if "export" in parts and store == "etcd":
        found.append(_export(store))
    if "memory" in parts:
        for job in ("load", "export") if store == "etcd" else ("load",):
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
