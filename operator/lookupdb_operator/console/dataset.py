"""A LookupDataset and its pods, as commands and the console read them. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from lookupdb.errors import LookupdbError
from lookupdb.up.run_state import shorten_name
from lookupdb_operator.model import Pod
from lookupdb_operator.status import MAX_SHARDS, DatasetStatus, parse_shards

Members = Mapping[str, Any]
"""JSON members, from any version of the operator."""

STOPPED: Final = "Stopped"
"""The phase of a dataset of a laptop while no `lookupdb up` runs."""


class NotPossible(LookupdbError):
    """The change does not apply to the dataset."""


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
    """Kubernetes' ``metadata.generation``, which counts changes of the spec; 0 if unknown."""
    annotations: Members = field(default_factory=dict)
    local_options: Sequence[str] | None = None
    """If `lookupdb up` has it: the options that name it there. None: a cluster has it."""

    @classmethod
    def from_body(cls, body: Members, local_options: Sequence[str] | None = None) -> Self:
        """Return the dataset in the API server's JSON."""
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
            local_options=local_options,
        )

    @property
    def is_stopped(self) -> bool:
        """True if it is a laptop's, and no `lookupdb up` runs."""
        return self.local_options is not None and self.status.get("phase") == STOPPED

    def check_runs(self) -> None:
        """Raise NotPossible if nothing runs that serves it."""
        if self.is_stopped:
            raise NotPossible(f"no `lookupdb up` runs for {self.key}", hint="start it: lookupdb up -f MANIFEST")

    def command(self, verb: str, *words: str) -> str:
        """Return a command about it as a person can type it, whatever the context's namespace is."""
        if self.local_options is None:
            return shlex.join(("kubectl", "lookupdb", verb, "-n", self.namespace, self.name, *words))
        name = shorten_name(self.namespace, self.name)
        return shlex.join(("lookupdb", verb, *self.local_options, name, *words))

    @property
    def key(self) -> str:
        """The name in messages: ``shop/airports``."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_observed(self) -> bool:
        """True if the operator has reconciled it since its spec last changed."""
        return int(self.status.get("observedGeneration", 0)) >= self.generation

    @property
    def speaks_tls(self) -> bool:
        """True if its routers use TLS."""
        return "tls" in (self.spec.get("router") or {})

    @property
    def asks_for_token(self) -> bool:
        """True if its routers answer only with a token."""
        return bool((self.spec.get("router") or {}).get("auth"))

    @property
    def candidate(self) -> str:
        """The generation that waits for promotion; empty if there is none."""
        return str((self.status.get("candidate") or {}).get("generation") or "")

    @property
    def table(self) -> Members:
        """The routing table; empty if there is none."""
        return self.status.get("table") or {}

    @property
    def serving(self) -> set[str]:
        """The generations in the routing table, several during a shard-by-shard rollout."""
        parts = (self.table, *(self.table.get("parts") or ()))
        return {str(part["generation"]) for part in parts if part.get("generation")}

    def condition(self, kind: str) -> Members:
        """Return the condition of a type; empty if there is none."""
        return next(
            (condition for condition in self.status.get("conditions") or () if condition.get("type") == kind), {}
        )

    def routed_shards(self) -> Mapping[str, frozenset[int]]:
        """Return rollout → the shards that the routing table routes to it. Raises LookupdbError if another version
        wrote the status."""
        try:
            parts = {part["rollout"]: parse_shards(part["shardRanges"]) for part in self.table.get("parts") or ()}
        except (KeyError, ValueError) as error:
            raise self._unreadable(error) from error
        rest = frozenset(range(MAX_SHARDS)).difference(*parts.values())
        return parts | ({self.table["rollout"]: rest} if self.table else {})

    def parse_status(self) -> DatasetStatus:
        """Return the status as the operator reads it. Raises LookupdbError if another version wrote it."""
        try:
            return DatasetStatus.from_json(self.status)
        except ValueError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> LookupdbError:
        return LookupdbError(
            f"the status of {self.key} is not one that this version reads: {error}",
            hint="use the lookupdb of the operator's version",
        )


@dataclass(frozen=True, slots=True)
class DatasetPods:
    """A dataset, and its pods."""

    dataset: Dataset
    pods: tuple[Pod, ...] = ()
    problem: str = ""
    """Why the pods are unknown; empty if they are known."""

    def of_rollout(self, rollout: str) -> tuple[Pod, ...]:
        """Return the servers of one rollout."""
        return tuple(pod for pod in self.pods if pod.rollout == rollout and not pod.deleting)

    def of_component(self, component: str) -> tuple[Pod, ...]:
        """Return the builders, the shard servers or the routers."""
        return tuple(pod for pod in self.pods if pod.component == component and not pod.deleting)
