"""The driver of a build by Spark is lost in the middle. Its executors end, the next attempt writes the same files as a
local build, and a sweep of its namespace removes the remains."""

from __future__ import annotations

from typing import Any, Final

import pytest
from e2e.support import helm, spark, store
from e2e.support.figures import record
from e2e.support.kubectl import find, kubectl, until
from e2e.support.scenario import LDS, Scenario

pytestmark = pytest.mark.side_by_side

BUILDER: Final = "app.kubernetes.io/component=builder"
SPEC: Final[dict[str, Any]] = {
    "shards": 4,
    "router": {"replicas": 1, "drainSeconds": 0},
    "rollout": {"drainSeconds": 0},
}
SLOW: Final = {
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.kubernetes.executor.limit.cores": "500m",
    "spark.python.worker.reuse": "false",
}
"""Settings of Spark that slow the writing of shards down to seconds."""


def test_the_next_attempt_builds_after_a_driver_is_lost(scenario: Scenario) -> None:
    spark.load_image()
    keys = scenario.source("records", version="v1", records=3000)
    scenario.apply(scenario.dataset("records", "records", **SPEC))
    scenario.wait_settled("records", generation="g1")
    expected = store.checksums(f"local-{scenario.namespace}", f"{_folder(scenario)}/g1")
    scenario.delete(LDS, "records")

    scenario.apply(*spark.rights(scenario.namespace))
    scenario.apply(scenario.dataset("records", "records", build=spark.build(conf=SLOW), **SPEC))
    driver = until(lambda: _find_writing_driver(scenario), seconds=300, what="a driver that has read the source")
    assert _executors(scenario, driver), "or nothing below means anything"
    kubectl("delete", "pod", driver["name"], "--namespace", scenario.namespace, "--grace-period=0", "--force")
    scenario.wait_condition("records", "Degraded", "True")
    until(lambda: not _executors(scenario, driver), seconds=120, what="the end of the lost driver's executors")

    scenario.wait_settled("records", generation="g2")
    scenario.check_version("records", keys, "v1")
    folder = _folder(scenario)
    assert store.checksums(f"spark-{scenario.namespace}", f"{folder}/g2") == expected
    record("spark-driver", "objects of a lost driver until the sweep", len(_list(scenario, "before", f"{folder}/g1/")))
    store.sweep(f"sweep-{scenario.namespace}", grace="0s", only_namespace=scenario.namespace)
    left = _list(scenario, "after", f"{folder}/g")
    assert len(left) == 1 + SPEC["shards"], left
    assert all(path.startswith(f"{folder}/g2/") for path in left), left
    until(lambda: not spark.executors(scenario.namespace), seconds=60, what="no executor left")


def _find_writing_driver(scenario: Scenario) -> Any:
    """Return the metadata of the driver's pod once it has read the source and begins to write."""
    for pod in find("pods", scenario.namespace, BUILDER):
        if pod["status"]["phase"] == "Running":
            log = kubectl("logs", pod["metadata"]["name"], "--namespace", scenario.namespace)
            return pod["metadata"] if "read, done" in log else None
    return None


def _executors(scenario: Scenario, driver: Any) -> list[str]:
    """Return the names of the executors of ``driver``."""
    pods = [pod["metadata"] for pod in spark.executors(scenario.namespace)]
    return [pod["name"] for pod in pods if pod["ownerReferences"][0]["uid"] == driver["uid"]]


def _folder(scenario: Scenario) -> str:
    """Return the dataset's folder in the store."""
    uid = scenario.resource("records")["metadata"]["uid"]
    return f"{helm.cluster_id()}/{scenario.namespace}/records-{uid[:8]}"


def _list(scenario: Scenario, name: str, prefix: str) -> list[str]:
    return [path for path in store.paths(f"{name}-{scenario.namespace}") if path.startswith(prefix)]
