"""Metrics, spans and durations for OpenTelemetry.

It uses the interface of OpenTelemetry only. The application chooses an SDK and where everything is
sent, and gives its providers, or sets them for the process.

Spans and durations follow the semantic conventions for database clients, version 1.30 and later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..batching import Batch, EndedBatch, Histogram
from ..batching.recording import CONFLICTS
from ..stores import parse_url, store_kind
from .extras import import_of_extra
from .measures import MEASURES, Measure
from .observed import AnyStore, Observed

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

__all__ = ["OpenTelemetryHooks", "OpenTelemetryMetrics"]

_NAME: Final = "batchkeeper"
_EXTRA: Final = "opentelemetry"

# What the conventions name for durations.
_DURATIONS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


class OpenTelemetryMetrics:
    """Exports the metrics of stores as observable instruments, with the names of ``MEASURES``.

    OpenTelemetry has no observable histograms. For each histogram there are two counters instead,
    ``batchkeeper.NAME.count`` and ``batchkeeper.NAME.sum``. For the distribution of durations, use
    :class:`OpenTelemetryHooks`.

    Make one for the process, and add each store. The label of the store is the attribute
    ``batchkeeper.store``. A store that is closed leaves.

    Args:
        store: the first store, if there is one already.
        name: its name; by default, its URL without options.
        meter_provider: where the instruments are made; by default, the provider of the process.

    Raises:
        UnsupportedError: OpenTelemetry cannot be imported. The message names the extra.
        InvalidSettingError: ``store`` is no store.
        StoreClosedError: the store is closed.
    """

    def __init__(
        self,
        store: AnyStore | None = None,
        *,
        name: str | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._api = import_of_extra("opentelemetry.metrics", _EXTRA)
        self._observed = Observed()
        if store is not None:
            self.add(store, name=name)
        meter = self._api.get_meter(_NAME, version(_NAME), meter_provider)
        for measure in MEASURES:
            made = f"{_NAME}.{measure.name}"
            if measure.kind == "gauge":
                # The values of several stores can be added, unlike those of a gauge.
                create = meter.create_observable_up_down_counter
                create(made, [self._observe(measure, _whole)], measure.unit, measure.about)
            elif measure.kind == "counter":
                create = meter.create_observable_counter
                create(made, [self._observe(measure, _whole)], measure.unit, measure.about)
            else:
                create = meter.create_observable_counter
                create(f"{made}.count", [self._observe(measure, _count)], "1", measure.about)
                create(f"{made}.sum", [self._observe(measure, _sum)], measure.unit, measure.about)

    def add(self, store: AnyStore, *, name: str | None = None) -> None:
        """Export a store until it is closed.

        Raises:
            InvalidSettingError: it is not a store, or another store here has the name.
            StoreClosedError: the store is closed.
        """
        self._observed.add(store, name)

    def _observe(
        self, measure: Measure, number: Callable[[Any], float]
    ) -> Callable[[Any], Iterable[Observation]]:
        labels = [_attribute(label) for label in ("store", *measure.labels)]

        def observe(_: Any) -> Iterable[Observation]:
            for name, _store, snapshot in self._observed.snapshots():
                for values, value in measure.read(snapshot):
                    attributes = dict(zip(labels, (name, *values), strict=True))
                    yield self._api.Observation(number(value), attributes)

        return observe


def _attribute(label: str) -> str:
    return "error.type" if label == "error" else f"{_NAME}.{label}"


def _whole(value: int) -> float:
    return value


def _count(value: Histogram) -> float:
    return value.count


def _sum(value: Histogram) -> float:
    return value.sum


class _Database(NamedTuple):
    """What the conventions say about a store."""

    attributes: Mapping[str, str | int]
    target: str  # the second word of a span's name
    remote: bool


class OpenTelemetryHooks:
    """Hooks that make a span for each batch, and record how long it took.

    Pass it to ``open_store(..., hooks=...)``. One object can serve several stores. A span begins
    when its batch is sent and ends with the answer, with retries and parts. A batch carries the
    operations of many callers, so its span begins a trace of its own. Its name is that of the
    operation, such as ``put`` or ``BATCH put``, with the prefix or the address of the store.

    The conventions give the attributes ``db.system.name``, ``db.namespace`` (the prefix or chroot),
    ``db.operation.name``, ``db.operation.batch.size``, ``server.address``, ``server.port`` and
    ``error.type``. If a store has several addresses, ``server.address`` has all of them, and there
    is no port. ``batchkeeper.lane``, ``batchkeeper.cause``, ``batchkeeper.bytes`` and, if some
    operations failed, ``batchkeeper.failures`` say more.

    A span has the status of an error if all operations of its batch failed, and not by conflicts,
    which are answers. ``error.type`` is then the name of the error's class.

    Args:
        spans: whether to make spans.
        durations: whether to record the histogram ``db.client.operation.duration``.
        tracer_provider: makes the spans; by default, the provider of the process.
        meter_provider: makes the histogram; by default, the provider of the process.

    Raises:
        UnsupportedError: OpenTelemetry cannot be imported. The message names the extra.
    """

    def __init__(
        self,
        *,
        spans: bool = True,
        durations: bool = True,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._trace = import_of_extra("opentelemetry.trace", _EXTRA)
        self._databases: dict[str, _Database] = {}
        self._tracer: Any = None
        self._duration: Any = None
        if spans:
            self._tracer = self._trace.get_tracer(_NAME, version(_NAME), tracer_provider)
        if durations:
            metrics = import_of_extra("opentelemetry.metrics", _EXTRA)
            self._duration = metrics.get_meter(
                _NAME, version(_NAME), meter_provider
            ).create_histogram(
                "db.client.operation.duration",
                "s",
                "Duration of database client operations.",
                explicit_bucket_boundaries_advisory=_DURATIONS,
            )

    def on_batch_ended(self, ended: EndedBatch) -> None:
        """Make the span of a batch, and record its duration."""
        batch = ended.batch
        database = self._databases.get(batch.store)
        if database is None:
            # Several threads may do this at the same time, with the same result.
            database = self._databases[batch.store] = _database(batch.store)
        operation = _operation(batch)
        attributes: dict[str, Any] = {**database.attributes, "db.operation.name": operation}
        if (error := _error(ended)) is not None:
            attributes["error.type"] = error
        if self._duration is not None:
            self._duration.record(ended.seconds, attributes)
        if self._tracer is not None:
            self._make_span(ended, database, attributes, f"{operation} {database.target}".rstrip())

    def _make_span(
        self, ended: EndedBatch, database: _Database, attributes: dict[str, Any], name: str
    ) -> None:
        batch, trace = ended.batch, self._trace
        if batch.operations > 1:
            attributes["db.operation.batch.size"] = batch.operations
        attributes["batchkeeper.lane"] = batch.lane
        attributes["batchkeeper.cause"] = batch.cause
        attributes["batchkeeper.bytes"] = batch.bytes
        if failures := sum(ended.errors.values()):
            attributes["batchkeeper.failures"] = failures
        begun = int(batch.sent_at * 1e9)
        span = self._tracer.start_span(
            name,
            kind=trace.SpanKind.CLIENT if database.remote else trace.SpanKind.INTERNAL,
            attributes=attributes,
            start_time=begun,
        )
        if "error.type" in attributes:
            span.set_status(trace.StatusCode.ERROR)
        span.end(begun + int(ended.seconds * 1e9))


def _operation(batch: Batch) -> str:
    """Return the name of a batch by the conventions."""
    kinds = list(batch.kinds)
    if len(kinds) > 1:
        return "BATCH"
    return kinds[0] if batch.operations == 1 else f"BATCH {kinds[0]}"


def _error(ended: EndedBatch) -> str | None:
    """Return the type of the error of a batch that has failed, or ``None``."""
    real = {name: count for name, count in ended.errors.items() if name not in CONFLICTS}
    if not real or sum(real.values()) < ended.batch.operations:
        return None
    return next(iter(real)) if len(real) == 1 else "_OTHER"


def _database(store: str) -> _Database:
    url, kind = parse_url(store), store_kind(store)
    attributes: dict[str, str | int] = {"db.system.name": kind.scheme}
    remote = not kind.in_process and not kind.local_directory
    if not remote:
        return _Database(attributes, "", remote)
    target = ",".join(url.hosts)
    attributes["server.address"] = target
    if len(url.hosts) == 1:
        host, colon, port = target.rpartition(":")
        if colon and port.isdigit():
            attributes["server.address"] = host.strip("[]")
            attributes["server.port"] = int(port)
    if namespace := url.path.strip("/"):
        target = attributes["db.namespace"] = f"/{namespace}"
    return _Database(attributes, target, remote)
