"""Pods: what they are part of, how they are, what their containers told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, cast

import orjson

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Pod, Trouble
from lookupdb_operator.parse import trouble
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
from lookupdb_operator.plan import reasons

FETCH: Final = "fetch"
"""The init container of a shard server."""

_OUTCOMES: Final = ("built", "adopted", "unchanged", "failed")
_PULLING: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_STARTING: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError"}
)
_NEVER_RAN: Final = frozenset({"StartError", "ContainerCannotRun"})
_TOLD_BY_FETCH: Final = frozenset(
    {reasons.STORE_DENIED, reasons.STORE_UNAVAILABLE, reasons.OUT_OF_DISK, reasons.NOT_ENOUGH_ROOM}
    | {reasons.GENERATION_MISSING, reasons.CORRUPT_FILE}
)
_LIMITS: Final = {
    names.BUILDER: "spec.build.resources",
    names.SHARDS: "spec.serving.resources",
    names.ROUTER: "spec.router.resources",
}

_LOST: Final = frozenset({"ContainerStatusUnknown", "Unknown"})
"""What the kubelet says of a container that is not there any more, as after a reboot."""
_SIGKILL: Final = 137
_NODE_AWAY: Final = timedelta(minutes=5)
"""How long a pod must not have been ready: as long as Kubernetes waits before it deletes the pods of such a node."""
_SLOW_KUBELET: Final = timedelta(seconds=30)
"""How much later than its grace ends a pod may be gone on a busy node."""

Container = Mapping[str, Any]
"""One of a pod's container statuses."""


def pod(body: Body) -> Pod:
    """A pod of a dataset's."""
    head, held, marked = header(body), status(body), labels(body)
    component = marked.get(names.COMPONENT) or ""
    told = _result(body) if component == names.BUILDER else None
    return Pod(
        name=head.name,
        uid=head.uid,
        component=component,
        ip=held.get("podIP") or "",
        rollout=marked.get(names.ROLLOUT) or "",
        shard=number(marked.get(names.SHARD)),
        generation=marked.get(names.GENERATION) or "",
        table_version=annotations_of(body).get(names.TABLE_VERSION) or "",
        phase=held.get("phase") or "Pending",
        ready=condition(body, "Ready").get("status") == "True",
        deleting=deleting(body),
        lost_at=_lost_at(body),
        trouble=_trouble(body, component, told),
        result=told,
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
    held = status(body)
    if held.get("phase") != "Pending" or condition(body, "PodReadyToStartContainers").get("status") == "True":
        return False
    return not any((container.get("state") or {}).get("running") for container in _containers(body))


def result(message: str | None) -> BuildResult | None:
    """A builder's termination message; None when it is not one."""
    told = _members(message)
    outcome = told.get("outcome")
    if outcome not in _OUTCOMES:
        return None
    counts = [told.get(member) or 0 for member in ("records", "fileBytes", "largestShardBytes", "exitCode")]
    texts = [told.get(member) or "" for member in ("generation", "fingerprint", "builtAt", "reason", "message")]
    if not all(isinstance(count, int) for count in counts) or not all(isinstance(text, str) for text in texts):
        return None
    records, file_bytes, largest, exit_code = counts
    generation, fingerprint, built_at, reason, sentence = texts
    return BuildResult(
        outcome=cast(Literal["built", "adopted", "unchanged", "failed"], outcome),
        generation=generation,
        fingerprint=fingerprint,
        records=records,
        file_bytes=file_bytes,
        largest_shard_bytes=largest,
        built_at=built_at,
        exit_code=exit_code,
        reason=reason,
        message=sentence,
    )


def _result(body: Body) -> BuildResult | None:
    for container in status(body).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return result(ended.get("message"))
    return None


def _trouble(body: Body, component: str, told: BuildResult | None) -> Trouble | None:
    phase = status(body).get("phase")
    if phase == "Succeeded" or condition(body, "Ready").get("status") == "True":
        return None
    name = body["metadata"]["name"]
    ended = _ended_by_kubernetes(body, name, component)
    if ended:
        return ended
    scheduled = condition(body, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return trouble.scheduling(name, scheduled.get("message") or "")
    for container in _containers(body):
        found = _container(body, component, container, told)
        if found:
            return found
    return None


def _ended_by_kubernetes(body: Body, name: str, component: str) -> Trouble | None:
    held = status(body)
    reason, message = held.get("reason") or "", held.get("message") or ""
    if reason == reasons.DEADLINE_EXCEEDED:
        return Trouble(
            reasons.DEADLINE_EXCEEDED, f"pod {name} took too long and was ended; raise spec.build.deadlineSeconds"
        )
    target = condition(body, "DisruptionTarget")
    disrupted = target.get("status") == "True" and (held.get("phase") == "Failed" or deleting(body))
    if not disrupted and not (reason and held.get("phase") == "Failed"):
        return None
    told = trouble.brief(message or target.get("message") or reason or target.get("reason") or "")
    if "exceeds the" in told and "limit" in told and ("torage" in told or "EmptyDir" in told):
        more = "spec.build.scratchSize" if component == names.BUILDER else "the ephemeral-storage limit"
        return Trouble(reasons.OUT_OF_DISK, f"pod {name} was evicted: {told}; raise {more}")
    return Trouble(reasons.EVICTED, f"pod {name} was ended by its cluster: {told}; another one takes its place")


def _containers(body: Body) -> Iterator[Container]:
    held = status(body)
    yield from held.get("initContainerStatuses") or ()
    yield from held.get("containerStatuses") or ()


def _container(body: Body, component: str, container: Container, told: BuildResult | None) -> Trouble | None:
    pod_name, name = body["metadata"]["name"], container.get("name") or ""
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _PULLING:
        return trouble.pulling(pod_name, container.get("image") or "", message)
    if reason in _STARTING:
        return trouble.starting(pod_name, name, message)
    # A container that is started again and again is at times waiting, running and terminated: one trouble all along.
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    if not ended or not ended.get("exitCode"):
        return None
    return _ended(body, component, name, ended, told)


def _ended(
    body: Body, component: str, container: str, ended: Mapping[str, Any], told: BuildResult | None
) -> Trouble | None:
    pod_name = body["metadata"]["name"]
    reason, message = ended.get("reason") or "", ended.get("message") or ""
    if reason in _LOST and told is None:
        return Trouble(reasons.EVICTED, f"container {container} of pod {pod_name} was lost by its node")
    killed = ended["exitCode"] == _SIGKILL and told is None and (component == names.BUILDER or container == FETCH)
    if reason == "OOMKilled" or killed:
        return _out_of_memory(body, component, container, certain=reason == "OOMKilled")
    if reason in _NEVER_RAN:
        return trouble.starting(pod_name, container, message)
    if told is not None:
        return None
    said = _members(message)
    sentence = trouble.brief(str(said.get("message") or ("" if said else message)))
    how = f"exit code {ended['exitCode']}" + (f": {sentence}" if sentence else "")
    if container == FETCH:
        why = said.get("reason")
        return Trouble(
            why if isinstance(why, str) and why in _TOLD_BY_FETCH else reasons.FETCH_FAILED,
            f"pod {pod_name} cannot fetch its shard ({how}); it tries again",
        )
    if component == names.BUILDER:
        return Trouble(reasons.BUILD_FAILED, f"pod {pod_name} ended without a result ({how}); look at its log")
    return Trouble(reasons.CRASH_LOOPING, f"container {container} of pod {pod_name} ended ({how}); look at its log")


def _out_of_memory(body: Body, component: str, container: str, *, certain: bool) -> Trouble:
    """Where the kernel's word does not reach the kubelet, a container without probes that was killed leaves no other
    cause."""
    limit = _memory_limit(body, container)
    return Trouble(
        reasons.OUT_OF_MEMORY,
        f"container {container} of pod {body['metadata']['name']} was killed"
        f"{'' if certain else ' (exit code 137), most likely'} for using more memory than its limit"
        f"{f' of {limit}' if limit else ''}; raise {_LIMITS.get(component, 'its resources')}.limits.memory",
    )


def _memory_limit(body: Body, container: str) -> str:
    spec = body.get("spec") or {}
    for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        if one.get("name") == container:
            return str(((one.get("resources") or {}).get("limits") or {}).get("memory") or "")
    return ""


def _members(message: str | None) -> Mapping[str, Any]:
    """The JSON object that the last line of a termination message is; empty for anything else."""
    lines = (message or "").strip().splitlines()
    try:
        members = orjson.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}
