"""Pods of a lost node: when they are deleted by force, and which never are."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from operator_support.plan_samples import serving

from lookupdb_operator import names
from lookupdb_operator.model import Absence, ObjectRef, Observed, Pod
from lookupdb_operator.plan import plan
from lookupdb_operator.plan.planner import diagnose_serving, judge_ready
from lookupdb_operator.plan.turns import Situation

SERVER = "airports-r1-s0-0"
LOST_AFTER = Absence(unready=300, deleting=90)


def _with_lost(observed: Observed, lost: Pod, *, unready: float, deleting: float) -> Observed:
    """``lost`` was seen not ready, and being deleted, for so many seconds."""
    others = (pod for pod in observed.pods if pod.name != lost.name)
    return replace(observed, pods=(*others, lost), absences={lost.uid: Absence(unready, deleting)})


def _being_deleted(observed: Observed, name: str) -> Pod:
    (pod,) = (pod for pod in observed.pods if pod.name == name)
    return replace(pod, deleting=True, ready=False, lost_after=LOST_AFTER)


@pytest.mark.parametrize("component", [names.SHARDS, names.ROUTER])
@pytest.mark.parametrize(("unready", "deleting"), [(293, 3600), (3600, 83)], ids=["unready soon", "deleted soon"])
def test_a_pod_that_serves_is_deleted_by_force_once_its_node_counts_as_lost_and_not_before(
    component: str, unready: float, deleting: float
) -> None:
    world = serving()
    observed = world.observe()
    name = next(pod.name for pod in observed.pods if pod.component == component)
    pod = _being_deleted(observed, name)
    soon = _with_lost(observed, pod, unready=unready, deleting=deleting)
    planned = plan(soon, world.config, world.now)
    assert not any(ref.kind == "Pod" for ref in planned.delete)
    assert planned.next_look_in is not None
    assert planned.next_look_in <= 7
    now = _with_lost(observed, pod, unready=unready + 7, deleting=deleting + 7)
    planned = plan(now, world.config, world.now)
    assert [ref for ref in planned.delete if ref.kind == "Pod"] == [ObjectRef("Pod", name, pod.uid, by_force=True)]
    assert planned.next_look_in is not None, "one that a finalizer holds is tried again"


@pytest.mark.parametrize("error", [timedelta(days=-1), timedelta(minutes=6), timedelta(days=1)], ids=str)
def test_a_clock_that_is_wrong_ends_no_pod_by_force_and_spares_none(error: timedelta) -> None:
    world = serving()
    pod = _being_deleted(world.observe(), SERVER)
    draining = _with_lost(world.observe(), pod, unready=1, deleting=1)
    assert plan(draining, world.config, world.now + error).delete == ()
    lost = _with_lost(world.observe(), pod, unready=300, deleting=90)
    assert plan(lost, world.config, world.now + error).delete == (ObjectRef("Pod", SERVER, pod.uid, by_force=True),)


@pytest.mark.parametrize(("records", "told"), [(1, "g1 serves 1 record at"), (28_298, "g1 serves 28,298 records at")])
def test_records_are_counted_as_in_every_other_message(records: int, told: str) -> None:
    world = serving()
    status = replace(world.status, records=records)
    assert judge_ready(status, world.observe()).message.startswith(told)


def test_a_lone_shard_and_server_are_one() -> None:
    world = serving(shards=1, replicas=1)
    observed = world.observe()
    pods = tuple(replace(pod, ready=False) if pod.component == names.SHARDS else pod for pod in observed.pods)
    (trouble,) = diagnose_serving(
        world.status, Situation.from_observed(replace(observed, pods=pods), world.config, world.now)
    )
    assert "airports-r1-s0 has 0 of 1 server ready" in trouble.message


def test_a_pod_that_nobody_has_seen_before_is_waited_for() -> None:
    world = serving()
    lost = _with_lost(world.observe(), _being_deleted(world.observe(), SERVER), unready=300, deleting=90)
    assert plan(replace(lost, absences={}), world.config, world.now).delete == ()


def test_a_builder_is_never_deleted_by_force() -> None:
    # It writes: a second one beside it is fenced, but not needed.
    world = serving()
    lost = Pod("airports-g2-build-x", "uid-b", names.BUILDER, deleting=True, lost_after=LOST_AFTER)
    observed = _with_lost(world.observe(), lost, unready=3600, deleting=3600)
    assert plan(observed, world.config, world.now).delete == ()


def test_a_spec_that_cannot_be_used_keeps_no_lost_pod() -> None:
    world = serving()
    world.problem = "it cannot be used"
    lost = _being_deleted(world.observe(), SERVER)
    planned = plan(_with_lost(world.observe(), lost, unready=300, deleting=90), world.config, world.now)
    assert planned.delete == (ObjectRef("Pod", SERVER, lost.uid, by_force=True),)
