"""Builders of a dataset with a store of its own remove generations as ordered (`lookupdb build --keep`), sooner or
later. Generations in use must stay."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, Final, cast

from lookupdb.store import StoredDataset, sweep
from lookupdb.store.dataset import Inventory
from lookupdb_operator import names
from lookupdb_operator.plan import plan
from operator_support.plan_invariants import Broken
from operator_support.plan_objects import Thing, is_push, label
from operator_support.plan_world import Planner, World
from operator_support.simulation import Simulation

STORE: Final[dict[str, Any]] = {"url": "s3://team-lookups/airports", "secretName": "airports-store"}


def make_removing(world: World, begins: Callable[[], bool] = lambda: True) -> World:
    """Return ``world``, whose builders remove generations as ordered as soon as ``begins`` says so."""
    begun: set[str] = set()

    def remove(_seconds: float) -> None:
        for thing in world.things.values():
            is_build = thing.manifest["kind"] == "Job" and not is_push(thing)
            if is_build and thing.uid not in begun and begins():
                begun.add(thing.uid)
                _remove_as_told(world, thing)

    world.also_steps = remove
    return world


def _remove_as_told(world: World, job: Thing) -> None:
    words = job.manifest["spec"]["template"]["spec"]["containers"][0]["args"]
    pairs = list(itertools.pairwise(words))
    keep = next(int(value) for flag, value in pairs if flag == "--keep")
    protect = [value for flag, value in pairs if flag == "--protect"]
    sweep.remove_superseded(cast(StoredDataset, _Stored(world)), keep, protect)


class _Stored:
    """A dataset's generations, as a remover sees them. Nothing that may still be fetched is removed."""

    def __init__(self, world: World) -> None:
        self._world = world

    def take_inventory(self) -> Inventory:
        found = sorted(self._world.published, key=names.read_number)
        refused = [name for name in found if name in self._world.refused]
        return Inventory(usable=[name for name in found if name not in refused], refused=refused)

    def read_note(self, _name: str) -> None:
        """Return no announcement: the operator announces nothing in a dataset's own store."""

    def remove(self, generation: str) -> None:
        world, status = self._world, self._world.status
        used = {label(thing, names.GENERATION) for thing in world.things.values() if _is_shard_set(thing)}
        if not world.invariants.has_forgotten:
            used |= {known.generation for known in status.generations} | {status.generation}
        if generation in used:
            raise Broken(f"{generation} is removed from the store, and may be fetched again")
        del world.published[generation]
        world.lost.add(generation)


def _is_shard_set(thing: Thing) -> bool:
    return bool(thing.manifest["kind"] == "StatefulSet")


class RemovingSimulation(Simulation):
    """One life of a dataset whose builders remove unneeded generations, at any moment."""

    def __init__(self, seed: int, planner: Planner = plan) -> None:
        super().__init__(seed, planner)
        removals = random.Random(f"removals {seed}")
        pace = removals.choice([0.05, 0.3, 1.0])
        self.world.edit(store=STORE, keepGenerations=removals.choice([1, 2, 3]))
        make_removing(self.world, lambda: removals.random() < pace)

    @property
    def removed(self) -> int:
        """Number of removed generations."""
        return len(self.world.lost)
