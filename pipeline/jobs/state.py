"""The state of a copy in its folder, from which the copy can resume after a kill.

``plan.json`` contains the source and target, the ranges of paths, and the revision. It is written
before the first row. ``report/range-N.parquet`` contains the outcome of every path of range N. It
gets that name when the range is done, so the report also records which ranges are done.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from ...ops.results import Range
from .folder import Folder
from .spark_session import JobError

__all__ = ["PLAN", "REPORT", "CopyPlan", "done_ranges", "range_name", "read_plan"]

PLAN: Final = "plan.json"
REPORT: Final = "report"
# Reports of version 1 had no foreign keys.
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The plan of a copy.

    Attributes:
        source: the URL of the store that is read.
        target: the URL of the store that is written.
        prefix: the path that is copied, with all values below it.
        revision: the revision of the source at the start of the copy.
        snapshot: whether the source is read at that revision.
        overwrite: whether to replace existing values in the target.
        ranges: ranges of paths that together cover the whole subtree.
    """

    source: str
    target: str
    prefix: str
    revision: int
    snapshot: bool
    overwrite: bool
    ranges: Sequence[Range]

    def dumps(self) -> bytes:
        """Return the plan as JSON."""
        return (json.dumps({"version": _VERSION, **asdict(self)}, indent=2) + "\n").encode()

    @classmethod
    def loads(cls, data: bytes) -> Self:
        """Parse a plan from JSON.

        Raises:
            ValueError: it is not a plan, or has an unknown version.
        """
        try:
            fields: dict[str, Any] = json.loads(data)
            if (found := fields.pop("version")) != _VERSION:
                raise ValueError(f"its version is {found!r}, but only {_VERSION} is supported")
            ranges = [Range(*bounds) for bounds in fields.pop("ranges")]
            return cls(**fields, ranges=ranges)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not the plan of a copy ({error})") from error


def read_plan(folder: Folder) -> CopyPlan | None:
    """Return the plan of the copy in a folder, or ``None`` if there is none.

    Raises:
        JobError: the plan cannot be used.
    """
    data = folder.read(PLAN)
    if data is None:
        return None
    try:
        return CopyPlan.loads(data)
    except ValueError as error:
        raise JobError(f"{folder.uri}/{PLAN} cannot be used: {error}", "InputError") from error


def range_name(number: int) -> str:
    """Return the name of a range's report file."""
    return f"range-{number:05}.parquet"


def done_ranges(folder: Folder, plan: CopyPlan) -> frozenset[int]:
    """Return the numbers of the finished ranges."""
    there = set(folder.names(REPORT))
    return frozenset(n for n in range(len(plan.ranges)) if range_name(n) in there)
