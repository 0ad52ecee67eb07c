"""The exported measures of a store, under stable names.

Exporters read this table. Prometheus calls a measure ``batchkeeper_NAME``, with ``_total`` after a
counter; OpenTelemetry calls it ``batchkeeper.NAME``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from ..batching import Histogram, LaneMetrics, Metrics
from ..ops.kinds import KINDS

__all__ = ["MEASURES", "Measure", "Point", "Snapshot", "Value"]

_LANES: Final = ("reads", "writes", "singles")
_CAUSES: Final = ("ops", "bytes", "idle", "delay", "flush", "close")

Value: TypeAlias = int | Histogram

#: The values of a measure's labels, and its value for them.
Point: TypeAlias = tuple[Sequence[str], Value]


class Snapshot(NamedTuple):
    """A store at one moment.

    Attributes:
        metrics: its metrics.
        connected: whether its session stands and has a connection; ``None`` if nothing has needed a
            session yet, or the store has none.
    """

    metrics: Metrics
    connected: bool | None


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that is exported of a store.

    Attributes:
        name: its name, without the prefix ``batchkeeper``.
        kind: ``counter`` only grows, ``gauge`` is the value of the moment, ``histogram`` has the
            number of values by size.
        unit: the unit, by the Unified Code for Units of Measure.
        about: what it says, in a sentence.
        labels: the names of the labels that tell its values apart, beside that of the store.
        read: returns its values.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    about: str
    labels: tuple[str, ...]
    read: Callable[[Snapshot], Iterable[Point]]


def _of_store(read: Callable[[Metrics], int]) -> Callable[[Snapshot], Iterable[Point]]:
    return lambda snapshot: [((), read(snapshot.metrics))]


def _of_lanes(read: Callable[[LaneMetrics], Value]) -> Callable[[Snapshot], Iterable[Point]]:
    return lambda snapshot: [((name,), read(getattr(snapshot.metrics, name))) for name in _LANES]


def _by_kind(read: Callable[[Metrics], Mapping[str, int]]) -> Callable[[Snapshot], Iterable[Point]]:
    # Those that have not occurred as well: a rate begins with the first value that is seen.
    return lambda snapshot: [((kind,), read(snapshot.metrics).get(kind, 0)) for kind in KINDS]


def _by_cause(snapshot: Snapshot) -> Iterable[Point]:
    for name in _LANES:
        lane: LaneMetrics = getattr(snapshot.metrics, name)
        for cause in _CAUSES:
            yield (name, cause), lane.causes.get(cause, 0)


def _by_error(snapshot: Snapshot) -> Iterable[Point]:
    return [((name,), count) for name, count in sorted(snapshot.metrics.errors.items())]


def _connected(snapshot: Snapshot) -> Iterable[Point]:
    return [] if snapshot.connected is None else [((), int(snapshot.connected))]


def _counter(name: str, unit: str, about: str, read: Callable[[Metrics], int]) -> Measure:
    return Measure(name, "counter", unit, about, (), _of_store(read))


def _gauge(name: str, unit: str, about: str, read: Callable[[LaneMetrics], int]) -> Measure:
    return Measure(name, "gauge", unit, about, ("lane",), _of_lanes(read))


def _histogram(
    name: str, unit: str, about: str, read: Callable[[LaneMetrics], Histogram]
) -> Measure:
    return Measure(name, "histogram", unit, about, ("lane",), _of_lanes(read))


#: All of them.
MEASURES: Final[Sequence[Measure]] = (
    _gauge(
        "queued_operations",
        "{operation}",
        "Operations held now, in the queue and in the lines of their paths.",
        lambda lane: lane.queued,
    ),
    _gauge(
        "waiting_operations",
        "{operation}",
        "Operations whose callers wait now for room in the queue.",
        lambda lane: lane.waiting,
    ),
    _gauge(
        "batches_in_flight",
        "{batch}",
        "Batches under way now.",
        lambda lane: lane.in_flight,
    ),
    Measure(
        "queued_bytes",
        "gauge",
        "By",
        "Bytes held now in both queues.",
        (),
        _of_store(lambda metrics: metrics.queued_bytes),
    ),
    Measure(
        "watches",
        "gauge",
        "{watch}",
        "Watches that are open now.",
        (),
        _of_store(lambda metrics: metrics.watches),
    ),
    Measure(
        "session_connected",
        "gauge",
        "1",
        "1 if the session stands and the server answers, otherwise 0; missing without a session.",
        (),
        _connected,
    ),
    Measure(
        "batches", "counter", "{batch}", "Batches sent, by cause.", ("lane", "cause"), _by_cause
    ),
    Measure(
        "operations",
        "counter",
        "{operation}",
        "Operations that have ended, by kind.",
        ("kind",),
        _by_kind(lambda metrics: metrics.operations),
    ),
    Measure(
        "failures",
        "counter",
        "{operation}",
        "Operations that have ended with an error, by kind.",
        ("kind",),
        _by_kind(lambda metrics: metrics.failures),
    ),
    Measure(
        "errors",
        "counter",
        "{operation}",
        "Operations that have ended with an error, by the name of the error's class.",
        ("error",),
        _by_error,
    ),
    _counter(
        "conflicts",
        "{operation}",
        "Writes that the state of their path forbade.",
        lambda metrics: metrics.conflicts,
    ),
    _counter(
        "waits",
        "{operation}",
        "Calls that had to wait for room in a queue.",
        lambda metrics: metrics.waits,
    ),
    _counter(
        "aborts",
        "{request}",
        "Requests that the store did not apply because of one of their operations.",
        lambda metrics: metrics.aborts,
    ),
    _counter(
        "splits",
        "{request}",
        "Requests that were sent in parts, because the store did not accept them whole.",
        lambda metrics: metrics.splits,
    ),
    _counter(
        "retries",
        "{request}",
        "Requests that were sent again after a failure.",
        lambda metrics: metrics.retries,
    ),
    _counter(
        "settled_writes",
        "{operation}",
        "Writes without an answer whose outcome was found out.",
        lambda metrics: metrics.settled,
    ),
    _counter(
        "reconnects",
        "{connection}",
        "Connections that were lost and made again.",
        lambda metrics: metrics.reconnects,
    ),
    _counter(
        "session_losses",
        "{session}",
        "Sessions that the server has ended.",
        lambda metrics: metrics.session_losses,
    ),
    _counter(
        "watch_events",
        "{event}",
        "Events that the store has reported to watches.",
        lambda metrics: metrics.watch_events,
    ),
    _counter(
        "watch_drops",
        "{event}",
        "Events that were dropped, because their watch held too many.",
        lambda metrics: metrics.watch_drops,
    ),
    _histogram(
        "batch_operations",
        "{operation}",
        "The number of operations of each batch.",
        lambda lane: lane.operations_per_batch,
    ),
    _histogram(
        "batch_bytes",
        "By",
        "The bytes of each batch.",
        lambda lane: lane.bytes_per_batch,
    ),
    _histogram(
        "queue_seconds",
        "s",
        "Seconds from the call of each operation until it was sent.",
        lambda lane: lane.queue_seconds,
    ),
    _histogram(
        "store_seconds",
        "s",
        "Seconds of each batch at the store, with retries and parts.",
        lambda lane: lane.store_seconds,
    ),
)
