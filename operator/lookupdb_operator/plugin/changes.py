"""A LookupDataset, and the write of each command. No I/O. ``progress`` judges the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.model import Pod
from lookupdb_operator.plan import generations as promotion
from lookupdb_operator.plan import generations as rollback
from lookupdb_operator.status import MAX_SHARDS, DatasetStatus, parse_shards

# A LookupDataset as JSON members, from any version of the operator.


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
    """Kubernetes' ``metadata.generation``, which counts changes of the spec; 0 if unknown."""
    annotations: Members = field(default_factory=dict)

    @classmethod
    def from_body(cls, body: Members) -> Self:
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
        )

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

    def condition(self, kind: str) -> Members:
        """Return the condition of a type; empty if there is none."""
        return next(
            (condition for condition in self.status.get("conditions") or () if condition.get("type") == kind), {}
        )

    def routed_shards(self) -> Mapping[str, frozenset[int]]:
        """Return rollout → the shards that the routing table routes to it. Raises LookupdbError if another version
        wrote the status."""
        table: Members = self.status.get("table") or {}
        try:
            parts = {part["rollout"]: parse_shards(part["shardRanges"]) for part in table.get("parts") or ()}
        except (KeyError, ValueError) as error:
            raise self._unreadable(error) from error
        rest = frozenset(range(MAX_SHARDS)).difference(*parts.values())
        return parts | ({table["rollout"]: rest} if table else {})

    def parse_status(self) -> DatasetStatus:
        """Return the status as the operator reads it. Raises LookupdbError if another version wrote it."""
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
    """Why the pods are unknown; empty if they are known."""

    def of_rollout(self, rollout: str) -> tuple[Pod, ...]:
        """Return the servers of one rollout."""
        return tuple(pod for pod in self.pods if pod.rollout == rollout and not pod.deleting)

    def of_component(self, component: str) -> tuple[Pod, ...]:
        """Return the builders, the shard servers or the routers."""
        return tuple(pod for pod in self.pods if pod.component == component and not pod.deleting)


Change = Mapping[str, Any]
"""A merge patch of a LookupDataset."""


class NotPossible(LookupdbError):
    """The change does not apply to the dataset."""


def refresh(value: str) -> Change:
    """Return the change that requests a build."""
    return _annotate(names.REFRESH, value)


def promote(dataset: Dataset, generation: str | None) -> Change:
    """Return the change that promotes the candidate. Raises NotPossible if there is none, or another one."""
    return _annotate(names.PROMOTE, _candidate(dataset, generation))


def is_premature(dataset: Dataset, generation: str) -> bool:
    """Return whether the annotation named ``generation`` before it was built: then it must be removed first."""
    return promotion.is_premature(generation, dataset.parse_status())


def withdraw_promotion() -> Change:
    """Return the change that removes the promotion."""
    return {"metadata": {"annotations": {names.PROMOTE: None}}}


def reject(dataset: Dataset, generation: str | None) -> Change:
    """Return the change that rejects the candidate. Raises NotPossible if there is none, or another one."""
    return _annotate(names.REJECT, _candidate(dataset, generation))


def roll_back(dataset: Dataset, generation: str | None) -> Change:
    """Return the change that pins ``generation``, or the one that served before the active one. Raises NotPossible if
    it is not in the store, or if none is named while one is pinned: a repeated command means one rollback. The write
    fails if the dataset has changed meanwhile, because the previous generation may be another one by then."""
    status = dataset.parse_status()
    kept = [generation.generation for generation in status.generations]
    if generation is None:
        generation = _choose_previous(dataset, status)
    elif generation not in kept:
        raise _missing_error(dataset, status, generation)
    return {"metadata": {"resourceVersion": dataset.resource_version}, "spec": {"generation": generation}}


def _missing_error(dataset: Dataset, status: DatasetStatus, generation: str) -> NotPossible:
    kept, refused = [stored.generation for stored in status.generations], status.refused
    if refused is None or refused.generation != generation:
        return NotPossible(f"the store holds no {generation} of {dataset.key}: it holds {_join(kept)}")
    annotate = f"kubectl annotate lds -n {dataset.namespace} {dataset.name}"
    withdraw = f"{annotate} {names.OVERRIDE_GATES}- && " if refused.premature_override else ""
    return NotPossible(
        f"a gate has refused {generation} of {dataset.key}: {refused.message}",
        hint=f"{withdraw}{annotate} --overwrite {names.OVERRIDE_GATES}={generation} overrides it;"
        f" without failed gates, the store holds {_join(kept)}",
    )


def _choose_previous(dataset: Dataset, status: DatasetStatus) -> str:
    previous, pinned = rollback.previous_generation(status), dataset.spec.get("generation")
    if pinned is not None:
        further = "" if previous is None else f", --to {previous.generation} goes back to the one before {pinned}"
        raise NotPossible(
            f"{dataset.key} is pinned to {pinned} already, by a rollback or by hand",
            hint=f"kubectl lookupdb unpin -n {dataset.namespace} {dataset.name} removes the pin{further}",
        )
    if previous is None:
        active = status.generation or "nothing"
        kept = [generation.generation for generation in status.generations]
        raise NotPossible(
            f"there is nothing to go back to: {active} is active, and no other generation in the store is known to have"
            f" served without being rolled back; it holds {_join(kept)}",
            hint="name one of them by --to",
        )
    return previous.generation


def unpin() -> Change:
    """Return the change that removes the pin."""
    return {"spec": {"generation": None}}


def pinned_generation(change: Change) -> str:
    """Return the generation that ``change`` pins."""
    return str(change["spec"]["generation"])


def _annotate(name: str, value: str) -> Change:
    return {"metadata": {"annotations": {name: value}}}


def _candidate(dataset: Dataset, generation: str | None) -> str:
    candidate = str((dataset.status.get("candidate") or {}).get("generation") or "")
    if not candidate:
        raise NotPossible(f"{dataset.key} has no candidate that waits for promotion")
    if generation not in (None, candidate):
        raise NotPossible(f"{candidate} is the candidate of {dataset.key}, not {generation}")
    return candidate


def _join(generations: list[str]) -> str:
    return ", ".join(generations) or "none"
