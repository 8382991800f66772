"""The product's state for Prometheus: gauges read from the database at each scrape, counters from every process.

With PROMETHEUS_MULTIPROC_DIR set, the counters of all processes that share the folder are summed.
"""

import os
from collections.abc import Iterable

from django.utils import timezone
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from apps.console import selectors
from apps.principals.tenancy import acting_as_system


class _State(Collector):
    """Gauges over all tenants; no label names one."""

    def collect(self) -> Iterable[Metric]:
        with acting_as_system("metrics"):
            gauges = selectors.gauges(now=timezone.now())
        families: dict[str, GaugeMetricFamily] = {}
        for gauge in gauges:
            new = GaugeMetricFamily(gauge.name, gauge.says, labels=list(gauge.labels))
            families.setdefault(gauge.name, new).add_metric(list(gauge.labels.values()), gauge.value)
        return families.values()


def exposition() -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library leaves it so
        counters = b""
    else:
        counters = generate_latest(REGISTRY)
    registry.register(_State())
    return counters + generate_latest(registry)
