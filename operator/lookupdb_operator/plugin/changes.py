"""A LookupDataset, the write of each command, and the progress of the change. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.model import Pod
from lookupdb_operator.plan import generations as promotion
from lookupdb_operator.plan import reasons
from lookupdb_operator.plugin.views import format_seconds
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


def annotate(name: str, value: str | None) -> Change:
    """Return the change that sets an annotation, or removes it."""
    return {"metadata": {"annotations": {name: value}}}


def find_candidate(dataset: Dataset, generation: str | None) -> str:
    """Return the candidate, to promote or reject it. Raises NotPossible if there is none, or not ``generation``."""
    candidate = dataset.candidate
    if not candidate:
        raise NotPossible(f"{dataset.key} has no candidate that waits for promotion")
    if generation not in (None, candidate):
        raise NotPossible(f"{candidate} is the candidate of {dataset.key}, not {generation}")
    return candidate


def is_premature(dataset: Dataset, generation: str) -> bool:
    """Return whether the annotation named ``generation`` before it was built: then it must be removed first."""
    return promotion.is_premature(generation, dataset.parse_status())


def roll_back(dataset: Dataset, generation: str | None) -> Change:
    """Return the change that pins ``generation``, or the one that served before the active one. Raises NotPossible if
    it is not in the store, or if none is named while one is pinned: a repeated command means one rollback. The write
    fails if the dataset has changed meanwhile, because the previous generation may be another one by then."""
    status = dataset.parse_status()
    kept = [stored.generation for stored in status.generations]
    if generation is None:
        generation = _choose_previous(dataset, status)
    elif generation not in kept:
        refused = status.refused
        if refused is None or refused.generation != generation:
            raise NotPossible(f"the store holds no {generation} of {dataset.key}: it holds {_join(kept)}")
        annotation = f"kubectl annotate lds -n {dataset.namespace} {dataset.name}"
        withdraw = f"{annotation} {names.OVERRIDE_GATES}- && " if refused.premature_override else ""
        raise NotPossible(
            f"a gate has refused {generation} of {dataset.key}: {refused.message}",
            hint=f"{withdraw}{annotation} --overwrite {names.OVERRIDE_GATES}={generation} overrides it;"
            f" without failed gates, the store holds {_join(kept)}",
        )
    return {"metadata": {"resourceVersion": dataset.resource_version}, "spec": {"generation": generation}}


def _choose_previous(dataset: Dataset, status: DatasetStatus) -> str:
    previous, pinned = promotion.previous_generation(status), dataset.spec.get("generation")
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


def _join(generations: Collection[str], separator: str = ", ") -> str:
    return separator.join(sorted(generations, key=names.read_number)) or "none"


# Progress of a change: done, failed, or what it waits for.


_FIND_OPERATOR: Final = "kubectl get pods -A -l app.kubernetes.io/part-of=lookupdb,app.kubernetes.io/component=operator"


@dataclass(frozen=True, slots=True)
class ChangeProgress:
    """The progress of a change."""

    is_done: bool
    failure: str = ""
    """Why waiting will not help; empty while it may."""
    waits_for: str = ""
    outcome: str = ""
    """The outcome, if there are several possible ones."""
    is_taken_up: bool = True
    """True once the operator has seen the change; until then the conditions are about the state before."""


def judge_withdrawal(dataset: Dataset, generation: str) -> ChangeProgress:
    """Judge whether the operator has seen that the annotation no longer promotes ``generation``."""
    is_done = not is_premature(dataset, generation)
    return ChangeProgress(is_done, waits_for="the operator to see that the annotation was removed")


def judge_refresh(dataset: Dataset, value: str, earlier: Collection[str] = ()) -> ChangeProgress:
    """Judge the refresh with the annotation ``value``: answered, then rolled out. ``earlier`` are the generations
    before it; one of them answers it if the source has not changed."""
    failure = dataset.status.get("failure") or {}
    if dataset.status.get("refreshed") != value:
        if failure.get("refresh") == value and failure.get("reason") != reasons.WAITING_FOR_SOURCE:
            return ChangeProgress(False, failure=f"{failure.get('reason')}: {failure.get('message')}")
        if withdrawal := _find_withdrawal(dataset, value):
            return ChangeProgress(False, failure=withdrawal)
        is_taken_up = _is_refresh_taken_up(dataset, value)
        return ChangeProgress(False, waits_for=_describe(dataset, "Built"), is_taken_up=is_taken_up)
    stored = dataset.status.get("generations") or ()
    answers = {generation["generation"] for generation in stored if generation.get("refresh") == value}
    candidate = dataset.candidate
    if candidate and answers and candidate not in answers:
        return ChangeProgress(False, waits_for=f"{_join(answers, ' or ')} to be the candidate in place of {candidate}")
    return _judge_rollout(dataset, answers, earlier)


def _find_withdrawal(dataset: Dataset, value: str) -> str:
    """Return why the refresh ``value`` will not be answered: its annotation was changed before a build began. Empty
    while it may be answered."""
    build: Members = dataset.status.get("build") or {}
    asked_for = str(dataset.annotations.get(names.REFRESH, ""))
    if asked_for == value or build.get("refresh") == value:
        return ""
    if not asked_for:
        return f"the refresh was withdrawn: the annotation {names.REFRESH} was removed"
    so_far = "is answered" if dataset.status.get("refreshed") == asked_for else "is not answered yet"
    status = f"kubectl lookupdb status -n {dataset.namespace} {dataset.name}"
    return f"another refresh, {asked_for}, has replaced this one, and {so_far}: {status} shows its outcome"


def _is_refresh_taken_up(dataset: Dataset, value: str) -> bool:
    """Return whether the condition ``Built`` is about the refresh ``value``, or about what it waits for. An unanswered
    refresh makes it False, and ends the failure of an earlier one."""
    built, failure = dataset.condition("Built"), dataset.status.get("failure") or {}
    is_of_earlier = failure.get("refresh", value) != value and built.get("reason") == failure.get("reason")
    return built.get("status") == "False" and not is_of_earlier


def _judge_rollout(dataset: Dataset, answers: Collection[str], earlier: Collection[str]) -> ChangeProgress:
    """Judge whether the requested generation serves or waits for promotion. ``answers`` are the generations of a
    refresh: one that does not serve because another one is pinned is a failure."""
    condition = dataset.condition("RolledOut")
    pinned = dataset.spec.get("generation")
    # The condition reports a waiting candidate only after anything that drains or starts. If the refresh's generation
    # was removed meanwhile, only the condition knows whether a candidate waits.
    waits = bool(pinned) if answers else condition.get("reason") == reasons.PINNED
    if waits and pinned not in answers:
        why = f"{reasons.PINNED}: spec.generation pins {pinned}; {_join(answers, ' and ')} is built, and waits."
        if not answers or condition.get("reason") == reasons.PINNED:
            why = _describe(dataset, "RolledOut")
        further = f"kubectl lookupdb unpin -n {dataset.namespace} {dataset.name} lets newer generations serve"
        return ChangeProgress(False, failure=f"{why} {further}")
    if not dataset.is_observed:
        return ChangeProgress(False, waits_for=_describe(dataset, "RolledOut"), is_taken_up=False)
    if dataset.candidate or condition.get("status") == "True":
        return ChangeProgress(True, outcome=_describe_answer(dataset, answers, earlier))
    if condition.get("reason") in (reasons.ROLLED_BACK, reasons.REJECTED):
        return ChangeProgress(False, failure=_describe(dataset, "RolledOut"))
    return ChangeProgress(False, waits_for=_describe(dataset, "RolledOut"))


def _describe_answer(dataset: Dataset, answers: Collection[str], earlier: Collection[str]) -> str:
    """Return the result of a finished refresh."""
    candidate, serving = dataset.candidate, str(dataset.status.get("generation") or "nothing")
    unchanged = "the source has not changed: " if answers and set(answers) <= set(earlier) else ""
    if candidate:
        return f"{unchanged}{candidate} is a candidate and waits for promotion, {serving} serves"
    if answers and serving not in answers:  # it was rolled back or rejected
        return f"{unchanged}{serving} serves on. {dataset.condition('RolledOut').get('message', '')}".strip()
    return f"{unchanged}{serving} serves on" if unchanged else f"{serving} serves"


def judge_rollback(dataset: Dataset, generation: str) -> ChangeProgress:
    """Judge whether every router answers from the pinned ``generation``."""
    pinned = dataset.spec.get("generation")
    if pinned != generation:
        now = f"{pinned} is pinned instead now" if pinned else "the pin was removed"
        return ChangeProgress(False, failure=f"{generation} is not pinned any more: {now}")
    return judge_active(dataset, generation, _find_loss(dataset, generation))


def judge_promotion(dataset: Dataset, generation: str, replaced: str = "") -> ChangeProgress:
    """Judge whether every router answers from the promoted ``generation`` instead of ``replaced``."""
    obstacle = _find_obstacle(dataset, generation, replaced) or _find_loss(dataset, generation)
    return judge_active(dataset, generation, obstacle)


def _find_loss(dataset: Dataset, generation: str) -> str:
    """Return a sentence if the store no longer holds ``generation``; else empty."""
    kept = [stored["generation"] for stored in dataset.status.get("generations") or ()]
    building = (dataset.status.get("build") or {}).get("generation")
    if not dataset.is_observed or generation in (*kept, building):
        return ""
    return f"the store holds no {generation} any more: it holds {_join(kept)}"


def _find_obstacle(dataset: Dataset, generation: str, replaced: str) -> str:
    """Return why the promoted ``generation`` will not serve; empty while it may."""
    pinned, candidate = dataset.spec.get("generation"), dataset.candidate
    if pinned not in (None, generation):
        return f"{reasons.PINNED}: spec.generation pins {pinned}, and {generation} waits"
    if generation in dataset.serving:
        return ""
    status = dataset.parse_status()
    stored = status.find_generation(generation)
    if stored is not None and promotion.is_rejected(stored, status):
        return f"{reasons.REJECTED}: {generation} was rejected, and {status.generation or 'nothing'} serves"
    if candidate not in ("", generation):
        return f"{candidate} is the candidate now, in place of {generation}"
    if not candidate and _is_overtaken(dataset, generation, replaced):
        return f"{dataset.table['generation']} serves, which is newer than {generation}"
    rollout: Members = dataset.spec.get("rollout") or {}
    promoted = str(dataset.annotations.get(names.PROMOTE, ""))
    if promoted == generation or pinned == generation or rollout.get("promotion") != promotion.MANUAL:
        return ""
    now = f"{promoted} is promoted instead now" if promoted else f"the annotation {names.PROMOTE} was removed"
    return f"{generation} is not promoted any more: {now}"


def _is_overtaken(dataset: Dataset, generation: str, replaced: str) -> bool:
    """Return whether a newer generation serves instead of ``generation``. The generation ``replaced`` may be newer,
    too, if its spec was reverted: it counts only if the present spec requests it again."""
    active = str(dataset.table.get("generation") or "")
    is_newer = bool(active) and names.read_number(active) > names.read_number(generation)
    is_asked_for = dataset.is_observed and dataset.condition("RolledOut").get("status") == "True"
    return is_newer and (active != replaced or is_asked_for)


def judge_active(dataset: Dataset, generation: str, obstacle: str = "") -> ChangeProgress:
    """Judge whether every router answers from ``generation`` alone. If not, ``obstacle`` says why none will."""
    if dataset.serving == {generation} and dataset.table.get("confirmedAt"):
        return ChangeProgress(True)
    if obstacle:
        return ChangeProgress(False, failure=obstacle)
    # While a promoted candidate's servers are not ready, or something else holds routers back, it stays the candidate,
    # and the condition says why.
    waits = dataset.condition("RolledOut").get("reason") == reasons.CANDIDATE_WAITING and not dataset.spec.get(
        "suspend"
    )
    waits_for_promotion = waits and dataset.candidate == generation
    return ChangeProgress(
        False,
        waits_for=_describe(dataset, "RolledOut"),
        is_taken_up=dataset.is_observed and not waits_for_promotion,
    )


def describe_silence(seconds: float) -> str:
    """Return what it waits for if the operator has not reacted for ``seconds``."""
    return (
        f"the operator, which has not reacted for {format_seconds(seconds)}: check that its pod is ready, and read"
        f" its log ({_FIND_OPERATOR})"
    )


def _describe(dataset: Dataset, kind: str) -> str:
    condition = dataset.condition(kind)
    return f"{condition.get('reason', 'the operator')}: {condition.get('message', 'it has not looked yet')}"
