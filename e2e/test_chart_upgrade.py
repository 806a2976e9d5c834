"""The chart is upgraded under load, with a value that changes the operator, the store and every pod of every dataset:
datasets are rolled out again, the store keeps its credentials and its data, and no answer is lost."""

from __future__ import annotations

from typing import Any

from e2e.support import helm, release, store
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, until
from e2e.support.story import BRISK, PATIENT, Story

LABEL = "example.com/upgraded"


def test_an_upgrade_of_the_chart_loses_nothing(story: Story) -> None:
    keys = story.source("records", version="same", records=2000)
    story.apply(story.dataset("records", "records", shards=2, rollout=BRISK, router=PATIENT))
    story.wait_settled("records")
    installed, credentials = helm.values(), store.secret()["data"]
    operator, keeper = release.operator_pod(), store.pod()

    with story.load("records", keys, per_second=500) as load:
        try:
            helm.upgrade(_with_label(installed))
            assert release.operator_pod()["metadata"]["uid"] != operator["metadata"]["uid"]
            assert store.pod()["metadata"]["uid"] != keeper["metadata"]["uid"]
            status = _wait_labelled(story, "yes")
            assert status["generation"] == "g1", "nothing is built anew"
            assert store.secret()["data"] == credentials
        finally:
            helm.upgrade(installed)
        _wait_labelled(story, None)
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


def _wait_labelled(story: Story, value: str | None) -> Manifest:
    """Wait until all pods of the dataset carry the label, or none does, and nothing is left to do; its status."""

    def look() -> Manifest | None:
        status = story.wait_settled("records", seconds=0)
        pods = find("pods", story.namespace, "app.kubernetes.io/component in (shard, router)")
        labels = {pod["metadata"]["name"]: pod["metadata"]["labels"].get(LABEL) for pod in pods}
        assert set(labels.values()) == {value}, labels
        return status

    return until(look, seconds=240, what=f"every pod of the dataset with {LABEL}={value}")
