"""The operator goes, at the worst of moments: lookups do not notice, and the next one goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from e2e.support import kinds, release
from e2e.support.figures import record
from e2e.support.kubectl import find, kubectl, until
from e2e.support.story import BRISK, LDS, PATIENT, Story

DERIVED: Final = {"Pod", "ReplicaSet", "ControllerRevision", "EndpointSlice"}
"""Some of the kinds that Kubernetes makes and has to collect; they are there while the dataset is."""
DATASET: Final = "lookupdb.dev/dataset=records"
KILLS: Final = 5


def test_lookups_do_not_notice_that_the_operator_goes_in_the_midst_of_a_rebuild(story: Story) -> None:
    keys = story.source("records", version="v1", records=2000)
    story.apply(story.dataset("records", "records", shards=2, rollout=BRISK, router=PATIENT))
    story.wait_settled("records")

    with story.load("records", keys, per_second=500) as load:
        _rebuild(story, "v2")
        until(lambda: find("jobs", story.namespace), seconds=60, what="a build under way")
        release.restart_operator()
        assert story.wait_settled("records", generation="g2")["lastGeneration"] == 2, (
            "a build that runs is not begun anew"
        )

        _rebuild(story, "v3")
        until(lambda: 3 in _rollouts_with_sets(story), seconds=120, what="a rollout under way")
        release.restart_operator()
        assert story.wait_settled("records", generation="g3")["lastRollout"] == 3, "a rollout is not begun anew"

        _rebuild(story, "v4")
        kills = _kill_operator_until(lambda: story.wait_settled("records", generation="g4", seconds=0))
        story.wait_settled("records", generation="g4")
        report = load.stop()

    record("operator-gone", "operators killed during a rebuild", kills)
    record("operator-gone", "answers", report.answers)
    record("operator-gone", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    report.check(g1="v1", g2="v2", g3="v3", g4="v4")


def test_without_an_operator_lookups_go_on_and_a_deleted_dataset_is_collected(story: Story) -> None:
    keys = story.source("records", version="v1", records=300)
    before = _objects(story)
    story.apply(story.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    story.wait_settled("records")
    assert {name.partition("/")[0] for name in _objects(story) - before} >= DERIVED
    try:
        release.scale_operator(0)
        story.check_version("records", keys, "v1")
        story.delete(LDS, "records")
        until(
            lambda: kinds.check_nothing_but(_objects(story), before), seconds=120, what="all of the dataset collected"
        )
    finally:
        release.scale_operator(1)


def _rebuild(story: Story, version: str) -> None:
    story.source("records", version=version, records=2000)
    story.refresh("records")


def _rollouts_with_sets(story: Story) -> set[int]:
    """The numbers of rollouts that have StatefulSets."""
    sets = find("statefulsets", story.namespace, DATASET)
    return {int(item["metadata"]["labels"]["lookupdb.dev/rollout"][1:]) for item in sets}


def _kill_operator_until(done: Callable[[], object]) -> int:
    """Kill the operator whenever it has begun, until ``done`` or KILLS times. Returns how often."""
    for kills in range(KILLS):
        try:
            if done():
                return kills
        except AssertionError:
            name = release.operator_pod()["metadata"]["name"]
            kubectl("delete", "pod", name, "--namespace", release.NAMESPACE, "--grace-period=0", "--force")
    return KILLS


def _objects(story: Story) -> set[str]:
    return kinds.list_objects(story.namespace, kinds.OF_A_DATASET)
