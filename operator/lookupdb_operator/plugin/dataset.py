"""A LookupDataset as a person reads it: members of its JSON, whichever version of the operator wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from lookupdb.errors import LookupdbError
from lookupdb_operator.model import Pod
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
        )

    @property
    def key(self) -> str:
        """``shop/airports``, as messages call it."""
        return f"{self.namespace}/{self.name}"

    def condition(self, kind: str) -> Members:
        """The condition of a type; empty while there is none."""
        return next(
            (condition for condition in self.status.get("conditions") or () if condition.get("type") == kind), {}
        )

    @property
    def routed_rollouts(self) -> frozenset[str]:
        """Those whose servers the routing table references for all who look up; none while there is no table."""
        table: Members = self.status.get("table") or {}
        return frozenset(part["rollout"] for part in (table, *(table.get("parts") or ())) if part)

    def parse_status(self) -> DatasetStatus:
        """The status as the operator reads it. Raises LookupdbError when another version wrote it."""
        try:
            return DatasetStatus.from_json(self.status)
        except ValueError as error:
            raise LookupdbError(
                f"the status of {self.key} is not one that this version reads: {error}",
                hint="use the kubectl-lookupdb of the operator's version",
            ) from error


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
