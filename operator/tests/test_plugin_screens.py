"""The screen of a dataset in each phase, as the operator's own decisions make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from operator_support.plan_samples import broken, rebuilt, serving, trouble, unconfirmed
from operator_support.plan_world import NEVER, World

from lookupdb_operator.plugin.dataset import Dataset, DatasetPods
from lookupdb_operator.plugin.views import list_view, status_view


def _screen(world: World) -> str:
    world.reconcile()
    dataset, observed = world.dataset, world.observe()
    seen = Dataset(
        dataset.namespace, dataset.name, dataset.uid, dataset.resource_version, dataset.spec, world.status.to_json()
    )
    assert list_view.render([seen], world.now, everywhere=True, namespace="")
    return status_view.render(DatasetPods(seen, observed.pods), world.now)


def _building() -> World:
    world = World()
    world.takes.build = NEVER
    world.reconcile()
    world.step()
    return world


def _failed(reason: str, message: str) -> World:
    world = serving()
    world.fails = lambda spec: broken(reason, message)
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.failure is not None)
    return world


def _pinned() -> World:
    world = serving()
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    world.edit(generation="g1")
    world.settle()
    return world


def _candidate() -> World:
    world = serving(rollout={"promotion": "Manual"})
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.phase == "CandidateWaiting")
    return world


def _shard_by_shard() -> World:
    world = serving(rollout={"strategy": "PerShard", "drainSeconds": 600}, shards=3)
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.table is not None and world.status.table.is_mixed)
    return world


def _unplaced() -> World:
    world = rebuilt(serving())
    for pod in world.pods.values():
        if "-r2-" in pod.name:
            pod.trouble = trouble("Unschedulable", "no node takes it: 3 Insufficient memory")
    world.step(700)
    return world


@pytest.mark.parametrize(
    ("state", "told"),
    [
        pytest.param(_building, [": Building, serves nothing", "g1  under way"], id="building"),
        pytest.param(serving, [": Ready, serves g1", "2/2 ready", "confirmed by all"], id="ready"),
        pytest.param(
            lambda: rebuilt(serving()),
            [": RollingOut, serves g1", "r2  g2  starting", "Shards that lack servers:", "r2 shard 0"],
            id="rolling out",
        ),
        pytest.param(
            lambda: unconfirmed(serving()), [": RollingOut", "r1  g1  ending", "r2  g2  taking over"], id="confirming"
        ),
        pytest.param(
            _candidate,
            [
                ": CandidateWaiting, serves g1",
                "g2 of r2 has waited for promotion for",
                "kubectl lookupdb promote airports g2, or reject airports g2",
                "r2  g2  candidate",
            ],
            id="a candidate",
        ),
        pytest.param(
            _shard_by_shard,
            [
                ": RollingOut, serves g1 and g2, shard by shard",
                "1 of 3 shards answer from g2, the others from g1",
                "r1  g1  being replaced  3 shards × 2",
                "r2  g2  replacing       1 of 3 shards × 2, 2 servers ready",
            ],
            id="shard by shard",
        ),
        pytest.param(_pinned, [": Pinned, serves g1", "pinned to g1", "active, pinned"], id="pinned"),
        pytest.param(
            lambda: _failed("BadSource", "people.csv: no such file"),
            [": Stuck, serves g1", "next attempt at a build in", "failed", "people.csv: no such file"],
            id="a build failed",
        ),
        pytest.param(
            lambda: _failed("GateClosed", "too few records"), [": GateClosed, serves g1", "too few"], id="a gate"
        ),
        pytest.param(_unplaced, [": Stuck, serves g1", "Why:", "no node takes it: 3 Insufficient memory"], id="stuck"),
    ],
)
def test_the_screen(state: Callable[[], World], told: list[Any]) -> None:
    screen = _screen(state())
    assert [words for words in told if words not in screen] == [], screen
