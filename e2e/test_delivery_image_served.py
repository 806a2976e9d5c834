"""A cluster with image volumes serves shards from images, through a rebuild and a rollback under load.

It needs a repository that pods can push to and nodes can pull from without credentials:
E2E_REPOSITORY=registry.example:5000/lookups. E2E_REPOSITORY_CA is a file (PEM) with the registry's authority if pods do
not know it. Pushed images are not removed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from e2e.support.kubectl import Manifest, find, until
from e2e.support.pods import config_map
from e2e.support.scenario import BRISK, PATIENT, Scenario

pytestmark = pytest.mark.side_by_side

REPOSITORY: Final = os.environ.get("E2E_REPOSITORY", "")
AUTHORITY: Final = os.environ.get("E2E_REPOSITORY_CA", "")
AUTHORITY_NAME: Final = "registry-authority"
SHARDS: Final = 2


@pytest.mark.skipif(not REPOSITORY, reason="E2E_REPOSITORY names no repository to push to and to pull from")
def test_servers_mount_images_and_neither_a_rebuild_nor_a_rollback_fails(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=300)
    serving = {"delivery": {"type": "Image", "image": image(scenario)}}
    spec: dict[str, Any] = {"shards": SHARDS, "rollout": BRISK, "router": PATIENT, "serving": serving}
    scenario.apply(scenario.dataset("records", "records", **spec))
    if (
        until(lambda: has_servers(scenario) or why_degraded(scenario), seconds=300, what="servers")
        == "ImageVolumesMissing"
    ):
        pytest.skip("this cluster has no image volumes")
    first = scenario.wait_settled("records", generation="g1")["rollouts"][0]["rollout"]
    scenario.check_version("records", keys, "v1")
    assert pushed_images(scenario, first) == SHARDS
    for pod in shard_pods(scenario):
        check_mount(pod)

    with scenario.gentle_load("records", keys) as load:
        scenario.source("records", version="v2", records=300)
        scenario.refresh("records")
        scenario.wait_settled("records", generation="g2")
        scenario.change("records", generation="g1")
        back = scenario.wait_settled("records", generation="g1")["rollouts"][0]["rollout"]
        load.wait_answers(load.report().answers + 100, seconds=120)
        report = load.stop()
    report.check(rollbacks=1, g1="v1", g2="v2")
    assert back != first
    assert pushed_images(scenario, back) == 0, "the registry has them"

    scenario.change("records", serving={"delivery": {"type": "Fetch", "image": None}})
    scenario.wait_settled("records", generation="g1")
    scenario.check_version("records", keys, "v1")
    assert all(pod["spec"]["initContainers"] for pod in shard_pods(scenario))


def image(scenario: Scenario) -> Manifest:
    """Return ``spec.serving.delivery.image``, and create what it names."""
    if not AUTHORITY:
        return {"repository": REPOSITORY}
    scenario.apply(config_map(AUTHORITY_NAME, {"ca.crt": Path(AUTHORITY).read_text()}))
    return {"repository": REPOSITORY, "registryCA": {"configMapName": AUTHORITY_NAME}}


def has_servers(scenario: Scenario) -> str:
    """Return ``servers`` once there are any."""
    return "servers" if find("statefulsets", scenario.namespace, "lookupdb.dev/dataset=records") else ""


def why_degraded(scenario: Scenario) -> str:
    """Return the reason why there may never be any."""
    conditions = scenario.status("records").get("conditions", [])
    degraded = (one["reason"] for one in conditions if one["type"] == "Degraded" and one["status"] == "True")
    return next((reason for reason in degraded if reason == "ImageVolumesMissing"), "")


def pushed_images(scenario: Scenario, rollout: str) -> int:
    """Count the images that the push of ``rollout`` sent because the registry lacked them."""
    selector = f"app.kubernetes.io/component=pusher,lookupdb.dev/rollout={rollout}"
    ended = [
        status["state"]["terminated"]
        for pod in find("pods", scenario.namespace, selector)
        for status in pod["status"]["containerStatuses"]
    ]
    assert [end["exitCode"] for end in ended] == [0], ended
    pushed: int = json.loads(ended[0]["message"])["pushed"]
    return pushed


def shard_pods(scenario: Scenario) -> list[Manifest]:
    """Return the shard pods of the one rollout; pods that are being deleted do not count."""
    found = find("pods", scenario.namespace, "lookupdb.dev/dataset=records,app.kubernetes.io/component=shard")
    pods = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    assert len(pods) == SHARDS
    return pods


def check_mount(pod: Manifest) -> None:
    """Assert that ``pod`` has its shard from an image of the repository, and nothing from the store."""
    assert not pod["spec"].get("initContainers"), "nothing is fetched"
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert set(volumes) == {"data", "tmp"}
    tag = f"-g1-shard-{pod['metadata']['labels']['lookupdb.dev/shard']:0>5}"
    assert volumes["data"]["image"]["reference"].startswith(f"{REPOSITORY}:records-")
    assert volumes["data"]["image"]["reference"].endswith(tag)
