"""A reconcile pass: the order of its steps, and what follows when one fails."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from operator_support.reconcile_bench import DATASET, STATUS, Bench

from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError, Conflict, NamespaceTerminating, NotFound, Refused, Unreachable
from lookupdb_operator.loop.queue import RequeueRequested
from lookupdb_operator.metrics import Health, Metrics
from lookupdb_operator.model import Absence, Config, ExistingObject, Manifest, ObjectRef, Observed, Plan, Pod
from lookupdb_operator.plan import objects
from lookupdb_operator.status import BuildRecord, DatasetStatus


@pytest.fixture
def bench() -> Bench:
    return Bench()


def manifest(kind: str, name: str = "airports") -> Manifest:
    return {"kind": kind, "metadata": {"namespace": "shop", "name": name}}


async def test_status_first_then_what_should_be_then_what_should_not(bench: Bench) -> None:
    bench.plan = Plan(
        status=STATUS,
        apply=(manifest("Secret"), manifest("Job")),
        delete=(ObjectRef("Service", "old", "u-9"),),
        next_look_in=12.0,
    )
    assert await bench.look() == 12.0
    assert bench.cluster.done == [
        "status",
        "event Warning BadSource",
        "apply Secret gently",
        "apply Job gently",
        "delete Service u-9",
    ]
    assert bench.cache.kinds == ["LookupDataset", "Job"], "the next pass sees what this one wrote, but no Secret"
    assert bench.count("done") == 1


async def test_a_status_that_is_as_it_should_be_is_not_written(bench: Bench) -> None:
    assert await bench.look() is None
    assert bench.cluster.done == []


async def test_progress_alone_is_written_every_few_seconds_though_looked_at_more_often(bench: Bench) -> None:
    for ready, delay in (("1/16", None), ("2/16", 5.0), ("3/16", 5.0)):
        bench.plan = Plan(status=replace(DATASET.status, shards=ready))
        assert await bench.look() == delay
        assert bench.cluster.done == ([] if delay else ["status"])
    bench.clock += 5
    assert await bench.look() is None
    assert bench.cluster.done == ["status"]


async def test_a_conflict_on_the_status_stops_the_look(bench: Bench) -> None:
    bench.plan = Plan(status=STATUS, apply=(manifest("Job"),))
    bench.cluster.failures["status"] = Conflict("LookupDataset airports", "modified")
    with pytest.raises(RequeueRequested):
        await bench.look()
    assert bench.cluster.done == ["status"]
    assert (bench.count("conflict"), bench.metrics.errors._value.get()) == (1, 0)


async def test_a_build_counts_once_though_its_status_is_written_at_the_third_attempt(bench: Bench) -> None:
    bench.cluster.failures["status"] = Conflict("LookupDataset airports", "modified")
    for second in range(3):
        moment = f"2026-01-01T12:00:0{second}Z"
        build = BuildRecord("g1", "built", "", "2026-01-01T11:00:00Z", moment)
        bench.plan = Plan(status=replace(STATUS, builds=(build,)))
        if second == 2:
            bench.cluster.failures.clear()
            await bench.look()
        else:
            with pytest.raises(RequeueRequested):
                await bench.look()
    assert bench.metrics._registry.get_sample_value("lookupdb_operator_build_duration_seconds_count") == 1


async def test_a_dataset_that_is_gone_meanwhile_is_left_alone(bench: Bench) -> None:
    bench.plan = Plan(status=STATUS, apply=(manifest("Job"),))
    bench.cluster.failures["status"] = NotFound("LookupDataset airports", "not found")
    assert await bench.look() is None
    assert bench.cluster.done == ["status"]


async def test_an_api_server_that_is_away_is_asked_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.plan = Plan(status=STATUS, apply=(manifest("Job"), manifest("Service")))
    bench.cluster.failures["apply Job gently"] = Unreachable("Job airports", "it does not answer", retry_after=7.0)
    with pytest.raises(RequeueRequested) as requested:
        await bench.look()
    assert requested.value.at_least == 7, "as late as the API server asks"
    assert bench.cluster.done[-1] == "apply Job gently"
    assert (bench.count("unreachable"), bench.metrics.errors._value.get()) == (1, 1)
    assert "it does not answer" in caplog.text


async def test_a_refusal_is_reported_to_the_next_plan_until_it_is_no_more(bench: Bench) -> None:
    bench.plan = Plan(status=DATASET.status, apply=(manifest("Job"), manifest("Service")), next_look_in=3600.0)
    bench.cluster.failures["apply Job gently"] = Refused("Job airports", "exceeded quota")
    with pytest.raises(RequeueRequested) as raised:
        await bench.look()
    assert raised.value.at_most == objects.REFUSED_RETRY_SECONDS
    assert bench.cluster.done == ["status", "apply Job gently", "apply Service gently"], "the others do not wait for it"
    bench.cluster.failures.clear()
    assert await bench.look() == 0.0, "the condition is to be taken back at once"
    assert await bench.look() == 3600.0
    refusals = [refusals for _, refusals in bench.observer.asked]
    assert refusals == [{}, {("Job", "airports"): "exceeded quota"}, {}]


@pytest.mark.parametrize(("there", "begins"), [((), False), (("NetworkPolicy",), True), (("Deployment",), True)])
async def test_routers_do_not_begin_without_the_policy_that_says_who_may_reach_them(
    bench: Bench, there: tuple[str, ...], begins: bool
) -> None:
    policy, routers = manifest("NetworkPolicy", "airports-router"), manifest("Deployment", "airports-router")
    for one in (policy, routers):
        one["metadata"]["labels"] = names.labels("airports", "u-1", names.ROUTER)
    observed = tuple(ExistingObject(ObjectRef(kind, "airports-router", kind), "digest") for kind in there)
    bench.observer.observed = Observed(DATASET, other_objects=observed)
    bench.plan = Plan(status=DATASET.status, apply=(policy, routers, manifest("Service")))
    gently = "" if "NetworkPolicy" in there else " gently"
    bench.cluster.failures[f"apply NetworkPolicy{gently}"] = Refused("NetworkPolicy airports-router", "no more of them")
    with pytest.raises(RequeueRequested):
        await bench.look()
    assert any(done.startswith("apply Deployment") for done in bench.cluster.done) is begins
    assert "apply Service gently" in bench.cluster.done
    if not begins:
        with pytest.raises(RequeueRequested):
            await bench.look()
        assert bench.observer.asked[-1][1]["Deployment", "airports-router"].startswith("it waits for its NetworkPolicy")


async def test_of_a_namespace_that_is_being_deleted_one_object_is_tried_and_not_all(bench: Bench) -> None:
    """Five hundred datasets in it would send ten thousand requests that can only be refused."""
    bench.plan = Plan(
        status=DATASET.status, apply=(manifest("Job"), manifest("Service")), delete=(ObjectRef("Pod", "old", "u-9"),)
    )
    bench.cluster.failures["apply Job gently"] = NamespaceTerminating("Job airports", "it is being terminated")
    with pytest.raises(RequeueRequested, match="being terminated"):
        await bench.look()
    assert bench.cluster.done == ["status", "apply Job gently", "delete Pod u-9"]


async def test_what_is_somebody_elses_is_not_taken(bench: Bench) -> None:
    bench.plan = Plan(status=DATASET.status, apply=(manifest("Secret"), manifest("Service"), manifest("Job")))
    for kind in ("Secret", "Service"):
        failure = Conflict(f"{kind} airports", "conflict with kubectl: .spec")
        bench.cluster.failures[f"apply {kind} gently"] = failure
    with pytest.raises(RequeueRequested, match="conflict with kubectl"):
        await bench.look()
    assert bench.cluster.done == ["status", "apply Secret gently", "apply Service gently", "apply Job gently"]
    assert bench.cache.kinds[-1:] == ["Job"], "what is another's is not cached"
    with pytest.raises(RequeueRequested):
        await bench.look()
    assert {kind for kind, _ in bench.observer.asked[-1][1]} == {"Secret", "Service"}


@pytest.mark.parametrize("answer", [NotFound, Conflict, Refused])
async def test_a_router_pod_that_is_gone_by_now_is_no_refusal(bench: Bench, answer: type[ApiError]) -> None:
    """An API server says that it may not be created."""
    bench.observer.observed = Observed(DATASET, pods=(Pod("airports", "u-3", "router"),))
    bench.plan = Plan(status=DATASET.status, apply=(manifest("Pod"), manifest("Job")))
    bench.cluster.failures["apply Pod"] = answer("Pod airports", "pods is forbidden: cannot create resource")
    await bench.look()
    assert bench.cluster.done == ["status", "apply Pod", "apply Job gently"]


async def test_a_router_pod_that_may_not_be_nudged_is_reported(bench: Bench) -> None:
    bench.observer.observed = Observed(DATASET, pods=(Pod("airports", "u-3", "router"),))
    bench.plan = Plan(status=DATASET.status, apply=(manifest("Pod"),))
    bench.cluster.failures["apply Pod"] = Refused("Pod airports", "admission webhook denied the request")
    with pytest.raises(RequeueRequested, match="webhook"):
        await bench.look()


async def test_what_is_ours_is_as_we_wrote_it_whoever_changed_it(bench: Bench) -> None:
    bench.observer.observed = Observed(
        DATASET, other_objects=(ExistingObject(ObjectRef("Service", "airports", "u-2"), "digest"),)
    )
    bench.plan = Plan(status=DATASET.status, apply=(manifest("Service"),))
    await bench.look()
    assert bench.cluster.done == ["status", "apply Service"]
    bench.cluster.failures["apply Service"] = Conflict("Service airports", "another uid")
    with pytest.raises(RequeueRequested, match="another uid"):
        await bench.look()


async def test_who_changes_an_object_back_each_time_is_not_fought_as_fast_as_events_come(bench: Bench) -> None:
    """Another controller undoes each repair at once, for an hour."""
    contested = ExistingObject(ObjectRef("Service", "airports", "u-2"), "digest", changed="x", changed_by="meddler")
    bench.observer.observed = Observed(DATASET, other_objects=(contested,))

    def decide(observed: Observed, config: Config, now: datetime) -> Plan:
        return Plan(status=DATASET.status, apply=objects.without_contested_manifests((manifest("Service"),), observed))

    bench.decide = decide
    written, agains = [], []
    for second in range(3600):
        bench.clock = float(second)
        again = await bench.look()
        if "apply Service" in bench.cluster.done:
            written.append(second)
        agains.append(again)
    assert written[:6] == [0, 1, 2, 3, 13, 33], "put right at once, then later and later"
    assert len(written) < 25
    assert min(again for again in agains[4:] if again is not None) > 0
    assert agains[14] == pytest.approx(19), "it is looked at again when it may be written again"


async def test_what_was_deleted_is_not_deleted_again_while_its_informer_lags(bench: Bench) -> None:
    bench.plan = Plan(status=DATASET.status, delete=(ObjectRef("Service", "old", "u-9"),))
    await bench.look()
    assert bench.cluster.done == ["status", "delete Service u-9"]
    await bench.look()
    assert bench.cluster.done == ["status"]


async def test_the_plan_knows_for_how_long_a_pod_was_seen_away(bench: Bench) -> None:
    away = Pod("airports-router-a", "a", names.ROUTER, deleting=True)
    bench.observer.observed = Observed(DATASET, pods=(away,))
    told: list[Absence] = []

    def decide(observed: Observed, config: Config, now: datetime) -> Plan:
        told.append(observed.absences["a"])
        return bench.plan

    bench.decide = decide
    await bench.look()
    bench.clock += 90
    await bench.look()
    assert told == [Absence(0, 0), Absence(90, 90)]


async def test_a_look_at_a_dataset_that_has_changed_since_does_nothing(bench: Bench) -> None:
    """The status stays the same, but what an old dataset asked for must not return."""
    bench.plan = Plan(
        status=DATASET.status, apply=(manifest("ConfigMap"),), delete=(ObjectRef("Service", "old", "u-9"),)
    )
    bench.cluster.failures["status"] = Conflict("LookupDataset airports", "the object has been modified")
    with pytest.raises(RequeueRequested):
        await bench.look()
    assert bench.cluster.done == ["status"]


async def test_routers_are_asked_while_the_plan_wants_to_know(bench: Bench) -> None:
    bench.plan = Plan(status=DATASET.status, ask_routers=True)
    await bench.look()
    bench.plan = Plan(status=DATASET.status)
    await bench.look()
    await bench.look()
    assert [asked for asked, _ in bench.observer.asked] == [True, True, False], "at first they are asked anyhow"


async def test_routers_are_asked_now_and_then_though_nothing_has_changed(bench: Bench) -> None:
    for moment in (100.0, 699.0, 700.0, 701.0):
        bench.clock = moment
        await bench.look()
    assert [asked for asked, _ in bench.observer.asked] == [True, False, True, False]


async def test_a_look_of_which_a_write_was_refused_is_a_success_as_far_as_it_goes(bench: Bench) -> None:
    """Restarting the operator does not free a full quota."""
    bench.plan = Plan(status=DATASET.status, apply=(manifest("Job"),))
    bench.cluster.failures["apply Job gently"] = Refused("Job airports", "exceeded quota")
    before = bench.metrics._last_success
    with pytest.raises(RequeueRequested):
        await bench.look()
    assert bench.metrics._last_success > before


async def test_an_event_that_cannot_be_written_stops_nothing(bench: Bench) -> None:
    bench.plan = Plan(status=STATUS, apply=(manifest("Job"),))
    bench.cluster.failures["event Warning BadSource"] = Refused("Event", "forbidden")
    assert await bench.look() is None
    assert bench.cluster.done[-1] == "apply Job gently"


async def test_a_dataset_that_is_gone_leaves_no_metrics(bench: Bench) -> None:
    bench.plan = Plan(status=STATUS)
    await bench.look()
    assert b'dataset_condition{condition="Degraded",dataset="airports"' in bench.metrics.render()
    bench.observer.observed = None
    assert await bench.look() is None
    assert b"airports" not in bench.metrics.render()


async def test_a_dataset_of_another_operator_has_no_metrics_here(bench: Bench) -> None:
    bench.plan = Plan(status=replace(STATUS, operator="other/release"))
    await bench.look()
    assert b"airports" not in bench.metrics.render()


async def test_a_defect_is_counted_and_passed_on(bench: Bench) -> None:
    def defect(observed: Observed, config: Config, now: datetime) -> Plan:
        raise ZeroDivisionError

    bench.reconciler._decide = defect
    with pytest.raises(ZeroDivisionError):
        await bench.look()
    assert bench.count("defect") == 1


def test_health_fails_when_looks_stop_or_a_worker_ends() -> None:
    now, alive, waited = [0.0], [True], [0.0]
    metrics = Metrics(clock=lambda: now[0])
    health = Health(metrics, resync=600.0, is_alive=lambda: alive[0], longest_look=lambda: waited[0])
    now[0] = 1800.0
    assert health.find_problem() is None
    now[0] = 1801.0
    assert "succeeded for 1801 s" in (health.find_problem() or "")
    metrics.note_progress()
    assert health.find_problem() is None, "a start that lists page after page gets on"
    metrics.note_success()
    assert health.find_problem() is None
    now[0] = 2000.0
    short = Health(metrics, resync=10.0, is_alive=lambda: True, longest_look=lambda: waited[0])
    assert short.find_problem() is None, "900 s at least"
    waited[0] = 901.0
    assert "a reconcile pass has not ended for 901 s" in (short.find_problem() or "")
    assert health.find_problem() is None
    alive[0] = False
    assert "worker" in (health.find_problem() or "")
    alive[0] = True
    health.report_failure("no watch has reported 1 of kind Pod")
    assert health.find_problem() == "no watch has reported 1 of kind Pod"


def _see(bench: Bench, operator: str = "old/release", **members: Any) -> None:
    """See a dataset without any planned change."""
    bench.observer.observed = Observed(replace(DATASET, status=DatasetStatus(operator=operator), **members))
    bench.plan = Plan(status=bench.observer.observed.dataset.status)


class TestADatasetThatNothingIsDoneAbout:
    async def test_has_an_event_once_with_the_command_that_takes_it_over(self, bench: Bench) -> None:
        _see(bench)
        await bench.look()
        assert bench.cluster.done == ["event Warning OtherOperator"]
        annotation = "lookupdb.dev/operator=own/release --overwrite"
        for datasets in ("airports -n shop", "--all --all-namespaces"):
            assert f"kubectl annotate lds {datasets} {annotation}" in bench.cluster.messages[0]
        await bench.look()
        assert bench.cluster.done == [], "two operators that live do not tell of each other for ever"

    async def test_has_another_event_when_it_changes_hands(self, bench: Bench) -> None:
        for operator in ("old/release", "older/release"):
            _see(bench, operator)
            await bench.look()
            assert bench.cluster.done == ["event Warning OtherOperator"]
        _see(bench, "own/release")
        await bench.look()
        _see(bench)
        await bench.look()
        assert bench.cluster.done == ["event Warning OtherOperator"]

    async def test_and_whose_status_cannot_be_read_has_the_command_that_makes_it_again(self, bench: Bench) -> None:
        _see(bench, "", status_problem="expected int, found 'x'" * 99)
        await bench.look()
        assert bench.cluster.done == ["event Warning StatusUnreadable"]
        assert "kubectl patch lds airports -n shop --subresource=status" in bench.cluster.messages[0]
        assert len(bench.cluster.messages[0].encode()) < 1024, "the API server cuts longer ones"

    async def test_is_counted_until_it_is_acted_on_or_gone(self, bench: Bench) -> None:
        _see(bench)
        await bench.look()
        labels = {"namespace": "shop", "dataset": "airports", "reason": "OtherOperator", "operator": "old/release"}
        name = "lookupdb_dataset_unattended"
        assert bench.metrics._registry.get_sample_value(name, labels) == 1
        _see(bench, "own/release")
        await bench.look()
        assert bench.metrics._registry.get_sample_value(name, labels) is None, "it was taken over"
        _see(bench)
        await bench.look()
        assert bench.metrics._registry.get_sample_value(name, labels) == 1
        bench.observer.observed = None
        await bench.look()
        assert bench.metrics._registry.get_sample_value(name, labels) is None, "it is gone"

    async def test_because_it_is_being_deleted_has_no_event(self, bench: Bench) -> None:
        _see(bench, deleting=True)
        await bench.look()
        assert bench.cluster.done == []
