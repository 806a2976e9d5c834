"""``spec.adopt``: only the first build of a dataset adopts an earlier dataset's generations."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_samples import ADOPTION, BUILD, CONFIG, airports
from operator_support.plan_samples import broken, condition, serving
from operator_support.plan_world import NEVER, World

from lookupdb_operator import manifests
from lookupdb_operator.cluster.parse import parse_build_result
from lookupdb_operator.model import BuildResult
from lookupdb_operator.status import DatasetStatus

OLD = "3f2b9c1e-0000-4000-8000-00000000000a"
BUILT_AT = "2025-06-01T00:00:00Z"
ADOPTED = BuildResult(
    "adopted", "g1", "f1", 10, 1000, 500, BUILT_AT, adopted_from=f"{OLD}/g7", message="g1 is g7 of it"
)


def words(world: World, generation: str) -> list[str]:
    job = world.things["Job", f"airports-{generation}-build"].manifest
    found: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def asked(world: World, generation: str) -> str | None:
    found = words(world, generation)
    return found[found.index("--adopt") + 1] if "--adopt" in found else None


def begun(**adopt: str) -> World:
    """The first build is under way."""
    world = World()
    world.edit(adopt=adopt or {"uid": OLD})
    world.takes.build = NEVER
    world.reconcile()
    return world


def adopted(world: World | None = None) -> World:
    world = world or World()
    world.edit(adopt={"uid": OLD})
    world.fails = lambda spec: ADOPTED
    world.reconcile()
    world.published["g1"] = "of another"
    world.settle(until=lambda: bool(world.status.generations))
    world.fails = lambda spec: None
    return world


@pytest.mark.parametrize(
    ("adopt", "expected"), [({"uid": OLD}, OLD), ({"uid": "3f2b9c1e", "generation": "g7"}, "3f2b9c1e/g7")]
)
def test_the_first_builder_knows_what_to_adopt(adopt: dict[str, str], expected: str) -> None:
    assert asked(begun(**adopt), "g1") == expected
    world = World()
    world.takes.build = NEVER
    world.reconcile()
    assert asked(world, "g1") is None


def test_a_builder_of_a_dataset_with_a_generation_is_not() -> None:
    world = serving()
    world.takes.build = NEVER
    world.edit(adopt={"uid": OLD}, source={"url": "s3://data/v2.csv"})
    world.reconcile()
    assert asked(world, "g2") is None


def test_a_builder_of_a_dataset_whose_status_was_lost_is_not() -> None:
    """Its own data may be newer than the adopted generations."""
    world = serving(adopt={"uid": OLD})
    world.takes.build = NEVER
    world.status = DatasetStatus()
    world.reconcile()
    assert world.status.build is not None
    assert asked(world, world.status.build.generation) is None


def test_what_was_adopted_serves_and_is_as_old_as_it_was() -> None:
    world = adopted()
    (generation,) = world.status.generations
    assert (generation.adopted_from, generation.built_at, generation.refreshed_at) == (f"{OLD}/g7", BUILT_AT, BUILT_AT)
    assert world.status.builds[-1].outcome == "adopted"
    assert not world.status.last_checked, "nobody looked at the source"
    world.settle()
    assert (world.status.generation, world.status.last_refreshed) == ("g1", BUILT_AT)
    assert f"10 records in 2 shards, adopted from {OLD}/g7." in condition(world.look(), "Built").message


def test_it_answers_no_refresh_because_nobody_read_the_source() -> None:
    world = World()
    world.annotate("monday")
    world = adopted(world)
    assert not world.status.refreshed
    world.settle()
    assert (world.status.refreshed, world.status.generation) == ("monday", "g2")


def test_a_refresh_after_it_compares_with_the_fingerprint_that_it_has() -> None:
    world = adopted()
    world.settle()
    world.takes.build = NEVER
    world.annotate("monday")
    world.reconcile()
    found = words(world, "g2")
    assert found[found.index("--unless-fingerprint") + 1] == "f1"


def failing() -> World:
    world = World()
    world.edit(adopt={"uid": OLD})
    message = "nothing can be adopted from s3://lookupdb/c1/default/airports-3f2b9c1e: …\n  correct spec.adopt"
    world.fails = lambda spec: broken("AdoptionFailed", message)
    world.settle(until=lambda: world.status.failure is not None)
    return world


def test_where_there_is_nothing_to_adopt_it_is_reported_and_not_retried_at_once() -> None:
    world = failing()
    assert world.status.failure is not None
    assert (world.status.failure.reason, world.status.failure.count) == ("AdoptionFailed", 1)
    assert "correct spec.adopt" in condition(world.look(), "Degraded").message
    planned = world.look()
    assert planned.status.build is None, "it backs off"


@pytest.mark.parametrize("adopt", [None, {"uid": "77777777"}, {"uid": OLD, "generation": "g6"}])
def test_a_corrected_adoption_or_none_is_built_at_once(adopt: Any) -> None:
    world = failing()
    world.takes.build = NEVER
    world.edit(adopt=adopt)
    world.reconcile()
    assert world.status.build is not None
    assert asked(world, "g2") == (None if adopt is None else "/".join(adopt.values()))


def test_taking_it_away_later_changes_nothing() -> None:
    world = adopted()
    world.settle()
    world.edit(adopt=None)
    planned = world.look()
    assert (planned.apply, planned.delete, planned.status.build) == ((), (), None)


def test_the_digest_of_a_build_tells_what_is_adopted() -> None:
    digests = {
        manifests.build_digest(airports(**spec), CONFIG)
        for spec in ({}, {"adopt": {"uid": OLD}}, {"adopt": {"uid": OLD, "generation": "g7"}})
    }
    assert len(digests) == 3
    job = manifests.render_builder(airports(), ADOPTION, CONFIG)[1]
    found = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert found[found.index("--adopt") + 1] == "3f2b9c1e/g7"
    assert "--adopt" not in str(manifests.render_builder(airports(), BUILD, CONFIG))


def test_a_builders_word_about_it_is_bounded() -> None:
    line = f'{{"outcome": "adopted", "generation": "g1", "adoptedFrom": "{OLD}/g7"}}'
    result = parse_build_result(line)
    assert result is not None
    assert result.adopted_from == f"{OLD}/g7"
    long = parse_build_result(line.replace("/g7", "x" * 1000))
    assert long is not None
    assert len(long.adopted_from) == 64


@pytest.mark.parametrize(
    ("volume", "mounted"),
    [({"configMapName": "files"}, {"configMap": {"name": "files", "optional": True}}), ({"claimName": "files"}, None)],
)
def test_a_builder_that_adopts_starts_without_its_source(volume: dict[str, str], mounted: Any) -> None:
    source = {"url": "volume://airports.csv", "volume": volume, "secretName": "login"}

    def pod(build: Any) -> Any:
        return manifests.render_builder(airports(source=source), build, CONFIG)[1]["spec"]["template"]["spec"]

    def find(build: Any) -> list[Any]:
        return [volume for volume in pod(build)["volumes"] if volume["name"] == "source"]

    assert find(ADOPTION) == ([] if mounted is None else [{"name": "source", **mounted}])
    assert ("--volume" in pod(ADOPTION)["containers"][0]["args"]) == (mounted is not None)
    assert {"secretRef": {"name": "login", "optional": True}} in pod(ADOPTION)["containers"][0]["envFrom"]
    assert "optional" not in str(find(BUILD))
    assert {"secretRef": {"name": "login"}} in pod(BUILD)["containers"][0]["envFrom"]
