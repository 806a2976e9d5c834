"""What all decisions look at: what is observed, what is asked for, and what time it is. Nothing is decided here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from lookupdb.spec import DatasetSpec
from lookupdb_operator.config import Config
from lookupdb_operator.model import Dataset, Observed
from lookupdb_operator.plan import rendering
from lookupdb_operator.plan.rendering import Ingredients
from lookupdb_operator.status import Generation

_REFRESH_AT_MOST: Final = 256


@dataclass(frozen=True, slots=True)
class Desired:
    """What the user asks for, as far as decisions depend on it."""

    content_hash: str
    """``DatasetSpec.content_hash()``: which shard files."""
    refresh: str
    """The refresh annotation, or its hash when it is long; empty for none."""
    build_digest: str
    """Of everything that a builder's Job would be made from now."""
    shards: int
    replicas: int
    workers: int
    normalize: tuple[str, ...]
    value_format: str
    keep_generations: int
    drain_seconds: float
    """How long servers stay that no routing table references any more: the drain time and a lookup's deadline."""
    router_drain_seconds: float
    """The same for lookups that come in through a router that is being stopped."""
    progress_deadline_seconds: float
    """In which the servers of a rollout should get ready, and then routers take up its table."""

    @classmethod
    def from_spec(cls, dataset: Dataset, spec: DatasetSpec, config: Config) -> Self:
        """What ``dataset``, whose usable spec is ``spec``, asks for."""
        deadline = spec.router.deadline_milliseconds / 1000
        return cls(
            content_hash=rendering.content_hash(Ingredients(dataset, config)),
            refresh=_bounded(dataset.refresh),
            build_digest=rendering.build_digest(Ingredients(dataset, config)),
            shards=spec.shards,
            replicas=spec.replicas,
            workers=spec.serving_workers,
            normalize=spec.key.normalize,
            value_format=spec.value.format,
            keep_generations=spec.keep_generations,
            drain_seconds=dataset.spec["rollout"]["drainSeconds"] + deadline,
            progress_deadline_seconds=dataset.spec["rollout"]["progressDeadlineSeconds"],
            router_drain_seconds=spec.router.drain_seconds + deadline,
        )


@dataclass(frozen=True, slots=True)
class Situation:
    """What is decided about."""

    observed: Observed
    config: Config
    now: datetime
    desired: Desired

    @property
    def dataset(self) -> Dataset:
        """The dataset as observed."""
        return self.observed.dataset

    @property
    def ingredients(self) -> Ingredients:
        """What everything is rendered from."""
        return Ingredients(self.observed.dataset, self.config)

    def template_of(self, generation: Generation) -> str:
        """Digest of what a rollout of ``generation`` would be made from now."""
        return rendering.template_digest(self.ingredients, generation)


def _bounded(refresh: str) -> str:
    """An annotation may be 256 KiB long; in status it has less room."""
    return refresh if len(refresh) <= _REFRESH_AT_MOST else hashlib.sha256(refresh.encode()).hexdigest()
