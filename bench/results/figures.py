"""Single figures of a measurement, and which measurements can be used.

A figure is a function of a :class:`Measured` that returns a number, or ``None`` where there is
none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from .runs import Measured, Run, Variant

Figure: TypeAlias = Callable[[Measured], float | None]

PERCENTILES: Final = ("p50", "p90", "p95", "p99", "p99.9", "p99.99", "max")

# At the end of an open loop, at least this share of the due operations has ended.
_REACHED: Final = 0.98


def usable(variant: Variant) -> list[Measured]:
    """Return the measurements that ran to their end and have operations."""
    return [m for m in variant.rounds if m.broken is None and m.operations and m.rate > 0]


def finished(run: Run) -> int:
    """Return the number of rounds in which anything was measured to its end."""
    return len({m.round for variant in run.variants for m in usable(variant)})


def values(variant: Variant, figure: Figure) -> list[float]:
    """Return a figure of all usable measurements that have it."""
    found = (figure(measured) for measured in usable(variant))
    return [value for value in found if value is not None]


def named(run: Run, name: str) -> Variant | None:
    """Return the variant with this name."""
    return next((variant for variant in run.variants if variant.name == name), None)


def rivals(run: Run) -> list[Variant]:
    """Return the variants that a caller of this client can choose: all but peers.

    The noise of peers is of another kind, and says nothing about differences between these.
    """
    return [variant for variant in run.variants if variant.kind != "peer"]


def rate(measured: Measured) -> float | None:
    """Operations per second."""
    return measured.rate


def reached(measured: Measured) -> bool:
    """Return whether an open loop kept up with its rate; true for a closed loop."""
    return measured.asked_rate is None or measured.rate >= _REACHED * measured.asked_rate


def percentile(name: str, which: str = "all") -> Figure:
    """Return the figure of a percentile of the latency, in seconds."""

    def figure(measured: Measured) -> float | None:
        latencies = measured.latencies.get(which)
        return latencies.percentiles.get(name) if latencies else None

    return figure


p99: Final = percentile("p99")


def in_queue(measured: Measured) -> float | None:
    """The mean time of an operation in the queue, in seconds."""
    return measured.queue_seconds.get("mean")


def at_store(measured: Measured) -> float | None:
    """The mean time of a batch at the store, in seconds."""
    return measured.store_seconds.get("mean")


def operations_per_batch(measured: Measured) -> float | None:
    """Operations in a batch, on the average."""
    return measured.batched / measured.batches if measured.batches else None


def client_cpu(measured: Measured) -> float | None:
    """Seconds of CPU of the client and the load generator, for an operation."""
    return measured.client_cpu / measured.operations if measured.operations else None


def server_cpu(measured: Measured) -> float | None:
    """Seconds of CPU of the server, for an operation."""
    if measured.server_cpu is None or not measured.operations:
        return None
    return measured.server_cpu / measured.operations


def cpu(measured: Measured) -> float | None:
    """Seconds of CPU of client and server together, for an operation."""
    client = client_cpu(measured)
    return None if client is None else client + (server_cpu(measured) or 0.0)


def causes(variant: Variant) -> Mapping[str, int]:
    """Return the batches of all rounds by the cause of their flush, the most frequent first."""
    return together(measured.causes for measured in variant.rounds)


def errors(variant: Variant) -> Mapping[str, int]:
    """Return the errors of all rounds by class name, the most frequent first."""
    return together(measured.errors for measured in variant.rounds)


def together(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by name, the greatest first."""
    return dict(sum(map(Counter, counts), Counter[str]()).most_common())


def total(variant: Variant, count: Callable[[Measured], int]) -> int:
    """Return the sum of a count over all rounds, those that broke off included."""
    return sum(count(measured) for measured in variant.rounds)
