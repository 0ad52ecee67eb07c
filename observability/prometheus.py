"""A collector for ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..batching import Histogram
from .extras import import_of_extra
from .measures import MEASURES, Measure, Value
from .observed import AnyStore, Observed

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["PrometheusCollector"]


class PrometheusCollector:
    """Exports the metrics of stores to Prometheus, under the names of ``MEASURES``.

    Register it once with a registry of ``prometheus_client``, and add each store::

        collector = PrometheusCollector(store)
        prometheus_client.REGISTRY.register(collector)
        collector.add(other, name="ledgers")

    Each sample has the label ``store``. A store that is closed leaves the collector. Each
    collection takes one snapshot of each store, on the thread that collects.

    Args:
        store: the first store, if there is one already.
        name: its name, for the label; by default, its URL without options.

    Raises:
        UnsupportedError: ``prometheus_client`` cannot be imported. The message names the extra.
        InvalidSettingError: ``store`` is no store.
        StoreClosedError: the store is closed.
    """

    def __init__(self, store: AnyStore | None = None, *, name: str | None = None) -> None:
        self._core = import_of_extra("prometheus_client.core", "prometheus")
        self._observed = Observed()
        if store is not None:
            self.add(store, name=name)

    def add(self, store: AnyStore, *, name: str | None = None) -> None:
        """Export a store until it is closed.

        Raises:
            InvalidSettingError: it is not a store, or another store here has the name.
            StoreClosedError: the store is closed.
        """
        self._observed.add(store, name)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all stores. ``prometheus_client`` calls it."""
        snapshots = self._observed.snapshots()
        for measure in MEASURES:
            family = self._family(measure)
            for name, _, snapshot in snapshots:
                for labels, value in measure.read(snapshot):
                    _add(family, (name, *labels), value)
            yield family

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples, so that a registry finds names that collide."""
        return map(self._family, MEASURES)

    def _family(self, measure: Measure) -> Metric:
        families = {
            "counter": self._core.CounterMetricFamily,
            "gauge": self._core.GaugeMetricFamily,
            "histogram": self._core.HistogramMetricFamily,
        }
        name = f"batchkeeper_{measure.name}"
        made: Metric = families[measure.kind](
            name, measure.about, labels=("store", *measure.labels)
        )
        return made


def _add(family: Any, labels: Sequence[str], value: Value) -> None:
    if not isinstance(value, Histogram):
        family.add_metric(labels, value)
        return
    bounds = [*map(str, value.bounds), "+Inf"]
    buckets = [*zip(bounds, accumulate(value.counts), strict=True)]
    family.add_metric(labels, buckets, value.sum)
