"""The start of a shard-by-shard rollout beside the leftovers of the last window: what it waits for, and how long."""

from __future__ import annotations

from datetime import timedelta

from operator_support.plan_samples import serving
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.plan import windows

V2 = {"url": "s3://data/v2.csv"}
V3 = {"url": "s3://data/v3.csv"}


def _serving() -> World:
    """g1 serves four shards, which are replaced one by one."""
    return serving(shards=4, rollout={"strategy": "PerShard", "drainSeconds": 5})


def test_a_table_that_routers_do_not_take_up_holds_a_correction_back_for_a_minute_only() -> None:
    world = _serving()
    world.takes.table = world.takes.slow_table = NEVER
    world.edit(source=V2)
    world.settle(until=lambda: world.status.table is not None and world.status.table.rollout == "r2")
    begin = world.now
    world.edit(source=V3)
    world.settle(until=lambda: world.status.last_rollout == 3)
    assert 55 <= (world.now - begin).total_seconds() <= 90
    assert world.status.rollouts[-1].shard_ranges == "0"


def test_a_router_that_does_not_leave_what_was_replaced_holds_a_correction_back_until_it_is_overdue_only() -> None:
    world = _serving()
    world.edit(source=V2)
    world.settle(until=lambda: world.status.table is not None and world.status.table.version == 2)
    world.settle(until=lambda: world.status.table is not None and bool(world.status.table.confirmed_at))
    begin = world.now
    hangs = next(pod for pod in world.pods.values() if pod.component == names.ROUTER)
    hangs.table, hangs.ready, hangs.down_until = None, False, begin + timedelta(days=1)
    world.edit(source=V3)
    world.settle(until=lambda: world.status.last_rollout == 3)
    waited = windows.STALE_MOUNT_SECONDS + windows.CONFIRMATION_SECONDS
    assert waited <= (world.now - begin).total_seconds() <= waited + 30
    assert [rollout.shard_ranges for rollout in world.status.rollouts[1:]] == ["0", "0"]


def test_the_pass_that_gives_servers_up_begins_no_others_since_they_may_be_on_their_way_and_not_be_seen_yet() -> None:
    world = _serving()
    world.edit(source=V2)
    planned = world.look()
    while not any(rollout.window for rollout in planned.status.rollouts):
        world.carry_out(planned, world.dataset)
        world.step()
        planned = world.look()
    world.carry_out(planned, world.dataset, steps=0)
    assert ("StatefulSet", "airports-r2-s1") not in world.things
    world.edit(image="lookupdb:2")
    status = world.reconcile().status
    assert ([rollout.window for rollout in status.rollouts], status.last_rollout) == (["", ""], 2)
    assert world.reconcile().status.last_rollout == 3


def test_keys_of_another_column_are_rolled_out_at_once() -> None:
    world = _serving()
    world.edit(key={"columns": ["ident"]})
    world.settle(until=lambda: world.status.last_rollout == 2)
    assert world.status.rollouts[-1].shard_ranges == "", "all"
