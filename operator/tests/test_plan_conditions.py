"""Conditions and their messages; a second pass writes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_support.plan_samples import applied, broken, condition, rebuilt, says, serving, trouble, unconfirmed
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import CONDITIONS, BuildFailure, DatasetStatus


def _building() -> World:
    world = World()
    world.takes.build = NEVER
    return world


def _failed() -> World:
    world = serving()
    world.fails = lambda spec: broken()
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.failure is not None)
    return world


def _scaling() -> World:
    world = serving()
    world.takes.start = NEVER
    world.edit(replicas=3)
    world.reconcile()
    world.step()
    return world


STATES: list[Any] = [
    pytest.param(_building, id="a first build"),
    pytest.param(serving, id="all serves"),
    pytest.param(_failed, id="a build failed"),
    pytest.param(lambda: rebuilt(serving()), id="servers start"),
    pytest.param(lambda: unconfirmed(serving()), id="routers take up a table"),
    pytest.param(_scaling, id="servers are added"),
]


@pytest.mark.parametrize("state", STATES)
def test_a_second_pass_writes_nothing_while(state: Any) -> None:
    world = state()
    world.reconcile()
    again = world.look()
    assert (again.apply, again.delete) == ((), ())
    assert again.status == world.status


@pytest.mark.parametrize("state", STATES)
def test_all_conditions_are_there_with_a_known_reason_and_a_sentence_while(state: Any) -> None:
    planned = state().look()
    known = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
    assert tuple(one.type for one in planned.status.conditions) == CONDITIONS
    for one in planned.status.conditions:
        assert one.reason in known
        assert one.message.endswith(".")
        assert one.observed_generation == planned.status.observed_generation > 0
        assert one.last_transition_time


@pytest.mark.parametrize("state", STATES)
def test_status_is_read_as_it_was_written_while(state: Any) -> None:
    status = state().look().status
    assert DatasetStatus.from_json(status.to_json()) == status


def test_time_alone_changes_nothing() -> None:
    world = serving()
    world.now += timedelta(days=30)
    assert world.look().status == world.status


def test_the_time_of_a_condition_changes_with_its_truth_alone() -> None:
    world = _building()
    world.reconcile()
    since = condition(world.look(), "Built").last_transition_time
    world.step(30)
    world.reconcile()
    next(pod for pod in world.pods.values() if pod.component == "builder").trouble = trouble("ImagePullFailed")
    planned = world.look()
    assert condition(planned, "Built").reason == "ImagePullFailed"
    assert condition(planned, "Built").last_transition_time == since
    assert condition(planned, "Degraded").last_transition_time > since


def test_what_serves_is_reported() -> None:
    world = serving()
    status = world.status
    assert (status.generation, status.records, status.bytes) == ("g1", 10, 1000)
    assert (status.shards, status.replicas) == ("2/2", 2)
    assert status.selector == (
        f"{names.DATASET}=airports,{names.DATASET_UID}={world.dataset.uid},{names.COMPONENT}=shard,"
        f"{names.ROLLOUT}=r1,{names.SHARD}=0"
    )


def test_the_scale_subresource_selects_as_many_pods_as_it_has_replicas() -> None:
    # An autoscaler divides the usage of the selected pods by the number of replicas: with all shards it would run away.
    world = serving(shards=3, replicas=2)
    chosen = dict(term.split("=") for term in world.status.selector.split(","))
    selected = [pod for pod in world.pods.values() if chosen.items() <= pod.labels.items()]
    assert len(selected) == world.status.replicas == 2


class TestReady:
    def test_is_false_before_anything_was_rolled_out(self) -> None:
        assert says(World().look())["Ready"] == "False NoRoutingTable"

    def test_is_false_while_a_shard_has_no_server(self) -> None:
        world = serving()
        for pod in world.pods.values():
            pod.ready = pod.ready and pod.labels.get(names.SHARD) != "1"
        planned = world.look()
        assert says(planned)["Ready"] == "False ShardsUnavailable"
        assert "shard 1:" in condition(planned, "Ready").message
        assert planned.status.shards == "1/2"

    def test_is_false_when_only_servers_are_ready_that_no_table_names(self) -> None:
        world = _scaling()
        for pod in world.pods.values():
            pod.ready = (pod.ready and pod.component != "shard") or pod.name.endswith("-2")
        assert says(world.look())["Ready"] == "False ShardsUnavailable"

    def test_is_false_without_a_router(self) -> None:
        world = serving()
        for pod in world.pods.values():
            pod.ready = pod.component != names.ROUTER
        planned = world.look()
        assert says(planned)["Ready"] == "False NoRouterReady"
        assert says(planned)["Degraded"] == "False Healthy", "routers that have just got a table are not ready yet"
        assert planned.next_look_in is not None
        world.now += timedelta(seconds=planned.next_look_in)
        planned = world.look()
        assert says(planned)["Ready"] == "False NoRouterReady"
        assert says(planned)["Degraded"] == "True NoRouterReady"

    @pytest.mark.parametrize("state", STATES[1:])
    def test_stays_true_while(self, state: Any) -> None:
        assert says(state().look())["Ready"] == "True Serving"


def test_an_invalid_spec_changes_nothing_that_serves() -> None:
    world = serving()
    world.problem = "spec.key: give columns"
    planned = world.look()
    assert (planned.apply, planned.delete) == ((), ())
    assert says(planned) == {
        "Ready": "True Serving",
        "Built": "False InvalidSpec",
        "RolledOut": "False InvalidSpec",
        "Degraded": "True InvalidSpec",
    }
    assert "spec.key: give columns" in condition(planned, "Degraded").message
    assert "g1 keeps serving" in condition(planned, "Degraded").message
    assert planned.status.rollouts == world.status.rollouts


@pytest.mark.parametrize("problem", [None, "spec.key: give columns"], ids=["usable", "invalid"])
def test_what_does_not_serve_is_not_said_to_keep_serving(problem: str | None) -> None:
    world = serving()
    world.problem = problem
    for pod in world.pods.values():
        pod.ready = pod.component == names.ROUTER
    planned = world.look()
    assert says(planned)["Ready"] == "False ShardsUnavailable"
    assert "keeps serving" not in condition(planned, "Degraded").message


class TestRefusals:
    def test_are_reported_and_tried_again(self) -> None:
        world = serving()
        world.refuses = lambda manifest: "forbidden" if manifest["kind"] == "Deployment" else ""
        world.edit(router={"replicas": 3})
        world.reconcile()
        planned = world.reconcile()
        assert says(planned)["Degraded"] == "True ApplyRefused"
        assert "Deployment airports-router cannot be written: forbidden" in condition(planned, "Degraded").message
        assert planned.next_look_in == 30
        assert "Deployment/airports-router" in applied(planned)

    def test_of_what_is_not_wanted_any_more_are_forgotten(self) -> None:
        world = serving()
        world.refusals["Service", "airports-r7"] = "forbidden"
        assert says(world.look())["Degraded"] == "False Healthy"

    def test_for_a_quota_are_distinguished(self) -> None:
        world = serving()
        world.refusals["Secret", "airports-store-uid-1"] = "exceeded quota: secrets"
        assert says(world.look())["Degraded"] == "True QuotaExceeded"


OWNERS = [
    pytest.param("", "", True, id="nobody's"),
    pytest.param("", "lookupdb/lookupdb", True, id="ours since we came first"),
    pytest.param("lookupdb/lookupdb", "", True, id="assigned to us"),
    pytest.param("lookupdb/lookupdb", "other/one", True, id="assigned to us, another's before"),
    pytest.param("", "other/one", False, id="another's who came first"),
    pytest.param("other/one", "", False, id="assigned to another"),
    pytest.param("other/one", "lookupdb/lookupdb", False, id="assigned to another, ours before"),
]


@pytest.mark.parametrize(("assigned", "operator", "is_ours"), OWNERS)
def test_a_dataset_is_acted_on_or_not_when_it_is(assigned: str, operator: str, is_ours: bool) -> None:
    world = World(assigned=assigned, status=DatasetStatus(operator=operator))
    planned = world.look()
    assert bool(planned.apply) == is_ours
    assert bool(planned.idle_reason) == (not is_ours)
    if not is_ours:
        assert planned.status == world.status


@pytest.mark.parametrize(
    "members",
    [
        pytest.param({"deleting": True}, id="it is being deleted"),
        pytest.param({"status_problem": "expected int, found 'x'"}, id="its status cannot be read"),
    ],
)
def test_nothing_is_done_when(members: dict[str, Any]) -> None:
    world = World()
    observed = world.observe()
    planned = world.planner(replace(observed, dataset=replace(observed.dataset, **members)), world.config, world.now)
    assert (planned.apply, planned.delete, planned.status) == ((), (), DatasetStatus())
    assert planned.idle_reason


def test_of_a_dataset_that_is_not_ours_no_moment_is_read() -> None:
    failure = BuildFailure("BadSource", "no such file", "g1", content="", refresh="", count=1, retry_at="yesterday")
    status = DatasetStatus(operator="other/operator", failure=failure)
    planned = World(assigned="other/operator", status=status).look()
    assert planned.idle_reason
    assert planned.status == status


class TestHints:
    """Hints are sentences: the finding on one line, and the remedy once."""

    def test_the_advice_of_a_message_replaces_the_general_one(self) -> None:
        message = "a.csv: key.columns names the column 'id', which is not there\n  its columns are x and y"
        assert reasons.write_sentence(reasons.BAD_SOURCE, message) == (
            "a.csv: key.columns names the column 'id', which is not there; its columns are x and y."
        )

    def test_a_list_goes_on_behind_its_colon(self) -> None:
        message = "1 row cannot be stored, at most 0 allowed:\n  row 2 of a.csv: the key is empty\n  correct it"
        told = reasons.write_sentence(reasons.GATE_CLOSED, message)
        assert told == "1 row cannot be stored, at most 0 allowed: row 2 of a.csv: the key is empty; correct it."

    def test_a_message_without_advice_gets_the_general_one(self) -> None:
        assert (
            reasons.write_sentence(reasons.DEADLINE_EXCEEDED, "too slow")
            == "too slow. Raise spec.build.deadlineSeconds."
        )


class TestTheStore:
    """The store that servers wait for is named, without any secret in its address."""

    def waiting(self, reason: str = "StoreUnavailable", message: str = "pod x cannot fetch its shard") -> str:
        world = rebuilt(serving())
        world.store = replace(
            world.store, environment={"AWS_ENDPOINT_URL": "http://me:secret@store.lookupdb.svc:7070/?k=1"}
        )
        next(pod for pod in world.pods.values() if pod.labels.get(names.ROLLOUT) == "r2").trouble = trouble(
            reason, message
        )
        planned = world.reconcile()
        assert "secret" not in condition(planned, "Degraded").message
        assert says(planned)["Degraded"] == f"True {reason}"
        return condition(planned, "RolledOut").message

    @pytest.mark.parametrize("reason", ["StoreUnavailable", "StoreDenied", "FetchFailed"])
    def test_is_named_by_url_and_host(self, reason: str) -> None:
        assert "the store is s3://lookupdb at store.lookupdb.svc:7070" in self.waiting(reason)

    def test_is_not_named_twice(self) -> None:
        told = self.waiting(message="s3://lookupdb does not answer (store.lookupdb.svc:7070: refused)")
        assert told.count("s3://lookupdb") == 1

    def test_is_not_named_for_what_is_not_about_it(self) -> None:
        assert "the store is" not in self.waiting("Unschedulable")
