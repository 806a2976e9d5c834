"""Age of the data that serve, and when it counts as stale."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from operator_support.plan_samples import broken, condition, says, serving
from operator_support.plan_world import BEGIN, NEVER, World

from lookupdb_operator.metrics import Metrics
from lookupdb_operator.model import BuildResult, format_moment, parse_moment
from lookupdb_operator.status import DatasetStatus

LIMIT = 3600


def aging() -> World:
    """A world that serves data of twelve o'clock, with a limit of one hour."""
    return serving(refresh={"staleAfterSeconds": LIMIT})


def wait(world: World, seconds: float) -> None:
    """Let ``seconds`` pass, with a pass at their end and whenever one is due."""
    end = world.now + timedelta(seconds=seconds)
    while world.now < end:
        planned = world.reconcile()
        world.step(min(max(planned.next_look_in or 60.0, 1.0), 60.0, (end - world.now).total_seconds()))
    world.reconcile()


def test_data_are_of_the_moment_at_which_their_build_began() -> None:
    world = World()
    world.takes.build = 600
    world.settle(1000)
    assert world.status.last_refreshed == format_moment(BEGIN)


def test_they_are_not_too_old_before_it_is_time_and_somebody_looks_then() -> None:
    world = aging()
    world.now = BEGIN + timedelta(seconds=LIMIT - 60)
    planned = world.reconcile()
    assert says(planned)["Degraded"] == "False Healthy"
    assert planned.next_look_in is not None
    assert planned.next_look_in == pytest.approx(61, abs=2)


def test_then_degraded_says_so_and_they_go_on_serving() -> None:
    world = aging()
    wait(world, LIMIT + 10)
    planned = world.look()
    assert says(planned)["Degraded"] == "True Stale"
    assert says(planned)["Ready"] == "True Serving"
    message = condition(planned, "Degraded").message
    assert "g1 holds the source as it was at 2026-01-01T12:00:00Z" in message
    assert "refresh.staleAfterSeconds (3600)" in message
    assert "g1 keeps serving" in message


def test_it_is_said_once() -> None:
    world = aging()
    wait(world, LIMIT + 10)
    writes = world.writes
    wait(world, LIMIT)
    assert world.writes == writes


def test_a_refresh_that_finds_the_source_unchanged_makes_them_fresh() -> None:
    world = aging()
    wait(world, LIMIT + 10)
    asked_at = world.now
    world.annotate("monday")
    world.settle()
    assert parse_moment(world.status.last_refreshed) >= asked_at - timedelta(seconds=1)
    assert says(world.look())["Degraded"] == "False Healthy"


def test_a_refresh_that_fails_does_not_and_its_cause_comes_first() -> None:
    world = aging()
    world.fails = lambda spec: broken()
    world.annotate("monday")
    wait(world, LIMIT + 10)
    degraded = condition(world.look(), "Degraded")
    assert degraded.reason == "BadSource"
    assert "as it was at 2026-01-01T12:00:00Z" in degraded.message
    assert world.status.last_refreshed == "2026-01-01T12:00:00Z"


def test_a_source_that_is_waited_for_does_not() -> None:
    world = aging()
    world.fails = lambda spec: BuildResult("waiting", message="waiting for _SUCCESS")
    world.annotate("monday")
    wait(world, LIMIT + 10)
    assert says(world.look())["Degraded"] == "True Stale"


def test_what_is_built_and_does_not_serve_makes_nothing_fresh() -> None:
    world = aging()
    world.takes.start = NEVER
    world.content_of_source = lambda url: f"{url} of another day".ljust(64)
    world.annotate("monday")
    wait(world, 60)
    assert [generation.generation for generation in world.status.generations] == ["g1", "g2"]
    assert world.status.last_refreshed == "2026-01-01T12:00:00Z"


def _with_g2_an_hour_and_more_later(**rollout: object) -> World:
    """g1 is of twelve o'clock, and g2, which serves, of fifty minutes later; it is a quarter past one."""
    world = serving(shards=4, refresh={"staleAfterSeconds": LIMIT}, rollout={"drainSeconds": 5, **rollout})
    wait(world, 3000)
    world.content_of_source = lambda url: f"{url} of another day".ljust(64)
    world.annotate("monday")
    world.settle()
    wait(world, 1500)
    return world


def test_while_a_rollback_goes_shard_by_shard_the_oldest_data_that_any_shard_answers_from_count() -> None:
    world = _with_g2_an_hour_and_more_later(strategy="PerShard")
    read = world.status.last_refreshed
    assert says(world.look())["Degraded"] == "False Healthy"
    world.edit(generation="g1")
    world.settle(until=lambda: world.status.table is not None and world.status.table.is_mixed)
    degraded = condition(world.reconcile(), "Degraded")
    assert (world.status.generation, world.status.last_refreshed) == ("g2", "2026-01-01T12:00:00Z")
    assert degraded.reason == "Stale"
    assert degraded.message.startswith("g1 holds the source as it was at 2026-01-01T12:00:00Z")
    world.edit(generation=None, rollout={"drainSeconds": 5})
    world.edit(generation="g2")
    world.settle()
    assert world.status.last_refreshed == read
    assert says(world.look())["Degraded"] == "False Healthy"


def test_while_routers_go_back_to_older_data_at_once_these_count_already() -> None:
    world = _with_g2_an_hour_and_more_later(keepPrevious="1h")
    world.takes.table = world.takes.slow_table = NEVER
    world.edit(generation="g1")
    world.settle(until=lambda: world.status.table is not None and world.status.table.generation == "g1")
    assert (world.status.generation, says(world.reconcile())["Degraded"]) == ("g2", "True Stale")


def test_without_a_limit_data_may_be_of_any_age() -> None:
    world = serving()
    world.now = BEGIN + timedelta(days=1000)
    planned = world.reconcile()
    assert (says(planned)["Degraded"], planned.next_look_in) == ("False Healthy", None)


def test_nothing_that_serves_is_not_old() -> None:
    world = World()
    world.edit(refresh={"staleAfterSeconds": LIMIT})
    world.fails = lambda spec: BuildResult("waiting", message="waiting for _SUCCESS")
    wait(world, LIMIT + 10)
    assert world.status.last_refreshed == ""
    assert says(world.look())["Degraded"] == "False Healthy"


def test_a_clock_that_was_set_back_leaves_no_data_of_the_future() -> None:
    world = aging()
    world.now -= timedelta(days=1)
    assert world.look().status.last_refreshed == format_moment(world.now)


def test_prometheus_reads_when_and_how_old() -> None:
    metrics = Metrics()
    status = DatasetStatus(built_at="2026-01-01T12:00:05Z", last_refreshed="2026-01-01T12:00:00Z")
    metrics.set_status("maps", "airports", status, stale_after=LIMIT)
    metrics.set_status("maps", "people", DatasetStatus())
    lines = metrics.render().decode().splitlines()
    labels = '{dataset="airports",namespace="maps"}'
    times = re.compile(r"lookupdb_dataset_\w+_(timestamp|after)_seconds\{")
    read = {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if times.match(line)}
    assert read == {
        f"lookupdb_dataset_built_timestamp_seconds{labels}": (BEGIN + timedelta(seconds=5)).timestamp(),
        f"lookupdb_dataset_refreshed_timestamp_seconds{labels}": BEGIN.timestamp(),
        f"lookupdb_dataset_stale_after_seconds{labels}": 3600.0,
    }
    metrics.forget("maps", "airports")
    assert "airports" not in metrics.render().decode()
