"""Pods: what they are part of and how they are."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Pod
from lookupdb_operator.parse.build_result import parse_build_result
from lookupdb_operator.parse.header import (
    Body,
    find_condition,
    is_deleting,
    parse_deletion,
    parse_header,
    parse_number,
    parse_time,
    read_annotations,
    read_labels,
    read_status,
)
from lookupdb_operator.parse.pod_diagnosis import container_statuses, diagnose_pod

_NODE_AWAY: Final = timedelta(minutes=5)
"""How long a pod must not have been ready: as long as Kubernetes waits before it deletes the pods of such a node."""
_SLOW_KUBELET: Final = timedelta(seconds=30)
"""How much later than its grace ends a pod may be gone on a busy node."""


def parse_pod(body: Body) -> Pod:
    """The pod ``body`` of some dataset."""
    header, status, labels = parse_header(body), read_status(body), read_labels(body)
    component = labels.get(names.COMPONENT) or ""
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
        ready=find_condition(body, "Ready").get("status") == "True",
        deleting=is_deleting(body),
        lost_at=_lost_at(body),
        trouble=diagnose_pod(body, component, result),
        result=result,
        deletion=parse_deletion(body),
    )


def awaits_images(body: Body) -> bool:
    """Whether the kubelet has not come as far as the pod's images yet: volumes and network are not there. Why not is
    in events alone."""
    is_pending = read_status(body).get("phase") == "Pending"
    if not is_pending or find_condition(body, "PodReadyToStartContainers").get("status") == "True":
        return False
    return not any((container.get("state") or {}).get("running") for container in container_statuses(body))


def _lost_at(body: Body) -> datetime | None:
    """When the kubelet of a pod that is being deleted counts as lost. A node controller makes pods unready whose node
    does not answer; the API server notes as the time of deletion when their grace is over."""
    ready = find_condition(body, "Ready")
    if not is_deleting(body) or ready.get("status") == "True":
        return None
    unready_since = parse_time(ready.get("lastTransitionTime") or body["metadata"].get("creationTimestamp"))
    grace_over = parse_time(body["metadata"]["deletionTimestamp"])
    return max(unready_since + _NODE_AWAY, grace_over + _SLOW_KUBELET)


def _parse_result(body: Body) -> BuildResult | None:
    """What the first container of a builder's pod that has ended says in its termination message."""
    states = (container.get("state") or {} for container in read_status(body).get("containerStatuses") or ())
    terminated = next((state["terminated"] for state in states if state.get("terminated")), None)
    return None if terminated is None else parse_build_result(terminated.get("message"))
