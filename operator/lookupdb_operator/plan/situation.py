"""The situation that all decisions share: what is observed, what is asked for, and the time. Nothing is decided here.

This module also caches what is rendered of a spec. There may be a thousand shards, and most passes find that nothing
has changed. A dataset holds its own renderings (``ObservedDataset.renderings``), so they go with it or with its spec,
and how much is cached of one does not depend on how many there are. What several steps of a pass decide alike is
decided once (``decided_once``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, Final, Self, TypeVar, cast

from lookupdb.dataset.spec import DatasetSpec, Refresh
from lookupdb_operator import manifests
from lookupdb_operator.config import Config
from lookupdb_operator.model import Manifest, Observed, ObservedDataset
from lookupdb_operator.plan import clock
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildStatus, DatasetStatus, GenerationStatus, RolloutStatus, TableStatus

T = TypeVar("T")
Stamp = tuple[str, str, str]
"""Kind, name and digest."""
_MAX_RENDERINGS: Final = 64
"""Of one dataset: more than its rollouts and generations need at any time. Beyond, the cache is emptied."""
_INGREDIENTS: Final = "ingredients"


@dataclass(frozen=True, slots=True)
class Situation:
    """One dataset as every decision of a pass sees it."""

    observed: Observed
    config: Config
    now: datetime
    desired: Desired
    last_decisions: dict[object, tuple[DatasetStatus, Any]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    """Of each decision that is made once: the last status, and what was decided of it."""

    @classmethod
    def from_observed(cls, observed: Observed, config: Config, now: datetime) -> Self:
        """The situation of a dataset whose spec can be used."""
        dataset = observed.dataset
        assert dataset.parsed is not None, "of a spec that cannot be used, nothing is made"
        return cls(observed, config, now, Desired.from_spec(dataset, dataset.parsed, config))

    @property
    def dataset(self) -> ObservedDataset:
        """The dataset as observed."""
        return self.observed.dataset

    @property
    def shares_store(self) -> bool:
        """Whether its generations are in the store of the release, as those of other datasets."""
        return self.observed.dataset.own_store is None

    @property
    def has_store_secret(self) -> bool:
        """Whether its pods reach the store by a Secret that the operator writes: neither through a gateway, nor by one
        of their own."""
        return self.shares_store and not self.config.gateway

    @property
    def ingredients(self) -> Ingredients:
        """What everything is rendered from."""
        return Ingredients(self.observed.dataset, self.config)

    def template_for(self, generation: GenerationStatus) -> str:
        """Digest of what a rollout of ``generation`` would be made from now."""
        return template_digest(self.ingredients, generation)


def decided_once(decide: Callable[[DatasetStatus, Situation], T]) -> Callable[[DatasetStatus, Situation], T]:
    """``decide``, which remembers what it decided last: ten steps of a pass ask what the rollout is that is asked for,
    and most leave status as it is."""

    @wraps(decide)
    def decided(status: DatasetStatus, situation: Situation) -> T:
        last = situation.last_decisions.get(decide)
        if last is None or last[0] is not status:
            last = situation.last_decisions[decide] = (status, decide(status, situation))
        return cast(T, last[1])

    return decided


@dataclass(frozen=True, slots=True)
class DesiredSchedule:
    """When the source is to be looked at."""

    expression: str
    time_zone: str
    starting_deadline_seconds: int | None

    @classmethod
    def from_refresh(cls, refresh: Refresh) -> Self | None:
        """The schedule of ``refresh``; None when there is none, or it rests."""
        if refresh.schedule is None or refresh.suspend:
            return None
        return cls(refresh.schedule, refresh.time_zone, refresh.starting_deadline_seconds)

    @property
    def text(self) -> str:
        """The expression and its time zone."""
        return f"{self.expression} {self.time_zone}"


@dataclass(frozen=True, slots=True)
class Desired:
    """What the user asks for, as far as decisions depend on it."""

    content_hash: str
    """``DatasetSpec.content_hash()``: which shard files."""
    refresh: str
    """The refresh annotation; empty for none."""
    schedule: DesiredSchedule | None
    stale_after_seconds: int | None
    """How old the data that serve may become."""
    build_digest: str
    """Of everything that a builder's Job would be made from now."""
    shards: int
    replicas: int
    workers: int
    normalize: tuple[str, ...]
    value_format: str
    keep_generations: int
    is_suspended: bool
    """``spec.suspend``: what serves is asked for, and nothing else."""
    pinned_generation: str
    """``spec.generation``: the one generation that is asked for; empty for none."""
    adopt: str
    """``spec.adopt``: ``uid`` or ``uid/gN`` of what an earlier dataset has left; empty for nothing."""
    strategy: str
    """``Atomic`` or ``PerShard``."""
    max_surge_shards: int
    """How many shards' servers are made at a time, with ``PerShard``."""
    promotion: str
    """``Auto`` or ``Manual``."""
    promote: str
    """The promote annotation: the generation that may take effect; empty for none."""
    reject: str
    """The reject annotation: the generation that is not to be served; empty for none."""
    drain_seconds: float
    """How long servers stay that no routing table references any more: the drain time and a lookup's deadline."""
    router_drain_seconds: float
    """The same for lookups that come in through a router that is being stopped."""
    keep_previous_seconds: float
    """How long the servers of the generation before stay after they have drained."""
    progress_deadline_seconds: float
    """In which the servers of a rollout should get ready, and then routers take up its table."""

    @classmethod
    def from_spec(cls, dataset: ObservedDataset, spec: DatasetSpec, config: Config) -> Self:
        """What ``dataset``, whose usable spec is ``spec``, asks for."""
        deadline = spec.router.deadline_milliseconds / 1000
        return cls(
            content_hash=content_hash(Ingredients(dataset, config)),
            refresh=dataset.refresh,
            schedule=DesiredSchedule.from_refresh(spec.refresh),
            stale_after_seconds=spec.refresh.stale_after_seconds,
            build_digest=build_digest(Ingredients(dataset, config)),
            shards=spec.shards,
            replicas=_count_replicas(dataset, spec),
            workers=spec.serving_workers,
            normalize=spec.key.normalize,
            value_format=spec.value.format,
            keep_generations=spec.keep_generations,
            is_suspended=dataset.spec["suspend"],
            pinned_generation=dataset.spec.get("generation", ""),
            adopt=manifests.adopted_address(dataset),
            strategy=dataset.spec["rollout"]["strategy"],
            max_surge_shards=dataset.spec["rollout"]["maxSurgeShards"],
            promotion=dataset.spec["rollout"]["promotion"],
            promote=dataset.promote,
            reject=dataset.reject,
            drain_seconds=dataset.spec["rollout"]["drainSeconds"] + deadline,
            keep_previous_seconds=clock.parse_duration(dataset.spec["rollout"]["keepPrevious"]),
            progress_deadline_seconds=dataset.spec["rollout"]["progressDeadlineSeconds"],
            router_drain_seconds=spec.router.drain_seconds + deadline,
        )


def _count_replicas(dataset: ObservedDataset, spec: DatasetSpec) -> int:
    """As many as the spec says; while it is suspended as many as serve."""
    table = dataset.status.table
    return table.replicas if dataset.spec["suspend"] and table is not None else spec.replicas


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What everything is rendered from."""

    dataset: ObservedDataset
    config: Config

    @property
    def inputs(self) -> tuple[object, ...]:
        """All that is rendered from, and nothing else of the dataset: its status changes all the time."""
        dataset = self.dataset
        return dataset.spec, dataset.parsed, self.config, (dataset.namespace, dataset.name, dataset.uid)


def content_hash(ingredients: Ingredients) -> str:
    """``DatasetSpec.content_hash()``."""
    parsed = ingredients.dataset.parsed
    assert parsed is not None, "of a spec that cannot be used, nothing is made"
    return _render_once(ingredients, "content hash", parsed.content_hash)


def build_digest(ingredients: Ingredients) -> str:
    """``manifests.build_digest``."""
    dataset, config = ingredients.dataset, ingredients.config
    return _render_once(ingredients, "build digest", lambda: manifests.build_digest(dataset, config))


def template_digest(ingredients: Ingredients, generation: GenerationStatus) -> str:
    """``manifests.template_digest``."""
    dataset, config = ingredients.dataset, ingredients.config
    render = lambda: manifests.template_digest(dataset, generation, config)  # noqa: E731
    return _render_once(ingredients, ("template digest", generation), render)


def render_permanent_objects(ingredients: Ingredients, password_keys: tuple[str, ...] = ()) -> tuple[Manifest, ...]:
    """What exists from the first pass on: network policies, routers, which have the keys ``password_keys``, and what
    keeps generations on nodes. Not to be changed."""
    dataset, config = ingredients.dataset, ingredients.config
    return _render_once(
        ingredients,
        ("always", password_keys),
        lambda: (
            *manifests.render_network_policies(dataset, config),
            *manifests.render_routers(dataset, config, password_keys),
            *manifests.render_sync(dataset, config),
        ),
    )


def shard_stamps(
    ingredients: Ingredients, rollout: RolloutStatus, generation: GenerationStatus, replicas: int
) -> frozenset[Stamp]:
    """What ``manifests.render_shards`` would render, without keeping it."""
    dataset, config = ingredients.dataset, ingredients.config

    def render() -> frozenset[Stamp]:
        return frozenset(manifests.shard_digests(dataset, rollout, generation, replicas, config))

    # Of a rollout, shards are made from its name, its generation's and which it has alone.
    name = ("shards", rollout.rollout, rollout.generation, rollout.shard_ranges, generation, replicas)
    return _render_once(ingredients, name, render)


def service_and_budget_stamps(
    ingredients: Ingredients, rollout: RolloutStatus, generation: GenerationStatus
) -> frozenset[Stamp]:
    """What ``manifests.render_service_and_budgets`` would render, without keeping it."""

    def render() -> frozenset[Stamp]:
        return _stamps(manifests.render_service_and_budgets(ingredients.dataset, rollout, generation))

    name = ("services", rollout.rollout, rollout.generation, rollout.shard_ranges, generation.shards)
    return _render_once(ingredients, name, render)


def build_stamps(ingredients: Ingredients, build: BuildStatus) -> frozenset[Stamp]:
    """What ``manifests.render_builder`` would render."""
    build = replace(build, stall=None)
    render = lambda: _stamps(manifests.render_builder(ingredients.dataset, build, ingredients.config))  # noqa: E731
    return _render_once(ingredients, ("build", build), render)


def table_stamps(
    ingredients: Ingredients, table: TableStatus, generations: Mapping[str, GenerationStatus]
) -> frozenset[Stamp]:
    """What ``manifests.render_routing_table`` would render, without keeping it."""
    render = lambda: _stamps((manifests.render_routing_table(ingredients.dataset, table, generations),))  # noqa: E731
    return _render_once(ingredients, ("routing table", table, tuple(generations.values())), render)


def table_content(ingredients: Ingredients, table: TableStatus, generations: Mapping[str, GenerationStatus]) -> str:
    """What tells apart the content of what ``manifests.render_routing_table`` would render, without keeping it."""
    render = lambda: manifests.content_mark(  # noqa: E731
        manifests.render_routing_table(ingredients.dataset, table, generations)
    )
    return _render_once(ingredients, ("content of the routing table", table, tuple(generations.values())), render)


def _stamps(rendered: Iterable[Manifest]) -> frozenset[Stamp]:
    return frozenset(
        (manifest["kind"], manifest["metadata"]["name"], manifests.read_digest(manifest)) for manifest in rendered
    )


def _render_once(ingredients: Ingredients, name: Hashable, render: Callable[[], T]) -> T:
    """What ``render`` returned for ``name`` the first time, from the same ingredients."""
    renderings: dict[Any, Any] = ingredients.dataset.renderings
    if not _is_same(ingredients.inputs, renderings.get(_INGREDIENTS)) or len(renderings) > _MAX_RENDERINGS:
        renderings.clear()
        renderings[_INGREDIENTS] = ingredients.inputs
    if name not in renderings:
        renderings[name] = render()
    return cast(T, renderings[name])


def _is_same(inputs: tuple[object, ...], before: tuple[object, ...] | None) -> bool:
    """Whether both are the very same: a spec never changes once it is parsed, and comparing the contents of two would
    take longer than rendering."""
    if before is None:
        return False
    *sources, identity = inputs
    *sources_before, identity_before = before
    return identity == identity_before and all(map(operator.is_, sources, sources_before))
