"""The collector for Prometheus, read back by Prometheus' own parser; and the dashboard."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard, RowPanel
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import batchkeeper as bk
from batchkeeper.observability import (
    MEASURES,
    OpenTelemetryHooks,
    OpenTelemetryMetrics,
    PrometheusCollector,
    grafana_dashboard,
)

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def exported(collector: PrometheusCollector) -> Samples:
    """Return the samples that a Prometheus would take in: by name and labels."""
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"batchkeeper_{name}", frozenset(labels.items())]


def test_each_measure_has_the_value_of_the_metrics(store: bk.MetadataStore) -> None:
    """Counters, gauges and histograms have the numbers of a snapshot, under the store's name."""
    metrics = store.metrics()
    samples = exported(PrometheusCollector(store, name="mine"))
    assert value(samples, "operations_total", store="mine", kind="put") == 21
    assert value(samples, "failures_total", store="mine", kind="delete") == 1
    assert value(samples, "errors_total", store="mine", error="BadVersionError") == 1
    assert value(samples, "conflicts_total", store="mine") == metrics.conflicts == 2
    assert value(samples, "watches", store="mine") == 1
    assert value(samples, "session_connected", store="mine") == 1
    assert value(samples, "watch_events_total", store="mine") == metrics.watch_events > 0
    for cause, count in metrics.writes.causes.items():
        assert value(samples, "batches_total", store="mine", lane="writes", cause=cause) == count
    times = metrics.writes.store_seconds
    assert value(samples, "store_seconds_count", store="mine", lane="writes") == times.count
    assert value(samples, "store_seconds_sum", store="mine", lane="writes") == times.sum
    below = sum(times.counts[:11])
    bound = str(times.bounds[10])
    assert value(samples, "store_seconds_bucket", store="mine", lane="writes", le=bound) == below
    assert {name for name, _ in samples} >= {
        f"batchkeeper_{measure.name}"
        + {"counter": "_total", "histogram": "_bucket"}.get(measure.kind, "")
        for measure in MEASURES
    }


def test_a_store_leaves_the_collector_when_it_is_closed(store: bk.MetadataStore) -> None:
    """Several stores share a collector, each under its own name, as long as they are open."""

    def stores() -> set[str]:
        return {dict(labels)["store"] for _, labels in exported(collector)}

    collector = PrometheusCollector(store, name="first")
    with bk.open_store("memory://second") as second:
        collector.add(second)
        with pytest.raises(bk.InvalidSettingError, match="first"):
            collector.add(second, name="first")
        assert stores() == {"first", "memory://second"}
    assert stores() == {"first"}
    with pytest.raises(bk.StoreClosedError):
        collector.add(second)
    assert stores() == {"first"}
    with pytest.raises(bk.InvalidSettingError, match="not an open store"):
        PrometheusCollector(bk)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [
        (PrometheusCollector, "prometheus_client.core", "prometheus"),
        (OpenTelemetryMetrics, "opentelemetry.metrics", "opentelemetry"),
        (OpenTelemetryHooks, "opentelemetry.trace", "opentelemetry"),
    ],
)
def test_an_exporter_without_its_extra_says_how_to_get_it(
    make: Callable[[], Any], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package can be imported without the extras; only what needs one asks for it."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(bk.UnsupportedError, match=re.escape(f"pip install 'batchkeeper[{extra}]'")):
        make()


# --- the dashboard


def test_the_dashboard_has_the_schema_of_grafana() -> None:
    """The types of its SDK read it, and write the same again: they know every field."""
    found = json.loads(grafana_dashboard())
    dashboard = Dashboard.from_json(found)
    assert json.loads(JSONEncoder().encode(dashboard)) == found
    assert dashboard.uid == "batchkeeper"
    panels = [panel for panel in dashboard.panels or [] if not isinstance(panel, RowPanel)]
    assert len(panels) > 10
    assert all(panel.title and panel.description and panel.targets for panel in panels)


def test_the_dashboard_asks_for_what_is_exported_and_for_all_of_it(
    store: bk.MetadataStore,
) -> None:
    """Each name, with each label, is one that the collector exports for a store that has worked."""
    labels: dict[str, set[str]] = {}
    for name, found in exported(PrometheusCollector(store)):
        labels.setdefault(name, set()).update(dict(found))
    dashboard = json.loads(grafana_dashboard())
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    for expression in expressions:
        names = re.findall(r"batchkeeper_\w+", expression)
        assert names
        for name in names:
            assert name in labels, expression
            for group in re.findall(r"by \((.*?)\)", expression):
                assert set(re.split(r",\s*", group)) <= labels[name], expression
            for used in re.findall(r"(\w+)=~?\"", expression):
                assert used in labels[name] | {"instance"}, expression
    asked = " ".join(expressions)
    assert [m.name for m in MEASURES if f"batchkeeper_{m.name}" not in asked] == []
