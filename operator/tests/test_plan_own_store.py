"""A dataset with a store of its own (``spec.store``): its troubles are its own. Its builders remove generations, as no
sweep can, but none that a rollout or a rollback needs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from operator_support.gateway_lives import GATEWAY
from operator_support.plan_invariants import Broken
from operator_support.plan_objects import is_push, label
from operator_support.plan_samples import applied, broken, condition, rebuilt, says, serving, trouble
from operator_support.plan_world import CONFIG, NEVER, Planner, World
from operator_support.simulation import Simulation

from lookupdb.store import StoredDataset, sweep
from lookupdb.store.dataset import Inventory
from lookupdb_operator import names
from lookupdb_operator.model import StoreAccess
from lookupdb_operator.plan import plan, turns
from lookupdb_operator.status import DatasetStatus

pytestmark = pytest.mark.long

STORE: dict[str, Any] = {"url": "s3://team-lookups/airports", "secretName": "airports-store"}
URL = STORE["url"]
OWN: dict[str, Any] = {"store": STORE}
SECRET = "Secret/airports-store-uid-1"


def with_own_store(**spec: Any) -> World:
    """A dataset with its own store, which serves."""
    return serving(**OWN, **spec)


def without_store_of_release() -> World:
    """A dataset with its own store, which serves; the Secret of the release's store is gone."""
    world = with_own_store()
    world.store = StoreAccess(problem="Secret lookupdb-store in namespace lookupdb does not exist")
    return world


def test_it_is_built_and_served_and_the_operator_writes_no_secret() -> None:
    world = with_own_store()
    assert world.secret is None
    assert (world.status.store_digest, world.status.store_written_at) == ("", "")
    assert says(world.look())["Degraded"] == "False Healthy"
    assert world.look().apply == ()


def test_what_the_store_of_the_release_lacks_is_nothing_to_it() -> None:
    world = without_store_of_release()
    assert says(world.look())["Degraded"] == "False Healthy"
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    assert (world.status.generation, says(world.look())["Ready"]) == ("g2", "True Serving")
    others = serving()
    others.store = world.store
    assert says(others.look())["Degraded"] == "True StoreCredentialsMissing", "as for others"


@pytest.mark.parametrize(
    "change",
    [
        lambda world: replace(CONFIG, gateway=GATEWAY),
        lambda world: replace(CONFIG, store="s3://elsewhere"),
    ],
    ids=["a gateway comes", "another bucket"],
)
def test_a_change_of_the_store_of_the_release_rolls_nothing_out(change: Callable[[World], Any]) -> None:
    world = with_own_store()
    world.config = change(world)
    world.store = StoreAccess({}, "d2")
    world.start_operator()
    planned = world.look()
    assert (planned.apply, planned.delete) == ((), ())
    assert says(planned)["RolledOut"] == "True UpToDate"


def test_another_secret_rolls_the_same_generation_out() -> None:
    world = with_own_store()
    world.edit(store={"url": URL, "secretName": "rotated"})
    world.settle()
    assert (world.status.generation, world.status.last_generation) == ("g1", 1)
    assert world.status.table is not None
    assert world.status.table.rollout == "r2"


def test_pods_that_lack_the_secret_say_so_and_get_none() -> None:
    world = rebuilt(with_own_store())
    for pod in world.pods.values():
        if pod.labels.get(names.ROLLOUT) == "r2":
            pod.trouble = trouble("SecretMissing", "pod x needs the Secret airports-store, which does not exist")
    for _ in range(3):
        planned = world.reconcile()
        assert SECRET not in applied(planned)
        world.now += timedelta(seconds=60)
    assert says(planned)["Degraded"] == "True SecretMissing"
    assert says(planned)["Ready"] == "True Serving"


@pytest.mark.parametrize("reason", ["StoreUnavailable", "StoreDenied", "FetchFailed"])
def test_a_trouble_names_its_own_store(reason: str) -> None:
    world = rebuilt(with_own_store())
    pod = next(pod for pod in world.pods.values() if pod.labels.get(names.ROLLOUT) == "r2")
    pod.trouble = trouble(reason, "pod x cannot fetch its shard")
    told = condition(world.reconcile(), "RolledOut").message
    assert f"pod x cannot fetch its shard; the store is {URL}." in told
    assert CONFIG.store not in told.replace(URL, "")


@pytest.mark.parametrize("reason", ["StoreUnavailable", "StoreDenied"])
def test_it_gives_its_turn_up_as_for_a_trouble_of_its_own(reason: str) -> None:
    """Other datasets use a store that answers, and should not wait as long as for a shared one."""
    worlds = {"own": rebuilt(with_own_store()), "shared": rebuilt(serving())}
    patience = {}
    for name, world in worlds.items():
        for pod in world.pods.values():
            if pod.labels.get(names.ROLLOUT) == "r2":
                pod.trouble = trouble(reason, "pod x cannot fetch its shard")
        world.reconcile()
        stall = world.status.rollouts[-1].stall
        assert stall is not None
        patience[name] = turns.patience_seconds(stall)
    assert patience == {"own": turns.PATIENCE, "shared": turns.STORE_PATIENCE}


def test_it_waits_longer_each_time_that_it_gives_its_turn_up() -> None:
    moment = World().now
    ticket = None
    for _ in range(3):
        ticket = turns.give_turn_up(ticket, trouble("StoreDenied"), "d", moment, shares_store=False)
    assert ticket is not None
    assert (ticket.given_up, ticket.reason) == (3, "StoreDenied")


def test_a_build_that_its_store_has_failed_is_tried_again_and_not_for_new_credentials_of_the_release() -> None:
    world = World()
    world.edit(**OWN)
    world.fails = lambda spec: broken("StoreDenied")
    world.settle(until=lambda: world.status.failure is not None)
    world.store = StoreAccess({"AWS_ACCESS_KEY_ID": "b"}, "d2")
    assert world.look().status.build is None
    world.fails = lambda spec: None
    world.settle(4000)
    assert says(world.look())["Ready"] == "True Serving"


# Builders of a dataset with a store of its own remove generations as ordered (`lookupdb build --keep`), sooner or
# later. Generations in use must stay.


class Stored:
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
        used = {
            label(thing, names.GENERATION) for thing in world.things.values() if thing.manifest["kind"] == "StatefulSet"
        }
        if not world.invariants.has_forgotten:
            used |= {known.generation for known in status.generations} | {status.generation}
        if generation in used:
            raise Broken(f"{generation} is removed from the store, and may be fetched again")
        del world.published[generation]
        world.lost.add(generation)


def make_removing(world: World, begins: Callable[[], bool] = lambda: True) -> World:
    """Return ``world``, whose builders remove generations as ordered as soon as ``begins`` says so."""
    begun: set[str] = set()

    def remove(_seconds: float) -> None:
        for thing in world.things.values():
            is_build = thing.manifest["kind"] == "Job" and not is_push(thing)
            if is_build and thing.uid not in begun and begins():
                begun.add(thing.uid)
                words = thing.manifest["spec"]["template"]["spec"]["containers"][0]["args"]
                pairs = list(itertools.pairwise(words))
                keep = next(int(value) for flag, value in pairs if flag == "--keep")
                protect = [value for flag, value in pairs if flag == "--protect"]
                sweep.remove_superseded(cast(StoredDataset, Stored(world)), keep, protect)

    world.also_steps = remove
    return world


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


class TestRemoval:
    """Builds and removals, as by `lookupdb build --keep`."""

    def test_no_more_stay_than_are_kept_and_the_one_that_was_built_last(self) -> None:
        world = make_removing(with_own_store(keepGenerations=2))
        for number in range(2, 9):
            refresh(world, number)
            assert len(world.published) <= 3
        assert sorted(world.published, key=names.read_number) == ["g6", "g7", "g8"]

    def test_what_is_pinned_stays_and_so_does_what_can_be_gone_back_to(self) -> None:
        world = make_removing(with_own_store(keepGenerations=2))
        for number in range(2, 4):
            refresh(world, number)
        world.edit(generation="g2")
        world.settle()
        for number in range(4, 9):
            refresh(world, number)
        assert {"g2", "g7", "g8"} <= set(world.published)
        assert len(world.published) <= 4
        world.edit(generation=None, replicas=3)
        world.settle()
        for generation in [known.generation for known in world.status.generations]:
            world.edit(generation=generation)
            world.settle()
            assert (world.status.generation, says(world.look())["Ready"]) == (generation, "True Serving")
            assert world.lost.isdisjoint({generation})

    def test_the_servers_of_before_that_are_kept_can_start_again(self) -> None:
        world = make_removing(with_own_store(keepGenerations=1, rollout={"keepPrevious": "1h", "drainSeconds": 0}))
        refresh(world, 2)
        world.takes.start = NEVER
        refresh(world, 3, settles=False)
        world.settle(200, until=lambda: "g3" in world.published)
        assert {rollout.generation for rollout in world.status.rollouts} <= set(world.published)

    def test_what_serves_stays_when_the_status_was_wiped(self) -> None:
        world = make_removing(with_own_store(keepGenerations=1))
        for number in range(2, 5):
            refresh(world, number)
        world.status = DatasetStatus()
        world.version += 1
        world.settle(until=lambda: world.status.build is not None)
        assert world.status.build is not None
        assert world.status.build.protect == ("g4",)
        world.settle(400)
        assert "g4" in world.published
        assert says(world.look())["Ready"] == "True Serving"

    def test_others_tell_their_builders_nothing_of_it(self) -> None:
        world = serving()
        world.takes.build = NEVER
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle(until=lambda: world.status.build is not None)
        assert world.status.build is not None
        assert world.status.build.protect == ()

    def test_the_job_is_not_another_one_when_another_generation_is_forgotten(self) -> None:
        """The Job is rendered from its claim, not from the present status."""
        world = with_own_store()
        world.takes.build = NEVER
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle(until=lambda: world.status.build is not None)
        world.reconcile()
        assert world.status.build is not None
        assert world.status.build.protect == ("g1",)
        world.status = replace(world.status, generations=())
        assert "Job/airports-g2-build" not in applied(world.look())


@pytest.mark.parametrize("part", range(4))
def test_whatever_fails_nothing_is_removed_that_may_still_be_fetched(part: int) -> None:
    lives = [RemovingSimulation(seed) for seed in range(15 * part, 15 * part + 15)]
    for life in lives:
        life.live(60)
    assert sum(life.removed for life in lives) > 0


def refresh(world: World, number: int, *, settles: bool = True) -> None:
    """Build again, from changed data."""
    world.content_of_source = lambda text: f"{text}{number}"
    world.annotate(f"refresh-{number}")
    if settles:
        world.settle()
