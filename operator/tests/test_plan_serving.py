"""Pods of a node that is lost: when they are deleted by force, and which never are."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from operator_support.plan_samples import serving

from lookupdb_operator import names
from lookupdb_operator.model import ObjectRef, Observed, Pod
from lookupdb_operator.plan import plan

SERVER = "airports-r1-s0-0"


def _with_lost(observed: Observed, lost: Pod) -> Observed:
    others = (pod for pod in observed.pods if pod.name != lost.name)
    return replace(observed, pods=(*others, lost))


def _being_deleted(observed: Observed, name: str) -> Pod:
    (pod,) = (pod for pod in observed.pods if pod.name == name)
    return replace(pod, deleting=True, ready=False)


@pytest.mark.parametrize("component", [names.SHARDS, names.ROUTER])
def test_a_pod_that_serves_is_deleted_by_force_once_its_node_counts_as_lost_and_not_before(component: str) -> None:
    world = serving()
    observed = world.observe()
    name = next(pod.name for pod in observed.pods if pod.component == component)
    pod = _being_deleted(observed, name)
    soon = _with_lost(observed, replace(pod, lost_at=world.now + timedelta(seconds=7)))
    planned = plan(soon, world.config, world.now)
    assert not any(ref.kind == "Pod" for ref in planned.delete)
    assert planned.next_look_in is not None
    assert planned.next_look_in <= 7
    now = _with_lost(observed, replace(pod, lost_at=world.now))
    planned = plan(now, world.config, world.now)
    assert [ref for ref in planned.delete if ref.kind == "Pod"] == [ObjectRef("Pod", name, pod.uid, by_force=True)]
    assert planned.next_look_in is not None, "one that a finalizer holds is tried again"


def test_a_pod_whose_kubelet_may_yet_end_it_is_waited_for() -> None:
    world = serving()
    observed = _with_lost(world.observe(), _being_deleted(world.observe(), SERVER))
    assert plan(observed, world.config, world.now).delete == ()


def test_a_builder_is_never_deleted_by_force() -> None:
    # It writes: another one beside it is fenced, but not needed.
    world = serving()
    lost = Pod("airports-g2-build-x", "uid-b", names.BUILDER, deleting=True, lost_at=world.now - timedelta(hours=1))
    assert plan(_with_lost(world.observe(), lost), world.config, world.now).delete == ()


def test_a_spec_that_cannot_be_used_keeps_no_lost_pod() -> None:
    world = serving()
    world.problem = "it cannot be used"
    lost = replace(_being_deleted(world.observe(), SERVER), lost_at=world.now)
    planned = plan(_with_lost(world.observe(), lost), world.config, world.now)
    assert planned.delete == (ObjectRef("Pod", SERVER, lost.uid, by_force=True),)
