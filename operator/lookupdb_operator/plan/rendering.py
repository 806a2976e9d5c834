"""Objects and digests that are rendered once for each spec, not at each pass: there may be a thousand shards, and most
passes find that nothing has changed.

Remembered by what they are made from, so that asking twice is only faster, never different.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from lookupdb_operator import manifests
from lookupdb_operator.config import Config
from lookupdb_operator.model import Dataset, Manifest
from lookupdb_operator.status import Generation, Rollout

Stamp = tuple[str, str, str]
"""Kind, name and digest."""
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Ingredients:
    """What everything is rendered from. Two are equal when the very same spec is in both: a spec never changes, and
    comparing two would take longer than rendering."""

    dataset: Dataset
    config: Config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ingredients) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str, str, int, int, int]:
        dataset = self.dataset
        of_spec = id(dataset.spec), id(dataset.parsed)
        return dataset.namespace, dataset.name, dataset.uid, *of_spec, id(self.config)


@functools.lru_cache(_REMEMBERED)
def content_hash(made_from: Ingredients) -> str:
    """``DatasetSpec.content_hash()``."""
    parsed = made_from.dataset.parsed
    assert parsed is not None, "of a spec that cannot be used, nothing is made"
    return parsed.content_hash()


@functools.lru_cache(_REMEMBERED)
def build_digest(made_from: Ingredients) -> str:
    """``manifests.build_digest``."""
    return manifests.build_digest(made_from.dataset, made_from.config)


@functools.lru_cache(_REMEMBERED)
def template_digest(made_from: Ingredients, generation: Generation) -> str:
    """``manifests.template_digest``."""
    return manifests.template_digest(made_from.dataset, generation, made_from.config)


@functools.lru_cache(_REMEMBERED)
def always(made_from: Ingredients) -> tuple[Manifest, ...]:
    """What exists from the first pass on: network policies and routers. Not to be changed."""
    dataset, config = made_from.dataset, made_from.config
    return (*manifests.network_policies(dataset, config), *manifests.routers(dataset, config))


@functools.lru_cache(_REMEMBERED)
def shard_stamps(made_from: Ingredients, rollout: Rollout, generation: Generation, replicas: int) -> frozenset[Stamp]:
    """What ``manifests.shards`` would render, without keeping it."""
    rendered = manifests.shards(made_from.dataset, rollout, generation, replicas, made_from.config)
    return frozenset((one["kind"], one["metadata"]["name"], manifests.digest_of(one)) for one in rendered)
