"""Jobs, StatefulSets, and what matters only in that it is as it was written."""

from __future__ import annotations

from typing import Final, Literal

from lookupdb_operator import names
from lookupdb_operator.manifests import held_fields
from lookupdb_operator.model import BuildJob, Existing, Ref, ShardSet, Trouble
from lookupdb_operator.parse import trouble
from lookupdb_operator.parse.header import Body, annotations_of, condition, deleting, header, labels, number, status
from lookupdb_operator.plan import reasons

_DEADLINE: Final = "DeadlineExceeded"


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


def shard_set(body: Body) -> ShardSet:
    """A shard's StatefulSet."""
    head, held = header(body), status(body)
    seen = int(held.get("observedGeneration") or 0) >= int(body["metadata"].get("generation") or 0)
    return ShardSet(
        ref=Ref("StatefulSet", head.name, head.uid),
        rollout=labels(body).get(names.ROLLOUT) or "",
        generation=labels(body).get(names.GENERATION) or "",
        shard=number(labels(body).get(names.SHARD)),
        digest=annotations_of(body).get(names.DIGEST) or "",
        replicas=_replicas(body),
        ready=int(held.get("readyReplicas") or 0) if seen else 0,
        changed=_changed(body),
        deleting=deleting(body),
    )


def existing(kind: str, body: Body) -> Existing:
    """An object of ``kind``, and for a Deployment, why its pods cannot be made."""
    head = header(body)
    refused = condition(body, "ReplicaFailure") if kind == "Deployment" else {}
    why = None
    if refused.get("status") == "True":
        why = trouble.warned("Deployment", head.name, refused.get("reason") or "", refused.get("message") or "")
    return Existing(
        ref=Ref(kind, head.name, head.uid),
        digest=annotations_of(body).get(names.DIGEST) or "",
        changed=_changed(body),
        rollout=labels(body).get(names.ROLLOUT) or "",
        generation=labels(body).get(names.GENERATION) or "",
        table_version=max(0, number(annotations_of(body).get(names.TABLE_VERSION))),
        replicas=_replicas(body) if kind == "Deployment" else 0,
        deleting=deleting(body),
        trouble=why,
    )


def _changed(body: Body) -> str:
    """What our fields hash to, when that is not what we wrote; empty for what we did not write, and where the API
    server does not say which fields are ours."""
    held = held_fields(body) if annotations_of(body).get(names.DIGEST) else None
    return "" if held is None or held == annotations_of(body).get(names.FIELDS) else held


def _replicas(body: Body) -> int:
    replicas = (body.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)
