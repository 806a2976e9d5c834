"""Jobs, StatefulSets, and what matters only in that it is as it was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lookupdb_operator import names
from lookupdb_operator.manifests import find_changer, fingerprint, held_fields
from lookupdb_operator.model import BuildJob, Existing, Ref, ShardSet, Trouble
from lookupdb_operator.parse import trouble
from lookupdb_operator.parse.header import Body, annotations_of, condition, deleting, header, labels, number, status
from lookupdb_operator.plan import reasons

_DEADLINE: Final = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Drift:
    """How an object differs from what we wrote."""

    fingerprint: bytes = b""
    """Of the object, as far as that depends on it."""
    changed: str = ""
    """What our fields hash to, when that is not what we wrote; empty for what we did not write, and where the API
    server does not say which fields are ours."""
    changed_by: str = ""
    """Which other manager has set its number of pods, or changed it last."""


def job(body: Body) -> BuildJob:
    """A build's Job."""
    head = header(body)
    failed = condition(body, "Failed")
    state: Literal["Running", "Succeeded", "Failed"] = "Running"
    if condition(body, "Complete").get("status") == "True":
        state = "Succeeded"
    elif failed.get("status") == "True":
        state = "Failed"
    # That its pod failed (BackoffLimitExceeded) is not why it failed: the pod tells.
    failure = None
    if state == "Failed" and failed.get("reason") == _DEADLINE:
        seconds = (body.get("spec") or {}).get("activeDeadlineSeconds")
        failure = Trouble(
            reasons.DEADLINE_EXCEEDED,
            f"the build took longer than {seconds} seconds and was ended; raise spec.build.deadlineSeconds",
        )
    return BuildJob(
        ref=Ref("Job", head.name, head.uid),
        generation=labels(body).get(names.GENERATION) or "",
        digest=annotations_of(body).get(names.DIGEST) or "",
        state=state,
        failure=failure,
        deleting=deleting(body),
    )


def shard_set(body: Body, drift: Drift | None = None) -> ShardSet:
    """A shard's StatefulSet; ``drift`` when it is known."""
    head, held, drift = header(body), status(body), drift or compare(body)
    seen = int(held.get("observedGeneration") or 0) >= int(body["metadata"].get("generation") or 0)
    return ShardSet(
        ref=Ref("StatefulSet", head.name, head.uid),
        rollout=labels(body).get(names.ROLLOUT) or "",
        generation=labels(body).get(names.GENERATION) or "",
        shard=number(labels(body).get(names.SHARD)),
        digest=annotations_of(body).get(names.DIGEST) or "",
        replicas=_replicas(body),
        ready=int(held.get("readyReplicas") or 0) if seen else 0,
        changed=drift.changed,
        changed_by=drift.changed_by,
        deleting=deleting(body),
    )


def existing(kind: str, body: Body, drift: Drift | None = None) -> Existing:
    """An object of ``kind``, and for a Deployment, why its pods cannot be made; ``drift`` when it is known."""
    head, drift = header(body), drift or compare(body)
    refused = condition(body, "ReplicaFailure") if kind == "Deployment" else {}
    why = None
    if refused.get("status") == "True":
        why = trouble.warned("Deployment", head.name, refused.get("reason") or "", refused.get("message") or "")
    return Existing(
        ref=Ref(kind, head.name, head.uid),
        digest=annotations_of(body).get(names.DIGEST) or "",
        changed=drift.changed,
        changed_by=drift.changed_by,
        rollout=labels(body).get(names.ROLLOUT) or "",
        generation=labels(body).get(names.GENERATION) or "",
        table_version=max(0, number(annotations_of(body).get(names.TABLE_VERSION))),
        replicas=_replicas(body) if kind == "Deployment" else 0,
        deleting=deleting(body),
        trouble=why,
    )


def compare(body: Body, before: Drift | None = None) -> Drift:
    """How ``body`` differs from what we wrote. ``before``, as another version of it did, saves hashing what has not
    changed: most versions differ in their status alone."""
    if not annotations_of(body).get(names.DIGEST):
        return Drift()
    mark = fingerprint(body)
    if before is not None and before.fingerprint == mark:
        return before
    held = held_fields(body)
    changed = "" if held is None or held == annotations_of(body).get(names.FIELDS) else held
    return Drift(mark, changed, find_changer(body, is_changed=bool(changed)))


def _replicas(body: Body) -> int:
    replicas = (body.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)
