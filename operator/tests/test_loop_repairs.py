"""Objects that are written again and again as before: a few times at once, then more and more rarely."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_support.plan_samples import applied, condition, says, serving

from lookupdb_operator import manifests, names
from lookupdb_operator.cluster.workloads import parse_existing
from lookupdb_operator.loop import reconcile
from lookupdb_operator.loop.reconcile import Repairs
from lookupdb_operator.model import Contest, ExistingObject, Manifest, ObjectRef, Observed, ObservedDataset

SEEN = Observed(
    ObservedDataset("shop", "airports", "u-1", "7", 1, {}, None),
    other_objects=(ExistingObject(ObjectRef("Service", "airports", "u-2"), "d", changed="x", changed_by="meddler"),),
)


def manifest(kind: str = "Service", digest: str = "d", replicas: int = 1) -> Manifest:
    annotations = {names.DIGEST: digest}
    return {
        "kind": kind,
        "metadata": {"name": "airports", "annotations": annotations},
        "spec": {"replicas": replicas},
    }


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.repairs = Repairs(lambda: self.now)

    def write(self, times: int = 1, **members: Any) -> tuple[Contest, ...]:
        for _ in range(times):
            self.repairs.note_write(SEEN, manifest(**members))
        return self.repairs.list_contests()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_few_repairs_are_nobodys_contest(bench: Bench) -> None:
    assert bench.write(reconcile.AT_ONCE) == ()
    assert bench.repairs.next_in() is None


def test_then_it_is_left_alone_for_longer_each_time(bench: Bench) -> None:
    waits = []
    bench.write(reconcile.AT_ONCE)
    for _ in range(8):
        (contest,) = bench.write()
        assert (contest.kind, contest.name, contest.is_held, contest.by) == ("Service", "airports", True, "meddler")
        wait = bench.repairs.next_in()
        assert wait is not None
        waits.append(wait)
        bench.now += wait
        assert [contest.is_held for contest in bench.repairs.list_contests()] == [False]
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def test_peace_is_forgotten_about_what_was_before(bench: Bench) -> None:
    bench.write(9)
    bench.now += reconcile.FORGOTTEN_AFTER
    assert bench.repairs.list_contests() == ()
    assert bench.write() == ()


def test_something_else_is_written_at_once(bench: Bench) -> None:
    (contest,) = bench.write(4)
    assert contest.mark == manifests.write_mark(manifest())
    assert bench.write(digest="another") == ()
    assert bench.write(digest="another", replicas=2) == ()


def test_a_routing_table_is_the_same_whatever_its_version_is(bench: Bench) -> None:
    def table(version: int, records: int = 7) -> Manifest:
        text = f'{{"version":{version},"records":{records}}}'
        return {**manifest(kind="ConfigMap", digest=f"d{version}"), "data": {names.TABLE_FILE: text}}

    for version in range(4):
        bench.repairs.note_write(SEEN, table(version))
    (contest,) = bench.repairs.list_contests()
    assert contest.mark == manifests.write_mark(table(9))
    assert contest.mark != manifests.write_mark(table(9, records=8))


def test_what_the_operator_itself_has_deleted_is_undone_by_nobody(bench: Bench) -> None:
    for _ in range(3 * reconcile.AT_ONCE):
        assert bench.write() == ()
        bench.repairs.note_deletion(ObjectRef("Service", "airports", "u-2"))
    bench.write(reconcile.AT_ONCE + 1)
    bench.repairs.note_deletion(ObjectRef("Service", "another", "u-3"))
    assert len(bench.repairs.list_contests()) == 1


@pytest.mark.parametrize("kind", ["Secret", "Pod"])
def test_what_has_a_pace_of_its_own_is_not_counted(bench: Bench, kind: str) -> None:
    assert bench.write(99, kind=kind) == ()


def entry(manager: str, time: str, fields: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields, **more}


SPEC: dict[str, Any] = {"f:spec": {"f:selector": {}}}
SCALED: dict[str, Any] = {"f:spec": {"f:replicas": {}}}


@pytest.mark.parametrize(
    ("entries", "by"),
    [
        pytest.param(
            [entry("kubectl-edit", "2030-01-02T00:00:00Z", SPEC)], "kubectl-edit", id="the one who changed it"
        ),
        pytest.param(
            [entry("new", "2030-01-03T00:00:00Z", SPEC), entry("old", "2030-01-02T00:00:00Z", SPEC)],
            "new",
            id="the last one",
        ),
        pytest.param(
            [
                entry("new", "2030-01-03T00:00:00Z", SPEC),
                entry("hpa", "2030-01-02T00:00:00Z", SCALED, subresource="scale"),
            ],
            "hpa",
            id="the one who scales it",
        ),
        pytest.param(
            [entry("kube-controller-manager", "2030-01-03T00:00:00Z", {}, subresource="status")],
            "",
            id="not the one who writes its status",
        ),
        pytest.param([entry("lookupdb-operator-scaler", "2030-01-02T00:00:00Z", SCALED)], "", id="not the operator"),
    ],
)
def test_who_changes_an_object_stands_in_its_managed_fields(entries: list[dict[str, Any]], by: str) -> None:
    ours = {"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:type": {}}}}
    body = {
        "metadata": {
            "name": "airports-router",
            "uid": "u-2",
            "annotations": {names.DIGEST: "d", names.FIELDS: "other"},
            "managedFields": [ours, *entries],
        },
        "spec": {"type": "ClusterIP"},
    }
    assert parse_existing("Service", body).changed_by == by


class TestAContest:
    """Somebody deletes the routers' Service whenever it is written."""

    def contested(self, *, is_held: bool) -> tuple[Observed, Any]:
        world = serving()
        service = world.things.pop(("Service", "airports-router")).manifest
        contest = Contest("Service", "airports-router", manifests.write_mark(service), is_held, "cleaner")
        return replace(world.observe(), contests=(contest,)), world

    @pytest.mark.parametrize("is_held", [True, False])
    def test_is_reported_whether_or_not_it_is_put_right_now(self, is_held: bool) -> None:
        observed, world = self.contested(is_held=is_held)
        planned = world.planner(observed, world.config, world.now)
        assert applied(planned) == (set() if is_held else {"Service/airports-router"})
        assert says(planned)["Degraded"] == "True Contested"
        message = condition(planned, "Degraded").message
        assert "Service airports-router is changed by the field manager 'cleaner' again and again" in message
        assert "g1 keeps serving" in message

    def test_does_not_keep_from_what_has_changed_since(self) -> None:
        observed, world = self.contested(is_held=True)
        contest = replace(observed.contests[0], mark="older")
        planned = world.planner(replace(observed, contests=(contest,)), world.config, world.now)
        assert applied(planned) == {"Service/airports-router"}
