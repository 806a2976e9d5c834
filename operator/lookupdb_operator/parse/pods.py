"""Pods: what they are part of and how they are."""

from __future__ import annotations

from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Absence, BuildResult, Pod
from lookupdb_operator.parse.build_result import parse_build_result
from lookupdb_operator.parse.header import (
    Body,
    find_condition,
    is_deleting,
    parse_deletion,
    parse_header,
    parse_number,
    read_annotations,
    read_labels,
    read_status,
)
from lookupdb_operator.parse.pod_diagnosis import container_statuses, diagnose_pod

_NODE_AWAY: Final = 300.0
"""Seconds for which a pod must not have been ready: Kubernetes waits as long before it deletes those of such a node."""
_SLOW_KUBELET: Final = 30.0
"""How many seconds later than its grace ends a pod may be gone on a busy node."""


def parse_pod(body: Body) -> Pod:
    """The pod ``body`` of some dataset."""
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
    """Whether the kubelet has not come as far as the pod's images yet: volumes and network are not there. Why not is
    in events alone."""
    is_pending = read_status(body).get("phase") == "Pending"
    if not is_pending or find_condition(body, "PodReadyToStartContainers").get("status") == "True":
        return False
    return not any((container.get("state") or {}).get("running") for container in container_statuses(body))


def _lost_after(body: Body) -> Absence | None:
    """How long the operator must see a pod that is not ready, until its kubelet counts as lost; None while it is not
    being deleted. A node controller makes pods unready whose node does not answer. Seconds, and no moments: those in a
    pod are of the clocks of other machines."""
    if not is_deleting(body):
        return None
    grace_seconds = body["metadata"].get("deletionGracePeriodSeconds") or 0
    return Absence(unready=_NODE_AWAY, deleting=grace_seconds + _SLOW_KUBELET)


def _parse_result(body: Body) -> BuildResult | None:
    """What the first container of a builder's pod that has ended says in its termination message."""
    states = (container.get("state") or {} for container in read_status(body).get("containerStatuses") or ())
    terminated = next((state["terminated"] for state in states if state.get("terminated")), None)
    return None if terminated is None else parse_build_result(terminated.get("message"))
