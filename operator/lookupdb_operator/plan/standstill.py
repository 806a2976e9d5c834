"""Datasets about which nothing is done, and why. A dataset stands still while it is being deleted, belongs to another
operator, has an unreadable status or a spec that cannot be used, or while an earlier dataset of its name is collected.

Kubernetes collects what belonged to a dataset a while after it is gone. Until then its servers and its routing table
have the very names that those of its successor will have, and hold the old data.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import router_tls
from lookupdb_operator.model import Observed, ObservedDataset, Plan, Unattended
from lookupdb_operator.plan import conditions, reasons, serving
from lookupdb_operator.plan.reasons import Verdict
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, DatasetStatus

_MAX_PROBLEM_CHARACTERS: Final = 300


def plan_idle(observed: Observed, config: Config) -> Plan | None:
    """The plan that does nothing at all and changes nothing in status; None for a dataset that is ours to act on."""
    idle = why_idle(observed.dataset, config)
    return Plan(status=observed.dataset.status, idle_reason=idle) if idle else None


def plan_standstill(status: DatasetStatus, observed: Observed, config: Config, now: datetime) -> Plan | None:
    """The plan that does nothing but say why; None when something may be done. ``status`` is the one observed, its
    moments clamped."""
    dataset = observed.dataset
    status = replace(status, operator=config.identity, endpoint=find_endpoint(dataset))
    if dataset.parsed is None:
        return plan_invalid(status, observed, now)
    return plan_waiting(status, observed, now) if waits_for_predecessor(status, observed) else None


def find_endpoint(dataset: ObservedDataset) -> str:
    """The URL for lookups. A spec that cannot be used changes no Service: the one before it still holds."""
    if dataset.parsed is None and dataset.status.endpoint:
        return dataset.status.endpoint
    port = names.HTTP_PORT if dataset.parsed is None else int(dataset.spec["router"]["service"]["port"])
    is_encrypted = dataset.parsed is not None and router_tls.speaks_tls(dataset)
    return names.endpoint(dataset.name, dataset.namespace, port, is_encrypted=is_encrypted)


def why_idle(dataset: ObservedDataset, config: Config) -> str:
    """Why nothing at all is done about ``dataset``, as a sentence; empty when it is ours to act on: two operators that
    acted on it would undo each other's work for ever.

    The user's annotation decides; without one, who came first. Taking over another one's dataset is done by
    annotating it.
    """
    if dataset.deleting:
        return "it is being deleted: Kubernetes collects what belongs to it"
    unattended = diagnose_unattended(dataset, config)
    return "" if unattended is None else unattended.message


def diagnose_unattended(dataset: ObservedDataset, config: Config) -> Unattended | None:
    """Why nothing is done about ``dataset`` though nobody deletes it, and the command that ends it."""
    where = f"{dataset.name} -n {dataset.namespace}"
    owner = dataset.assigned or dataset.status.operator
    if owner not in ("", config.identity):
        annotation = f"{names.OPERATOR}={config.identity} --overwrite"
        return Unattended(
            reasons.OTHER_OPERATOR,
            f"It belongs to the operator {owner}; this one, {config.identity}, does nothing about it. If that one is"
            f" gone for good, take the dataset over: kubectl annotate lds {where} {annotation}; or all datasets of the"
            f" cluster: kubectl annotate lds --all --all-namespaces {annotation}",
            owner,
        )
    if dataset.status_problem:
        return Unattended(
            reasons.STATUS_UNREADABLE,
            f"Nothing is done: {reasons.shorten(dataset.status_problem, _MAX_PROBLEM_CHARACTERS)}; what serves goes"
            " on serving. Install the operator's version that wrote it, or have the status made anew, and the data"
            f" built again: kubectl patch lds {where} --subresource=status --type=json"
            """ -p '[{"op": "remove", "path": "/status"}]'""",
        )
    return None


def plan_invalid(status: DatasetStatus, observed: Observed, now: datetime) -> Plan:
    """A spec that cannot be used, though the API server let it in: everything stays, and conditions say why."""
    problem = reasons.write_sentence(reasons.INVALID_SPEC, observed.dataset.problem or "The spec cannot be used")
    verdict = serving.judge_ready(status, observed)
    keeps = f" {status.generation} keeps serving." if verdict.status == "True" else ""
    broken = Verdict("False", reasons.INVALID_SPEC, problem)
    verdicts = {
        READY: verdict,
        BUILT: broken,
        ROLLED_OUT: broken,
        DEGRADED: Verdict("True", reasons.INVALID_SPEC, problem + keeps),
    }
    status = serving.with_serving_status(status, observed)
    return Plan(
        status=conditions.date_conditions(status, verdicts, observed.dataset, now),
        delete=serving.find_lost_pods(observed),
        next_look_in=serving.next_lost_pod_in(observed),
    )


def waits_for_predecessor(status: DatasetStatus, observed: Observed) -> bool:
    """Whether the dataset cannot begin yet, because objects of an earlier one are there. A dataset that has begun never
    waits: nothing of an earlier one was left."""
    has_begun = status.last_generation or status.last_rollout or status.table
    return bool(observed.predecessors) and not has_begun


def plan_waiting(status: DatasetStatus, observed: Observed, now: datetime) -> Plan:
    """Nothing but conditions, which say what of the predecessor is left."""
    trouble = conditions.diagnose_orphans(observed)
    if trouble is not None:
        waiting = Verdict("False", trouble.reason, trouble.message)
        degraded = Verdict("True", trouble.reason, trouble.message)
    else:
        waiting = Verdict("False", reasons.WAITING_FOR_PREDECESSOR, conditions.describe_collection(observed))
        degraded = conditions.judge_degraded(status, (), serves=False)
    verdicts = {READY: waiting, BUILT: waiting, ROLLED_OUT: waiting, DEGRADED: degraded}
    status = replace(status, build_ticket=None, rollout_ticket=None)  # it could not use a turn
    return Plan(status=conditions.date_conditions(status, verdicts, observed.dataset, now))
