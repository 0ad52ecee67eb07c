"""The metrics of a store, as numbers with stable names.

Counts begin when the store is opened. An exporter takes the difference of two snapshots, or exports
them as counters. Snapshots are immutable and can be pickled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Final

from ..ops.errors import InvalidSettingError

__all__ = [
    "BYTES",
    "OPERATIONS",
    "SECONDS",
    "Counts",
    "Distribution",
    "Histogram",
    "LaneMetrics",
    "Metrics",
]

#: Upper bounds of the buckets, each twice the one before: from 10 microseconds to 84 seconds, from
#: 1 to 1,048,576 operations, from 64 bytes to 1 GiB.
SECONDS: Final = tuple(1e-5 * 2**power for power in range(24))
OPERATIONS: Final = tuple(float(2**power) for power in range(21))
BYTES: Final = tuple(float(2**power) for power in range(6, 31))


class Counts(Mapping[str, int]):
    """Immutable numbers by name. A name that never occurred is missing."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[Any, int] | None = None) -> None:
        self._counts = {name: count for name, count in (counts or {}).items() if count}

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __hash__(self) -> int:
        return hash(frozenset(self._counts.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._counts})"


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of values by size.

    Attributes:
        bounds: the upper bounds of the buckets, ascending. A value equal to a bound belongs to the
            bucket below the bound.
        counts: the number of values in each bucket. The last one, without a bound, has the values
            above all bounds.
        sum: the sum of all values.
        max: the largest value; 0 without values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float = 0.0
    max: float = 0.0

    @property
    def count(self) -> int:
        """The number of values in all buckets."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The average value; 0 without values."""
        return self.sum / self.count if self.count else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, under the names of the attributes."""
        return {
            "bounds": list(self.bounds),
            "counts": list(self.counts),
            "sum": self.sum,
            "max": self.max,
        }

    def percentile(self, percent: float) -> float:
        """Estimate the value that ``percent`` of the values do not exceed; 0 without values.

        The estimate lies in the right bucket, so it is at most a factor of 2 off. It never exceeds
        ``max``.

        Raises:
            InvalidSettingError: ``percent`` is not from 0 to 100.
        """
        if not 0 <= percent <= 100:
            raise InvalidSettingError(f"percent must be from 0 to 100, not {percent!r}")
        if not self.count:
            return 0.0
        rank = percent / 100 * self.count
        sums = list(accumulate(self.counts))
        bucket = bisect_left(sums, max(rank, 1))
        below = sums[bucket] - self.counts[bucket]
        low = self.bounds[bucket - 1] if bucket else 0.0
        high = min(self.bounds[bucket], self.max) if bucket < len(self.bounds) else self.max
        # Assumes that the values are evenly distributed in their bucket.
        share = (max(rank, 1) - below) / self.counts[bucket]
        return min(low, high) + (high - min(low, high)) * share


class Distribution:
    """Collects values for a histogram. The engine's lock guards it."""

    __slots__ = ("_bounds", "_counts", "_max", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._max = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        if value > self._max:  # noqa: PLR1730 - no call for every batch
            self._max = value

    def add_all(self, values: list[float]) -> None:
        """Count values, at least one. Sorts the list."""
        if len(values) == 1:
            self.add(values[0])
            return
        # The values of one batch come almost sorted, and lie in a few buckets.
        values.sort()
        bounds, counts = self._bounds, self._counts
        start, high = 0, values[-1]
        bucket, last = bisect_left(bounds, values[0]), bisect_left(bounds, high)
        while bucket < last:
            end = bisect_right(values, bounds[bucket], start)
            counts[bucket] += end - start
            start = end
            bucket += 1
        counts[last] += len(values) - start
        self._sum += sum(values)
        self._max = max(self._max, high)

    def snapshot(self) -> Histogram:
        """Return the values counted so far."""
        return Histogram(self._bounds, tuple(self._counts), self._sum, self._max)


_NO_SECONDS: Final = Distribution(SECONDS).snapshot()
_NO_OPERATIONS: Final = Distribution(OPERATIONS).snapshot()
_NO_BYTES: Final = Distribution(BYTES).snapshot()
_NONE: Final = Counts()


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """The metrics of one lane: a queue and its batches.

    Attributes:
        queued: operations held now, in the queue and in the lines of their paths; for single
            executions, also those under way.
        waiting: operations whose callers wait now for room in the queue.
        in_flight: batches under way now.
        batches: batches sent.
        operations: operations sent in these batches.
        bytes: bytes sent in these batches: paths, values and an estimate of the encoding's
            overhead.
        causes: batches by the reason for which they were sent: ``ops``, ``bytes``, ``idle``,
            ``delay``, ``flush`` or ``close``.
        operations_per_batch: the number of operations of each batch.
        bytes_per_batch: the bytes of each batch.
        queue_seconds: the seconds from the call of each sent operation until it was sent.
        store_seconds: the seconds of each ended batch at the back end, with retries and parts.
    """

    queued: int
    waiting: int
    in_flight: int
    batches: int
    operations: int
    bytes: int
    causes: Mapping[str, int]
    operations_per_batch: Histogram = _NO_OPERATIONS
    bytes_per_batch: Histogram = _NO_BYTES
    queue_seconds: Histogram = _NO_SECONDS
    store_seconds: Histogram = _NO_SECONDS

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, under the names of the attributes."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot of a store.

    When a queue is full, ``singles.operations`` counts the operations that were executed singly,
    and ``waits`` the calls that had to wait.

    Attributes:
        reads: the queue of reads and its batches.
        writes: the queue of writes and its batches.
        singles: the single executions beside the batches, because a queue was full.
        queued_bytes: bytes held now in both queues.
        waits: calls that had to wait for room in a queue.
        errors: operations that ended with an error, by the error's class name.
        operations: operations that have ended, by kind: ``get``, ``put``, ``delete``,
            ``get_children`` or ``exists``. Cancelled ones, and calls that were refused at once, do
            not count.
        failures: ended operations with an error, by kind.
        conflicts: failed writes that the state of their path forbade (``BadVersionError``,
            ``NotFoundError``, ``NotEmptyError``).
        aborts: requests that the store did not apply because of one of their operations; the other
            operations were sent again.
        splits: requests that were larger than the store accepts, or were refused as a whole, and
            were sent in parts.
        retries: requests that were sent again after a failure.
        settled: writes without an answer whose outcome was found out.
        reconnects: connections that were lost and reopened.
        watches: the open watches.
        watch_events: events that the store has reported to watches.
        watch_drops: events that were dropped, because their watch held too many; a gap stands in
            their place.
        session_losses: sessions that the server has ended.
    """

    reads: LaneMetrics
    writes: LaneMetrics
    singles: LaneMetrics
    queued_bytes: int
    waits: int
    errors: Mapping[str, int]
    operations: Mapping[str, int] = _NONE
    failures: Mapping[str, int] = _NONE
    conflicts: int = 0
    aborts: int = 0
    splits: int = 0
    retries: int = 0
    settled: int = 0
    reconnects: int = 0
    watches: int = 0
    watch_events: int = 0
    watch_drops: int = 0
    session_losses: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as objects that ``json.dumps`` takes.

        The names are those of the attributes, which stay as they are. Lanes and histograms are
        dicts; counts by name are dicts without the names that never occurred. Later versions may
        add names.
        """
        return _plain(self)


def _plain(metrics: LaneMetrics | Metrics) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(metrics):
        value = getattr(metrics, field.name)
        if isinstance(value, LaneMetrics | Histogram):
            value = value.to_dict()
        elif isinstance(value, Mapping):
            value = dict(value)
        found[field.name] = value
    return found
