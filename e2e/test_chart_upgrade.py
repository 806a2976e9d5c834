"""A chart upgrade under load loses no answer.

The changed value restarts the operator, the store and every pod of every dataset. The store keeps its credentials and
data.
"""

from __future__ import annotations

from typing import Any

from e2e.support import helm, release, store
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, until
from e2e.support.scenario import BRISK, PATIENT, Scenario

LABEL = "example.com/upgraded"


def test_an_upgrade_of_the_chart_loses_nothing(scenario: Scenario) -> None:
    keys = scenario.source("records", version="same", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=2, rollout=BRISK, router=PATIENT))
    scenario.wait_settled("records")
    installed, credentials = helm.values(), store.secret()["data"]
    operator, keeper = release.operator_pod(), store.pod()

    with scenario.load("records", keys, per_second=500) as load:
        try:
            helm.upgrade(_with_label(installed))
            assert release.operator_pod()["metadata"]["uid"] != operator["metadata"]["uid"]
            assert store.pod()["metadata"]["uid"] != keeper["metadata"]["uid"]
            status = _wait_labelled(scenario, "yes")
            assert status["generation"] == "g1", "nothing is built again"
            assert store.secret()["data"] == credentials
        finally:
            helm.upgrade(installed)
        _wait_labelled(scenario, None)
        report = load.stop()

    record("chart-upgrade", "answers", report.answers)
    record("chart-upgrade", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    report.check(g1="same")
    assert store.secret()["data"] == credentials


def _with_label(installed: dict[str, Any]) -> dict[str, Any]:
    changed = installed | {"datasetPodLabels": {LABEL: "yes"}}
    changed["operator"] = installed.get("operator", {}) | {"podLabels": {LABEL: "yes"}}
    kept = installed.get("store", {})
    embedded = kept.get("embedded", {}) | {"podLabels": {LABEL: "yes"}}
    return changed | {"store": kept | {"embedded": embedded}}


def _wait_labelled(scenario: Scenario, value: str | None) -> Manifest:
    """Wait until the dataset has settled and all its pods carry the label, or none does. Return its status."""

    def look() -> Manifest | None:
        status = scenario.wait_settled("records", seconds=0)
        pods = find("pods", scenario.namespace, "app.kubernetes.io/component in (shard, router)")
        labels = {pod["metadata"]["name"]: pod["metadata"]["labels"].get(LABEL) for pod in pods}
        assert set(labels.values()) == {value}, labels
        return status

    return until(look, seconds=240, what=f"every pod of the dataset with {LABEL}={value}")
