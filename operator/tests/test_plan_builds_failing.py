"""Failed builds: each reports its reason, what serves keeps serving, and the next attempt is neither too soon nor too
late."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_support.plan_samples import broken, condition, says, serving, trouble
from operator_support.plan_world import BEGIN, NEVER, World

from lookupdb_operator.model import BuildResult, Plan, Trouble, Turn, Turns, format_moment, parse_moment, seconds_until
from lookupdb_operator.plan import reasons


def failing(fault: BuildResult | Trouble, world: World | None = None) -> World:
    """A build that ended badly."""
    world = world or World()
    world.fails = lambda spec: fault
    world.settle(until=lambda: world.status.failure is not None)
    return world


ENDS = [
    pytest.param(broken("BadSource"), "BadSource", id="the source is missing, or a row of it bad"),
    pytest.param(broken("GateClosed"), "GateClosed", id="a gate is closed"),
    pytest.param(broken("StoreUnavailable"), "StoreUnavailable", id="the store does not answer"),
    pytest.param(broken("StoreDenied"), "StoreDenied", id="the store refuses the credentials"),
    pytest.param(broken("NotEnoughRoom"), "NotEnoughRoom", id="it saw that memory or disk is not enough"),
    pytest.param(broken("SomethingNew"), "BuildFailed", id="it says what nobody knows"),
    pytest.param(trouble("OutOfMemory"), "OutOfMemory", id="it was killed for its memory"),
    pytest.param(trouble("Evicted"), "Evicted", id="it was evicted"),
]


@pytest.mark.parametrize(("fault", "reason"), ENDS)
def test_a_failed_build_is_reported_while_the_old_generation_serves(fault: Any, reason: str) -> None:
    world = serving()
    world.edit(source={"url": "s3://data/v2.csv"})
    failing(fault, world)
    planned = world.look()
    assert says(planned) == {
        "Ready": "True Serving",
        "Built": f"False {reason}",
        "RolledOut": "False WaitingForBuild",
        "Degraded": f"True {reason}",
    }
    assert "g1 keeps serving" in condition(planned, "Degraded").message
    assert "next attempt" in condition(planned, "Built").message
    assert (planned.apply, planned.delete) == ((), ())


@pytest.mark.parametrize(("watches", "changed"), [(False, "the spec."), (True, "the source or the spec.")])
def test_what_is_built_at_once_is_said(watches: bool, changed: str) -> None:
    world = World()
    world.config = replace(world.config, watches_sources=watches)
    failing(broken("BadSource"), world)
    assert f"at once after a refresh or a change of {changed}" in condition(world.look(), "Built").message


def _ended(world: World, job: Trouble | None, result: BuildResult | None, pod: Trouble | None) -> Plan:
    """A Job that failed, with the messages of it and its pod."""
    world.takes.build = NEVER
    world.reconcile()
    world.step()
    thing = world.things["Job", "airports-g1-build"]
    thing.manifest = {**thing.manifest, "state": "Failed", "failure": job}
    builder = next(one for one in world.pods.values() if one.component == "builder")
    builder.result, builder.trouble, builder.ended = result, pod, True
    return world.look()


INTERRUPTED = broken("Interrupted", "told to stop")
TELLERS = [
    pytest.param(trouble("DeadlineExceeded"), INTERRUPTED, None, "DeadlineExceeded", id="deadline, not who it stopped"),
    pytest.param(trouble("DeadlineExceeded"), broken(), None, "BadSource", id="builder, though the deadline came too"),
    pytest.param(None, INTERRUPTED, trouble("Evicted"), "Evicted", id="eviction, not who it stopped"),
    pytest.param(None, INTERRUPTED, None, "Interrupted", id="builder, when nobody says who stopped it"),
    pytest.param(None, None, trouble("OutOfMemory"), "OutOfMemory", id="pod, of a builder without a word"),
    pytest.param(None, None, None, "BuildFailed", id="nobody"),
]


@pytest.mark.parametrize(("job", "result", "pod", "reason"), TELLERS)
def test_of_several_who_say_why_the_reason_is_of_the(job: Any, result: Any, pod: Any, reason: str) -> None:
    planned = _ended(World(), job, result, pod)
    assert planned.status.failure is not None
    assert planned.status.failure.reason == reason


def test_what_is_published_is_published_though_its_job_ran_out_of_time() -> None:
    built = BuildResult("built", "g1", "f", 1, 1, 1, "2026-01-01T12:00:00Z")
    planned = _ended(World(), trouble("DeadlineExceeded"), built, None)
    assert [one.generation for one in planned.status.generations] == ["g1"]
    assert planned.status.failure is None


def test_an_interrupted_builder_is_waited_for_until_its_job_says_why() -> None:
    world = World()
    world.takes.build = NEVER
    world.reconcile()
    world.step()
    next(one for one in world.pods.values() if one.component == "builder").result = INTERRUPTED
    assert world.look().status.failure is None


class TestAttempts:
    def test_take_a_new_number_when_the_time_has_come(self) -> None:
        world = failing(broken())
        planned = world.look()
        assert planned.next_look_in is not None
        assert planned.next_look_in == pytest.approx(30, abs=2)
        world.now += timedelta(seconds=planned.next_look_in - 1)
        assert world.look().status.build is None
        world.now += timedelta(seconds=1)
        planned = world.look()
        assert planned.status.build is not None
        assert planned.status.build.generation == "g2"

    def test_whose_turn_has_not_come_are_not_waited_for_by_the_clock(self) -> None:
        """A free slot wakes the dataset. Passes without a pause would starve all others."""
        world = failing(broken())
        world.turns = Turns(build=Turn(is_granted=False, ahead=4))
        world.now += timedelta(seconds=31)
        planned = world.reconcile()
        assert condition(planned, "Built").message.endswith("4 before it.")
        assert world.look().next_look_in is None
        world.turns = Turns()
        assert world.look().status.build is not None

    def test_keep_telling_why_the_last_one_failed(self) -> None:
        world = failing(broken())
        world.now += timedelta(seconds=31)
        world.takes.build = NEVER
        planned = world.reconcile()
        assert says(planned)["Built"] == "False BadSource"
        assert "Attempt 2 is g2" in condition(planned, "Built").message

    def test_that_fail_again_count(self) -> None:
        world = failing(broken())
        world.settle(until=lambda: world.status.failure is not None and world.status.failure.count == 3)
        assert world.status.last_generation == 3

    @pytest.mark.parametrize(("count", "seconds"), [(1, 30), (2, 60), (3, 120), (7, 1800), (1_000_000, 1800)])
    def test_come_less_and_less_often(self, count: int, seconds: float) -> None:
        assert reasons.retry_delay(count) == seconds

    def test_that_succeed_leave_nothing_of_the_failure(self) -> None:
        world = failing(broken())
        world.fails = lambda spec: None
        world.settle()
        assert world.status.failure is None

    def test_do_not_wait_for_long_when_the_clock_is_set_back(self) -> None:
        world = failing(broken())
        world.now = BEGIN - timedelta(days=1)
        planned = world.look()
        assert planned.next_look_in is not None
        assert planned.next_look_in <= 31

    def test_come_at_once_when_the_stores_credentials_are_others(self) -> None:
        world = failing(broken("StoreDenied"))
        assert world.look().status.build is None
        world.store = replace(world.store, digest="d2")
        assert world.look().status.build is not None


CORRECTIONS = [
    pytest.param({"source": {"url": "s3://data/right.csv"}}, id="another source"),
    pytest.param({"gates": {"minRecords": 0}}, id="another gate"),
    pytest.param({"build": {"resources": {"limits": {"memory": "4Gi"}}}}, id="more memory"),
    pytest.param({"image": "lookupdb:right"}, id="another image"),
    pytest.param({"source": {"url": "s3://data/v1.csv", "secretName": "right"}}, id="another Secret"),
]


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_corrected_spec_is_acted_on_at_once_not_when_it_is_time(correction: dict[str, Any]) -> None:
    world = failing(broken())
    assert world.look().status.build is None
    world.edit(**correction)
    planned = world.look()
    assert planned.status.build is not None
    assert planned.status.build.generation == "g2"
    assert planned.status.failure is None


def test_asking_for_a_refresh_tries_again_at_once() -> None:
    world = failing(broken())
    world.annotate("now")
    assert world.look().status.build is not None


def test_going_back_to_what_serves_is_no_failure_any_more() -> None:
    world = serving()
    world.edit(source={"url": "s3://data/broken.csv"})
    failing(broken(), world)
    world.edit(source={"url": "s3://data/v1.csv"})
    planned = world.reconcile()
    assert (planned.status.failure, says(planned)["Degraded"]) == (None, "False Healthy")
    assert says(planned)["RolledOut"] == "True UpToDate"


def test_the_times_in_status_are_read_as_they_were_written() -> None:
    assert parse_moment(format_moment(BEGIN)) == BEGIN
    assert seconds_until(format_moment(BEGIN + timedelta(milliseconds=900)), 10, BEGIN + timedelta(seconds=10)) > 0


@pytest.mark.parametrize(("newest", "expected"), [("g5", "g6"), ("g999999999", "g2")])
def test_numbers_that_the_store_has_in_use_are_passed_over(newest: str, expected: str) -> None:
    """They were built for a dataset that this status does not know; and one of them may be a trap."""
    world = World()
    for name in ("g1", newest):
        world.published[name], world.built_by[name] = "of the same spec", "another build"
    world.settle()
    assert [(record.generation, record.reason) for record in world.status.builds] == [
        ("g1", "GenerationExists"),
        (expected, "Built"),
    ]
    assert (world.status.generation, world.status.failure) == (expected, None)
