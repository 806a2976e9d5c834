"""The sweep removes a deleted dataset's data and keeps those of live datasets."""

from __future__ import annotations

import json
from typing import Final

from e2e.support import release, store
from e2e.support.kubectl import get, until
from e2e.support.scenario import LDS, Scenario

SPEC: Final = {"router": {"replicas": 1, "drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


def test_a_deleted_dataset_leaves_the_store_and_a_living_one_stays(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=300)
    scenario.apply(*(scenario.dataset(name, "records", **SPEC) for name in ("living", "dead")))
    for name in ("living", "dead"):
        scenario.wait_settled(name)
    folders = {name: _folder(scenario, name) for name in ("living", "dead")}
    assert set(folders.values()) <= _folders(scenario), "both are in the store"

    scenario.delete(LDS, "dead")
    until(lambda: folders["dead"] not in _living_folders(), seconds=60, what="the dead dataset off the list")
    store.sweep(f"mark-{scenario.namespace}", grace="24h")
    assert set(folders.values()) <= _folders(scenario), "a dataset that has just died may come back"
    store.sweep(f"sweep-{scenario.namespace}", grace="0s")
    assert _folders(scenario) == {folders["living"]}

    pod = f"living-{scenario.wait_settled('living')['rollouts'][0]['rollout']}-s0-0"
    scenario.delete("pod", pod)
    scenario.wait_settled("living")
    scenario.check_version("living", keys, "v1")


def _folder(scenario: Scenario, dataset: str) -> str:
    return f"{dataset}-{scenario.resource(dataset)['metadata']['uid'][:8]}"


def _folders(scenario: Scenario) -> set[str]:
    """Return the folders of the scenario's datasets that have data in the store."""
    paths = (path.split("/") for path in store.paths(f"list-{scenario.namespace}"))
    return {path[2] for path in paths if path[1] == scenario.namespace}


def _living_folders() -> set[str]:
    """Return the folders of the live datasets of all namespaces."""
    config_map = get("configmap", store.live_datasets_config_map(), release.NAMESPACE)
    listed = json.loads(config_map["data"]["living.json"])["datasets"]
    return {f"{dataset['name']}-{dataset['uid'][:8]}" for dataset in listed}
