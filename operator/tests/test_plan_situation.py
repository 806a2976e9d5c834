"""Renderings: one for each spec, and how long it is kept."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from manifest_samples import CONFIG, airports, generation
from operator_support.plan_world import World

from lookupdb_operator import manifests
from lookupdb_operator.manifests import objects
from lookupdb_operator.model import Manifest
from lookupdb_operator.plan.turns import Ingredients, build_stamps, render_permanent_objects, shard_stamps, table_stamps
from lookupdb_operator.status import BuildStatus, DatasetStatus, RolloutStatus, Stall, TableStatus

GENERATION = generation(airports(), "g1")
BEGIN = "2030-01-01T00:00:00Z"
ROLLOUT = RolloutStatus("r1", "g1", "template", BEGIN)


def test_the_same_spec_is_rendered_once_whatever_its_status() -> None:
    before = replace(airports(), renderings={})
    after = replace(before, status=DatasetStatus(last_generation=7), resource_version="8")
    assert render_permanent_objects(Ingredients(before, CONFIG)) is render_permanent_objects(Ingredients(after, CONFIG))
    stamps = shard_stamps(Ingredients(before, CONFIG), ROLLOUT, GENERATION, 2)
    moved = replace(ROLLOUT, referenced_replicas=2)
    assert shard_stamps(Ingredients(after, CONFIG), moved, GENERATION, 2) is stamps
    assert shard_stamps(Ingredients(after, CONFIG), ROLLOUT, GENERATION, 3) != stamps


def test_stamps_are_of_what_would_be_written_without_hashing_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = replace(airports(), renderings={})
    written = manifests.render_shards(dataset, ROLLOUT, GENERATION, 2, CONFIG)
    monkeypatch.setattr(objects, "hash_applied_fields", lambda manifest: pytest.fail("nothing is written"))
    assert shard_stamps(Ingredients(dataset, CONFIG), ROLLOUT, GENERATION, 2) == _stamps(*written)


def test_another_spec_uid_or_config_is_rendered_again() -> None:
    before = replace(airports(), renderings={})
    rendered = render_permanent_objects(Ingredients(before, CONFIG))
    for other in (
        Ingredients(replace(before, spec=dict(before.spec)), CONFIG),
        Ingredients(replace(before, uid="another"), CONFIG),
        Ingredients(before, replace(CONFIG, image="another")),
    ):
        assert render_permanent_objects(other) is not rendered
    assert render_permanent_objects(Ingredients(before, CONFIG)) == rendered


def test_what_was_rendered_goes_with_its_dataset_and_is_bounded() -> None:
    dataset = replace(airports(), renderings={})
    for replicas in range(200):
        shard_stamps(Ingredients(dataset, CONFIG), ROLLOUT, GENERATION, replicas)
    assert len(dataset.renderings) <= 66
    rendered = weakref.ref(shard_stamps(Ingredients(dataset, CONFIG), ROLLOUT, GENERATION, 5000))
    assert rendered() is not None
    del dataset
    gc.collect()
    assert rendered() is None


def test_a_build_and_a_routing_table_are_known_by_the_stamps_of_what_would_be_written() -> None:
    dataset = replace(airports(), renderings={})
    ingredients, build = Ingredients(dataset, CONFIG), BuildStatus("g2", "content", "", "digest", BEGIN)
    assert build_stamps(ingredients, build) == _stamps(*manifests.render_builder(dataset, build, CONFIG))
    stalled = replace(build, stall=Stall("OutOfMemory", BEGIN))
    assert build_stamps(ingredients, stalled) is build_stamps(ingredients, build), "what it waits for is no part of it"
    assert build_stamps(ingredients, replace(build, active="g1")) != build_stamps(ingredients, build)

    table, known = TableStatus(3, "r1", "g1", 2, 1, BEGIN), {"g1": GENERATION}
    written = manifests.render_routing_table(dataset, table, known)
    assert table_stamps(ingredients, table, known) == _stamps(written)
    for other, others in (
        (replace(table, version=4), known),
        (replace(table, replicas=3), known),
        (table, {"g1": replace(GENERATION, shards=GENERATION.shards + 1)}),
    ):
        assert table_stamps(ingredients, other, others) != _stamps(written)


def _stamps(*written: Manifest) -> set[tuple[str, str, str]]:
    return {(one["kind"], one["metadata"]["name"], manifests.read_digest(one)) for one in written}


def test_a_pass_that_finds_all_as_it_should_be_renders_no_table_and_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.settle()
    world.look()
    for render in ("render_routing_table", "render_builder", "render_shards"):
        monkeypatch.setattr(manifests, render, lambda *given: pytest.fail("all is there"))
    assert world.look().apply == ()
