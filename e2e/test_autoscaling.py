"""Routers scale by CPU use if the dataset asks for it, and by `replicas` otherwise."""

from __future__ import annotations

import pytest
from e2e.support.kubectl import Manifest, find, get, kubectl, until
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

ROUTERS = "lookupdb.dev/dataset=records,app.kubernetes.io/component=router"
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}


def test_an_autoscaler_comes_and_goes_with_the_spec(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=300)
    scaled = {"minReplicas": 2, "maxReplicas": 3, "targetCPUUtilizationPercentage": 60}
    scenario.apply(scenario.dataset("records", "records", router={"autoscaling": scaled, "drainSeconds": 0}))
    scenario.wait_settled("records")
    spec = get("horizontalpodautoscaler", "records-router", scenario.namespace)["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 3)
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "records-router"}
    assert spec["metrics"] == [CPU]
    until(lambda: _routers(scenario) == 2, seconds=120, what="the autoscaler's least, two routers")

    scenario.change("records", router={"autoscaling": None, "replicas": 1})
    until(lambda: not find("horizontalpodautoscalers", scenario.namespace), seconds=60, what="no autoscaler")
    until(lambda: _routers(scenario) == 1, seconds=120, what="the spec's one router")
    scenario.wait_settled("records")
    scenario.check_version("records", keys, "v1")


def test_routers_do_not_fall_to_one_when_an_autoscaler_takes_them_over(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=300)
    scenario.apply(scenario.dataset("records", "records", router={"replicas": 3, "drainSeconds": 0}))
    scenario.wait_settled("records")
    before = {pod["metadata"]["uid"] for pod in find("pods", scenario.namespace, ROUTERS)}
    assert len(before) == 3
    scenario.change("records", router={"replicas": None, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}})
    until(lambda: find("horizontalpodautoscalers", scenario.namespace), seconds=60, what="an autoscaler")
    scenario.wait_settled("records")
    assert get("deployment", "records-router", scenario.namespace)["spec"]["replicas"] == 3
    assert before <= {pod["metadata"]["uid"] for pod in find("pods", scenario.namespace, ROUTERS)}
    scenario.check_version("records", keys, "v1")

    kubectl("scale", "deployment", "records-router", "--namespace", scenario.namespace, "--replicas=0")
    until(lambda: _routers(scenario) >= 2, seconds=120, what="routers that somebody scaled to none")


def _routers(scenario: Scenario) -> int:
    deployment: Manifest = get("deployment", "records-router", scenario.namespace)
    return int(deployment["status"].get("readyReplicas", 0))
