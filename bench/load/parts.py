"""What the processes of a measurement have measured, put together."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, Final, TypeVar

from ...batching import Histogram, Metrics
from ..figures import histogram, histogram_class, percentiles
from ..results.figures import PERCENTILES, together
from ..results.runs import Latencies, Measured, Moment

_T = TypeVar("_T")

#: The percentiles that results name.
_PERCENTILES: Final = tuple(float(name[1:]) for name in PERCENTILES if name != "max")

#: What is added up of several processes, under the same names.
_COUNTS_OF_PARTS: Final = (
    *("operations", "not_started", "conflicts", "answers_checked", "paths_read_back"),
    *("paths_unsure", "batches", "batched", "fall_backs", "waits"),
)
_COUNTS_OF_MOMENTS: Final = ("operations", "batches", "batched", "queued", "in_flight")


def flushes_between(before: Metrics | None, after: Metrics | None) -> dict[str, Any]:
    """Return the batches of all lanes between two snapshots, as fields of :class:`Part`.

    A peer, without metrics, has none.
    """
    if before is None or after is None:
        return {}
    earlier, later = ([m.reads, m.writes, m.singles] for m in (before, after))
    causes = Counter(together(lane.causes for lane in later))
    causes.subtract(together(lane.causes for lane in earlier))
    queue, at_store = (
        _added([getattr(lane, name) for lane in later], [getattr(lane, name) for lane in earlier])
        for name in ("queue_seconds", "store_seconds")
    )
    return {
        "batches": sum(lane.batches for lane in later) - sum(lane.batches for lane in earlier),
        "batched": sum(lane.operations for lane in later)
        - sum(lane.operations for lane in earlier),
        "causes": dict(+causes),
        "fall_backs": after.singles.operations - before.singles.operations,
        "waits": after.waits - before.waits,
        "queue_seconds": queue,
        "store_seconds": at_store,
    }


def _added(plus: Sequence[Histogram], minus: Sequence[Histogram] = ()) -> Histogram:
    signed = [*((one, 1) for one in plus), *((one, -1) for one in minus)]
    columns = zip(*(one.counts for one, _ in signed), strict=True)
    signs = [sign for _, sign in signed]
    counts = tuple(sum(map(mul, signs, column)) for column in columns)
    total = sum(sign * one.sum for one, sign in signed)
    return Histogram(plus[0].bounds, counts, total, max(one.max for one in plus))


def _figures(histograms: Iterable[Histogram | None]) -> dict[str, float]:
    """Return figures of several histograms together; empty without values."""
    found = [one for one in histograms if one is not None and one.count]
    if not found:
        return {}
    all_of_them = _added(found)
    return {
        "mean": all_of_them.mean,
        "p50": all_of_them.percentile(50),
        "p99": all_of_them.percentile(99),
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
        batches: the batches that the store has sent.
        batched: the operations in them.
        causes: the batches by the cause of their flush.
        fall_backs: operations executed singly because a queue was full.
        waits: calls that waited for room in a queue.
        queue_seconds: the times in the queue; ``None`` for a peer.
        store_seconds: the times of batches at the store; ``None`` likewise.
    """

    seconds: float
    operations: int
    not_started: int
    reads: str
    writes: str
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
    batches: int = 0
    batched: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    fall_backs: int = 0
    waits: int = 0
    queue_seconds: Histogram | None = None
    store_seconds: Histogram | None = None


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
    reads, writes = [part.reads for part in parts], [part.writes for part in parts]
    return Measured(
        **_sums(parts, _COUNTS_OF_PARTS),
        round=number,
        seconds=max(part.seconds for part in parts),
        rate=sum(part.operations / part.seconds for part in parts if part.seconds),
        asked_rate=asked_rate,
        latencies={
            "all": _latencies([*reads, *writes]),
            "reads": _latencies(reads),
            "writes": _latencies(writes),
        },
        queue_seconds=_figures(part.queue_seconds for part in parts),
        store_seconds=_figures(part.store_seconds for part in parts),
        causes=together(part.causes for part in parts),
        errors=together(part.errors for part in parts),
        client_cpu=sum(part.cpu for part in parts),
        server_cpu=_first(part.server_cpu for part in parts),
        client_memory=sum(part.memory for part in parts),
        server_memory=_first(part.server_memory for part in parts),
        series=_added_series([part.series for part in parts]),
        broken=_first(part.broken for part in parts),
    )


def _sums(parts: Sequence[object], names: Iterable[str]) -> dict[str, Any]:
    return {name: sum(getattr(part, name) for part in parts) for name in names}


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def _latencies(texts: Iterable[str]) -> Latencies:
    found = histogram()
    for text in texts:
        found.add(histogram_class().decode(text))
    count = found.get_total_count()
    named = percentiles(found, _PERCENTILES) if count else {}
    return Latencies(count, named, found.encode().decode())


def _added_series(series: Sequence[Sequence[Moment]]) -> list[Moment]:
    """Add the steps of several processes, which began together; as many as all have."""
    return [
        Moment(at=max(moment.at for moment in moments), **_sums(moments, _COUNTS_OF_MOMENTS))
        for moments in zip(*series, strict=False)
    ]
