"""Eight workers of a pod map one copy of a dataset, which a sidecar or a DaemonSet keeps beside them, and all see a new
generation within seconds of the cutover; a rollback too."""

from __future__ import annotations

import datetime
from typing import Final

import pytest
from e2e.support import store, sync
from e2e.support.figures import BUSY, record
from e2e.support.kubectl import find, until
from e2e.support.story import BRISK, Story

WORKERS: Final = 8
RECORDS: Final = 5_000
SEEN_SECONDS: Final = 5
"""From the moment on at which routers have confirmed: to announce, to look, to fetch, to swap, and to map it."""


@pytest.mark.parametrize("way", ["sidecar", "node"])
def test_all_workers_of_a_pod_map_one_copy_and_see_each_new_generation(story: Story, way: str) -> None:
    keys = story.source("records", version="v1", records=RECORDS)
    keep = {"sync": {"nodeSelector": {"kubernetes.io/os": "linux"}}} if way == "node" else {}
    story.apply(story.dataset("records", "records", shards=2, rollout=BRISK, router={"drainSeconds": 0}, **keep))
    story.wait_settled("records", generation="g1")
    if way == "node":
        _wait_nodes(story)
    program = sync.program_on_node if way == "node" else sync.program_with_sidecar
    story.apply(program(story.namespace, "records", keys[0], WORKERS))
    sync.wait_seen(story.namespace, "v1", WORKERS, seconds=240)

    story.source("records", version="v2", records=RECORDS)
    story.refresh("records")
    confirmed = _confirmed_at(story.wait_settled("records", generation="g2"))
    seen = sync.wait_seen(story.namespace, "v2", WORKERS, seconds=120)
    took = max(sighting.at for sighting in seen) - confirmed
    record("sync", f"{way}: routers' confirmation to the last of {WORKERS} workers", took, "s", at_most=SEEN_SECONDS)
    assert took <= BUSY * SEEN_SECONDS

    size = story.status("records")["bytes"]
    shared = sum(sighting.shared for sighting in seen)
    record("sync", f"{way}: mapped bytes of all workers : bytes of the generation", shared / size)
    private = max(sighting.private for sighting in seen)
    record("sync", f"{way}: private bytes of a worker", private / (1 << 20), "MiB")

    story.change("records", generation="g1")
    story.wait_settled("records", generation="g1")
    sync.wait_seen(story.namespace, "v1", WORKERS, seconds=120, times=2)


def test_what_is_active_is_announced_in_the_store_and_a_rollback_too(story: Story) -> None:
    story.source("records", version="v1", records=300)
    story.apply(story.dataset("records", "records", rollout=BRISK, router={"drainSeconds": 0}))
    story.wait_settled("records", generation="g1")
    first = _wait_announced(story, "g1")
    story.source("records", version="v2", records=300)
    story.refresh("records")
    story.wait_settled("records", generation="g2")
    second = _wait_announced(story, "g2")
    story.change("records", generation="g1")
    story.wait_settled("records", generation="g1")
    third = _wait_announced(story, "g1")
    assert first < second < third
    uid = story.resource("records")["metadata"]["uid"][:8]
    path = f"/{story.namespace}/records-{uid}/active.json"
    assert any(found.endswith(path) for found in store.paths(f"e2e-sync-{uid}"))


def _wait_nodes(story: Story) -> None:
    """Wait until every node has a generation."""

    def look() -> bool:
        synced = story.status("records").get("syncedNodes", "")
        ready, _, nodes = synced.partition("/")
        assert ready == nodes != "", f"synced nodes: {synced!r}"
        return bool(find("daemonsets", story.namespace, "lookupdb.dev/dataset=records"))

    until(look, seconds=240, what=f"{story.namespace}/records on every node")


def _wait_announced(story: Story, generation: str) -> int:
    """The version of the table by which ``generation`` is announced, once it is."""

    def look() -> int:
        announced = story.status("records").get("announced", {})
        assert announced.get("generation") == generation, f"announced: {announced}"
        return int(announced["version"])

    return until(look, seconds=60, what=f"{story.namespace}/records {generation} announced")


def _confirmed_at(status: dict[str, dict[str, str]]) -> float:
    return datetime.datetime.fromisoformat(status["table"]["confirmedAt"]).timestamp()
