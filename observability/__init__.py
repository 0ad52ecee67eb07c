"""Shows what stores do while they run: to Prometheus, to OpenTelemetry, and over HTTP.

- ``measures``: what is exported of a store, under which names
- ``observed``: the stores of one exporter
- ``prometheus``: a collector for ``prometheus_client``
- ``opentelemetry``: metrics, spans of batches, and their durations
- ``server``: a small HTTP server, for Prometheus and for ``batchkeeper top``
- ``extras``: imports what an extra installs, or says how to install it

``grafana.json`` beside them is a dashboard for Grafana with the names of ``prometheus``.
"""

from importlib.resources import files

from .measures import MEASURES, Measure
from .opentelemetry import OpenTelemetryHooks, OpenTelemetryMetrics
from .prometheus import PrometheusCollector
from .server import MetricsServer, serve_metrics

__all__ = [
    "MEASURES",
    "Measure",
    "MetricsServer",
    "OpenTelemetryHooks",
    "OpenTelemetryMetrics",
    "PrometheusCollector",
    "grafana_dashboard",
    "serve_metrics",
]


def grafana_dashboard() -> str:
    """Return the dashboard for Grafana, as the JSON text that Grafana imports."""
    return files(__package__).joinpath("grafana.json").read_text("utf-8")
