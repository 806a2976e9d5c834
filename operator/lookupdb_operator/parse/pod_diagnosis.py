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
from lookupdb_operator.parse import causes
from lookupdb_operator.parse.build_result import message_members
from lookupdb_operator.parse.header import Body, find_condition, is_deleting, read_status
from lookupdb_operator.parse.messages import diagnose_pull, diagnose_scheduling, diagnose_start, flatten
from lookupdb_operator.plan import reasons

FETCH: Final = "fetch"
"""The init container of a shard server."""
_WITHOUT_PROBES: Final = (names.BUILDER, names.PUSHER, names.DIFF, names.LOAD)
"""Components."""

_PULLING: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_STARTING: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError"}
)
_NEVER_RAN: Final = frozenset({"StartError", "ContainerCannotRun"})
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
    if read_status(body).get("phase") == "Succeeded" or find_condition(body, "Ready").get("status") == "True":
        return None
    pod = _Pod(body, component, result)
    return next((trouble for trouble in _find_troubles(pod) if trouble is not None), None)


def container_statuses(body: Body) -> Iterator[Container]:
    """The status of each container, those that run first first."""
    pod_status = read_status(body)
    yield from pod_status.get("initContainerStatuses") or ()
    yield from pod_status.get("containerStatuses") or ()


def _find_troubles(pod: _Pod) -> Iterator[Trouble | None]:
    yield _diagnose_end_by_kubernetes(pod)
    yield _diagnose_placement(pod)
    for container in container_statuses(pod.body):
        yield _diagnose_waiting(pod, container)
        yield _diagnose_end(pod, container)


def _diagnose_end_by_kubernetes(pod: _Pod) -> Trouble | None:
    pod_status = read_status(pod.body)
    reason, message = pod_status.get("reason") or "", pod_status.get("message") or ""
    if reason == reasons.DEADLINE_EXCEEDED:
        return causes.POD_TOO_LONG.trouble(pod=pod.name)
    target, has_failed = find_condition(pod.body, "DisruptionTarget"), pod_status.get("phase") == "Failed"
    is_disrupted = target.get("status") == "True" and (has_failed or is_deleting(pod.body))
    if not is_disrupted and not (reason and has_failed):
        return None
    why = flatten(message or target.get("message") or reason or target.get("reason") or "")
    if _is_about_disk(why):
        is_builder = pod.component == names.BUILDER
        field = "spec.build.scratchSize" if is_builder else "the ephemeral-storage limit"
        return causes.DISK_EXCEEDED.trouble(pod=pod.name, why=why, field=field)
    return causes.EVICTED.trouble(pod=pod.name, why=why)


def _is_about_disk(why: str) -> bool:
    """Whether a pod was evicted because it has written more than it may."""
    return "exceeds the" in why and "limit" in why and ("torage" in why or "EmptyDir" in why)


def _diagnose_placement(pod: _Pod) -> Trouble | None:
    scheduled = find_condition(pod.body, "PodScheduled")
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return None
    return diagnose_scheduling(pod.name, pod.component, scheduled.get("message") or "")


def _diagnose_waiting(pod: _Pod, container: Container) -> Trouble | None:
    """Of a container that the kubelet waits with: its image, or that it cannot be created."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _PULLING:
        return diagnose_pull(pod.name, container.get("image") or "", message, _list_mounted_images(pod.body))
    if reason in _STARTING:
        return diagnose_start(pod.name, container.get("name") or "", message)
    return None


def _list_mounted_images(body: Body) -> tuple[str, ...]:
    images = (volume.get("image") or {} for volume in (body.get("spec") or {}).get("volumes") or ())
    return tuple(image["reference"] for image in images if image.get("reference"))


def _diagnose_end(pod: _Pod, container: Container) -> Trouble | None:
    """Of a container that has ended, or has been started again since: one that is started again and again is at times
    waiting, running and terminated, and all along it is one trouble."""
    state, last_state = container.get("state") or {}, container.get("lastState") or {}
    terminated = state.get("terminated") or last_state.get("terminated")
    if not terminated or not terminated.get("exitCode"):
        return None
    name, reason = container.get("name") or "", terminated.get("reason") or ""
    if reason in _LOST and pod.result is None:
        return causes.CONTAINER_LOST.trouble(container=name, pod=pod.name)
    if reason == "OOMKilled" or _is_killed_silently(pod, name, terminated):
        return _diagnose_out_of_memory(pod, name, is_certain=reason == "OOMKilled")
    if reason in _NEVER_RAN:
        return diagnose_start(pod.name, name, terminated.get("message") or "")
    return _diagnose_exit(pod, name, terminated) if pod.result is None else None


def _is_killed_silently(pod: _Pod, container: str, terminated: Mapping[str, Any]) -> bool:
    """Whether a container was killed that has no probes and said nothing: for its memory, though nobody says so."""
    has_no_probes = pod.component in _WITHOUT_PROBES or container == FETCH
    return bool(terminated["exitCode"] == _SIGKILL and pod.result is None and has_no_probes)


def _diagnose_exit(pod: _Pod, container: str, terminated: Mapping[str, Any]) -> Trouble:
    """Of a container that ended by itself, in its own last words."""
    message = terminated.get("message") or ""
    members = message_members(message)
    sentence = flatten(str(members.get("message") or ("" if members else message)))
    how = f"exit code {terminated['exitCode']}" + (f": {sentence}" if sentence else "")
    if container == FETCH:
        cause = causes.FETCH_FAILURES.get(str(members.get("reason")), causes.FETCH_FAILED)
        return cause.trouble(pod=pod.name, how=how)
    if pod.component == names.PUSHER:
        return causes.PUSH_FAILURES.get(str(members.get("reason")), causes.PUSH_FAILED).trouble(pod=pod.name, how=how)
    if pod.component == names.SHARDS and (failure := causes.SERVING_FAILURES.get(str(members.get("reason")))):
        return failure.trouble(pod=pod.name, how=how)
    if pod.component == names.BUILDER:
        return causes.BUILD_FAILED.trouble(pod=pod.name, how=how)
    return causes.CRASH_LOOPING.trouble(container=container, pod=pod.name, how=how)


def _diagnose_out_of_memory(pod: _Pod, container: str, *, is_certain: bool) -> Trouble:
    """Where the kernel's word does not reach the kubelet, a container without probes that was killed leaves no other
    cause."""
    limit = _memory_limit(pod.body, container)
    return causes.OUT_OF_MEMORY.trouble(
        container=container,
        pod=pod.name,
        how="" if is_certain else " (exit code 137), most likely",
        limit=f" of {limit}" if limit else "",
        field=causes.RESOURCE_FIELDS.get(pod.component, "its resources"),
    )


def _memory_limit(body: Body, container_name: str) -> str:
    spec = body.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    container: Container = next((container for container in containers if container.get("name") == container_name), {})
    return str(((container.get("resources") or {}).get("limits") or {}).get("memory") or "")
