"""The product's state for Prometheus: gauges read from the database at each scrape, counters from every process.

With PROMETHEUS_MULTIPROC_DIR set, the counters of all processes that share the folder are summed.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from django.conf import settings
from django.utils import timezone
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from apps.console.selectors import GAUGES, gauges
from apps.principals.tenancy import acting_as_system


class _State(Collector):
    """Gauges over all tenants; no label names one."""

    def collect(self) -> Iterable[Metric]:
        families = {name: GaugeMetricFamily(name, says, labels=labels) for name, (says, labels) in GAUGES.items()}
        with acting_as_system("metrics"):
            for name, labels, value in gauges(now=timezone.now()):
                families[name].add_metric(labels, value)
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


PAGE: Final = Path(settings.BASE_DIR) / "docs" / "metrics.md"
_HEAD: Final = """# Metrics

`python -m docs.reference` writes this page from the code; do not edit it. [Monitor](monitor.md) says how to scrape
`/metrics`. A histogram has the series `_bucket`, `_sum` and `_count`.

| name | kind | labels | says |
|---|---|---|---|
"""


def counters() -> list[MetricWrapperBase]:
    """The counters and histograms of all apps, in the order of their names."""
    found = [one for one in REGISTRY._collector_to_names if isinstance(one, MetricWrapperBase)]  # noqa: SLF001  # they have no public name
    return sorted(found, key=lambda one: one._name)  # noqa: SLF001  # as above


def page() -> str:
    """docs/metrics.md as it should be."""
    rows = [
        (f"{one._name}_total" if one._type == "counter" else one._name, one._type, one._labelnames, one._documentation)  # noqa: SLF001  # as above
        for one in counters()
    ]
    rows += [(name, "gauge", labels, says) for name, (says, labels) in GAUGES.items()]
    return _HEAD + "".join(
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {says} |\n"
        for name, kind, labels, says in sorted(rows)
    )
