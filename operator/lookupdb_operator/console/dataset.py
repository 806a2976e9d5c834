"""A LookupDataset, its pods, and routers' answers about its keys, as commands and the console read them. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson

from lookupdb.errors import LookupdbError
from lookupdb.up.run_state import shorten_name
from lookupdb.wording import format_command
from lookupdb_operator.model import Pod
from lookupdb_operator.status import MAX_SHARDS, DatasetStatus, parse_shards

Members = Mapping[str, Any]
"""JSON members, from any version of the operator."""

STOPPED: Final = "Stopped"
"""The phase of a dataset on a laptop while no `lookupdb up` runs."""


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
    """The options by which commands find a dataset of `lookupdb up`; None for a dataset in a cluster."""

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
        """True if it is on a laptop, and no `lookupdb up` serves it."""
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
        return format_command(verb, *self.local_options, name, *words)

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

    def of_component(self, component: str) -> tuple[Pod, ...]:
        """Return the builders, the shard servers or the routers."""
        return tuple(pod for pod in self.pods if pod.component == component and not pod.deleting)


# Answers of routers about keys. Values stay unchanged, because reformatting would alter numbers.


_PROBLEM: Final = "application/problem+json"
_JSON: Final = "application/json"
_PROBLEMS: Final = "https://lookupdb.dev/problems/"
GENERATION_HEADER: Final = "Lookupdb-Generation"


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A record has the key."""

    key: str
    generation: str
    value: bytes
    is_json: bool


@dataclass(frozen=True, slots=True)
class AbsentKey:
    """A router says that no record of the generation has the key."""

    key: str
    generation: str
    why: str


@dataclass(frozen=True, slots=True)
class UnavailableKey:
    """The key cannot be looked up now."""

    key: str
    why: str


Lookup = FoundKey | AbsentKey | UnavailableKey


def read_answer(key: str, status: int, headers: Mapping[str, str], body: bytes) -> Lookup | None:
    """Parse a router's answer about ``key``; None if it is not from a router, or the request is invalid. A 404 from
    elsewhere, for example about a missing Service, says nothing about the key."""
    media_type = headers.get("Content-Type", "").partition(";")[0].strip()
    generation = headers.get(GENERATION_HEADER, "")
    if status == 200 and generation:
        return FoundKey(key, generation, body, media_type == _JSON)
    problem = _read_problem(body) if media_type == _PROBLEM else {}
    name, detail = str(problem.get("type", "")).removeprefix(_PROBLEMS), str(problem.get("detail", ""))
    if status == 404 and name == "missing":
        return AbsentKey(key, generation, detail)
    if status == 503:
        return UnavailableKey(key, detail or "no router can be reached")
    return None


def read_refusal(status: int, body: bytes) -> tuple[str, str] | None:
    """Return why a router refuses the request, and a hint; None if the answer is not a router's refusal."""
    problem = _read_problem(body)
    name, detail = str(problem.get("type", "")).removeprefix(_PROBLEMS), str(problem.get("detail", ""))
    if (status, name) == (412, "unknown-generation"):
        why = detail.partition(f"; leave {GENERATION_HEADER} out")[0]
        return why, "without --generation, the active one answers"
    if (status, name) in ((401, "unauthenticated"), (403, "forbidden")):
        return detail, "give a token that the routers accept, by --token-file"
    return None


def read_detail(body: bytes) -> str:
    """Return the sentence in a router's problem document; empty if ``body`` is not one."""
    problem = _read_problem(body)
    return str(problem.get("detail", "")) if str(problem.get("type", "")).startswith(_PROBLEMS) else ""


def _read_problem(body: bytes) -> Mapping[str, Any]:
    try:
        problem = orjson.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
