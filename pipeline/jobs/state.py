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
# Reports of version 1 did not tell of foreign keys.
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What is copied.

    Attributes:
        source: the URL of the store that is read.
        target: the URL of the store that is written.
        prefix: what is copied: the value there, and all below.
        revision: of the source as the copy began.
        snapshot: whether all is read as of that revision.
        overwrite: whether values that the target holds are replaced.
        ranges: of paths; together all that there are.
    """

    source: str
    target: str
    prefix: str
    revision: int
    snapshot: bool
    overwrite: bool
    ranges: Sequence[Range]

    def dumps(self) -> bytes:
        """Return it as JSON."""
        return (json.dumps({"version": _VERSION, **asdict(self)}, indent=2) + "\n").encode()

    @classmethod
    def loads(cls, data: bytes) -> Self:
        """Make it of JSON.

        Raises:
            ValueError: it is no plan, or one of a version that is not known here.
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
    """Return the plan of the copy that was begun with this state; ``None`` if there is none.

    Raises:
        JobError: it cannot be used.
    """
    data = folder.read(PLAN)
    if data is None:
        return None
    try:
        return CopyPlan.loads(data)
    except ValueError as error:
        raise JobError(f"{folder.uri}/{PLAN} cannot be used: {error}", "InputError") from error


def range_name(number: int) -> str:
    """Return the name of the file that says what became of a range."""
    return f"range-{number:05}.parquet"


def done_ranges(folder: Folder, plan: CopyPlan) -> frozenset[int]:
    """Return which ranges are done."""
    there = set(folder.names(REPORT))
    return frozenset(n for n in range(len(plan.ranges)) if range_name(n) in there)
