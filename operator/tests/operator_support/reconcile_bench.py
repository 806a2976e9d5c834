"""A reconciler among fakes, which record their calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.cache import ObjectCache
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.loop.observe import Observer
from lookupdb_operator.loop.reconcile import Decide, Reconciler, TurnTaking
from lookupdb_operator.metrics import Metrics
from lookupdb_operator.model import Config, Manifest, ObjectRef, Observed, ObservedDataset, Plan, StoreAccess
from lookupdb_operator.plan.turns import TurnQueues
from lookupdb_operator.status import DEGRADED, Condition, DatasetStatus

KEY = ("shop", "airports")
NOON = "2030-01-01T12:00:00Z"
CONFIG = Config(image="image", store="s3://store", cluster="c", identity="own/release")
DATASET = ObservedDataset("shop", "airports", "u-1", "7", 1, {}, None)
STATUS = DatasetStatus(
    operator="own/release", conditions=(Condition(DEGRADED, "True", "BadSource", "It is bad."),), last_generation=1
)


class FakeCluster:
    """Records the requests, in order, and fails the chosen ones."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.messages: list[str] = []
        self.failures: dict[str, ApiError] = {}

    def _do(self, what: str) -> None:
        self.done.append(what)
        if failure := self.failures.get(what):
            raise failure

    async def write_status(self, dataset: ObservedDataset, status: DatasetStatus) -> Manifest:
        self._do("status")
        return {"status": status.to_json()}

    async def apply(self, manifest: Manifest, *, force: bool = True) -> Manifest:
        self._do(f"apply {manifest['kind']}{'' if force else ' gently'}")
        return manifest

    async def delete(self, ref: ObjectRef, namespace: str) -> None:
        self._do(f"delete {ref.kind} {ref.uid}")

    async def post_event(self, dataset: ObservedDataset, kind: str, reason: str, message: str) -> None:
        self.messages.append(message)
        self._do(f"event {kind} {reason}")


class FakeCache:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def put(self, kind: str, body: Mapping[str, Any], *, is_own_write: bool = False) -> None:
        self.kinds.append(kind)

    def datasets(self) -> tuple[ObservedDataset, ...]:
        return ()


class FakeObserver:
    """Returns ``observed``, and records the arguments."""

    def __init__(self) -> None:
        self.observed: Observed | None = Observed(DATASET)
        self.asked: list[tuple[bool, Mapping[tuple[str, str], str]]] = []

    async def observe(
        self, key: object, *, ask_routers: bool, refusals: Mapping[tuple[str, str], str], store: StoreAccess
    ) -> Observed | None:
        self.asked.append((ask_routers, refusals))
        return self.observed and replace(self.observed, refusals=refusals)


class Bench:
    """A reconciler among fakes; its plan is always ``plan``."""

    def __init__(self) -> None:
        self.cluster, self.cache, self.observer, self.metrics = FakeCluster(), FakeCache(), FakeObserver(), Metrics()
        self.plan, self.clock = Plan(status=DATASET.status), 0.0
        self.decide: Decide = lambda observed, config, now: self.plan
        self.reconciler = Reconciler(
            cache=cast(ObjectCache, self.cache),
            observer=cast(Observer, self.observer),
            cluster=cast(Cluster, self.cluster),
            config=CONFIG,
            store=StoreAccess,
            metrics=self.metrics,
            decide=self._plan,
            turns=TurnTaking(TurnQueues(builds=4, rollouts=4), cache=cast(ObjectCache, self.cache), config=CONFIG),
            now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
            clock=lambda: self.clock,
        )

    def _plan(self, observed: Observed, config: Config, now: datetime) -> Plan:
        return self.decide(observed, config, now)

    async def look(self) -> float | None:
        self.cluster.done.clear()
        return await self.reconciler.look(KEY)

    def count(self, outcome: str) -> float:
        name = "lookupdb_operator_reconciles_total"
        return self.metrics._registry.get_sample_value(name, {"outcome": outcome}) or 0.0
