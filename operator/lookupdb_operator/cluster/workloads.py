"""Parse pods, Jobs, StatefulSets, and objects that are only compared with what was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.cluster import diagnosis
from lookupdb_operator.cluster.diagnosis import container_statuses, diagnose_pod, diagnose_warning, flatten
from lookupdb_operator.cluster.parse import (
    Body,
    find_condition,
    is_deleting,
    parse_build_result,
    parse_deletion,
    parse_header,
    parse_number,
    read_annotations,
    read_labels,
    read_status,
)
from lookupdb_operator.manifests import (
    content_mark,
    find_changer,
    has_image_volume,
    hash_held_fields,
    read_table_version,
    take_fingerprint,
)
from lookupdb_operator.model import (
    Absence,
    BuildJob,
    BuildResult,
    ExistingObject,
    JobState,
    ObjectRef,
    Pod,
    ShardSet,
    Trouble,
)
from lookupdb_operator.plan import reasons

# Pods.


_NODE_AWAY: Final = 300.0
"""Seconds a pod must be unready: Kubernetes waits as long before it deletes the pods of a lost node."""
_SLOW_KUBELET: Final = 30.0
"""Seconds by which a busy node may exceed a pod's grace period."""


def parse_pod(body: Body) -> Pod:
    """Parse the pod ``body`` of a dataset."""
    header, status, labels = parse_header(body), read_status(body), read_labels(body)
    component = labels.get(names.COMPONENT) or ""
    ready = find_condition(body, "Ready")
    is_ready = ready.get("status") == "True"
    result = _parse_result(body) if component == names.BUILDER else None
    return Pod(
        name=header.name,
        uid=header.uid,
        component=component,
        ip=status.get("podIP") or "",
        rollout=labels.get(names.ROLLOUT) or "",
        shard=parse_number(labels.get(names.SHARD)),
        generation=labels.get(names.GENERATION) or "",
        table_version=read_annotations(body).get(names.TABLE_VERSION) or "",
        phase=status.get("phase") or "Pending",
        ready=is_ready,
        deleting=is_deleting(body),
        unready_since="" if is_ready else ready.get("lastTransitionTime") or "",
        lost_after=None if is_ready else _lost_after(body),
        trouble=diagnose_pod(body, component, result),
        result=result,
        deletion=parse_deletion(body),
    )


def awaits_images(body: Body) -> bool:
    """Return whether the kubelet has not reached the pod's images: volumes or network are missing. Only events say
    why."""
    is_pending = read_status(body).get("phase") == "Pending"
    if not is_pending or find_condition(body, "PodReadyToStartContainers").get("status") == "True":
        return False
    return not any((container.get("state") or {}).get("running") for container in container_statuses(body))


def _lost_after(body: Body) -> Absence | None:
    """Return how long the operator must see an unready pod before its kubelet counts as lost; None if it is not being
    deleted. Node controllers make the pods of silent nodes unready. Durations only: times in a pod are from other
    clocks."""
    if not is_deleting(body):
        return None
    grace_seconds = body["metadata"].get("deletionGracePeriodSeconds") or 0
    return Absence(unready=_NODE_AWAY, deleting=grace_seconds + _SLOW_KUBELET)


def _parse_result(body: Body) -> BuildResult | None:
    """Return the termination message of a finished builder pod's first container."""
    states = (container.get("state") or {} for container in read_status(body).get("containerStatuses") or ())
    terminated = next((state["terminated"] for state in states if state.get("terminated")), None)
    return None if terminated is None else parse_build_result(terminated.get("message"))


@dataclass(frozen=True, slots=True)
class Drift:
    """The difference of an object from what was written."""

    fingerprint: bytes = b""
    """Fingerprint of the parts of the object that this depends on."""
    changed: str = ""
    """Hash of the operator's fields if they changed; empty if the operator did not write the object, or the API server
    does not say which fields are its."""
    changed_by: str = ""
    """The other manager that set the number of pods or last changed the object."""


def parse_job(body: Body) -> BuildJob:
    """Parse the Job ``body`` of a build."""
    header = parse_header(body)
    state, failure = _job_state(body), None
    # Only the pod knows any other reason (BackoffLimitExceeded).
    if state == "Failed" and find_condition(body, "Failed").get("reason") == reasons.DEADLINE_EXCEEDED:
        seconds = (body.get("spec") or {}).get("activeDeadlineSeconds")
        failure = diagnosis.JOB_TOO_LONG.trouble(seconds=str(seconds))
    return BuildJob(
        ref=ObjectRef("Job", header.name, header.uid),
        generation=names.read_build(header.name),
        digest=read_annotations(body).get(names.DIGEST) or "",
        state=state,
        failure=failure,
        deleting=is_deleting(body),
    )


def parse_push(body: Body) -> ExistingObject:
    """Parse the Job ``body`` that pushes a rollout's images. Jobs are immutable, so fields are not compared."""
    header, state = parse_header(body), _job_state(body)
    return ExistingObject(
        ref=ObjectRef("Job", header.name, header.uid),
        digest=read_annotations(body).get(names.DIGEST) or "",
        rollout=names.read_rollout(header.name),
        generation=read_labels(body).get(names.GENERATION) or "",
        deleting=is_deleting(body),
        trouble=_diagnose_push(header.name, body, state),
        push_state=state,
    )


def _job_state(body: Body) -> JobState:
    if find_condition(body, "Complete").get("status") == "True":
        return "Succeeded"
    return "Failed" if find_condition(body, "Failed").get("status") == "True" else "Running"


def _diagnose_push(name: str, body: Body, state: JobState) -> Trouble | None:
    """Return a manual change that keeps the Job from pushing."""
    if state == "Running":
        is_suspended = (body.get("spec") or {}).get("suspend") is True
        return diagnosis.PUSH_SUSPENDED.trouble(name=name) if is_suspended else None
    if state == "Succeeded":
        return None
    failed = find_condition(body, "Failed")
    said = ": ".join(filter(None, (failed.get("reason"), failed.get("message"))))
    return diagnosis.PUSH_ENDED.trouble(name=name, why=flatten(said) or "no reason is given")


def parse_shard_set(body: Body, drift: Drift | None = None) -> ShardSet:
    """Parse the StatefulSet ``body`` of a shard; ``drift`` if known. If its name is not the operator's, it is a copy,
    and its labels count."""
    header, status, labels = parse_header(body), read_status(body), read_labels(body)
    drift = drift or compare_fields(body)
    rollout = names.read_rollout(header.name)
    shard = names.read_shard(header.name) if rollout else None
    is_present = int(status.get("observedGeneration") or 0) >= int(body["metadata"].get("generation") or 0)
    lacks_image = _lacks_image(body)
    return ShardSet(
        ref=ObjectRef("StatefulSet", header.name, header.uid),
        rollout=rollout or labels.get(names.ROLLOUT) or "",
        generation=labels.get(names.GENERATION) or "",
        shard=parse_number(labels.get(names.SHARD)) if shard is None else shard,
        digest=read_annotations(body).get(names.DIGEST) or "",
        replicas=_replicas(body),
        ready=int(status.get("readyReplicas") or 0) if is_present else 0,
        # The API server dropped what it does not support, and would do so again.
        changed="" if lacks_image else drift.changed,
        changed_by=drift.changed_by,
        trouble=diagnosis.IMAGE_VOLUME_DROPPED.trouble(name=header.name) if lacks_image else None,
        deleting=is_deleting(body),
        password_key=names.recover_password_key(labels.get(names.PASSWORD_KEY) or ""),
        deletion=parse_deletion(body),
    )


def _lacks_image(body: Body) -> bool:
    """Return whether servers miss the image volume for their shards. An API server without the feature silently drops
    the volume and its mount, or makes it an empty one."""
    template = ((body.get("spec") or {}).get("template") or {}).get("spec") or {}
    servers = template.get("containers") or ()
    words = (servers[0].get("args") or ()) if servers else ()
    if template.get("initContainers") or tuple(words[:2]) != ("serve", names.DATA_PATH):
        return False
    return not has_image_volume(body)


def parse_existing(kind: str, body: Body, drift: Drift | None = None) -> ExistingObject:
    """Parse an object of ``kind``, with the problem of a Deployment that cannot create pods; ``drift`` if known. Its
    name, not its labels, says which rollout or build it is of, because labels may be edited."""
    header, drift = parse_header(body), drift or compare_fields(body)
    rollout, build = names.read_rollout(header.name), names.read_build(header.name)
    generation = read_labels(body).get(names.GENERATION) or "" if rollout else build
    is_daemon = kind == names.DAEMON_SET.name
    return ExistingObject(
        ref=ObjectRef(kind, header.name, header.uid),
        digest=read_annotations(body).get(names.DIGEST) or "",
        changed=drift.changed,
        changed_by=drift.changed_by,
        rollout=rollout,
        generation=generation,
        table_version=max(0, parse_number(read_annotations(body).get(names.TABLE_VERSION))),
        text_version=read_table_version(body),
        content=content_mark(body),
        replicas=_replicas(body) if kind == "Deployment" else 0,
        nodes=int(read_status(body).get("desiredNumberScheduled") or 0) if is_daemon else 0,
        ready_nodes=int(read_status(body).get("numberReady") or 0) if is_daemon else 0,
        deleting=is_deleting(body),
        trouble=_diagnose_deployment(body) if kind == "Deployment" else None,
    )


def _diagnose_deployment(body: Body) -> Trouble | None:
    failure = find_condition(body, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    name = parse_header(body).name
    return diagnose_warning("Deployment", name, failure.get("reason") or "", failure.get("message") or "")


def compare_fields(body: Body, before: Drift | None = None) -> Drift:
    """Compare ``body`` with what was written. ``before``, the drift of an earlier version, saves hashing unchanged
    parts: most versions differ only in their status."""
    if not read_annotations(body).get(names.DIGEST):
        return Drift()
    mark = take_fingerprint(body)
    if before is not None and before.fingerprint == mark:
        return before
    fields = hash_held_fields(body)
    changed = "" if fields is None or fields == read_annotations(body).get(names.FIELDS) else fields
    return Drift(mark, changed, find_changer(body, is_changed=bool(changed)))


def _replicas(body: Body) -> int:
    replicas = (body.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)
