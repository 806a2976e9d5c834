"""What a deleted dataset leaves in the store is swept; what living ones need stays."""

from __future__ import annotations

import json
from typing import Final

from e2e.support import release, store
from e2e.support.kubectl import get, until
from e2e.support.story import LDS, Story

SPEC: Final = {"router": {"replicas": 1, "drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


def test_a_deleted_dataset_leaves_the_store_and_a_living_one_stays(story: Story) -> None:
    keys = story.source("records", version="v1", records=300)
    story.apply(*(story.dataset(name, "records", **SPEC) for name in ("living", "dead")))
    for name in ("living", "dead"):
        story.wait_settled(name)
    folders = {name: _folder(story, name) for name in ("living", "dead")}
    assert set(folders.values()) <= _folders(story), "both are in the store"

    story.delete(LDS, "dead")
    until(lambda: folders["dead"] not in _living_folders(), seconds=60, what="the list of the living without the dead")
    store.sweep(f"mark-{story.namespace}", grace="24h")
    assert set(folders.values()) <= _folders(story), "a dataset that has just died may come back"
    store.sweep(f"sweep-{story.namespace}", grace="0s")
    assert _folders(story) == {folders["living"]}

    pod = f"living-{story.wait_settled('living')['rollouts'][0]['rollout']}-s0-0"
    story.delete("pod", pod)
    story.wait_settled("living")
    story.check_version("living", keys, "v1")


def _folder(story: Story, dataset: str) -> str:
    return f"{dataset}-{story.resource(dataset)['metadata']['uid'][:8]}"


def _folders(story: Story) -> set[str]:
    """Folders of the story's datasets of which the store holds something."""
    paths = (path.split("/") for path in store.paths(f"list-{story.namespace}"))
    return {path[2] for path in paths if path[1] == story.namespace}


def _living_folders() -> set[str]:
    """Folders of the living datasets of all namespaces."""
    config_map = get("configmap", store.live_datasets_config_map(), release.NAMESPACE)
    listed = json.loads(config_map["data"]["living.json"])["datasets"]
    return {f"{dataset['name']}-{dataset['uid'][:8]}" for dataset in listed}
