"""Pods: what they are part of and how they are."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Pod
from lookupdb_operator.parse.build_result import parse_build_result
from lookupdb_operator.parse.header import (
    Body,
    annotations_of,
    condition,
    deleting,
    header,
    labels,
    moment,
    number,
    status,
)
from lookupdb_operator.parse.pod_trouble import container_statuses, diagnose_pod

_NODE_AWAY: Final = timedelta(minutes=5)
"""How long a pod must not have been ready: as long as Kubernetes waits before it deletes the pods of such a node."""
_SLOW_KUBELET: Final = timedelta(seconds=30)
"""How much later than its grace ends a pod may be gone on a busy node."""


def pod(body: Body) -> Pod:
    """A pod of a dataset's."""
    head, pod_status, marked = header(body), status(body), labels(body)
    component = marked.get(names.COMPONENT) or ""
    result = _result(body) if component == names.BUILDER else None
    return Pod(
        name=head.name,
        uid=head.uid,
        component=component,
        ip=pod_status.get("podIP") or "",
        rollout=marked.get(names.ROLLOUT) or "",
        shard=number(marked.get(names.SHARD)),
        generation=marked.get(names.GENERATION) or "",
        table_version=annotations_of(body).get(names.TABLE_VERSION) or "",
        phase=pod_status.get("phase") or "Pending",
        ready=condition(body, "Ready").get("status") == "True",
        deleting=deleting(body),
        lost_at=_lost_at(body),
        trouble=diagnose_pod(body, component, result),
        result=result,
    )


def _lost_at(body: Body) -> datetime | None:
    """When the kubelet of a pod that is being deleted counts as lost. A node controller makes pods unready whose node
    does not answer; the API server notes as the time of deletion when their grace is over."""
    ready = condition(body, "Ready")
    if not deleting(body) or ready.get("status") == "True":
        return None
    unready_since = moment(ready.get("lastTransitionTime") or body["metadata"].get("creationTimestamp"))
    grace_over = moment(body["metadata"]["deletionTimestamp"])
    return max(unready_since + _NODE_AWAY, grace_over + _SLOW_KUBELET)


def waiting(body: Body) -> bool:
    """Whether the kubelet has not come as far as the pod's images yet: volumes and network are not there. Why not is
    in events alone."""
    if status(body).get("phase") != "Pending" or condition(body, "PodReadyToStartContainers").get("status") == "True":
        return False
    return not any((container.get("state") or {}).get("running") for container in container_statuses(body))


def _result(body: Body) -> BuildResult | None:
    for container in status(body).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return parse_build_result(ended.get("message"))
    return None
