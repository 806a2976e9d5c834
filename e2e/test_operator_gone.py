"""The operator dies at bad moments. Lookups continue, and the next operator resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from e2e.support import kinds, release
from e2e.support.figures import record
from e2e.support.kubectl import find, kubectl, until
from e2e.support.scenario import BRISK, LDS, PATIENT, Scenario

DERIVED: Final = {"Pod", "ReplicaSet", "ControllerRevision", "EndpointSlice"}
"""Kinds that Kubernetes itself creates for a dataset, and must collect."""
DATASET: Final = "lookupdb.dev/dataset=records"
KILLS: Final = 5


def test_lookups_do_not_notice_that_the_operator_goes_in_the_midst_of_a_rebuild(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=2, rollout=BRISK, router=PATIENT))
    scenario.wait_settled("records")

    with scenario.load("records", keys, per_second=500) as load:
        _rebuild(scenario, "v2")
        until(lambda: find("jobs", scenario.namespace), seconds=60, what="a build under way")
        release.restart_operator()
        assert scenario.wait_settled("records", generation="g2")["lastGeneration"] == 2, (
            "a running build is not started again"
        )

        _rebuild(scenario, "v3")
        until(lambda: 3 in _rollouts_with_sets(scenario), seconds=120, what="a rollout under way")
        release.restart_operator()
        assert scenario.wait_settled("records", generation="g3")["lastRollout"] == 3, "a rollout is not started again"

        _rebuild(scenario, "v4")
        kills = _kill_operator_until(lambda: scenario.wait_settled("records", generation="g4", seconds=0))
        scenario.wait_settled("records", generation="g4")
        report = load.stop()

    record("operator-gone", "operators killed during a rebuild", kills)
    record("operator-gone", "answers", report.answers)
    record("operator-gone", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    report.check(g1="v1", g2="v2", g3="v3", g4="v4")


def test_without_an_operator_lookups_go_on_and_a_deleted_dataset_is_collected(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=300)
    before = _objects(scenario)
    scenario.apply(scenario.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    scenario.wait_settled("records")
    assert {name.partition("/")[0] for name in _objects(scenario) - before} >= DERIVED
    try:
        release.scale_operator(0)
        scenario.check_version("records", keys, "v1")
        scenario.delete(LDS, "records")
        until(
            lambda: kinds.check_nothing_but(_objects(scenario), before),
            seconds=120,
            what="all of the dataset collected",
        )
    finally:
        release.scale_operator(1)


def _rebuild(scenario: Scenario, version: str) -> None:
    scenario.source("records", version=version, records=2000)
    scenario.refresh("records")


def _rollouts_with_sets(scenario: Scenario) -> set[int]:
    """Return the numbers of rollouts that have StatefulSets."""
    sets = find("statefulsets", scenario.namespace, DATASET)
    return {int(item["metadata"]["labels"]["lookupdb.dev/rollout"][1:]) for item in sets}


def _kill_operator_until(done: Callable[[], object]) -> int:
    """Kill each new operator until ``done``, at most KILLS times. Return the number of kills."""
    for kills in range(KILLS):
        try:
            if done():
                return kills
        except AssertionError:
            name = release.operator_pod()["metadata"]["name"]
            kubectl("delete", "pod", name, "--namespace", release.NAMESPACE, "--grace-period=0", "--force")
    return KILLS


def _objects(scenario: Scenario) -> set[str]:
    return kinds.list_objects(scenario.namespace, kinds.OF_A_DATASET)
