"""Renderings: one for each spec, and how long it is kept."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from manifest_samples import CONFIG, airports, generation
from operator_support.plan_world import World

from lookupdb_operator import manifests
from lookupdb_operator.manifests import objects
from lookupdb_operator.model import Config, Observed, ObservedDataset
from lookupdb_operator.plan.turns import Situation, read_stamps, render_table
from lookupdb_operator.status import DatasetStatus, RolloutStatus, TableStatus

GENERATION = generation(airports(), "g1")
BEGIN = "2030-01-01T00:00:00Z"
ROLLOUT = RolloutStatus("r1", "g1", "template", BEGIN)


def _situation(dataset: ObservedDataset, config: Config = CONFIG) -> Situation:
    return Situation.from_observed(Observed(dataset), config, datetime(2030, 1, 1, tzinfo=UTC))


def test_the_same_spec_is_rendered_once_whatever_its_status() -> None:
    before = replace(airports(), renderings={})
    after = replace(before, status=DatasetStatus(last_generation=7), resource_version="8")
    rendered = _situation(before).render_once("name", object)
    assert _situation(after).render_once("name", object) is rendered
    assert _situation(after).render_once("another name", object) is not rendered


def test_another_spec_uid_or_config_is_rendered_again() -> None:
    before = replace(airports(), renderings={})
    rendered = _situation(before).render_once("name", object)
    for other in (
        _situation(replace(before, spec=dict(before.spec))),
        _situation(replace(before, uid="another")),
        _situation(before, replace(CONFIG, image="another")),
    ):
        assert other.render_once("name", object) is not rendered


def test_what_was_rendered_goes_with_its_dataset_and_is_bounded() -> None:
    dataset = replace(airports(), renderings={})
    for number in range(200):
        _situation(dataset).render_once(number, object)
    assert len(dataset.renderings) <= 66
    rendered = weakref.ref(_situation(dataset).render_once("set", lambda: frozenset({"name"})))
    assert rendered() is not None
    del dataset
    gc.collect()
    assert rendered() is None


def test_stamps_are_of_what_would_be_written_without_hashing_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = replace(airports(), renderings={})
    written = manifests.render_shards(dataset, ROLLOUT, GENERATION, 2, CONFIG)
    monkeypatch.setattr(objects, "hash_applied_fields", lambda manifest: pytest.fail("nothing is written"))
    assert set(manifests.shard_digests(dataset, ROLLOUT, GENERATION, 2, CONFIG)) == read_stamps(written)


def test_a_routing_table_is_known_by_the_stamp_of_what_would_be_written() -> None:
    dataset = replace(airports(), renderings={})
    table, known = TableStatus(3, "r1", "g1", 2, 1, BEGIN), {"g1": GENERATION}
    written = manifests.render_routing_table(dataset, table, known)
    assert {render_table(_situation(dataset), table, known)[0]} == read_stamps([written])
    for other, others in (
        (replace(table, version=4), known),
        (replace(table, replicas=3), known),
        (table, {"g1": replace(GENERATION, shards=GENERATION.shards + 1)}),
    ):
        assert {render_table(_situation(dataset), other, others)[0]} != read_stamps([written])


def test_a_pass_that_finds_all_as_it_should_be_renders_no_table_and_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.settle()
    world.look()
    for render in ("render_routing_table", "render_builder", "render_shards"):
        monkeypatch.setattr(manifests, render, lambda *given: pytest.fail("all is there"))
    assert world.look().apply == ()
