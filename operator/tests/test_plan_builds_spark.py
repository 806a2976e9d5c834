"""Builds by Spark: none begins without an image that has it, and executors that cannot start are the build's
obstacle."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from operator_support.plan_samples import applied, condition, says, serving, trouble
from operator_support.plan_world import CONFIG, NEVER, World

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Config, Observed, Plan, Pod, Trouble
from lookupdb_operator.plan import plan

SPARK = replace(CONFIG, spark_image="lookupdb-spark:1")
BUILD = {"engine": "Spark"}


def building(*executors: Pod) -> World:
    """A world whose build by Spark has these executors, and does not end."""

    def observing(observed: Observed, config: Config, now: datetime) -> Plan:
        return plan(replace(observed, pods=(*observed.pods, *executors)), config, now)

    world = World(planner=observing, config=SPARK)
    world.takes.build = NEVER
    world.edit(build=BUILD)
    world.settle(until=lambda: world.status.build is not None)
    world.step()
    return world


def executor(phase: str, why: Trouble | None = None) -> Pod:
    name = "airports-g1-build-x7k2p-exec-1"
    return Pod(name, f"uid-{name}-{phase}", names.EXECUTOR, generation="g1", phase=phase, trouble=why)


def test_without_an_image_nothing_begins_and_the_condition_says_where_to_name_one() -> None:
    world = World()
    world.edit(build=BUILD)
    planned = world.look()
    assert not any(name.startswith("Job/") for name in applied(planned))
    assert world.status.last_generation == 0, "no number is used up"
    assert says(planned)["Built"] == "False SparkImageMissing"
    assert says(planned)["Degraded"] == "True SparkImageMissing"
    for place in ("spec.build.spark.image", "spark.image"):
        assert place in condition(planned, "Built").message

    world.edit(build={**BUILD, "spark": {"image": "mine:2"}})
    world.settle()
    assert says(world.look())["Built"] == "True GenerationBuilt"


def test_what_serves_is_not_rebuilt_for_another_engine_and_keeps_serving_without_an_image() -> None:
    world = serving()
    world.edit(build=BUILD)
    assert says(world.look())["Degraded"] == "False Healthy"
    world.edit(source={"url": "s3://data/v2.csv"})
    planned = world.look()
    assert says(planned)["Ready"] == "True Serving"
    assert says(planned)["Degraded"] == "True SparkImageMissing"


@pytest.mark.parametrize("reason", ["Unschedulable", "ImagePullFailed", "QuotaExceeded"])
def test_executors_that_cannot_start_are_the_obstacle(reason: str) -> None:
    world = building(executor("Pending", trouble(reason)))
    assert says(world.look())["Built"] == f"False {reason}"


def test_lost_executors_are_sparks_to_replace() -> None:
    lost = executor("Failed", trouble("OutOfMemory"))
    for others in ((), (executor("Pending"),), (executor("Running"), executor("Pending", trouble("Unschedulable")))):
        assert says(building(lost, *others).look())["Built"] == "False Building"


def test_missing_rights_are_a_reason_of_their_own() -> None:
    world = World(config=SPARK)
    world.edit(build=BUILD)
    message = "the ServiceAccount of Spark's driver may not create pods in namespace default"
    world.fails = lambda spec: BuildResult("failed", reason="RightsMissing", message=message, exit_code=2)
    world.settle(until=lambda: world.status.failure is not None)
    planned = world.look()
    assert says(planned)["Built"] == "False RightsMissing"
    assert "may not create pods" in condition(planned, "Built").message
    assert "spark.namespaces" in condition(planned, "Built").message
