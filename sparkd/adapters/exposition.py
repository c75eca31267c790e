# SPDX-License-Identifier: Apache-2.0
"""Metric families as the page that a scraper gets, written by prometheus_client.

Only its renderer is used. Its server listens on every address, answers on any path and has a
thread and no time-out per connection (measured): `metrics_server` is there instead.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sparkd.core.metrics import Family, Type

_MADE_BY = {
    Type.GAUGE: GaugeMetricFamily,
    Type.COUNTER: CounterMetricFamily,
    Type.INFO: InfoMetricFamily,
}


class Page(NamedTuple):
    """What is sent."""

    content_type: str
    body: bytes


def page(families: Iterable[Family], accept: str) -> Page:
    """The families in Prometheus' text format, or as OpenMetrics where `Accept:` asks for it."""
    registry = CollectorRegistry()
    registry.register(_Collector(families))
    encode, content_type = choose_encoder(accept)
    return Page(content_type, encode(registry))


class _Collector(Collector):
    """prometheus_client's view of families that were made already."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Each family."""
        return map(_metric, self._families)


def _metric(family: Family) -> Any:  # noqa: ANN401  (the library's families have no common type)
    # OpenMetrics has `_total` and `_info` on samples and not on the family: the library adds them.
    name = family.name.removesuffix("_info")
    metric: Any = _MADE_BY[family.type](name, family.help, labels=family.label_names)
    for sample in family.samples:
        labels = [_clean(value) for value in sample.labels]
        metric.add_metric(labels, {} if family.type is Type.INFO else sample.value)
    return metric


def _clean(label: str) -> str:
    """A file's name may hold bytes that are no UTF-8; the page must be all the same."""
    return label.encode("utf-8", "backslashreplace").decode()
