"""Behind a gateway nobody in a dataset's namespace has the store's credentials; and the change to a gateway and
back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from operator_support.gateway_lives import GATEWAY
from operator_support.plan_samples import applied, broken, condition, rebuilt, says, serving, trouble
from operator_support.plan_world import CONFIG, World

from lookupdb_operator import names
from lookupdb_operator.model import StoreAccess

BEHIND = replace(CONFIG, gateway=GATEWAY)
SECRET = "Secret/airports-store-uid-1"


def put_behind_gateway(world: World) -> World:
    """Restart the operator with a gateway."""
    world.config, world.store = BEHIND, StoreAccess()
    world.start_operator()
    return world


def behind_gateway() -> World:
    """A dataset that serves, and was always behind a gateway."""
    world = put_behind_gateway(World())
    world.settle()
    assert says(world.look())["Ready"] == "True Serving"
    return world


def test_a_dataset_is_built_and_served_without_a_secret_of_the_store() -> None:
    world = behind_gateway()
    assert world.secret is None
    assert (world.status.store_digest, world.status.store_written_at) == ("", "")
    assert says(world.look())["Degraded"] == "False Healthy"
    assert world.look().apply == ()


def test_pods_in_trouble_because_of_the_store_get_no_secret_either() -> None:
    world = behind_gateway()
    world.edit(replicas=3)
    world.reconcile()
    world.step()
    pod = next(pod for pod in world.pods.values() if pod.component == names.SHARDS)
    pod.ready, pod.trouble = False, trouble("StoreDenied")
    for _ in range(3):
        planned = world.reconcile()
        assert SECRET not in applied(planned)
        world.now += timedelta(seconds=60)


def test_a_build_that_the_gateway_has_failed_is_tried_again() -> None:
    world = put_behind_gateway(World())
    world.fails = lambda spec: broken("StoreDenied")
    world.settle(until=lambda: world.status.failure is not None)
    assert says(world.look())["Built"] == "False StoreDenied"
    world.fails = lambda spec: None
    world.settle(4000)
    assert says(world.look())["Ready"] == "True Serving"


def test_a_gateway_that_comes_is_rolled_out_and_no_generation_is_built() -> None:
    world = serving()
    generation, rollout = world.status.generation, world.status.table.rollout if world.status.table else ""
    put_behind_gateway(world)
    world.secret = None
    world.settle(600)
    assert world.status.generation == generation
    assert world.status.table is not None
    assert world.status.table.rollout != rollout
    assert says(world.look())["RolledOut"] == "True UpToDate"


def test_a_gateway_that_comes_ends_the_wait_of_a_build_that_the_store_has_denied() -> None:
    world = World()
    world.fails = lambda spec: broken("StoreDenied")
    world.settle(until=lambda: world.status.failure is not None)
    assert world.look().status.build is None
    put_behind_gateway(world)
    assert world.look().status.build is not None


def test_a_gateway_that_goes_leaves_the_secret_to_be_written_at_first() -> None:
    world = serving()
    access = world.store
    put_behind_gateway(world)
    world.secret = None
    world.settle(600)
    world.config, world.store = CONFIG, access
    assert SECRET in applied(world.reconcile()), "though status knew these credentials once"
    world.settle(600)
    assert says(world.look())["RolledOut"] == "True UpToDate"


def test_a_trouble_of_the_store_names_the_store_and_the_gateway() -> None:
    world = rebuilt(behind_gateway())
    pod = next(pod for pod in world.pods.values() if pod.labels.get(names.ROLLOUT) == "r2")
    pod.trouble = trouble("StoreUnavailable", "pod x cannot fetch its shard")
    told = condition(world.reconcile(), "RolledOut").message
    assert f"the store is s3://lookupdb behind {GATEWAY}" in told
