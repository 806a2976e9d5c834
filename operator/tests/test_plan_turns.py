"""A dataset that is queued, or that must give its slot up; and its messages."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from operator_support.plan_objects import Takes
from operator_support.plan_samples import applied, broken, condition, deleted, rebuilt, says, serving, trouble
from operator_support.plan_world import NEVER, World

from lookupdb_operator.model import Config, Observed, Plan, Predecessor, Turn, Turns, add_seconds
from lookupdb_operator.plan import plan, turns
from lookupdb_operator.status import BuildStatus, DatasetStatus, RolloutStatus, Ticket

NOT_NOW = Turn(is_granted=False, ahead=7)
WAIT_TO_BUILD, WAIT_TO_ROLL_OUT = Turns(build=NOT_NOW), Turns(rollout=NOT_NOW)
YIELD = Turn(must_yield=True)


def upgraded() -> World:
    """All serves; the chart has another image, and other datasets have the slots."""
    world = serving()
    world.turns = WAIT_TO_ROLL_OUT
    world.config = replace(world.config, image="lookupdb:2")
    world.reconcile()
    return world


def stuck(reason: str = "Unschedulable") -> World:
    """A world in which the servers of r2 cannot be placed."""
    world = rebuilt(serving())
    for pod in world.pods.values():
        if pod.labels.get("lookupdb.dev/rollout") == "r2":
            pod.trouble = trouble(reason, "no node takes pod airports-r2-s0-0")
    world.reconcile()
    return world


class TestABuildWhoseTurnHasNotCome:
    def test_is_not_begun_but_all_that_needs_no_turn_is(self) -> None:
        world = World(turns=WAIT_TO_BUILD)
        planned = world.reconcile()
        assert (planned.status.build, planned.status.last_generation) == (None, 0)
        assert "Deployment/airports-router" in applied(planned)
        assert "Job/airports-g1-build" not in applied(planned)
        assert says(planned)["Built"] == "False WaitingForTurn"
        assert says(planned)["Degraded"] == "False Healthy", "nothing is wrong with waiting"
        assert condition(planned, "Built").message.endswith("since 2026-01-01T12:00:00Z, 7 before it.")

    def test_keeps_its_place(self) -> None:
        world = World(turns=WAIT_TO_BUILD)
        ticket = world.reconcile().status.build_ticket
        world.step(500)
        assert world.look().status.build_ticket == ticket
        assert world.look().status == world.status, "a second look writes nothing"

    def test_begins_when_it_has_come(self) -> None:
        world = World(turns=WAIT_TO_BUILD)
        world.reconcile()
        world.turns = Turns()
        planned = world.look()
        assert planned.status.build is not None
        assert planned.status.build_ticket is None
        world.settle()

    def test_after_a_failure_says_both(self) -> None:
        world = World(fails=lambda spec: broken())
        world.settle(until=lambda: world.status.failure is not None)
        world.turns = WAIT_TO_BUILD
        world.now += timedelta(seconds=31)
        planned = world.reconcile()
        assert says(planned)["Built"] == "False BadSource"
        assert "The next attempt has waited for a slot" in condition(planned, "Built").message
        assert "7 before it" in condition(planned, "Degraded").message

    def test_is_forgotten_when_nothing_needs_to_be_built_any_more(self) -> None:
        world = serving()
        world.turns = WAIT_TO_BUILD
        world.edit(source={"url": "s3://data/v2.csv"})
        assert world.reconcile().status.build_ticket is not None
        world.edit(source={"url": "s3://data/v1.csv"})
        assert world.reconcile().status.build_ticket is None


def test_a_build_that_has_ended_does_not_begin_the_next_one_before_others() -> None:
    world = serving()
    world.annotate("monday")
    world.reconcile()
    world.annotate("tuesday")
    world.settle(until=lambda: world.status.refreshed == "monday")
    assert world.status.build is None
    assert world.status.build_ticket is not None
    world.settle()
    assert world.status.refreshed == "tuesday"


class TestARolloutWhoseTurnHasNotCome:
    def test_is_not_begun_and_what_serves_serves(self) -> None:
        world = upgraded()
        assert [rollout.rollout for rollout in world.status.rollouts] == ["r1"]
        planned = world.look()
        assert says(planned) == {
            "Ready": "True Serving",
            "Built": "True GenerationBuilt",
            "RolledOut": "False WaitingForTurn",
            "Degraded": "False Healthy",
        }
        assert "7 before it" in condition(planned, "RolledOut").message
        assert (planned.apply, planned.delete) == ((), ())

    def test_begins_when_it_has_come(self) -> None:
        world = upgraded()
        world.turns = Turns()
        world.settle()
        assert (world.status.last_rollout, world.status.rollout_ticket) == (2, None)

    def test_does_not_keep_replicas_from_being_changed(self) -> None:
        world = serving()
        world.turns = Turns(build=NOT_NOW, rollout=NOT_NOW)
        world.edit(replicas=3)
        world.settle()
        assert world.status.table is not None
        assert world.status.table.replicas == 3

    @pytest.mark.parametrize(
        ("ahead", "words"), [(0, "0 before"), (10, "10 before"), (11, "more than 10"), (499, "200")]
    )
    def test_is_reported_coarsely_when_many_are_before_it(self, ahead: int, words: str) -> None:
        world = upgraded()
        world.turns = Turns(rollout=Turn(False, ahead))
        assert words in condition(world.look(), "RolledOut").message

    def test_behind_hundreds_its_place_changes_a_few_times_in_all(self) -> None:
        """When a slot becomes free, a few of five hundred statuses are written, and each some twenty times in all."""
        ticket = Ticket("2026-01-01T00:00:00Z")
        told = [turns.describe_wait(ticket, Turn(False, ahead)) for ahead in range(1000)]
        assert sum(one != other for one, other in pairwise(told)) < 20


class TestATurnThatIsGivenUp:
    def test_takes_the_servers_away_so_that_others_have_their_room(self) -> None:
        world = stuck()
        world.turns = Turns(rollout=YIELD)
        planned = world.reconcile()
        assert {"StatefulSet/airports-r2-s0", "StatefulSet/airports-r2-s1"} <= deleted(planned)
        assert [rollout.rollout for rollout in planned.status.rollouts] == ["r1"]
        ticket = planned.status.rollout_ticket
        assert ticket is not None
        assert (ticket.given_up, ticket.reason) == (1, "Unschedulable")
        assert says(planned)["Ready"] == "True Serving"
        assert says(planned)["RolledOut"] == "False Unschedulable"
        assert says(planned)["Degraded"] == "True Unschedulable"
        assert "no node takes pod airports-r2-s0-0" in condition(planned, "Degraded").message
        assert f"until {ticket.since} at least" in condition(planned, "RolledOut").message
        assert planned.next_look_in == pytest.approx(turns.FIRST_BACKOFF, abs=2)

    def test_is_taken_again_later_and_counted(self) -> None:
        world = stuck()
        world.turns = Turns(rollout=YIELD)
        world.reconcile()
        world.turns = Turns(rollout=NOT_NOW)
        world.step(61)
        assert world.reconcile().status.last_rollout == 2
        world.turns = Turns()
        planned = world.reconcile()
        assert planned.status.last_rollout == 3
        assert planned.status.rollout_ticket is not None
        assert (planned.status.rollout_ticket.since, planned.status.rollout_ticket.given_up) == ("", 1)
        world.takes.start = 1
        world.settle()
        assert world.status.rollout_ticket is None

    def test_of_a_corrected_spec_is_asked_for_at_once(self) -> None:
        world = stuck()
        world.turns = Turns(rollout=YIELD)
        world.reconcile()
        world.turns = Turns(rollout=NOT_NOW)
        world.edit(serving={"workers": 2})
        ticket = world.reconcile().status.rollout_ticket
        assert ticket is not None
        assert (ticket.given_up, ticket.since <= "2026-01-01T12:01:00Z") == (0, True)

    def test_is_kept_by_servers_that_got_on_meanwhile(self) -> None:
        world = stuck()
        for pod in world.pods.values():
            pod.trouble = None
        world.turns = Turns(rollout=YIELD)
        assert world.look().delete == ()

    def test_takes_a_builds_job_away(self) -> None:
        world = World()
        world.takes.build = NEVER
        world.reconcile()
        world.step()
        next(pod for pod in world.pods.values() if pod.component == "builder").trouble = trouble(
            "Unschedulable", "full"
        )
        world.reconcile()
        world.turns = Turns(build=YIELD)
        planned = world.reconcile()
        assert deleted(planned) == {"Job/airports-g1-build", "ConfigMap/airports-g1-build"}
        assert says(planned)["Built"] == "False Unschedulable"
        assert planned.status.build is None


class TestAStall:
    def test_is_dated_once_and_ends_with_its_cause(self) -> None:
        world = stuck()
        first = world.status.rollouts[-1].stall
        assert first is not None
        world.step(100)
        world.reconcile()
        assert [rollout.stall for rollout in world.status.rollouts] == [None, first]  # r1 serves
        planned = world.look()
        assert planned.next_look_in is not None
        assert planned.next_look_in <= turns.PATIENCE - 98
        for pod in world.pods.values():
            pod.trouble = None
        assert world.reconcile().status.rollouts[-1].stall is None

    def test_of_a_store_that_does_not_answer_is_looked_at_when_it_is_long(self) -> None:
        world = stuck("StoreUnavailable")
        stall, again = world.status.rollouts[-1].stall, world.look().next_look_in
        assert stall is not None
        assert stall.reason == "StoreUnavailable"
        assert again is not None
        assert turns.patience_seconds(stall) == turns.STORE_PATIENCE > turns.PATIENCE

    def test_of_a_store_makes_nobody_wait_longer_each_time(self) -> None:
        world = stuck("StoreUnavailable")
        for _ in range(3):
            world.turns = Turns(rollout=YIELD)
            world.reconcile()
            ticket = world.status.rollout_ticket
            assert ticket is not None
            assert (ticket.given_up, ticket.since) == (1, add_seconds(world.now, turns.FIRST_BACKOFF))
            world.turns = Turns()
            world.step(62)
            world.reconcile()
            world.step(1)
            for pod in world.pods.values():
                if pod.labels.get("lookupdb.dev/rollout") == world.status.rollouts[-1].rollout:
                    pod.trouble = trouble("StoreUnavailable")

    def test_is_a_job_that_cannot_be_written(self) -> None:
        world = World(refuses=lambda manifest: "denied by policy" if manifest["kind"] == "Job" else "")
        world.reconcile()
        planned = world.reconcile()
        build = planned.status.build
        assert build is not None
        assert build.stall is not None
        assert build.stall.reason == "ApplyRefused"
        assert says(planned)["Built"] == "False ApplyRefused"
        assert condition(planned, "Degraded").message.count("denied by policy") == 1
        world.turns = Turns(build=YIELD)
        assert world.reconcile().status.build is None

    def test_is_a_statefulset_that_cannot_be_written(self) -> None:
        world = World(refuses=lambda manifest: "denied by policy" if manifest["kind"] == "StatefulSet" else "")
        world.settle(until=lambda: world.status.last_rollout == 1)
        planned = world.reconcile()
        stall = planned.status.rollouts[0].stall
        assert stall is not None
        assert stall.reason == "ApplyRefused"
        assert says(planned)["RolledOut"] == "False ApplyRefused"
        world.turns = Turns(rollout=YIELD)
        assert world.reconcile().status.rollouts == ()

    def test_and_a_ticket_do_not_lie_ahead_when_the_clock_is_set_back(self) -> None:
        world = stuck()
        world.turns = Turns(rollout=YIELD)
        world.reconcile()
        world.now -= timedelta(days=1)
        ticket = world.look().status.rollout_ticket
        assert ticket is not None
        assert ticket.since <= "2025-12-31T13:00:00Z"


def test_a_status_with_tickets_is_read_as_it_was_written() -> None:
    world = stuck()
    world.turns = Turns(rollout=YIELD)
    status = world.reconcile().status
    assert DatasetStatus.from_json(status.to_json()) == status


class TestATurnThatCannotBeUsed:
    def test_is_not_waited_for_with_as_many_rollouts_as_there_may_be(self) -> None:
        world = upgraded()
        kept = tuple(
            RolloutStatus(f"r{count}", "g1", "old", world.status.rollouts[0].started_at, 2) for count in range(2, 13)
        )
        world.status = replace(world.status, rollouts=(*world.status.rollouts, *kept), last_rollout=12)
        assert world.look().status.rollout_ticket is None

    def test_is_not_waited_for_while_a_predecessor_is_collected(self) -> None:
        world = World(turns=WAIT_TO_BUILD)
        assert world.reconcile().status.build_ticket is not None
        world.predecessors = (Predecessor("Service", "airports-r1", "uid-0"),)
        assert world.look().status.build_ticket is None


class TestABuildForWhichNothingRuns:
    @staticmethod
    def _without_pods(*, deleting: bool) -> World:
        world = World(turns=Turns(build=YIELD), takes=Takes(build=NEVER))

        def planner(observed: Observed, config: Config, now: datetime) -> Plan:
            jobs = tuple(replace(job, deleting=deleting) for job in observed.jobs)
            return plan(replace(observed, jobs=jobs, pods=()), config, now)

        world.planner = planner
        world.reconcile()
        return world

    def test_gets_on_for_a_while(self) -> None:
        world = self._without_pods(deleting=False)
        world.step(turns.PATIENCE - 1)
        assert world.reconcile().status.build == world.dataset.status.build

    def test_gives_its_turn_up(self) -> None:
        """Its Job is suspended, for example by a quota's controller."""
        world = self._without_pods(deleting=False)
        world.step(turns.PATIENCE + 2)
        planned = world.reconcile()
        assert (planned.status.build, deleted(planned)) == (
            None,
            {"Job/airports-g1-build", "ConfigMap/airports-g1-build"},
        )
        assert says(planned)["Degraded"] == "True Interrupted"

    def test_is_begun_again_under_another_number_though_nobody_waits_when_its_job_is_held_while_deleted(self) -> None:
        world = self._without_pods(deleting=True)
        world.turns = Turns()
        world.step(turns.PATIENCE + 2)
        assert "keeps it" in condition(world.reconcile(), "Degraded").message
        world.step(turns.PATIENCE + 2)
        assert world.reconcile().status.build is None
        world.step(turns.FIRST_BACKOFF + 2)
        assert world.reconcile().status.build == replace(
            world.status.build or BuildStatus("", "", "", "", ""), generation="g2"
        )


def test_servers_of_which_enough_are_ready_serve_instead_of_giving_their_turn_up() -> None:
    """No operator ran for long, and one server of each shard cannot be placed."""
    world = stuck()
    world.turns = Turns(rollout=YIELD)
    for pod in world.pods.values():
        if pod.labels.get("lookupdb.dev/rollout") == "r2" and pod.name.endswith("-0"):
            pod.trouble, pod.ready = None, True
    world.step(turns.PATIENCE)
    for pod in world.pods.values():
        if pod.name.endswith("-0"):
            pod.ready = True
    planned = world.look()
    assert planned.status.table is not None
    assert planned.status.table.rollout == "r2"
