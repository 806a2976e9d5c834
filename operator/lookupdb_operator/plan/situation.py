"""The situation that all decisions share: what is observed, what is desired, and the time. Nothing is decided here.

This module also keeps the digests of what a spec renders to. A dataset may have a thousand shards, and most passes find
that nothing has changed. The digests are kept with the dataset (``ObservedDataset.renderings``) from one pass to the
next, and dropped with its spec.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self, TypeVar, cast

from lookupdb.dataset.spec import DatasetSpec, Refresh
from lookupdb_operator import manifests
from lookupdb_operator.config import Config
from lookupdb_operator.model import Manifest, Observed, ObservedDataset
from lookupdb_operator.plan import clock
from lookupdb_operator.status import BuildStatus, GenerationStatus, RolloutStatus, TableStatus, replace

T = TypeVar("T")
Stamp = tuple[str, str, str]
"""Kind, name and digest."""
_MAX_RENDERINGS: Final = 64
"""Digests kept of one dataset: more than its rollouts and generations need. Beyond this number all are dropped."""
_INGREDIENTS: Final = "ingredients"


@dataclass(frozen=True, slots=True)
class Situation:
    """One dataset as every decision of a pass sees it."""

    observed: Observed
    config: Config
    now: datetime
    desired: Desired

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
        """Return whether its generations are in the store of the release."""
        return self.observed.dataset.own_store is None

    @property
    def has_store_secret(self) -> bool:
        """Return whether its pods need a Secret of ours for the store: there is no gateway and no store of its own."""
        return self.shares_store and not self.config.gateway

    @property
    def ingredients(self) -> Ingredients:
        """Everything that objects are rendered from."""
        return Ingredients(self.observed.dataset, self.config)

    def template_for(self, generation: GenerationStatus) -> str:
        """Digest of what a rollout of ``generation`` would be made from now."""
        dataset, config = self.observed.dataset, self.config
        render = lambda: manifests.template_digest(dataset, generation, config)  # noqa: E731
        return _render_once(self.ingredients, ("template digest", generation), render)


@dataclass(frozen=True, slots=True)
class DesiredSchedule:
    """The schedule for checks of the source."""

    expression: str
    time_zone: str
    starting_deadline_seconds: int | None

    @classmethod
    def from_refresh(cls, refresh: Refresh) -> Self | None:
        """The schedule of ``refresh``; None without one or while it is suspended."""
        if refresh.schedule is None or refresh.suspend:
            return None
        return cls(refresh.schedule, refresh.time_zone, refresh.starting_deadline_seconds)

    @property
    def text(self) -> str:
        """The expression and its time zone."""
        return f"{self.expression} {self.time_zone}"


@dataclass(frozen=True, slots=True)
class Desired:
    """The user's wishes, as far as decisions depend on them."""

    content_hash: str
    """``DatasetSpec.content_hash()``: which shard files."""
    refresh: str
    """The refresh annotation; empty for none."""
    schedule: DesiredSchedule | None
    stale_after_seconds: int | None
    """Age in seconds at which the served data are too old."""
    build_digest: str
    """Digest of everything that a builder's Job would be made from now."""
    shards: int
    replicas: int
    workers: int
    normalize: tuple[str, ...]
    value_format: str
    keep_generations: int
    is_suspended: bool
    """``spec.suspend``: only the active generation is desired."""
    pinned_generation: str
    """``spec.generation``: the one generation to serve; empty for none."""
    adopt: str
    """``spec.adopt``: ``uid`` or ``uid/gN`` of what an earlier dataset has left; empty for nothing."""
    strategy: str
    """``Atomic`` or ``PerShard``."""
    max_surge_shards: int
    """Number of shards whose servers are made at a time, with ``PerShard``."""
    promotion: str
    """``Auto`` or ``Manual``."""
    promote: str
    """The promote annotation: the generation that may take effect; empty for none."""
    reject: str
    """The reject annotation: the generation that is not to be served; empty for none."""
    drain_seconds: float
    """Time for which servers stay that no routing table references any more: the drain time and a lookup's deadline."""
    router_drain_seconds: float
    """Seconds that servers stay for lookups that come in through a router that is being stopped."""
    keep_previous_seconds: float
    """Time for which the servers of the generation before stay after they have drained."""
    progress_deadline_seconds: float
    """In which the servers of a rollout should get ready, and then routers take up its table."""

    @classmethod
    def from_spec(cls, dataset: ObservedDataset, spec: DatasetSpec, config: Config) -> Self:
        """Return what ``dataset``, whose usable spec is ``spec``, asks for."""
        ingredients = Ingredients(dataset, config)
        deadline, table = spec.router.deadline_milliseconds / 1000, dataset.status.table
        is_suspended = dataset.spec["suspend"]
        return cls(
            content_hash=_render_once(ingredients, "content hash", spec.content_hash),
            refresh=dataset.refresh,
            schedule=DesiredSchedule.from_refresh(spec.refresh),
            stale_after_seconds=spec.refresh.stale_after_seconds,
            build_digest=_render_once(ingredients, "build digest", lambda: manifests.build_digest(dataset, config)),
            shards=spec.shards,
            replicas=table.replicas if is_suspended and table is not None else spec.replicas,
            workers=spec.serving_workers,
            normalize=spec.key.normalize,
            value_format=spec.value.format,
            keep_generations=spec.keep_generations,
            is_suspended=is_suspended,
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


@dataclass(frozen=True, slots=True)
class Ingredients:
    """Everything that objects are rendered from."""

    dataset: ObservedDataset
    config: Config

    @property
    def inputs(self) -> tuple[object, ...]:
        """All that is rendered from, and nothing else of the dataset: its status changes all the time."""
        dataset = self.dataset
        return dataset.spec, dataset.parsed, self.config, (dataset.namespace, dataset.name, dataset.uid)


def render_permanent_objects(ingredients: Ingredients, password_keys: tuple[str, ...] = ()) -> tuple[Manifest, ...]:
    """Return the objects that exist from the first pass on: network policies, routers and the DaemonSet. Do not change
    them."""
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
    """The stamps of what ``manifests.render_shards`` renders; the manifests are not kept."""
    dataset, config = ingredients.dataset, ingredients.config

    def render() -> frozenset[Stamp]:
        return frozenset(manifests.shard_digests(dataset, rollout, generation, replicas, config))

    # Of a rollout, shards are made from its name, its generation's and which it has alone.
    name = ("shards", rollout.rollout, rollout.generation, rollout.shard_ranges, generation, replicas)
    return _render_once(ingredients, name, render)


def service_and_budget_stamps(
    ingredients: Ingredients, rollout: RolloutStatus, generation: GenerationStatus
) -> frozenset[Stamp]:
    """The stamps of what ``manifests.render_service_and_budgets`` renders; the manifests are not kept."""

    def render() -> frozenset[Stamp]:
        return _stamps(manifests.render_service_and_budgets(ingredients.dataset, rollout, generation))

    name = ("services", rollout.rollout, rollout.generation, rollout.shard_ranges, generation.shards)
    return _render_once(ingredients, name, render)


def build_stamps(ingredients: Ingredients, build: BuildStatus) -> frozenset[Stamp]:
    """The stamps of what ``manifests.render_builder`` renders."""
    build = replace(build, stall=None)
    render = lambda: _stamps(manifests.render_builder(ingredients.dataset, build, ingredients.config))  # noqa: E731
    return _render_once(ingredients, ("build", build), render)


def table_stamps(
    ingredients: Ingredients, table: TableStatus, generations: Mapping[str, GenerationStatus]
) -> frozenset[Stamp]:
    """The stamps of what ``manifests.render_routing_table`` renders; the manifest is not kept."""
    render = lambda: _stamps((manifests.render_routing_table(ingredients.dataset, table, generations),))  # noqa: E731
    return _render_once(ingredients, ("routing table", table, tuple(generations.values())), render)


def table_content(ingredients: Ingredients, table: TableStatus, generations: Mapping[str, GenerationStatus]) -> str:
    """A digest of the content of what ``manifests.render_routing_table`` renders; the manifest is not kept."""
    render = lambda: manifests.content_mark(  # noqa: E731
        manifests.render_routing_table(ingredients.dataset, table, generations)
    )
    return _render_once(ingredients, ("content of the routing table", table, tuple(generations.values())), render)


def _stamps(rendered: Iterable[Manifest]) -> frozenset[Stamp]:
    return frozenset(
        (manifest["kind"], manifest["metadata"]["name"], manifests.read_digest(manifest)) for manifest in rendered
    )


def _render_once(ingredients: Ingredients, name: Hashable, render: Callable[[], T]) -> T:
    """Return what ``render`` returned for ``name`` the first time, from the same ingredients. Specs are compared by
    identity: comparing two takes longer than rendering."""
    renderings: dict[Any, Any] = ingredients.dataset.renderings
    *sources, identity = ingredients.inputs
    *sources_before, identity_before = renderings.get(_INGREDIENTS) or (None, None, None, None)
    is_same = identity == identity_before and all(map(operator.is_, sources, sources_before))
    if not is_same or len(renderings) > _MAX_RENDERINGS:
        renderings.clear()
        renderings[_INGREDIENTS] = ingredients.inputs
    if name not in renderings:
        renderings[name] = render()
    return cast(T, renderings[name])
