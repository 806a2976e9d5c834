"""An incomplete source: the builder finds no success file, and the operator retries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
import pytest
from operator_support.plan_samples import condition, says, serving
from operator_support.plan_world import NEVER, World

from lookupdb_operator import manifests, names
from lookupdb_operator.cluster.parse import parse_build_result
from lookupdb_operator.model import BuildResult, parse_moment
from lookupdb_operator.plan import reasons

WAITING = BuildResult("waiting", reason="WaitingForSource", message="waiting for the success file s3://data/_SUCCESS")


def waiting(world: World) -> World:
    """``world`` after its builder found no success file."""
    world.fails = lambda spec: WAITING
    world.settle(until=lambda: world.status.failure is not None)
    return world


def refreshed() -> World:
    """A world that serves, and refreshes from an incomplete source."""
    world = serving(refresh={"successFile": "_SUCCESS"})
    world.annotate("monday")
    return waiting(world)


def _has_looked(world: World, begun: int) -> bool:
    """Return whether a build after ``begun`` has ended."""
    return world.status.build is None and world.status.last_generation > begun


def _unchanged(success_file: str) -> Callable[[dict[str, Any]], BuildResult]:
    return lambda spec: BuildResult("unchanged", fingerprint="f", success_file=success_file)


def test_nothing_is_wrong_and_built_says_what_is_waited_for() -> None:
    world = refreshed()
    planned = world.look()
    assert says(planned)["Built"] == "False WaitingForSource"
    assert says(planned)["Degraded"] == "False Healthy"
    assert says(planned)["Ready"] == "True Serving"
    message = condition(planned, "Built").message
    assert message.startswith("waiting for the success file s3://data/_SUCCESS. The next check for it is at ")
    assert planned.status.failure is not None
    assert planned.status.failure.retry_at in message


def test_it_is_an_outcome_of_its_own_among_the_builds() -> None:
    world = refreshed()
    assert [(record.outcome, record.reason) for record in world.status.builds] == [
        ("built", "Built"),
        ("waiting", "WaitingForSource"),
    ]
    assert world.status.last_checked == world.status.builds[-1].finished_at


def test_the_refresh_is_not_answered_before_it_is_there() -> None:
    world = refreshed()
    assert world.status.refreshed == ""
    world.fails = lambda spec: None
    world.settle()
    assert (world.status.refreshed, world.status.failure) == ("monday", None)


def test_it_is_looked_for_every_five_minutes_at_least() -> None:
    world = refreshed()
    looks = []
    for _ in range(9):
        assert world.status.failure is not None
        looks.append((parse_moment(world.status.failure.retry_at) - world.now).total_seconds())
        world.settle(400, until=partial(_has_looked, world, world.status.last_generation))
    assert looks[0] == pytest.approx(reasons.FIRST_RETRY_DELAY, abs=2)
    assert max(looks) == pytest.approx(reasons.LONGEST_WAIT, abs=2)


def test_a_failure_after_it_is_a_failure() -> None:
    world = refreshed()
    world.fails = lambda spec: BuildResult("failed", reason="BadSource", message="no such column")
    world.settle(until=lambda: says(world.look())["Degraded"] == "True BadSource")


def test_a_dataset_that_serves_nothing_yet_waits_for_it_too() -> None:
    world = World()
    world.edit(refresh={"successFile": "_SUCCESS"})
    waiting(world)
    planned = world.look()
    assert says(planned)["Built"] == "False WaitingForSource"
    assert says(planned)["Ready"] == "False NoRoutingTable"
    world.fails = lambda spec: None
    world.settle()
    assert world.status.generation == "g2"


def test_a_clock_that_was_set_back_keeps_nobody_waiting_for_longer() -> None:
    world = refreshed()
    world.now -= timedelta(days=1)
    planned = world.look()
    assert planned.status.failure is not None
    assert parse_moment(planned.status.failure.retry_at) <= world.now + timedelta(seconds=reasons.LONGEST_WAIT)


def test_the_builder_gets_its_name_and_nothing_else_of_the_refresh() -> None:
    world = World()
    world.edit(refresh={"successFile": "_SUCCESS", "schedule": "0 2 * * *", "staleAfterSeconds": 90_000})
    world.takes.build = NEVER
    world.reconcile()
    config_map = world.things["ConfigMap", "airports-g1-build"].manifest
    spec = orjson.loads(config_map["data"][names.DATASET_FILE])["spec"]
    assert spec["refresh"] == {"successFile": "_SUCCESS"}


def test_a_change_of_the_schedule_is_no_change_of_what_a_build_is_made_from() -> None:
    world = World()
    digest = manifests.build_digest(world.dataset, world.config)
    world.edit(refresh={"schedule": "0 2 * * *", "staleAfterSeconds": 90_000})
    assert manifests.build_digest(world.dataset, world.config) == digest


def test_the_next_builder_knows_which_success_file_the_last_one_has_seen() -> None:
    world = serving(refresh={"successFile": "_SUCCESS"})
    for refresh, seen in (("monday", "s1"), ("tuesday", "s2")):
        world.fails = _unchanged(seen)
        world.annotate(refresh)
        world.settle()
        assert [generation.success_file for generation in world.status.generations] == [seen]
    world.takes.build = NEVER
    world.annotate("wednesday")
    planned = world.reconcile()
    assert planned.status.build is not None
    assert planned.status.build.unless_success_file == "s2"
    job = world.things["Job", "airports-g4-build"].manifest
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[words.index("--unless-success-file") + 1] == "s2"


def test_a_builders_word_is_understood() -> None:
    line = '{"outcome": "waiting", "successFile": null, "reason": "WaitingForSource", "message": "m", "seconds": 0.25}'
    result = parse_build_result(line)
    assert result == BuildResult("waiting", reason="WaitingForSource", message="m", seconds=0.25)
    told = parse_build_result('{"outcome": "unchanged", "fingerprint": "f", "successFile": "s"}')
    assert told == BuildResult("unchanged", fingerprint="f", success_file="s")


@pytest.mark.parametrize("seconds", ['"1"', "-1", "1e12"])
def test_what_is_no_number_of_seconds_is_no_result(seconds: str) -> None:
    assert parse_build_result(f'{{"outcome": "built", "seconds": {seconds}}}') is None
