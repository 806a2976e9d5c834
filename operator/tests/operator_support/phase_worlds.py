"""A world in each phase that a person sees, reached by the operator's own decisions."""

from __future__ import annotations

from lookupdb_operator.console.dataset import Dataset, DatasetPods
from lookupdb_operator.plugin import views
from operator_support.plan_samples import broken, serving, trouble
from operator_support.plan_world import NEVER, World

NEW_DATA = {"url": "s3://data/v2.csv"}
NO_NODE = "no node takes pod airports-r2-s0-0: 3 Insufficient memory; add nodes, or change resources"


def view_of(world: World) -> DatasetPods:
    """``world`` as the plugin sees it."""
    dataset = world.dataset
    members = world.status.to_json()
    seen = Dataset(dataset.namespace, dataset.name, dataset.uid, dataset.resource_version, dataset.spec, members)
    return DatasetPods(seen, world.observe().pods)


def screen_of(world: World) -> str:
    """The output of ``kubectl lookupdb status``."""
    world.reconcile()
    return views.render(view_of(world), world.now)


def building() -> World:
    """The first build is under way."""
    world = World()
    world.takes.build = NEVER
    world.reconcile()
    world.step(40)
    return world


def rolling_out() -> World:
    """Servers of new data start, and half of them are ready."""
    world = serving()
    world.takes.start = NEVER
    world.edit(source=NEW_DATA)
    world.settle(until=lambda: world.status.last_rollout == 2)
    world.step(90)
    for pod in world.pods.values():
        pod.ready = pod.ready or "-r2-s1-" in pod.name
    return world


def shard_by_shard() -> World:
    """Shards of new data take over one after the other."""
    world = serving(rollout={"strategy": "PerShard", "drainSeconds": 600}, shards=3)
    world.edit(source=NEW_DATA)
    world.settle(until=lambda: world.status.table is not None and world.status.table.is_mixed)
    return world


def candidate() -> World:
    """New data waits for promotion."""
    world = serving(rollout={"promotion": "Manual"})
    world.edit(source=NEW_DATA)
    world.settle(until=lambda: world.status.phase == "CandidateWaiting")
    world.step(300)
    return world


def pinned() -> World:
    """Somebody has rolled back."""
    world = serving()
    world.edit(source=NEW_DATA)
    world.settle()
    world.edit(generation="g1")
    world.settle()
    world.step(600)
    return world


def rolled_back() -> World:
    """The pin was taken away, and the source is as it was."""
    world = pinned()
    world.edit(generation=None)
    world.settle()
    return world


def gate_closed() -> World:
    """The gate rejected new data."""
    world = serving()
    world.closes_gate = lambda content: "v2" in content
    world.edit(source=NEW_DATA)
    world.settle(until=lambda: world.status.refused is not None)
    world.step(15)
    return world


def failing(reason: str = "BadSource", message: str = "s3://data/v2.csv: no such file") -> World:
    """Builds of new data fail."""
    world = serving()
    world.fails = lambda spec: broken(reason, message)
    world.edit(source=NEW_DATA)
    world.settle(until=lambda: world.status.failure is not None)
    return world


def unplaced() -> World:
    """Servers of new data find no node."""
    world = serving()
    world.takes.start = NEVER
    world.edit(source=NEW_DATA)
    world.settle(until=lambda: world.status.last_rollout == 2)
    world.step()
    world.pods = dict(sorted(world.pods.items()))  # the first one is reported
    for pod in world.pods.values():
        if "-r2-" in pod.name:
            pod.trouble = trouble("Unschedulable", NO_NODE.replace("airports-r2-s0-0", pod.name))
    for seconds in (240, 480):
        world.reconcile()
        world.step(seconds)
    return world
