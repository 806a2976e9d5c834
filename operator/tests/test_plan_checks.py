"""Checks by schedule: when the source is checked, and which missed checks are made up for."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from operator_support.plan_samples import broken, says, serving
from operator_support.plan_world import BEGIN, NEVER, World

from lookupdb.dataset.schedule import LONGEST_JITTER
from lookupdb.dataset.spec import Refresh
from lookupdb_operator.model import Turn, Turns, format_moment, parse_moment
from lookupdb_operator.plan import reasons, turns
from lookupdb_operator.status import DatasetStatus, ScheduleStatus

HOURLY = {"schedule": "0 * * * *"}
NIGHTLY = {"schedule": "0 2 * * *", "timeZone": "Europe/Berlin"}


def scheduled(**refresh: Any) -> World:
    """A world that serves, with an hourly check; it is twelve o'clock and some seconds."""
    world = serving(refresh={**HOURLY, **refresh})
    assert world.now < BEGIN + timedelta(minutes=2)
    return world


def pass_time(world: World, seconds: float, step: float = 1.0) -> None:
    """For ``seconds``, reconcile whenever a pass is due, and at each ``step`` while something happens."""
    end, reconcile = world.now + timedelta(seconds=seconds), world.when_due()
    while world.now < end:
        planned = reconcile()
        idle = not planned.apply and not planned.delete and world.is_quiet() and not planned.ask_routers
        wait = min(planned.next_look_in or 600.0, 600.0) if idle else step
        world.step(min(max(wait, 1.0), (end - world.now).total_seconds()))


def sleep_until(world: World, moment: datetime) -> None:
    """Run no operator until ``moment``."""
    world.now = moment


def made(world: World) -> int:
    """Return the number of builds begun."""
    return world.status.last_generation


def due(world: World) -> str:
    return world.status.schedule.due if world.status.schedule is not None else ""


class TestASlot:
    def test_is_checked_once_a_little_after_it(self) -> None:
        world = scheduled()
        next_check = parse_moment(world.status.next_check)
        assert timedelta(0) <= next_check - (BEGIN + timedelta(hours=1)) < timedelta(minutes=5)
        pass_time(world, (next_check - world.now).total_seconds() - 1)
        assert made(world) == 1
        pass_time(world, 3000)
        assert made(world) == 2
        assert parse_moment(world.status.next_check) == next_check + timedelta(hours=1)

    def test_of_an_unchanged_source_rolls_nothing_out_and_is_seen(self) -> None:
        world = scheduled()
        pass_time(world, 4000)
        assert (world.status.generation, world.status.last_rollout) == ("g1", 1)
        assert [(record.generation, record.outcome) for record in world.status.builds] == [
            ("g1", "built"),
            ("g2", "unchanged"),
        ]
        built = world.status.condition("Built")
        assert built is not None
        assert built.message == "The source has not changed: g1 holds 10 records in 2 shards."
        assert parse_moment(world.status.last_checked) > BEGIN + timedelta(hours=1)
        assert world.is_settled()

    def test_of_a_changed_source_rolls_out_what_it_built(self) -> None:
        world = scheduled()
        world.content_of_source = lambda url: f"{url} of another hour".ljust(64)
        pass_time(world, 4000)
        assert (world.status.generation, world.status.last_rollout) == ("g2", 2)
        assert due(world) == ""

    def test_writes_nothing_until_the_next_one(self) -> None:
        world = scheduled()
        pass_time(world, 4000)
        writes = world.writes
        pass_time(world, 2400)
        assert world.writes == writes

    def test_of_an_unchanged_source_costs_seven_writes(self) -> None:
        """The status at its start and end; Secret, ConfigMap and Job, two of which are deleted again."""
        world = scheduled()
        writes = world.writes
        pass_time(world, 4000)
        assert (made(world), world.writes) == (2, writes + 7)

    def test_whose_check_fails_is_tried_again_with_the_back_off_of_builds(self) -> None:
        world = scheduled()
        world.fails = lambda spec: broken()
        pass_time(world, 3600 + 300 + reasons.FIRST_RETRY_DELAY)
        assert due(world)
        assert world.status.failure is not None
        assert world.status.builds[-1].outcome == "failed"
        world.fails = lambda spec: None
        world.settle(600)
        assert due(world) == ""
        assert says(world.look())["Degraded"] == "False Healthy"
        assert [record.outcome for record in world.status.builds] == ["built", "failed", "unchanged"]

    def test_takes_the_place_of_the_one_before_it_that_is_not_answered(self) -> None:
        world = scheduled()
        world.fails = lambda spec: broken()
        pass_time(world, 7200 + 1800 + 300)
        assert parse_moment(due(world)) == BEGIN + timedelta(hours=2)
        assert world.status.failure is not None
        assert world.status.failure.count > 5, "the back-off goes on"
        world.fails = lambda spec: None
        before = made(world)
        pass_time(world, 1900)
        assert made(world) == before + 1, "both slots are answered by one build"

    def test_during_a_build_is_checked_after_it(self) -> None:
        """The build may have read the source before the slot."""
        world = scheduled()
        world.takes.build = 600
        sleep_until(world, BEGIN + timedelta(minutes=59))
        world.annotate("by hand")
        world.reconcile()
        assert made(world) == 2
        pass_time(world, 1800, step=10)
        assert made(world) == 3
        assert world.status.refreshed == "by hand"
        assert due(world) == ""

    def test_is_answered_by_a_build_for_something_else_that_begins_later(self) -> None:
        world = scheduled()
        sleep_until(world, BEGIN + timedelta(minutes=70))
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle()
        assert (made(world), due(world), world.status.generation) == (2, "", "g2")

    def test_makes_what_was_read_before_it_too_old_to_go_back_to(self) -> None:
        """A refresh annotation that is answered with another spec does the same."""
        world = scheduled()
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle()
        pass_time(world, 4000)
        world.content_of_source = lambda url: f"{url} of one o'clock".ljust(64)
        world.edit(source={"url": "s3://data/v1.csv"})
        world.settle()
        assert world.status.generation != "g1"


class TestACheckThatWaits:
    @staticmethod
    def waiting(**refresh: Any) -> World:
        """A world whose check of one o'clock is queued."""
        world = scheduled(**refresh)
        world.turns = Turns(build=Turn(is_granted=False, ahead=300))
        pass_time(world, 3600 + 300)
        assert parse_moment(due(world)) == BEGIN + timedelta(hours=1)
        return world

    def test_writes_nothing_however_many_slots_pass(self) -> None:
        world = self.waiting()
        writes = world.writes
        for _ in range(100):
            planned = world.reconcile()
            assert planned.next_look_in is None or planned.next_look_in > 60
            world.step(600)
        assert world.writes == writes

    def test_is_of_the_newest_slot_when_it_is_made_and_answers_all(self) -> None:
        world = self.waiting()
        pass_time(world, 5 * 3600)
        world.turns = Turns()
        world.reconcile()
        assert world.status.build is not None
        assert parse_moment(world.status.build.slot) == BEGIN + timedelta(hours=6)
        world.settle()
        assert (made(world), due(world)) == (2, "")
        assert parse_moment(world.status.next_check) > world.now

    def test_is_not_skipped_however_late_its_turn_comes(self) -> None:
        world = self.waiting(startingDeadlineSeconds=600)
        pass_time(world, 3 * 3600 + 1800)
        world.turns = Turns()
        world.settle()
        assert made(world) == 2
        assert world.status.schedule is not None
        assert world.status.schedule.skipped == ""

    def test_a_slot_that_passes_during_the_build_is_checked_once_after_it(self) -> None:
        world = scheduled(schedule="*/10 * * * *")
        world.takes.build = 3000
        pass_time(world, 660)
        assert made(world) == 2
        writes = world.writes
        pass_time(world, 2400, step=10)
        assert world.writes <= writes + 1, "the first one is noted, and three more pass"
        world.takes.build = 3
        pass_time(world, 700)
        assert made(world) <= 4


class TestMissedSlots:
    def test_are_made_up_for_by_one_check(self) -> None:
        world = scheduled()
        sleep_until(world, BEGIN + timedelta(hours=3, minutes=30))
        world.settle()
        assert made(world) == 2
        assert parse_moment(world.status.next_check) > BEGIN + timedelta(hours=4)

    def test_by_more_than_the_deadline_are_skipped_and_it_is_said(self) -> None:
        world = scheduled(startingDeadlineSeconds=600)
        sleep_until(world, BEGIN + timedelta(hours=3, minutes=30))
        planned = world.reconcile()
        assert planned.status.schedule is not None
        assert parse_moment(planned.status.schedule.skipped) == BEGIN + timedelta(hours=3)
        world.settle()
        assert made(world) == 1

    def test_by_less_than_the_deadline_are_made_up_for(self) -> None:
        world = scheduled(startingDeadlineSeconds=2400)
        sleep_until(world, BEGIN + timedelta(hours=3, minutes=30))
        world.settle()
        assert made(world) == 2

    def test_while_the_spec_cannot_be_used_are_made_up_for_by_one_check(self) -> None:
        world = scheduled()
        world.problem = "the spec is broken"
        pass_time(world, 3 * 3600)
        world.problem = None
        world.settle()
        assert made(world) == 2

    def test_while_the_dataset_is_suspended_are_made_up_for_by_one_check(self) -> None:
        world = scheduled()
        world.edit(suspend=True)
        pass_time(world, 3 * 3600)
        assert made(world) == 1
        world.edit(suspend=None)
        world.settle()
        assert made(world) == 2


class TestTheClock:
    def test_that_was_set_forward_brings_one_check(self) -> None:
        world = scheduled()
        skew = timedelta(days=3)
        world.planner = _skewed(world, skew)
        world.settle()
        assert made(world) == 2

    @pytest.mark.parametrize("seconds", [1, 60, 600, 3599])
    def test_that_was_set_back_over_a_slot_does_not_bring_its_check_again(self, seconds: int) -> None:
        world = scheduled()
        sleep_until(world, parse_moment(world.status.next_check) + timedelta(seconds=1))
        world.settle()
        assert made(world) == 2
        world.planner = _skewed(world, timedelta(seconds=-seconds))
        pass_time(world, 3000)
        assert made(world) == 2
        pass_time(world, 600 + seconds)
        assert made(world) == 3, "and the slot after it comes"

    def test_that_was_set_back_by_days_keeps_nobody_waiting_for_days(self) -> None:
        world = scheduled()
        world.planner = _skewed(world, timedelta(days=30))
        world.settle()
        assert made(world) == 2
        world.planner = _skewed(world, timedelta(0))
        pass_time(world, 4200)
        assert made(world) == 3

    def test_that_was_set_back_leaves_no_end_of_a_build_ahead(self) -> None:
        world = scheduled()
        world.planner = _skewed(world, timedelta(days=-1))
        planned = world.reconcile()
        limit = format_moment(world.now - timedelta(days=1) + timedelta(seconds=1))
        assert planned.status.last_checked <= limit
        assert all(record.finished_at <= limit for record in planned.status.builds)


def _skewed(world: World, skew: timedelta) -> Any:
    from lookupdb_operator.plan import plan

    return lambda observed, config, now: plan(observed, config, now + skew)


class TestAnHour:
    def test_that_is_left_out_is_checked_at_its_end(self) -> None:
        world = World(now=datetime.fromisoformat("2026-03-28T20:00:00+00:00"))
        world.edit(refresh={"schedule": "30 2 * * *", "timeZone": "Europe/Berlin"})
        world.settle()
        assert world.status.next_check.startswith("2026-03-29T01:0"), "three o'clock in Berlin"

    def test_that_comes_twice_is_checked_once(self) -> None:
        world = World(now=datetime.fromisoformat("2026-10-24T20:00:00+00:00"))
        world.edit(refresh={"schedule": "30 2 * * *", "timeZone": "Europe/Berlin"})
        world.settle()
        pass_time(world, 10 * 3600)
        assert made(world) == 2
        assert world.status.next_check.startswith("2026-10-26T01:3")


class TestTheSchedule:
    def test_that_changes_begins_again(self) -> None:
        world = scheduled()
        world.edit(refresh=NIGHTLY)
        world.settle()
        assert made(world) == 1
        assert world.status.schedule is not None
        assert world.status.schedule.expression == "0 2 * * * Europe/Berlin"
        assert world.status.next_check.startswith("2026-01-02T01:0")

    def test_that_changes_forgets_no_check_that_is_asked_for(self) -> None:
        world = scheduled()
        world.fails = lambda spec: broken()
        pass_time(world, 4000)
        asked = due(world)
        world.edit(refresh=NIGHTLY)
        world.reconcile()
        assert due(world) == asked != ""

    def test_that_rests_asks_for_nothing_and_makes_up_for_nothing(self) -> None:
        world = scheduled()
        world.edit(refresh={**HOURLY, "suspend": True})
        world.settle()
        assert (world.status.next_check, world.status.schedule) == ("", None)
        pass_time(world, 3 * 3600)
        world.edit(refresh=HOURLY)
        world.settle()
        assert made(world) == 1
        assert parse_moment(world.status.next_check) > world.now

    def test_that_rests_lets_a_build_under_way_go_on_and_does_not_repeat_it(self) -> None:
        world = scheduled()
        world.takes.build = 60
        sleep_until(world, BEGIN + timedelta(minutes=70))
        world.reconcile()
        assert world.status.build is not None
        world.edit(refresh={**HOURLY, "suspend": True})
        world.step()
        world.reconcile()
        assert world.status.build is not None
        world.fails = lambda spec: broken()
        world.settle()
        assert (made(world), world.status.failure, world.status.schedule) == (2, None, None)

    def test_that_is_taken_away_leaves_nothing(self) -> None:
        world = scheduled()
        world.edit(refresh=None)
        world.settle()
        assert (world.status.next_check, world.status.schedule) == ("", None)
        assert says(world.look())["Built"] == "True GenerationBuilt"

    def test_of_a_new_dataset_asks_for_nothing_beside_its_first_build(self) -> None:
        world = World()
        world.edit(refresh=HOURLY)
        world.takes.build = NEVER
        world.reconcile()
        assert world.status.build is not None
        assert (world.status.build.slot, due(world)) == ("", "")


def test_a_status_that_was_lost_asks_for_no_slot_of_the_past() -> None:
    world = scheduled()
    pass_time(world, 4000)
    world.invariants.forget(set(), set())
    world.status = DatasetStatus()
    world.version += 1
    planned = world.reconcile()
    assert planned.status.schedule is not None
    assert planned.status.schedule.due == ""


def test_five_hundred_datasets_of_one_schedule_are_spread_over_five_minutes() -> None:
    timetable = [_due_seconds("0 2 * * *", f"uid-{number}") for number in range(500)]
    assert min(timetable) >= 0
    assert max(timetable) < LONGEST_JITTER
    by_half_minute = Counter(second // 30 for second in timetable)
    assert len(by_half_minute) == 10
    assert max(by_half_minute.values()) < 100


def test_a_dataset_of_every_minute_waits_for_no_more_than_a_tenth_of_it() -> None:
    assert max(_due_seconds("* * * * *", f"uid-{number}") for number in range(100)) < 6


def test_the_share_of_a_dataset_is_always_the_same() -> None:
    assert {_due_seconds("0 2 * * *", "uid-1") for _ in range(3)} == {_due_seconds("0 2 * * *", "uid-1")}


def _due_seconds(expression: str, uid: str) -> int:
    """Return the seconds from the slot of 2026-01-02, or of that minute, until its check is due."""
    timetable = turns.Timetable.from_refresh(Refresh(expression, "UTC", False, None, None, None), uid)
    slot = datetime.fromisoformat("2026-01-02T02:00:00+00:00")
    return int((timetable.due_moment(slot) - slot).total_seconds())


def test_the_answer_to_an_older_check_is_none_to_a_newer_one() -> None:
    asked = DatasetStatus(schedule=ScheduleStatus("0 * * * * UTC", "b", due="b"))
    assert turns.answer_requests(asked, "", "a", 1).schedule == asked.schedule
    assert turns.answer_requests(asked, "", "b", 1).schedule == ScheduleStatus("0 * * * * UTC", "b")
    assert turns.answer_requests(asked, "", "", 1) == asked
