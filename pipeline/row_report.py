"""The report of a job's rows: counts by outcome, times, and the first failed rows.

The reports of partitions are merged into the job's report. They hold paths and errors, never
values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from ..batching.metrics import SECONDS, Distribution, Histogram
from ..ops.errors import MetadataStoreError

__all__ = [
    "DONE",
    "STATUSES",
    "FailedRow",
    "Report",
    "RowOutcome",
    "RowsFailedError",
    "Status",
    "RowCounts",
    "add_histograms",
    "first_failed",
]

#: How a row ended. ``ok``: this job applied it. ``already_applied``: a conditional row whose effect
#: was already there, for example after an earlier attempt of its task. ``conflict``: not applied,
#: because of the state of its path. ``not_found``: an unconditional delete of a path without a
#: value. ``indeterminate``: it may have been applied. ``error``: not applied, for another reason.
Status: TypeAlias = Literal[
    "ok", "already_applied", "conflict", "not_found", "indeterminate", "error"
]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)

#: The statuses of rows whose effect is there. ``not_found`` is among them, because an earlier
#: attempt of the same task may have deleted the path.
DONE: Final[frozenset[Status]] = frozenset(("ok", "already_applied", "not_found"))

# The most failed rows that a report names. The message on the driver must stay readable.
_NAMED: Final = 10

_NO_SECONDS: Final = Distribution(SECONDS).snapshot()


class RowsFailedError(MetadataStoreError):
    """Rows of a job were not written. The message counts them and names the first ones."""


class RowOutcome(NamedTuple):
    """The outcome of one row.

    ``version`` is the path's version afterwards, or ``None`` if it is unknown or the path holds no
    value. ``error`` is a text for users, or ``None`` if the row is done.
    """

    path: str | None
    status: Status
    version: int | None = None
    error: str | None = None


def first_failed(outcomes: Iterable[RowOutcome]) -> RowOutcome | None:
    """Return the first outcome of a row that is not done, or ``None``."""
    return next((outcome for outcome in outcomes if outcome.status not in DONE), None)


class FailedRow(NamedTuple):
    """A row that a report names."""

    path: str | None
    status: Status
    error: str

    def __str__(self) -> str:
        return f"{self.path!r}: {self.status}: {self.error}"


def add_histograms(one: Histogram, other: Histogram) -> Histogram:
    """Return the sum of two histograms with the same buckets."""
    if one.bounds != other.bounds:
        raise ValueError("histograms with different buckets cannot be added")
    return Histogram(
        one.bounds,
        tuple(a + b for a, b in zip(one.counts, other.counts, strict=True)),
        one.sum + other.sum,
        max(one.max, other.max),
    )


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of rows.

    Attributes:
        counts: rows by status; a status without rows is missing.
        seconds: for each sent row, the seconds from its submission until its outcome. Rows
            submitted together wait for those before them. For a row that was sent again, the first
            time counts.
        failed_rows: the first rows that are not done, at most ten.
        resent: rows, and the client's own requests, that were sent again after a failure.
    """

    counts: dict[Status, int] = field(default_factory=dict)
    seconds: Histogram = _NO_SECONDS
    failed_rows: tuple[FailedRow, ...] = ()
    resent: int = 0

    @property
    def rows(self) -> int:
        """Rows that have ended."""
        return sum(self.counts.values())

    @property
    def failed(self) -> int:
        """Rows that are not done: conflicts, errors, and those of unknown outcome."""
        return sum(count for status, count in self.counts.items() if status not in DONE)

    def __add__(self, other: Report) -> Report:
        """Return the report of both reports' rows."""
        counts = Counter(self.counts)
        counts.update(other.counts)
        return Report(
            dict(counts),
            add_histograms(self.seconds, other.seconds),
            (self.failed_rows + other.failed_rows)[:_NAMED],
            self.resent + other.resent,
        )

    @classmethod
    def total(cls, reports: Iterable[Report]) -> Report:
        """Return the sum of reports."""
        return sum(reports, start=cls())

    def __str__(self) -> str:
        """Return one line for users, and one more for each named failed row."""
        counts = ", ".join(f"{self.counts[s]} {s}" for s in STATUSES if self.counts.get(s))
        lines = [f"{self.rows} rows" + (f": {counts}" if counts else "")]
        if self.seconds.count:
            low, high = (self.seconds.percentile(percent) for percent in (50, 99))
            lines[0] += f"; seconds a row: {low:.3g} (median), {high:.3g} (99 of 100)"
        if self.resent:
            lines[0] += f"; {self.resent} sent again"
        lines += [f"  {row}" for row in self.failed_rows]
        if (more := self.failed - len(self.failed_rows)) > 0:
            lines.append(f"  and {more} more")
        return "\n".join(lines)


class RowCounts:
    """Counts rows for a report as they end."""

    def __init__(self) -> None:
        self._counts: Counter[Status] = Counter()
        self._seconds = Distribution(SECONDS)
        self._failed: list[FailedRow] = []
        self._resent = 0

    def add(self, outcomes: Sequence[RowOutcome], seconds: list[float], resent: int = 0) -> None:
        """Count rows, and the seconds of the sent ones. Sorts ``seconds`` in place."""
        self._counts.update([outcome.status for outcome in outcomes])
        if seconds:
            self._seconds.add_all(seconds)
        self._resent += resent
        if room := _NAMED - len(self._failed):
            failed = (o for o in outcomes if o.status not in DONE)
            self._failed += [
                FailedRow(o.path, o.status, o.error or "") for o in islice(failed, room)
            ]

    def report(self) -> Report:
        """Return the report so far."""
        return Report(
            dict(self._counts), self._seconds.snapshot(), tuple(self._failed), self._resent
        )
