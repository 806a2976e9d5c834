"""Worlds in the states that tests begin with, and the parts of a plan that tests compare."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import orjson

from lookupdb_operator.model import BuildResult, ObjectRef, Plan, Trouble
from lookupdb_operator.status import Condition
from operator_support.plan_world import NEVER, World


def serving(**spec: Any) -> World:
    """A world at rest whose dataset serves its spec. Four hundred tests begin with one, so it is brought up once and
    copied; what is only read, and caches of renderings, are shared."""
    return copy_of(_brought_up(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)))


def copy_of(world: World) -> World:
    """A world that goes on from ``world``."""
    return copy.deepcopy(world, {id(shared): shared for shared in (world.config, world._completed)})


@cache
def _brought_up(spec: bytes) -> World:
    world = World()
    if members := orjson.loads(spec):
        world.edit(**members)
    world.settle()
    return world


def rebuilt(world: World) -> World:
    """``world`` after its source changed: g2 is built and rolled out, but its servers never get ready."""
    world.takes.start = NEVER
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.last_rollout == 2)
    world.step()
    return world


def unconfirmed(world: World) -> World:
    """``world`` after the routing table of r2 was written; its routers never load it."""
    world.takes.table = world.takes.slow_table = NEVER
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.table is not None and world.status.table.rollout == "r2")
    world.step()
    return world


def broken(reason: str = "BadSource", message: str = "no such file") -> BuildResult:
    """The result of a builder that failed."""
    return BuildResult("failed", reason=reason, message=message, exit_code=3)


def trouble(reason: str, message: str = "because") -> Trouble:
    """A cause as Kubernetes reports it."""
    return Trouble(reason, message)


def applied(planned: Plan) -> set[str]:
    """Kind/name of each applied object."""
    return {f"{manifest['kind']}/{manifest['metadata']['name']}" for manifest in planned.apply}


def deleted(planned: Plan) -> set[str]:
    """Kind/name of each deleted object."""
    return {f"{ref.kind}/{ref.name}" for ref in planned.delete}


def replicas(planned: Plan) -> dict[str, int]:
    """StatefulSet → number of its servers, of all applied ones."""
    sets = (manifest for manifest in planned.apply if manifest["kind"] == "StatefulSet")
    return {manifest["metadata"]["name"]: manifest["spec"]["replicas"] for manifest in sets}


def condition(planned: Plan, kind: str) -> Condition:
    """The condition of type ``kind``."""
    found = planned.status.condition(kind)
    assert found is not None, f"there is no condition {kind}"
    return found


def says(planned: Plan) -> dict[str, str]:
    """Condition → status and reason."""
    return {condition.type: f"{condition.status} {condition.reason}" for condition in planned.status.conditions}


def ref(kind: str, name: str) -> ObjectRef:
    """The reference of an object that exists."""
    return ObjectRef(kind, name, f"uid of {name}")
