"""Eight workers of a pod map one copy of a dataset, kept by a sidecar or a DaemonSet.

All see a new generation, and a rollback, within seconds of the cutover.
"""

from __future__ import annotations

import datetime
from typing import Final

import pytest
from e2e.support import store, sync
from e2e.support.figures import BUSY, record
from e2e.support.kubectl import find, until
from e2e.support.scenario import BRISK, Scenario

WORKERS: Final = 8
RECORDS: Final = 5_000
SEEN_SECONDS: Final = 5
"""The time from the routers' confirmation until workers see a generation: it is announced, fetched and mapped."""


@pytest.mark.under_load
@pytest.mark.parametrize("way", ["sidecar", "node"])
def test_all_workers_of_a_pod_map_one_copy_and_see_each_new_generation(scenario: Scenario, way: str) -> None:
    keys = scenario.source("records", version="v1", records=RECORDS)
    keep = {"sync": {"nodeSelector": {"kubernetes.io/os": "linux"}}} if way == "node" else {}
    scenario.apply(scenario.dataset("records", "records", shards=2, rollout=BRISK, router={"drainSeconds": 0}, **keep))
    scenario.wait_settled("records", generation="g1")
    if way == "node":
        _wait_nodes(scenario)
    program = sync.program_on_node if way == "node" else sync.program_with_sidecar
    scenario.apply(program(scenario.namespace, "records", keys[0], WORKERS))
    sync.wait_seen(scenario.namespace, "v1", WORKERS, seconds=240)

    scenario.source("records", version="v2", records=RECORDS)
    scenario.refresh("records")
    confirmed = _confirmed_at(scenario.wait_settled("records", generation="g2"))
    seen = sync.wait_seen(scenario.namespace, "v2", WORKERS, seconds=120)
    took = max(sighting.at for sighting in seen) - confirmed
    record("sync", f"{way}: routers' confirmation to the last of {WORKERS} workers", took, "s", at_most=SEEN_SECONDS)
    assert took <= BUSY * SEEN_SECONDS

    size = scenario.status("records")["bytes"]
    shared = sum(sighting.shared for sighting in seen)
    record("sync", f"{way}: mapped bytes of all workers : bytes of the generation", shared / size)
    private = max(sighting.private for sighting in seen)
    record("sync", f"{way}: private bytes of a worker", private / (1 << 20), "MiB")

    scenario.change("records", generation="g1")
    scenario.wait_settled("records", generation="g1")
    sync.wait_seen(scenario.namespace, "v1", WORKERS, seconds=120, times=2)


@pytest.mark.side_by_side
def test_what_is_active_is_announced_in_the_store_and_a_rollback_too(scenario: Scenario) -> None:
    scenario.source("records", version="v1", records=300)
    scenario.apply(scenario.dataset("records", "records", rollout=BRISK, router={"drainSeconds": 0}))
    scenario.wait_settled("records", generation="g1")
    first = _wait_announced(scenario, "g1")
    scenario.source("records", version="v2", records=300)
    scenario.refresh("records")
    scenario.wait_settled("records", generation="g2")
    second = _wait_announced(scenario, "g2")
    scenario.change("records", generation="g1")
    scenario.wait_settled("records", generation="g1")
    third = _wait_announced(scenario, "g1")
    assert first < second < third
    uid = scenario.resource("records")["metadata"]["uid"][:8]
    path = f"/{scenario.namespace}/records-{uid}/active.json"
    assert any(found.endswith(path) for found in store.paths(f"e2e-sync-{uid}"))


def _wait_nodes(scenario: Scenario) -> None:
    """Wait until every node has a generation."""

    def look() -> bool:
        synced = scenario.status("records").get("syncedNodes", "")
        ready, _, nodes = synced.partition("/")
        assert ready == nodes != "", f"synced nodes: {synced!r}"
        return bool(find("daemonsets", scenario.namespace, "lookupdb.dev/dataset=records"))

    until(look, seconds=240, what=f"{scenario.namespace}/records on every node")


def _wait_announced(scenario: Scenario, generation: str) -> int:
    """Wait until ``generation`` is announced, and return its table's version."""

    def look() -> int:
        announced = scenario.status("records").get("announced", {})
        assert announced.get("generation") == generation, f"announced: {announced}"
        return int(announced["version"])

    return until(look, seconds=60, what=f"{scenario.namespace}/records {generation} announced")


def _confirmed_at(status: dict[str, dict[str, str]]) -> float:
    return datetime.datetime.fromisoformat(status["table"]["confirmedAt"]).timestamp()
