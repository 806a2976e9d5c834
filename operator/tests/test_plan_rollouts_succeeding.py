"""A dataset with the name of a deleted one owns nothing of it."""

from __future__ import annotations

from operator_support.plan_samples import condition, serving
from operator_support.plan_world import World

from lookupdb_operator.model import Predecessor
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT

COLLECTED = tuple(Predecessor("StatefulSet", f"airports-r1-s{shard}", "uid-0") for shard in range(5))
ORPHANED = (
    Predecessor("Service", "airports-r1", "uid-0", orphaned=True),
    Predecessor("StatefulSet", "airports-r1-s0", "uid-0", orphaned=True),
)


def test_it_begins_when_all_of_its_predecessor_is_collected() -> None:
    world = World(predecessors=COLLECTED)
    planned = world.reconcile()
    assert (planned.apply, planned.delete) == ((), ())
    for kind in (READY, BUILT, ROLLED_OUT):
        told = condition(planned, kind)
        assert (told.status, told.reason) == ("False", reasons.WAITING_FOR_PREDECESSOR)
    assert told.message == (
        "Kubernetes still collects StatefulSet airports-r1-s0, StatefulSet airports-r1-s1, StatefulSet airports-r1-s2"
        " and 2 more of an earlier dataset of this name. This one begins after that."
    )
    assert condition(planned, DEGRADED).reason == reasons.HEALTHY
    assert world.look().status == world.status, "a second pass writes nothing"
    world.predecessors = ()
    world.settle()
    assert condition(world.look(), READY).reason == reasons.SERVING


def test_what_nobody_collects_is_reported_with_the_command_that_deletes_it() -> None:
    world = World(predecessors=(*COLLECTED, *ORPHANED))
    planned = world.reconcile()
    assert planned.apply == ()
    told = condition(planned, DEGRADED)
    assert (told.status, told.reason) == ("True", reasons.PREDECESSOR_ORPHANED)
    assert told.message == (
        "An earlier dataset of this name has left Service airports-r1, StatefulSet airports-r1-s0, which Kubernetes"
        " does not collect; delete them: kubectl delete -n default services,statefulsets"
        " -l lookupdb.dev/dataset-uid=uid-0"
    )
    assert condition(planned, READY).reason == reasons.PREDECESSOR_ORPHANED


def test_what_has_begun_goes_on_and_leaves_alone_what_is_restored_beside_it() -> None:
    world = serving()
    table = ("ConfigMap", "airports-routing-table")
    world.predecessors = (Predecessor(*table, "uid-0", orphaned=True),)
    world.edit(replicas=1)
    planned = world.look()
    assert table not in {(one["kind"], one["metadata"]["name"]) for one in planned.apply}
    assert (condition(planned, DEGRADED).status, condition(planned, DEGRADED).reason) == (
        "True",
        reasons.PREDECESSOR_ORPHANED,
    )
    assert condition(planned, READY).status == "True", "what serves keeps serving"
