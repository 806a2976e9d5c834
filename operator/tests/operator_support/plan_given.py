"""Worlds that have come to some point, and short words for what tests ask of a plan."""

from __future__ import annotations

from typing import Any

from lookupdb_operator.model import BuildResult, ObjectRef, Plan, Trouble
from lookupdb_operator.status import Condition
from operator_support.plan_world import NEVER, World


def serving(**spec: Any) -> World:
    """All that was asked for serves, and nothing is left to be done."""
    world = World()
    if spec:
        world.edit(**spec)
    world.settle()
    return world


def rebuilt(world: World) -> World:
    """The source is another one, and g2 is built and rolled out but not cut over to: servers do not get ready."""
    world.takes.start = NEVER
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.last_rollout == 2)
    world.step()
    return world


def unconfirmed(world: World) -> World:
    """The routing table of r2 is written; routers do not take it up."""
    world.takes.table = world.takes.slow_table = NEVER
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.table is not None and world.status.table.rollout == "r2")
    world.step()
    return world


def broken(reason: str = "BadSource", message: str = "no such file") -> BuildResult:
    """What a builder says that failed."""
    return BuildResult("failed", reason=reason, message=message, exit_code=3)


def trouble(reason: str, message: str = "because") -> Trouble:
    """What Kubernetes says."""
    return Trouble(reason, message)


def applied(planned: Plan) -> set[str]:
    """Kind/name of all that is applied."""
    return {f"{one['kind']}/{one['metadata']['name']}" for one in planned.apply}


def deleted(planned: Plan) -> set[str]:
    """Kind/name of all that is deleted."""
    return {f"{one.kind}/{one.name}" for one in planned.delete}


def replicas(planned: Plan) -> dict[str, int]:
    """StatefulSet → its servers, of all that are applied."""
    return {one["metadata"]["name"]: one["spec"]["replicas"] for one in planned.apply if one["kind"] == "StatefulSet"}


def condition(planned: Plan, kind: str) -> Condition:
    """One of the four."""
    found = planned.status.condition(kind)
    assert found is not None, f"there is no condition {kind}"
    return found


def says(planned: Plan) -> dict[str, str]:
    """Condition → truth and reason."""
    return {one.type: f"{one.status} {one.reason}" for one in planned.status.conditions}


def ref(kind: str, name: str) -> ObjectRef:
    """Of an object that is there."""
    return ObjectRef(kind, name, f"uid of {name}")
