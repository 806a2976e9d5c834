"""Routers are scaled by their use of cpu when the dataset asks for it, and by the dataset when it does not."""

from __future__ import annotations

import pytest
from e2e.support.kubectl import Manifest, find, get, kubectl, until
from e2e.support.story import Story

pytestmark = pytest.mark.side_by_side

ROUTERS = "lookupdb.dev/dataset=records,app.kubernetes.io/component=router"
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}


def test_an_autoscaler_comes_and_goes_with_the_spec(story: Story) -> None:
    keys = story.source("records", version="v1", records=300)
    scaled = {"minReplicas": 2, "maxReplicas": 3, "targetCPUUtilizationPercentage": 60}
    story.apply(story.dataset("records", "records", router={"autoscaling": scaled, "drainSeconds": 0}))
    story.wait_settled("records")
    spec = get("horizontalpodautoscaler", "records-router", story.namespace)["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 3)
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "records-router"}
    assert spec["metrics"] == [CPU]
    until(lambda: _routers(story) == 2, seconds=120, what="the autoscaler's least, two routers")

    story.change("records", router={"autoscaling": None, "replicas": 1})
    until(lambda: not find("horizontalpodautoscalers", story.namespace), seconds=60, what="no autoscaler")
    until(lambda: _routers(story) == 1, seconds=120, what="the spec's one router")
    story.wait_settled("records")
    story.check_version("records", keys, "v1")


def test_routers_do_not_fall_to_one_when_an_autoscaler_takes_them_over(story: Story) -> None:
    keys = story.source("records", version="v1", records=300)
    story.apply(story.dataset("records", "records", router={"replicas": 3, "drainSeconds": 0}))
    story.wait_settled("records")
    before = {pod["metadata"]["uid"] for pod in find("pods", story.namespace, ROUTERS)}
    assert len(before) == 3
    story.change("records", router={"replicas": None, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}})
    until(lambda: find("horizontalpodautoscalers", story.namespace), seconds=60, what="an autoscaler")
    story.wait_settled("records")
    assert get("deployment", "records-router", story.namespace)["spec"]["replicas"] == 3
    assert before <= {pod["metadata"]["uid"] for pod in find("pods", story.namespace, ROUTERS)}
    story.check_version("records", keys, "v1")

    kubectl("scale", "deployment", "records-router", "--namespace", story.namespace, "--replicas=0")
    until(lambda: _routers(story) >= 2, seconds=120, what="routers that somebody scaled to none")


def _routers(story: Story) -> int:
    deployment: Manifest = get("deployment", "records-router", story.namespace)
    return int(deployment["status"].get("readyReplicas", 0))
