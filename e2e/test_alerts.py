"""Faults are injected, and a real Prometheus sees the chart's alerts fire and clear. Its time runs 30 times as fast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from e2e.support import release
from e2e.support.figures import record
from e2e.support.kubectl import find, kubectl
from e2e.support.prometheus import EVERY, Labels, Prometheus
from e2e.support.scenario import BRISK, Scenario

ROUTER: Final = {"replicas": 1, "drainSeconds": 0, "deadlineMilliseconds": 3000}


def test_alerts_fire_for_faults_and_clear_after_them(scenario: Scenario, prometheus: Prometheus) -> None:
    keys = scenario.source("source", version="v1", records=300)
    late = scenario.dataset("late", "source", rollout=BRISK, router=ROUTER)
    late["spec"]["source"]["url"] = "volume://absent.csv"
    records = scenario.dataset("records", "source", shards=2, rollout=BRISK, router=ROUTER)
    scenario.apply(late, records)
    scenario.wait_settled("records")
    failing = {"namespace": scenario.namespace, "dataset": "late"}
    _measure(prometheus, "LookupdbBuildsFailing", failing)
    scenario.change("late", source={"url": "volume://records.csv"})
    prometheus.wait_cleared("LookupdbBuildsFailing", failing)

    burning = {"namespace": scenario.namespace, "dataset": "records", "severity": "critical"}
    with scenario.load("records", keys, singles=4, batches=0, per_second=40) as load:
        assert not prometheus.firing("LookupdbErrorBudgetBurn", burning)
        with _without_operator(), _without_a_shard(scenario), release.stopped_gateway():
            _measure(prometheus, "LookupdbErrorBudgetBurn", burning)
            _measure(prometheus, "LookupdbOperatorGone")
            _measure(prometheus, "LookupdbGatewayGone")
        prometheus.wait_cleared("LookupdbGatewayGone")
        prometheus.wait_cleared("LookupdbOperatorGone")
        prometheus.wait_cleared("LookupdbErrorBudgetBurn", burning)
        report = load.stop()
    assert report.failed, "a lost shard fails lookups"
    scenario.wait_settled("records")
    scenario.wait_settled("late")


def _measure(prometheus: Prometheus, alert: str, labels: Labels = EVERY) -> None:
    record("alerts", f"{alert} fires after a wait of", prometheus.wait_firing(alert, labels), "s")


@contextmanager
def _without_operator() -> Iterator[None]:
    try:
        release.scale_operator(0)
        yield
    finally:
        release.scale_operator(1)


@contextmanager
def _without_a_shard(scenario: Scenario) -> Iterator[None]:
    """Stop the servers of a shard while the block runs. No operator may run, which would start them again."""
    sets = find("statefulsets", scenario.namespace, "lookupdb.dev/dataset=records")
    name = sets[0]["metadata"]["name"]
    scale = ("scale", "statefulset", name, "--namespace", scenario.namespace)
    kubectl(*scale, "--replicas=0")
    try:
        yield
    finally:
        kubectl(*scale, "--replicas=1")
