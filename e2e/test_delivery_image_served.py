"""A cluster that has image volumes serves shards from images: those of a rebuild and of a rollback too, under load.

It needs a repository to which pods may push and from which nodes may pull, both without credentials:
E2E_REPOSITORY=registry.example:5000/lookups, and E2E_REPOSITORY_CA, a file with the registry's authority (PEM), if pods
do not know it. What is pushed stays there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from e2e.support.kubectl import Manifest, find, until
from e2e.support.pods import config_map
from e2e.support.story import BRISK, PATIENT, Story

pytestmark = pytest.mark.side_by_side

REPOSITORY: Final = os.environ.get("E2E_REPOSITORY", "")
AUTHORITY: Final = os.environ.get("E2E_REPOSITORY_CA", "")
AUTHORITY_NAME: Final = "registry-authority"
SHARDS: Final = 2


@pytest.mark.skipif(not REPOSITORY, reason="E2E_REPOSITORY names no repository to push to and to pull from")
def test_servers_mount_images_and_neither_a_rebuild_nor_a_rollback_fails(story: Story) -> None:
    keys = story.source("records", version="v1", records=300)
    serving = {"delivery": {"type": "Image", "image": image(story)}}
    spec: dict[str, Any] = {"shards": SHARDS, "rollout": BRISK, "router": PATIENT, "serving": serving}
    story.apply(story.dataset("records", "records", **spec))
    if until(lambda: has_servers(story) or why_degraded(story), seconds=300, what="servers") == "ImageVolumesMissing":
        pytest.skip("this cluster has no image volumes")
    first = story.wait_settled("records", generation="g1")["rollouts"][0]["rollout"]
    story.check_version("records", keys, "v1")
    assert pushed_images(story, first) == SHARDS
    for pod in shard_pods(story):
        check_mount(pod)

    with story.gentle_load("records", keys) as load:
        story.source("records", version="v2", records=300)
        story.refresh("records")
        story.wait_settled("records", generation="g2")
        story.change("records", generation="g1")
        back = story.wait_settled("records", generation="g1")["rollouts"][0]["rollout"]
        load.wait_answers(load.report().answers + 100, seconds=120)
        report = load.stop()
    report.check(rollbacks=1, g1="v1", g2="v2")
    assert back != first
    assert pushed_images(story, back) == 0, "the registry has them"

    story.change("records", serving={"delivery": {"type": "Fetch", "image": None}})
    story.wait_settled("records", generation="g1")
    story.check_version("records", keys, "v1")
    assert all(pod["spec"]["initContainers"] for pod in shard_pods(story))


def image(story: Story) -> Manifest:
    """The images of ``spec.serving.delivery``, after what they need was made."""
    if not AUTHORITY:
        return {"repository": REPOSITORY}
    story.apply(config_map(AUTHORITY_NAME, {"ca.crt": Path(AUTHORITY).read_text()}))
    return {"repository": REPOSITORY, "registryCA": {"configMapName": AUTHORITY_NAME}}


def has_servers(story: Story) -> str:
    """``servers`` once there are any."""
    return "servers" if find("statefulsets", story.namespace, "lookupdb.dev/dataset=records") else ""


def why_degraded(story: Story) -> str:
    """Why there may never be any."""
    conditions = story.status("records").get("conditions", [])
    degraded = (one["reason"] for one in conditions if one["type"] == "Degraded" and one["status"] == "True")
    return next((reason for reason in degraded if reason == "ImageVolumesMissing"), "")


def pushed_images(story: Story, rollout: str) -> int:
    """How many images the push of ``rollout`` has sent that the registry did not have."""
    selector = f"app.kubernetes.io/component=pusher,lookupdb.dev/rollout={rollout}"
    ended = [
        status["state"]["terminated"]
        for pod in find("pods", story.namespace, selector)
        for status in pod["status"]["containerStatuses"]
    ]
    assert [end["exitCode"] for end in ended] == [0], ended
    pushed: int = json.loads(ended[0]["message"])["pushed"]
    return pushed


def shard_pods(story: Story) -> list[Manifest]:
    """Those of the one rollout that is left; what is being deleted does not count."""
    found = find("pods", story.namespace, "lookupdb.dev/dataset=records,app.kubernetes.io/component=shard")
    pods = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    assert len(pods) == SHARDS
    return pods


def check_mount(pod: Manifest) -> None:
    """Assert that ``pod`` has its shard from an image of the repository, and nothing of the store's."""
    assert not pod["spec"].get("initContainers"), "nothing is fetched"
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert set(volumes) == {"data", "tmp"}
    tag = f"-g1-shard-{pod['metadata']['labels']['lookupdb.dev/shard']:0>5}"
    assert volumes["data"]["image"]["reference"].startswith(f"{REPOSITORY}:records-")
    assert volumes["data"]["image"]["reference"].endswith(tag)
