"""What is rendered once for each spec, and for how long it is kept."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from manifest_samples import CONFIG, airports, generation

from lookupdb_operator import manifests
from lookupdb_operator.manifests import metadata
from lookupdb_operator.plan.situation import Ingredients, render_permanent_objects, shard_stamps
from lookupdb_operator.status import DatasetStatus, RolloutStatus

GENERATION = generation(airports(), "g1")
ROLLOUT = RolloutStatus("r1", "g1", "template", "2030-01-01T00:00:00Z")


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
    monkeypatch.setattr(metadata, "hash_applied_fields", lambda manifest: pytest.fail("nothing is written"))
    assert shard_stamps(Ingredients(dataset, CONFIG), ROLLOUT, GENERATION, 2) == {
        (manifest["kind"], manifest["metadata"]["name"], manifests.read_digest(manifest)) for manifest in written
    }


def test_another_spec_uid_or_config_is_rendered_anew() -> None:
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
    for replicas in range(1000):
        shard_stamps(Ingredients(dataset, CONFIG), ROLLOUT, GENERATION, replicas)
    assert len(dataset.renderings) <= 66
    rendered = weakref.ref(shard_stamps(Ingredients(dataset, CONFIG), ROLLOUT, GENERATION, 5000))
    assert rendered() is not None
    del dataset
    gc.collect()
    assert rendered() is None
