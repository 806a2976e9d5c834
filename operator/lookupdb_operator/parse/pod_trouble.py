"""Why a pod does not get on, by what its own status says: the first cause that is found, in this order.

ended by Kubernetes      its deadline, an eviction, a lost node
not placed               what the scheduler says
a container              its image, its start, how it ended; init containers first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Trouble
from lookupdb_operator.parse import trouble
from lookupdb_operator.parse.build_result import message_members
from lookupdb_operator.parse.header import Body, condition, deleting, status
from lookupdb_operator.plan import reasons

FETCH: Final = "fetch"
"""The init container of a shard server."""

_PULLING: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_STARTING: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError"}
)
_NEVER_RAN: Final = frozenset({"StartError", "ContainerCannotRun"})
_REASONS_OF_FETCH: Final = frozenset(
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

Container = Mapping[str, Any]
"""One of a pod's container statuses."""


@dataclass(frozen=True, slots=True)
class _Pod:
    """The pod that is diagnosed."""

    body: Body
    component: str
    result: BuildResult | None
    """Of a builder that has ended and could tell."""

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])


def diagnose_pod(body: Body, component: str, result: BuildResult | None) -> Trouble | None:
    """Why the pod ``body`` does not get on; None when it does, or when its status does not say."""
    if status(body).get("phase") == "Succeeded" or condition(body, "Ready").get("status") == "True":
        return None
    pod = _Pod(body, component, result)
    return next(_causes(pod), None)


def container_statuses(body: Body) -> Iterator[Container]:
    """Of all containers, those that run first first."""
    pod_status = status(body)
    yield from pod_status.get("initContainerStatuses") or ()
    yield from pod_status.get("containerStatuses") or ()


def _causes(pod: _Pod) -> Iterator[Trouble]:
    found = _ended_by_kubernetes(pod)
    if found:
        yield found
    scheduled = condition(pod.body, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        yield trouble.scheduling(pod.name, scheduled.get("message") or "")
    for container in container_statuses(pod.body):
        found = _not_started(pod, container) or _ended(pod, container)
        if found:
            yield found


def _ended_by_kubernetes(pod: _Pod) -> Trouble | None:
    pod_status = status(pod.body)
    reason, message = pod_status.get("reason") or "", pod_status.get("message") or ""
    if reason == reasons.DEADLINE_EXCEEDED:
        return Trouble(
            reasons.DEADLINE_EXCEEDED, f"pod {pod.name} took too long and was ended; raise spec.build.deadlineSeconds"
        )
    target, has_failed = condition(pod.body, "DisruptionTarget"), pod_status.get("phase") == "Failed"
    is_disrupted = target.get("status") == "True" and (has_failed or deleting(pod.body))
    if not is_disrupted and not (reason and has_failed):
        return None
    return _evicted(pod, trouble.brief(message or target.get("message") or reason or target.get("reason") or ""))


def _evicted(pod: _Pod, why: str) -> Trouble:
    if "exceeds the" in why and "limit" in why and ("torage" in why or "EmptyDir" in why):
        more = "spec.build.scratchSize" if pod.component == names.BUILDER else "the ephemeral-storage limit"
        return Trouble(reasons.OUT_OF_DISK, f"pod {pod.name} was evicted: {why}; raise {more}")
    return Trouble(reasons.EVICTED, f"pod {pod.name} was ended by its cluster: {why}; another one takes its place")


def _not_started(pod: _Pod, container: Container) -> Trouble | None:
    """Of a container that the kubelet waits with: its image, or that it cannot be made."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _PULLING:
        return trouble.pulling(pod.name, container.get("image") or "", message)
    if reason in _STARTING:
        return trouble.starting(pod.name, container.get("name") or "", message)
    return None


def _ended(pod: _Pod, container: Container) -> Trouble | None:
    """Of a container that has ended, or has been started again since: one that is started again and again is at times
    waiting, running and terminated, and all along it is one trouble."""
    state, before = container.get("state") or {}, container.get("lastState") or {}
    ended = state.get("terminated") or before.get("terminated")
    if not ended or not ended.get("exitCode"):
        return None
    name, reason = container.get("name") or "", ended.get("reason") or ""
    if reason in _LOST and pod.result is None:
        return Trouble(reasons.EVICTED, f"container {name} of pod {pod.name} was lost by its node")
    if reason == "OOMKilled" or _is_killed(pod, name, ended):
        return _out_of_memory(pod, name, is_certain=reason == "OOMKilled")
    if reason in _NEVER_RAN:
        return trouble.starting(pod.name, name, ended.get("message") or "")
    return _failed(pod, name, ended) if pod.result is None else None


def _is_killed(pod: _Pod, container: str, ended: Mapping[str, Any]) -> bool:
    """Whether a container was killed that has no probes and said nothing: for its memory, though nobody says so."""
    has_no_probes = pod.component == names.BUILDER or container == FETCH
    return bool(ended["exitCode"] == _SIGKILL and pod.result is None and has_no_probes)


def _failed(pod: _Pod, container: str, ended: Mapping[str, Any]) -> Trouble:
    """Of a container that ended by itself, in its own last words."""
    message = ended.get("message") or ""
    members = message_members(message)
    sentence = trouble.brief(str(members.get("message") or ("" if members else message)))
    how = f"exit code {ended['exitCode']}" + (f": {sentence}" if sentence else "")
    if container == FETCH:
        why = members.get("reason")
        return Trouble(
            why if isinstance(why, str) and why in _REASONS_OF_FETCH else reasons.FETCH_FAILED,
            f"pod {pod.name} cannot fetch its shard ({how}); it tries again",
        )
    if pod.component == names.BUILDER:
        return Trouble(reasons.BUILD_FAILED, f"pod {pod.name} ended without a result ({how}); look at its log")
    return Trouble(reasons.CRASH_LOOPING, f"container {container} of pod {pod.name} ended ({how}); look at its log")


def _out_of_memory(pod: _Pod, container: str, *, is_certain: bool) -> Trouble:
    """Where the kernel's word does not reach the kubelet, a container without probes that was killed leaves no other
    cause."""
    limit = _memory_limit(pod.body, container)
    return Trouble(
        reasons.OUT_OF_MEMORY,
        f"container {container} of pod {pod.name} was killed"
        f"{'' if is_certain else ' (exit code 137), most likely'} for using more memory than its limit"
        f"{f' of {limit}' if limit else ''}; raise {_LIMITS.get(pod.component, 'its resources')}.limits.memory",
    )


def _memory_limit(body: Body, container_name: str) -> str:
    spec = body.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        if container.get("name") == container_name:
            return str(((container.get("resources") or {}).get("limits") or {}).get("memory") or "")
    return ""
