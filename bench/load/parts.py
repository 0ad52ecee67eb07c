"""What the processes of a measurement have measured, put together."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ...batching import Histogram, LaneMetrics, Metrics
from ..figures import histogram, histogram_class, percentiles
from ..results.figures import PERCENTILES
from ..results.runs import Latencies, Measured, Moment

__all__ = ["Flushes", "Part", "encoded", "flushes_between", "merged"]

_T = TypeVar("_T")

#: The percentiles that results name.
_PERCENTILES: Final = tuple(float(name[1:]) for name in PERCENTILES if name != "max")


@dataclass(frozen=True, slots=True)
class Flushes:
    """The batches of a store between two snapshots of its metrics."""

    batches: int = 0
    batched: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    fall_backs: int = 0
    waits: int = 0
    queue_seconds: Sequence[Histogram] = ()
    store_seconds: Sequence[Histogram] = ()


#: What is added up of several processes, under the same names.
_COUNTS_OF_FLUSHES: Final = ("batches", "batched", "fall_backs", "waits")
_COUNTS_OF_PARTS: Final = (
    *("operations", "not_started", "conflicts", "answers_checked", "paths_read_back"),
    "paths_unsure",
)
_COUNTS_OF_MOMENTS: Final = ("operations", "batches", "batched", "queued", "in_flight")


def _lanes(metrics: Metrics) -> Sequence[LaneMetrics]:
    """Return the lanes of a store."""
    return metrics.reads, metrics.writes, metrics.singles


def flushes_between(before: Metrics | None, after: Metrics | None) -> Flushes:
    """Return the batches of all lanes between two snapshots; none for a peer, without metrics."""
    if before is None or after is None:
        return Flushes()
    causes: Counter[str] = Counter()
    batches = batched = 0
    queue, at_store = [], []
    for earlier, later in zip(_lanes(before), _lanes(after), strict=True):
        batches += later.batches - earlier.batches
        batched += later.operations - earlier.operations
        causes.update(later.causes)
        causes.subtract(earlier.causes)
        queue.append(_between(earlier.queue_seconds, later.queue_seconds))
        at_store.append(_between(earlier.store_seconds, later.store_seconds))
    return Flushes(
        batches=batches,
        batched=batched,
        causes=dict(+causes),
        fall_backs=after.singles.operations - before.singles.operations,
        waits=after.waits - before.waits,
        queue_seconds=queue,
        store_seconds=at_store,
    )


def _between(before: Histogram, after: Histogram) -> Histogram:
    counts = tuple(b - a for a, b in zip(before.counts, after.counts, strict=True))
    return Histogram(after.bounds, counts, after.sum - before.sum, after.max)


def _added(histograms: Iterable[Histogram]) -> dict[str, float]:
    """Return figures of several histograms together; empty without values."""
    found = [one for one in histograms if one.count]
    if not found:
        return {}
    counts = tuple(sum(column) for column in zip(*(one.counts for one in found), strict=True))
    total = sum(one.sum for one in found)
    together = Histogram(found[0].bounds, counts, total, max(one.max for one in found))
    return {
        "mean": together.mean,
        "p50": together.percentile(50),
        "p99": together.percentile(99),
    }


@dataclass(frozen=True, slots=True)
class Part:
    """What one process has measured. It can be pickled.

    Attributes:
        seconds: the length of the timed part.
        operations: operations that ended in it.
        not_started: operations of an open loop that were due and not started.
        reads: the latencies of reads, as the text of an HdrHistogram in microseconds.
        writes: the same of writes.
        flushes: the batches of the store.
        conflicts: operations that were refused, as they had to be.
        errors: other errors, by class name.
        cpu: seconds of CPU of this process.
        memory: its greatest resident memory, in bytes.
        series: the timed part in small steps.
        answers_checked: the answers that were compared.
        paths_read_back: the paths that were read again.
        paths_unsure: those that were not, because an operation on them had failed.
        server_cpu: seconds of CPU of the servers; ``None`` where it is not known to this process.
        server_memory: their resident memory at the end; ``None`` likewise.
        broken: why the measurement ended early; ``None`` if it did not.
    """

    seconds: float
    operations: int
    not_started: int
    reads: str
    writes: str
    flushes: Flushes
    conflicts: int
    errors: Mapping[str, int]
    cpu: float
    memory: int
    series: Sequence[Moment]
    answers_checked: int
    paths_read_back: int
    paths_unsure: int = 0
    server_cpu: float | None = None
    server_memory: int | None = None
    broken: str | None = None


def encoded(*times: array[int]) -> str:
    """Return latencies in nanoseconds as the text of an HdrHistogram in microseconds."""
    text: bytes = histogram(*times).encode()
    return text.decode()


def merged(parts: Sequence[Part], number: int, asked_rate: float | None) -> Measured:
    """Put the parts of a measurement together.

    Args:
        parts: what each process measured.
        number: the number of the round.
        asked_rate: the rate that was asked of all processes together.
    """
    reads = _decoded(part.reads for part in parts)
    writes = _decoded(part.writes for part in parts)
    both = _decoded(text for part in parts for text in (part.reads, part.writes))
    flushes = [part.flushes for part in parts]
    return Measured(
        **_sums(parts, _COUNTS_OF_PARTS),
        **_sums(flushes, _COUNTS_OF_FLUSHES),
        round=number,
        seconds=max(part.seconds for part in parts),
        rate=sum(part.operations / part.seconds for part in parts if part.seconds),
        asked_rate=asked_rate,
        latencies={
            "all": _latencies(both),
            "reads": _latencies(reads),
            "writes": _latencies(writes),
        },
        queue_seconds=_added(one for part in flushes for one in part.queue_seconds),
        store_seconds=_added(one for part in flushes for one in part.store_seconds),
        causes=dict(_together(part.causes for part in flushes)),
        errors=dict(_together(part.errors for part in parts)),
        client_cpu=sum(part.cpu for part in parts),
        server_cpu=_first(part.server_cpu for part in parts),
        client_memory=sum(part.memory for part in parts),
        server_memory=_first(part.server_memory for part in parts),
        series=_added_series([part.series for part in parts]),
        broken=_first(part.broken for part in parts),
    )


def _sums(parts: Sequence[object], names: Iterable[str]) -> dict[str, Any]:
    return {name: sum(getattr(part, name) for part in parts) for name in names}


def _together(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum(map(Counter, counts), Counter[str]())


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def _decoded(texts: Iterable[str]) -> Any:
    total = histogram()
    for text in texts:
        total.add(histogram_class().decode(text))
    return total


def _latencies(found: Any) -> Latencies:
    count = found.get_total_count()
    named = percentiles(found, _PERCENTILES) if count else {}
    return Latencies(count, named, found.encode().decode())


def _added_series(series: Sequence[Sequence[Moment]]) -> list[Moment]:
    """Add the steps of several processes, which began together; as many as all have."""
    return [
        Moment(at=max(moment.at for moment in moments), **_sums(moments, _COUNTS_OF_MOMENTS))
        for moments in zip(*series, strict=False)
    ]
