"""The rollout that waits for promotion: lookups may name it beside what serves; it is promoted, rejected or
replaced."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import orjson
import pytest
from operator_support.plan_samples import condition, copy_of, deleted, says, serving
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.model import Plan, Trouble, Turn, Turns
from lookupdb_operator.plan import lifecycle, reasons
from lookupdb_operator.plan.lifecycle import RolloutPhase

MANUAL = {"promotion": "Manual", "drainSeconds": 5}


def _refresh(world: World, data: str) -> None:
    world.content_of_source = lambda source: f"{source} {data}"
    world.annotate(data)


def _waiting() -> World:
    """A world that serves g1, and in which g2 waits for promotion."""
    return copy_of(_first_waiting())


@cache
def _first_waiting() -> World:
    return _bring_to_wait()


def _bring_to_wait() -> World:
    world = serving(rollout=MANUAL)
    _refresh(world, "two")
    _until_waits(world, "g2")
    return world


def _overtaken() -> World:
    """A world in which g2 waits for promotion, and g3 is built and queued."""
    world = _waiting()
    world.turns = Turns(Turn(is_granted=True), Turn(is_granted=False, ahead=7))
    _refresh(world, "three")
    world.settle(until=lambda: len(world.status.generations) == 3)
    assert (world.status.last_rollout, world.status.candidate and world.status.candidate.generation) == (2, "g2")
    return world


def _break(world: World, reason: str) -> None:
    """Make no server of r2 ready."""
    for pod in world.pods.values():
        if "-r2-" in pod.name:
            pod.ready, pod.trouble = False, Trouble(reason, "as it says")


def _hang(world: World, suffix: str) -> None:
    """Restart the servers of r2, which never get ready, without a reason."""
    world.takes.start = NEVER
    for pod in world.pods.values():
        if "-r2-" in pod.name and pod.name.endswith(suffix):
            world.stop(pod)
    world.step(world.takes.stop)
    world.step()


def _until_waits(world: World, generation: str) -> None:
    """Settle until ``generation`` waits, all routers answer from its table, and nothing is left to do."""

    def waits() -> bool:
        status = world.status
        waiting = status.condition("RolledOut")
        assert waiting is not None
        is_quiet = not world.look().apply and not world.look().delete and world.is_quiet()
        is_candidate = status.candidate is not None and status.candidate.generation == generation
        return is_candidate and waiting.reason == reasons.CANDIDATE_WAITING and is_quiet

    world.settle(until=waits)


def _table(world: World) -> dict[str, Any]:
    text = world.things["ConfigMap", "airports-routing-table"].manifest["data"][names.TABLE_FILE]
    content: dict[str, Any] = orjson.loads(text)
    return content


def _named(world: World) -> tuple[str, list[str]]:
    """Return the active generation of the written table, and all of its generations."""
    table = _table(world)
    return table["active"], [entry["generation"] for entry in table["generations"]]


def _stops(world: World, seconds: float) -> Iterator[Plan]:
    end = world.now + timedelta(seconds=seconds)
    while world.now < end:
        yield world.reconcile()
        world.step()


class TestWaiting:
    def test_is_referenced_beside_what_serves_and_asked_for_by_name(self) -> None:
        world = _waiting()
        assert _named(world) == ("g1", ["g1", "g2"])
        assert (world.status.generation, world.status.table and world.status.table.rollout) == ("g1", "r1")
        candidate = world.status.candidate
        assert candidate is not None
        assert (candidate.generation, candidate.rollout) == ("g2", "r2")
        assert lifecycle.rollout_phase("r2", world.status) is RolloutPhase.CANDIDATE

    def test_waits_on_while_routers_take_its_table_up(self) -> None:
        world = serving(rollout=MANUAL)
        _refresh(world, "two")
        world.settle(until=lambda: world.status.candidate is not None)
        written = world.status.table
        assert written is not None
        assert (written.confirmed_at, written.candidate and written.candidate.generation) == ("", "g2")
        for _ in range(3):  # and no router has seen it yet
            world.reconcile()
        assert world.status.table == written
        assert world.status.candidate is not None

    def test_says_how_it_is_asked_and_how_it_is_decided(self) -> None:
        planned = _waiting().look()
        assert says(planned) == {
            "Ready": "True Serving",
            "Built": "True GenerationBuilt",
            "RolledOut": "False CandidateWaiting",
            "Degraded": "False Healthy",
        }
        message = condition(planned, "RolledOut").message
        assert "airports-r2 (generation g2) has waited for promotion since 2026-01-01T12:" in message
        assert "lookups with the header Lookupdb-Generation: g2 ask it, and all others ask g1" in message
        assert "kubectl annotate lds airports -n default --overwrite lookupdb.dev/promote=g2" in message
        assert "lookupdb.dev/reject=g2" in message

    def test_lasts_for_ever_and_has_no_turn(self) -> None:
        world = _waiting()
        world.now += timedelta(days=30)
        planned = world.reconcile()
        assert (planned.apply, planned.delete) == ((), ())
        assert says(planned)["Degraded"] == "False Healthy"
        assert planned.next_look_in is None
        assert world.status.rollout_ticket is None

    def test_its_broken_servers_harm_nothing_that_serves(self) -> None:
        world = _waiting()
        for pod in world.pods.values():
            if "-r2-" in pod.name:
                pod.ready, pod.trouble = False, Trouble(reasons.CRASH_LOOPING, "it ends again and again")
        planned = world.reconcile()
        assert says(planned)["Ready"] == "True Serving"
        assert says(planned)["RolledOut"] == "False CandidateWaiting"
        assert "with 0 of 2 shards ready" in condition(planned, "RolledOut").message
        assert says(planned)["Degraded"] == "True CrashLooping"
        assert (_named(world), deleted(planned)) == (("g1", ["g1", "g2"]), set())

    def test_the_first_generation_of_a_dataset_does_not_wait(self) -> None:
        world = serving(rollout=MANUAL)
        assert (world.status.generation, world.status.candidate) == ("g1", None)

    def test_another_rollout_of_what_serves_does_not_wait(self) -> None:
        world = serving(rollout=MANUAL)
        world.edit(serving={"workers": 2})
        world.settle()
        assert (world.status.table and world.status.table.rollout, world.status.generation) == ("r2", "g1")

    def test_is_scaled_with_what_serves(self) -> None:
        world = _waiting()
        for replicas in (3, 1):
            world.edit(replicas=replicas)
            for _ in _stops(world, 60):
                pass
            for entry in _table(world)["generations"]:
                assert len({host.split(".")[0] for host in entry["shards"][0]["endpoints"]}) == replicas
            sets = [thing.manifest for key, thing in world.things.items() if key[0] == "StatefulSet"]
            assert [manifest["spec"]["replicas"] for manifest in sets] == [replicas] * 4

    def test_a_table_that_has_no_room_for_both_names_what_serves_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lookupdb_operator.manifests.routers.MAX_ENDPOINT_BYTES", 300)
        world = _bring_to_wait()
        assert _named(world) == ("g1", ["g1"])
        assert "it cannot be asked, because a routing table has no room" in condition(world.look(), "RolledOut").message
        world.annotate_decision(promote="g2")
        world.settle()
        assert _named(world) == ("g2", ["g2"])


class TestPromoted:
    def test_serves_at_once_and_what_served_drains(self) -> None:
        world = _waiting()
        world.annotate_decision(promote="g2")
        planned = world.reconcile()
        assert _named(world) == ("g2", ["g2"])
        assert (world.status.candidate, deleted(planned)) == (None, set())
        world.settle()
        assert world.status.generation == "g2"
        assert [rollout.rollout for rollout in world.status.rollouts] == ["r2"]

    def test_by_a_name_of_another_generation_is_not_and_says_so(self) -> None:
        world = _waiting()
        for stale in ("g1", "g7", "g" * 5000):
            world.annotate_decision(promote=stale)
            planned = world.reconcile()
            assert _named(world) == ("g1", ["g1", "g2"])
            if stale != "g1":  # which serves: the annotation of the last promotion stays
                assert "which does not wait for promotion" in condition(planned, "RolledOut").message

    def test_is_not_reported_once_it_served_and_was_rolled_back(self) -> None:
        world = _waiting()
        world.annotate_decision(promote="g2")
        world.settle()
        world.edit(generation="g1")
        world.settle()
        assert world.status.generation == "g1"
        assert "promote" not in condition(world.look(), "RolledOut").message

    def test_before_it_is_ready_serves_when_it_is(self) -> None:
        world = serving(rollout=MANUAL)
        world.takes.start = NEVER
        _refresh(world, "two")
        world.settle(until=lambda: world.status.last_rollout == 2)
        world.annotate_decision(promote="g2")
        world.reconcile()
        assert _named(world) == ("g1", ["g1"])
        world.takes.start = 1
        world.settle()
        assert world.status.generation == "g2"

    def test_though_its_servers_do_not_get_ready_is_reported_after_the_deadline_and_may_be_given_up(self) -> None:
        world = _waiting()
        _hang(world, "")
        world.annotate_decision(promote="g2")
        planned, begin = world.reconcile(), world.now
        assert says(planned)["Degraded"] == "False Healthy"
        while says(planned)["Degraded"] == "False Healthy":
            assert planned.next_look_in is not None
            world.step(planned.next_look_in)
            planned = world.reconcile()
        assert timedelta(seconds=590) < world.now - begin <= timedelta(seconds=600)
        assert says(planned)["RolledOut"] == "False ProgressDeadlineExceeded"
        assert says(planned)["Degraded"] == "True ProgressDeadlineExceeded"
        message = condition(planned, "RolledOut").message
        assert "is promoted, and serves once they are ready; lookupdb.dev/reject=g2 gives it up" in message
        assert "is not ready for more than 600 s: airports-r2-s0 has 0 of 2, airports-r2-s1 has 0 of 2" in message
        assert (_named(world), planned.next_look_in) == (("g1", ["g1", "g2"]), None)
        world.annotate_decision(reject="g2")
        world.settle()
        assert [rollout.rollout for rollout in world.status.rollouts] == ["r1"]

    def test_with_one_server_of_two_that_does_not_get_ready_serves_after_the_deadline(self) -> None:
        """Any other rollout does the same."""
        world = _waiting()
        _hang(world, "-1")
        world.annotate_decision(promote="g2")
        begin = world.now
        world.settle(700, until=lambda: world.status.generation == "g2")
        assert world.now - begin > timedelta(seconds=590)

    def test_does_not_promote_the_next_one(self) -> None:
        world = _waiting()
        world.annotate_decision(promote="g2")
        world.settle()
        _refresh(world, "three")
        _until_waits(world, "g3")
        assert _named(world) == ("g2", ["g2", "g3"])

    def test_by_switching_to_auto(self) -> None:
        world = _waiting()
        world.edit(rollout={"promotion": "Auto", "drainSeconds": 5})
        world.settle()
        assert world.status.generation == "g2"

    def test_by_a_pin(self) -> None:
        world = _waiting()
        world.edit(generation="g2")
        world.settle()
        assert world.status.generation == "g2"

    def test_by_an_operator_that_dies_after_any_write(self) -> None:
        for writes in range(8):
            world = _waiting()
            world.annotate_decision(promote="g2")
            world.carry_out(world.look(), world.dataset, writes)
            world.settle()
            assert world.status.generation == "g2"


class TestRejected:
    def test_leaves_the_table_at_once_and_its_servers_go_when_lookups_in_flight_have_ended(self) -> None:
        world = _waiting()
        world.annotate_decision(reject="g2")
        planned = world.reconcile()
        assert _named(world) == ("g1", ["g1"])
        assert deleted(planned) == set()
        assert lifecycle.rollout_phase("r2", world.status) is RolloutPhase.SUPERSEDED
        world.settle(until=lambda: lifecycle.rollout_phase("r2", world.status) is RolloutPhase.DRAINING)
        drains_since = world.now
        world.settle(until=lambda: lifecycle.rollout_phase("r2", world.status) is RolloutPhase.GONE)
        assert (world.now - drains_since).total_seconds() >= 5
        world.settle()
        assert not any("-r2-" in name for name in world.pods)

    def test_never_comes_back_by_itself_and_other_data_waits_again(self) -> None:
        world = _waiting()
        world.annotate_decision(reject="g2", promote="g2")
        world.settle()
        world.annotate("the same data again")
        world.settle()
        assert (world.status.generation, world.status.last_rollout) == ("g1", 2)
        _refresh(world, "three")
        _until_waits(world, "g4")

    def test_wins_over_a_promotion_of_the_same_generation(self) -> None:
        world = _waiting()
        world.annotate_decision(reject="g2", promote="g2")
        world.settle()
        assert world.status.generation == "g1"

    def test_by_an_operator_that_dies_after_any_write(self) -> None:
        for writes in range(8):
            world = _waiting()
            world.annotate_decision(reject="g2")
            world.carry_out(world.look(), world.dataset, writes)
            world.settle()
            assert world.status.generation == "g1"
            assert [rollout.rollout for rollout in world.status.rollouts] == ["r1"]


class TestReplaced:
    def test_by_a_newer_generation_when_that_is_claimed(self) -> None:
        world = _waiting()
        _refresh(world, "three")
        world.settle(until=lambda: world.status.last_rollout == 3)
        assert _named(world) == ("g1", ["g1"])
        _until_waits(world, "g3")
        assert _named(world) == ("g1", ["g1", "g3"])
        world.annotate_decision(promote="g2")
        planned = world.reconcile()
        assert "names g2, which does not wait" in condition(planned, "RolledOut").message

    def test_by_a_changed_spec_at_once(self) -> None:
        world = _waiting()
        world.edit(source={"url": "s3://data/other.csv"})
        world.reconcile()
        assert (_named(world), world.status.candidate) == (("g1", ["g1"]), None)
        _until_waits(world, "g3")

    def test_not_when_it_is_promoted_while_the_newer_one_waits_for_its_turn(self) -> None:
        world = _overtaken()
        world.annotate_decision(promote="g2")
        planned = world.reconcile()
        assert (_named(world), world.status.candidate, deleted(planned)) == (("g2", ["g2"]), None, set())
        world.settle(until=lambda: world.status.generation == "g2")
        world.turns = Turns()
        _until_waits(world, "g3")
        assert _named(world) == ("g2", ["g2", "g3"])

    def test_not_when_auto_promotes_it_while_the_newer_one_waits_for_its_turn(self) -> None:
        world = _overtaken()
        world.edit(rollout={"promotion": "Auto", "drainSeconds": 5})
        world.settle(until=lambda: world.status.generation == "g2")
        world.turns = Turns()
        world.settle()
        assert world.status.generation == "g3"

    def test_not_when_a_server_of_it_is_not_ready_when_it_is_promoted(self) -> None:
        world = _overtaken()
        world.stop(next(pod for pod in world.pods.values() if "-r2-" in pod.name))
        world.step(2)  # its StatefulSet makes another one
        world.annotate_decision(promote="g2")
        planned = world.reconcile()
        assert (_named(world), deleted(planned)) == (("g1", ["g1", "g2"]), set())
        assert says(planned)["RolledOut"] == "False StartingServers"
        assert "1 of 2 shards of airports-r2 (generation g2) have their" in condition(planned, "RolledOut").message
        world.settle(until=lambda: world.status.generation == "g2")

    def test_by_a_newer_one_when_the_store_has_lost_what_was_promoted(self) -> None:
        world = _overtaken()
        _break(world, reasons.GENERATION_MISSING)
        world.lost.add("g2")
        world.annotate_decision(promote="g2")
        planned = world.reconcile()
        assert says(planned)["RolledOut"] == "False WaitingForTurn"
        assert world.status.candidate is not None
        world.turns = Turns()
        planned = world.reconcile()
        assert (_named(world), world.status.last_rollout) == (("g1", ["g1"]), 3)
        planned = world.reconcile()
        assert says(planned)["RolledOut"] == "False StartingServers"
        assert "promote names g2, which does not wait for promotion" in condition(planned, "RolledOut").message

    def test_by_a_newer_one_when_auto_promotes_what_is_stuck(self) -> None:
        world = _overtaken()
        _break(world, reasons.CRASH_LOOPING)
        world.edit(rollout={"promotion": "Auto", "drainSeconds": 5})
        world.turns = Turns()
        world.settle()
        assert world.status.generation == "g3"

    def test_not_by_a_new_pod_template_when_it_is_promoted(self) -> None:
        """Its servers are ready: they serve, and are replaced later, like those of any generation that serves."""
        world = _overtaken()
        world.edit(serving={"workers": 2})
        world.annotate_decision(promote="g2")
        world.reconcile()
        assert (_named(world), world.status.last_rollout) == (("g2", ["g2"]), 2)
        world.turns = Turns()
        _until_waits(world, "g3")
        table = world.status.table
        assert table is not None
        assert (table.rollout, table.generation, table.workers) == ("r3", "g2", 2)

    def test_what_is_about_to_start_may_be_promoted_early(self) -> None:
        world = _overtaken()
        world.annotate_decision(promote="g3")
        planned = world.reconcile()
        assert "promote names" not in condition(planned, "RolledOut").message
        world.turns = Turns()
        world.settle()
        assert world.status.generation == "g3"

    def test_for_as_long_as_what_serves_gets_a_new_pod_template(self) -> None:
        """A new image reaches what serves without a promotion; then the candidate returns."""
        world = _waiting()
        world.edit(serving={"workers": 2})
        passes = [world.status for _ in _stops(world, 60)]
        assert any(status.table and (status.table.rollout, status.candidate) == ("r3", None) for status in passes)
        table = world.status.table
        assert table is not None
        assert (table.rollout, table.generation, table.workers) == ("r3", "g1", 2)
        candidate = world.status.candidate
        assert candidate is not None
        assert (candidate.rollout, candidate.generation) == ("r4", "g2")


class TestAStatusThatWasLost:
    def test_what_serves_goes_on_until_somebody_promotes_what_was_built_again(self) -> None:
        world = serving(rollout=MANUAL)
        world.status, world.version = type(world.status)(), world.version + 1
        world.invariants.forget({"g1"}, {"r1"})
        world.settle(until=lambda: world.status.candidate is not None)
        name = world.status.candidate.generation if world.status.candidate else ""
        assert (world.status.table, world.status.rollout_ticket) == (None, None)
        assert "the active generation is unknown" in condition(world.look(), "RolledOut").message
        for planned in _stops(world, 60):
            assert "StatefulSet/airports-r1-s0" not in deleted(planned)
        world.annotate_decision(promote=name)
        world.settle()
        assert world.status.generation == name

    def test_a_candidate_that_objects_alone_tell_of_is_kept_until_something_newer_serves(self) -> None:
        world = _waiting()
        world.status, world.version = type(world.status)(), world.version + 1
        world.invariants.forget({"g1", "g2"}, {"r1", "r2"})
        world.edit(rollout={"promotion": "Auto", "drainSeconds": 5})
        world.settle()
        assert [rollout.rollout for rollout in world.status.rollouts] == ["r3"]
