"""What OpenTelemetry's own SDK has received from stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import batchkeeper as bk
from batchkeeper.batching import EndedBatch
from batchkeeper.observability import MEASURES, OpenTelemetryHooks, OpenTelemetryMetrics


class Telemetry:
    """Providers that keep everything."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def hooks(self, **options: Any) -> OpenTelemetryHooks:
        return OpenTelemetryHooks(
            tracer_provider=self.tracers, meter_provider=self.meters, **options
        )

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._spans.get_finished_spans()

    def points(self) -> Mapping[str, list[Any]]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry() -> Telemetry:
    """Providers of this test."""
    return Telemetry()


def ended(store: str, kinds: Mapping[str, int], **errors: int) -> EndedBatch:
    """Return a batch that took a quarter of a second."""
    batch = bk.Batch(store, 1, "writes", "ops", sum(kinds.values()), kinds, 100, 1_000_000.5)
    return EndedBatch(batch, 0.25, errors)


def test_each_measure_is_an_instrument_with_the_value_of_the_metrics(
    store: bk.MetadataStore, telemetry: Telemetry
) -> None:
    """Counters and gauges have the numbers of a snapshot; histograms have their count and sum."""
    exporter = OpenTelemetryMetrics(store, name="mine", meter_provider=telemetry.meters)
    points = telemetry.points()
    for measure in MEASURES:
        made = f"batchkeeper.{measure.name}"
        names = [f"{made}.count", f"{made}.sum"] if measure.kind == "histogram" else [made]
        for name in names:
            assert {point.attributes["batchkeeper.store"] for point in points[name]} == {"mine"}
    values = {
        point.attributes["batchkeeper.kind"]: point.value
        for point in points["batchkeeper.operations"]
    }
    assert values["put"] == 21
    (conflicts,) = points["batchkeeper.conflicts"]
    assert conflicts.value == 2
    errors = {point.attributes["error.type"] for point in points["batchkeeper.errors"]}
    assert errors == {"BadVersionError", "NotFoundError"}
    metrics = store.metrics()
    sums = {
        point.attributes["batchkeeper.lane"]: point.value
        for point in points["batchkeeper.batch_operations.sum"]
    }
    assert sums == {"reads": metrics.reads.operations, "writes": metrics.writes.operations} | {
        "singles": metrics.singles.operations
    }
    store.close()
    del exporter
    assert "batchkeeper.operations" not in telemetry.points()


def test_a_batch_is_a_span_by_the_conventions_for_databases(telemetry: Telemetry) -> None:
    """A batch in memory is an internal span; its times and numbers are those of the batch."""
    with bk.open_store("memory://spans", hooks=telemetry.hooks()) as store:
        store.put("/a", b"").result()
        store.apply([bk.Put(f"/{n}", b"") for n in range(10)])
        store.flush()
        assert store.put("/a", b"", 7).exception() is not None
    first, *_ = spans = telemetry.spans()
    assert (first.name, first.kind) == ("put", SpanKind.INTERNAL)
    assert dict(first.attributes or {}) == {
        "db.system.name": "memory",
        "db.operation.name": "put",
        "batchkeeper.lane": "writes",
        "batchkeeper.cause": "idle",
        "batchkeeper.bytes": 2,
    }
    sizes = [(span.name, (span.attributes or {}).get("db.operation.batch.size")) for span in spans]
    assert sum(int(str(size or 1)) for _, size in sizes) == 12
    assert all((name == "put") == (size is None) for name, size in sizes)
    # A conflict is an answer, and no error of the store.
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}
    assert spans[-1].attributes is not None
    assert spans[-1].attributes["batchkeeper.failures"] == 1
    assert "error.type" not in spans[-1].attributes
    assert all(span.parent is None for span in spans)


@pytest.mark.parametrize(
    ("store", "name", "attributes"),
    [
        (
            "etcd://db.example:2379/app",
            "BATCH put /app",
            {"db.system.name": "etcd", "server.address": "db.example", "server.port": 2379}
            | {"db.namespace": "/app"},
        ),
        (
            "zk://a:2181,b:2182",
            "BATCH put a:2181,b:2182",
            {"db.system.name": "zookeeper", "server.address": "a:2181,b:2182"},
        ),
        (
            "etcd://[::1]:2379",
            "BATCH put [::1]:2379",
            {"db.system.name": "etcd", "server.address": "::1", "server.port": 2379},
        ),
    ],
)
def test_the_span_of_a_server_names_it(
    store: str, name: str, attributes: dict[str, Any], telemetry: Telemetry
) -> None:
    """The address, the port and the prefix are those of the URL; the kind of the span is client."""
    telemetry.hooks().on_batch_ended(ended(store, {"put": 3}))
    (span,) = telemetry.spans()
    assert (span.name, span.kind) == (name, SpanKind.CLIENT)
    found = dict(span.attributes or {})
    assert {key: v for key, v in found.items() if not key.startswith("batchkeeper.")} == {
        **attributes,
        "db.operation.name": "BATCH put",
        "db.operation.batch.size": 3,
    }
    assert (span.start_time, span.end_time) == (1_000_000_500_000_000, 1_000_000_750_000_000)


@pytest.mark.parametrize(
    ("kinds", "errors", "error"),
    [
        ({"get": 2}, {"StoreUnavailableError": 2}, "StoreUnavailableError"),
        ({"get": 2}, {"StoreUnavailableError": 1, "OperationTimeoutError": 1}, "_OTHER"),
        ({"get": 2}, {"StoreUnavailableError": 1}, None),
        ({"put": 2}, {"StoreUnavailableError": 1, "BadVersionError": 1}, None),
        ({"put": 1}, {"BadVersionError": 1}, None),
    ],
)
def test_a_span_is_an_error_if_nothing_of_its_batch_was_answered(
    kinds: dict[str, int], errors: dict[str, int], error: str | None, telemetry: Telemetry
) -> None:
    """One type of error is named; several are `_OTHER`, as the conventions say."""
    telemetry.hooks().on_batch_ended(ended("etcd://h:1", kinds, **errors))
    (span,) = telemetry.spans()
    assert (span.attributes or {}).get("error.type") == error
    assert span.status.status_code == (StatusCode.ERROR if error else StatusCode.UNSET)


def test_durations_are_recorded_with_and_without_spans(telemetry: Telemetry) -> None:
    """The histogram has the convention's name, and the attributes of the operation."""
    telemetry.hooks(spans=False).on_batch_ended(ended("etcd://h:1", {"put": 1, "delete": 1}))
    telemetry.hooks(durations=False).on_batch_ended(ended("etcd://h:1", {"put": 1}))
    assert [span.name for span in telemetry.spans()] == ["put h:1"]
    (point,) = telemetry.points()["db.client.operation.duration"]
    assert (point.count, point.sum) == (1, 0.25)
    assert dict(point.attributes) == {
        "db.system.name": "etcd",
        "db.operation.name": "BATCH",
        "server.address": "h",
        "server.port": 1,
    }
