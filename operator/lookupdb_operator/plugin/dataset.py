"""A LookupDataset as a person reads it: members of its JSON, whichever version of the operator wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from lookupdb.errors import LookupdbError
from lookupdb_operator.model import Pod
from lookupdb_operator.shard_ranges import MAX_SHARDS, parse_shards
from lookupdb_operator.status import DatasetStatus

Members = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset, as the API server holds it."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    spec: Members
    status: Members
    generation: int = 0
    """Kubernetes' ``metadata.generation``, which counts changes of the spec; 0: not known."""
    annotations: Members = field(default_factory=dict)

    @classmethod
    def from_body(cls, body: Members) -> Self:
        """The dataset of the API server's JSON."""
        metadata = body["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            spec=body.get("spec") or {},
            status=body.get("status") or {},
            generation=metadata.get("generation", 0),
            annotations=metadata.get("annotations") or {},
        )

    @property
    def key(self) -> str:
        """``shop/airports``, as messages call it."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_observed(self) -> bool:
        """Whether the operator has looked at it since its spec last changed."""
        return int(self.status.get("observedGeneration", 0)) >= self.generation

    @property
    def speaks_tls(self) -> bool:
        """Whether its routers do."""
        return "tls" in (self.spec.get("router") or {})

    def condition(self, kind: str) -> Members:
        """The condition of a type; empty while there is none."""
        return next(
            (condition for condition in self.status.get("conditions") or () if condition.get("type") == kind), {}
        )

    def routed_shards(self) -> Mapping[str, frozenset[int]]:
        """By rollout, the shards that the routing table routes to it: any but those of others, of the one that takes
        them over. Raises LookupdbError when another version wrote the status."""
        table: Members = self.status.get("table") or {}
        try:
            parts = {part["rollout"]: parse_shards(part["shardRanges"]) for part in table.get("parts") or ()}
        except (KeyError, ValueError) as error:
            raise self._unreadable(error) from error
        rest = frozenset(range(MAX_SHARDS)).difference(*parts.values())
        return parts | ({table["rollout"]: rest} if table else {})

    def parse_status(self) -> DatasetStatus:
        """The status as the operator reads it. Raises LookupdbError when another version wrote it."""
        try:
            return DatasetStatus.from_json(self.status)
        except ValueError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> LookupdbError:
        return LookupdbError(
            f"the status of {self.key} is not one that this version reads: {error}",
            hint="use the kubectl-lookupdb of the operator's version",
        )


@dataclass(frozen=True, slots=True)
class DatasetPods:
    """A dataset, and its pods."""

    dataset: Dataset
    pods: tuple[Pod, ...] = ()
    problem: str = ""
    """Why the pods are not known; empty when they are."""

    def of_rollout(self, rollout: str) -> tuple[Pod, ...]:
        """The servers of one rollout."""
        return tuple(pod for pod in self.pods if pod.rollout == rollout and not pod.deleting)

    def of_component(self, component: str) -> tuple[Pod, ...]:
        """The builders, the shard servers or the routers."""
        return tuple(pod for pod in self.pods if pod.component == component and not pod.deleting)
