"""The text that /metrics answers is what Prometheus' own library writes, and what its parser reads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from lookupdb.process.admin import (
    MetricFamily,
    counter,
    gauge,
    histogram,
    info,
    labelled_counter,
    labelled_gauge,
    render_metrics,
)

HELP = 'Keys "looked up",\nwith a \\ in it.'
NAMES = {"file": 'shard-"1"\n\\.lmdb', "generation": "g1 – ü"}


def ours() -> Iterator[MetricFamily]:
    yield counter("keys", HELP, 12)
    yield gauge("share", "A share.", 0.25)
    yield labelled_counter("requests", "By status.", [({"status": "2xx"}, 3), ({"status": "5xx"}, 0)])
    yield labelled_gauge("private_bytes", "By process.", [])
    yield info("served", "What is served.", NAMES)
    yield histogram("seconds", "How long it took.", (0.001, 0.25, 1), [({}, (5, 0, 2, 1), 3.25)])


class Theirs(Collector):
    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("keys", HELP, value=12)
        yield GaugeMetricFamily("share", "A share.", value=0.25)
        requests = CounterMetricFamily("requests", "By status.", labels=["status"])
        requests.add_metric(["2xx"], 3)
        requests.add_metric(["5xx"], 0)
        yield requests
        yield GaugeMetricFamily("private_bytes", "By process.", labels=["process"])
        yield InfoMetricFamily("served", "What is served.", value=NAMES)
        buckets = [("0.001", 5), ("0.25", 5), ("1.0", 7), ("+Inf", 8)]
        yield HistogramMetricFamily("seconds", "How long it took.", buckets=buckets, sum_value=3.25)


def test_counters_gauges_histograms_and_labels_are_written_as_prometheus_own_library_does() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Theirs())
    assert render_metrics([ours]) == generate_latest(registry)


def test_the_families_of_all_collectors_are_written_in_their_order() -> None:
    text = render_metrics([ours, ours])
    assert text == 2 * render_metrics([ours])
    assert render_metrics([]) == b""


@pytest.mark.parametrize("value", [0, 7, 1 << 40, (1 << 64) - 1, 0.1, 1e300, -3, math.inf, -math.inf])
def test_a_value_is_read_as_it_was(value: float) -> None:
    text = render_metrics([lambda: [gauge("figure", "A figure.", value)]]).decode()
    (family,) = text_string_to_metric_families(text)
    assert [sample.value for sample in family.samples] == [float(value)]
