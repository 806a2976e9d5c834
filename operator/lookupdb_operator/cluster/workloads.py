"""Parse pods, Jobs and other objects, compare them with what the operator wrote, and say why one is stuck."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.cluster.parse import (
    Body,
    find_condition,
    is_deleting,
    message_members,
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

# Diagnose why a pod is stuck, from its status. The first cause in this order counts:
#
# ended by Kubernetes      a deadline, an eviction, a lost node
# not placed               the scheduler's message
# a container              its image, its start, its exit; init containers first


# The sentence of a trouble says what was found, where, and what to do. It holds nothing that changes by itself
# (back-off times, counts, random pod names), because each new sentence causes a write of the status.


RESOURCE_FIELDS: Final = {
    names.BUILDER: "spec.build.resources",
    names.SHARDS: "spec.serving.resources",
    names.ROUTER: "spec.router.resources",
    names.PUSHER: "spec.serving.resources",  # except memory
    names.DIFF: "spec.serving.resources",  # based on a shard server's template
    names.LOAD: "--processes",
}
"""The field or option for each component's resources."""
VOLUME_FIELDS: Final = {
    names.BUILDER: "spec.source.volume",
    names.EXECUTOR: "spec.source.volume",
    names.SHARDS: "spec.serving.storageClassName or spec.serving.delivery.volume",
}
"""The field for each component's volumes."""
_FETCH_REASONS: Final = frozenset(
    {reasons.STORE_DENIED, reasons.STORE_UNAVAILABLE, reasons.OUT_OF_DISK, reasons.NOT_ENOUGH_ROOM}
    | reasons.DAMAGE_REASONS
)
"""The reasons in a fetcher's termination message that are kept; any other becomes FetchFailed."""
_SERVING_REASONS: Final = {
    reasons.NOT_ON_VOLUME: reasons.NOT_ON_VOLUME,
    reasons.STORE_UNAVAILABLE: reasons.NOT_ON_VOLUME,
    reasons.CORRUPT_FILE: reasons.CORRUPT_FILE,
}
"""Reason in the termination message of a server whose volume somebody else fills → the trouble's reason. If such a
volume cannot be read, the shared store is not to blame, so the cause is never a failure of the store.
"""
_PUSH_REASONS: Final = _FETCH_REASONS | {reasons.REGISTRY_UNAVAILABLE, reasons.REGISTRY_DENIED}
"""The reasons in a pusher's termination message that are kept; any other becomes PushFailed."""


# Messages of Kubernetes in events and conditions, matched by patterns.


_MAX_CHARACTERS: Final = 600

_REFUSED_POD: Final = re.compile(
    r"^(Error creating: )?(create Pod \S+ in StatefulSet \S+ failed error: )?"
    r"(pods \"[^\"]*\" is forbidden: |Pod \"[^\"]*\" is invalid: )?"
)
"""The beginning of a controller's message that it cannot create a pod."""
_QUOTA: Final = re.compile(r"exceeded quota|must specify|(maximum|minimum) \S+ usage per|limit to request ratio|quota")
_LACKING: Final = re.compile(r"serviceaccount \"[^\"]*\" not found|no PriorityClass with name")
_AMOUNT: Final = re.compile(r"(?:(?:limits|requests)\.)?(?:cpu|memory|ephemeral-storage|hugepages-\w+)\b")
_COMPONENTS: Final = {"Job": names.BUILDER, "StatefulSet": names.SHARDS, "Deployment": names.ROUTER}
"""Component by the kind of its workload."""
_MISSING: Final = re.compile(r"(?P<kind>secret|configmap|persistentvolumeclaim) \"(?P<name>[^\"\s]+)\" not found", re.I)
_MISSING_KEY: Final = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) (?P<name>\S+)")
_NO_HELP: Final = re.compile(
    r"(?:[.,]? *(?:no new claims to deallocate|preemption: .*|(?<=not found\.) not found))+$", re.S
)
"""The scheduler's notes on preemption and claims, which do not help."""
_PASSING: Final = re.compile(r"failed to sync (configmap|secret) cache|object \"[^\"]*\"/\"[^\"]*\" not registered")
_KINDS: Final = {"secret": "Secret", "configmap": "ConfigMap", "persistentvolumeclaim": "PersistentVolumeClaim"}
_NOT_FOUND: Final = re.compile(r"code = NotFound|: not found\b|(manifest|name) unknown", re.I)
"""The errors of containerd and CRI-O for a registry that lacks an image or a part of it."""
_OF_NODE: Final = re.compile(r"no match for platform|parent snapshot|no processor for", re.I)
"""Errors that another push does not fix."""
_PULL_PREFIX: Final = re.compile(
    r"^Back-off pulling image \"[^\"]*\"(: )?|ErrImagePull: |rpc error: code = \w+ desc = "
)
_VOLATILE: Final = re.compile(
    r" \(pod: \"[^\"]*\", container: \S+\)|\"?\b[0-9a-f]{64}\b\"?|(?<=[0-9\]]):[0-9]{4,5}(?=->)"
)
"""Uids of pods, names of sandboxes, and source ports of failed connections."""


def diagnose_warning(kind: str, name: str, reason: str, message: str, *, component: str = "") -> Trouble | None:
    """Diagnose a Warning event or condition of the object ``name``; None if it needs no action or the object's own
    status says more. ``component`` is its pods' component, if not the usual one of this kind."""
    match reason:
        case "FailedCreate":
            return _diagnose_refused_pods(kind, name, message, component or _COMPONENTS.get(kind, ""))
        case "FailedMount" | "FailedAttachVolume" | "FailedMapVolume" if not _PASSING.search(message):
            return _diagnose_mount(name, message)
        case "FailedCreatePodSandBox" | "FailedCreatePodContainer" | "FailedValidation":
            why = _flatten_stable(message)
            return Trouble(reasons.CRASH_LOOPING, f"pod {name} cannot be started on its node: {why}; look at the node")
    return None


def diagnose_scheduling(pod: str, component: str, message: str) -> Trouble:
    """Diagnose the scheduler's message about a pod that is not placed."""
    is_claim_unbound = "unbound immediate PersistentVolumeClaims" in message or any(_find_missing(message))
    why = flatten(_NO_HELP.sub("", message))
    if is_claim_unbound:
        advice = f"create what it names, or correct {VOLUME_FIELDS.get(component, 'its volumes')}"
        return Trouble(reasons.VOLUME_MISSING, f"pod {pod} waits for its volume: {why}; {advice}")
    advice = "add nodes, make room on them, or change resources or spec.scheduling"
    return Trouble(reasons.UNSCHEDULABLE, f"no node takes pod {pod}: {why}; {advice}")


def _diagnose_mount(pod: str, message: str) -> Trouble:
    """Diagnose the kubelet's message about a Secret, ConfigMap or claim that it cannot mount."""
    missing, is_secret = next(_find_missing(message), ("", False))
    if is_secret:
        return Trouble(reasons.SECRET_MISSING, f"pod {pod} needs {missing}; create it")
    if missing:
        return Trouble(
            reasons.VOLUME_MISSING,
            f"pod {pod} needs {missing}; create it, or correct what names it: spec.source.volume,"
            " spec.serving.delivery.volume or extraEnv",
        )
    return Trouble(
        reasons.VOLUME_MISSING,
        f"a volume of pod {pod} cannot be mounted: {flatten(message)}; see spec.source.volume,"
        " spec.serving.storageClassName or spec.serving.delivery.volume",
    )


def _diagnose_start(pod: str, container: str, message: str) -> Trouble:
    """Diagnose the kubelet's message about a container that it cannot create or start."""
    if any(_find_missing(message)):
        return _diagnose_mount(pod, message)
    why = _flatten_stable(message)
    return Trouble(
        reasons.CRASH_LOOPING, f"container {container} of pod {pod} cannot be started: {why}; correct the image"
    )


def flatten(message: str) -> str:
    """Return ``message`` as one line of limited length, without its last full stop."""
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    return reasons.shorten(line, _MAX_CHARACTERS).removesuffix(".")


def _flatten_stable(message: str) -> str:
    """Return ``message`` flattened, without parts that differ in each attempt."""
    return flatten(_VOLATILE.sub("", message))


def _diagnose_refused_pods(kind: str, name: str, message: str, component: str) -> Trouble:
    workload, why = f"{kind} {name}", flatten(_REFUSED_POD.sub("", message))
    if _QUOTA.search(why):
        field = RESOURCE_FIELDS.get(component, "resources")
        remedy = f"raise the namespace's quota or lower {field}"
        if unspecified := dict.fromkeys(_AMOUNT.findall(why.partition("must specify ")[2])):
            # Quotas also call requests.cpu just cpu.
            members = (
                name if name.startswith(("limits.", "requests.")) else f"requests.{name}" for name in unspecified
            )
            remedy = "set " + " and ".join(f"{field}.{member}" for member in members)
        return Trouble(reasons.QUOTA_EXCEEDED, f"{workload} cannot create its pods: {why}; {remedy}")
    advice = "see what the namespace's policies allow"
    if _LACKING.search(why):
        advice = "create what is missing, or correct what names it"
    return Trouble(reasons.APPLY_REFUSED, f"{workload} cannot create its pods: {why}; {advice}")


def _find_missing(message: str) -> Iterator[tuple[str, bool]]:
    """Yield a description of each object that ``message`` calls missing, and whether it is a Secret."""
    for found in _MISSING.finditer(message):
        kind = found["kind"].lower()
        yield f"{_KINDS[kind]} {found['name']}, which does not exist", kind == "secret"
    for found in _MISSING_KEY.finditer(message):
        name = found["name"].rpartition("/")[2]
        yield f"key {found['key']} in {found['kind']} {name}, which lacks it", found["kind"] == "Secret"


FETCH: Final = "fetch"
"""The init container of a shard server."""
_WITHOUT_PROBES: Final = (names.BUILDER, names.EXECUTOR, names.PUSHER, names.DIFF, names.LOAD)
"""Components without probes."""

_PULLING: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_STARTING: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError"}
)
_NEVER_RAN: Final = frozenset({"StartError", "ContainerCannotRun"})
_LOST: Final = frozenset({"ContainerStatusUnknown", "Unknown"})
"""The kubelet's reasons for a container that is gone, for example after a reboot."""
_SIGKILL: Final = 137

Container = Mapping[str, Any]
"""One of a pod's container statuses."""


@dataclass(frozen=True, slots=True)
class _Pod:
    """The pod to diagnose."""

    body: Body
    name: str
    component: str
    result: BuildResult | None
    """The result of a builder that has ended and reported one."""


def diagnose_pod(body: Body, component: str, result: BuildResult | None) -> Trouble | None:
    """Return why the pod ``body`` is stuck; None if it is not, or its status does not say."""
    if read_status(body).get("phase") == "Succeeded" or find_condition(body, "Ready").get("status") == "True":
        return None
    pod = _Pod(body, body["metadata"]["name"], component, result)
    trouble, scheduled = _diagnose_end_by_kubernetes(pod), find_condition(body, "PodScheduled")
    if trouble is None and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        trouble = diagnose_scheduling(pod.name, component, scheduled.get("message") or "")
    for container in _container_statuses(body):
        trouble = trouble or _diagnose_waiting(pod, container) or _diagnose_end(pod, container)
    return trouble


def _container_statuses(body: Body) -> Iterator[Container]:
    """Yield the status of each container, in the order in which they run."""
    pod_status = read_status(body)
    yield from pod_status.get("initContainerStatuses") or ()
    yield from pod_status.get("containerStatuses") or ()


def _diagnose_end_by_kubernetes(pod: _Pod) -> Trouble | None:
    pod_status = read_status(pod.body)
    reason, message = pod_status.get("reason") or "", pod_status.get("message") or ""
    if reason == reasons.DEADLINE_EXCEEDED:
        what = f"pod {pod.name} took too long and was ended; raise spec.build.deadlineSeconds"
        return Trouble(reasons.DEADLINE_EXCEEDED, what)
    target, has_failed = find_condition(pod.body, "DisruptionTarget"), pod_status.get("phase") == "Failed"
    is_disrupted = target.get("status") == "True" and (has_failed or is_deleting(pod.body))
    if not is_disrupted and not (reason and has_failed):
        return None
    why = flatten(message or target.get("message") or reason or target.get("reason") or "")
    if "exceeds the" in why and "limit" in why and ("torage" in why or "EmptyDir" in why):
        is_builder = pod.component in (names.BUILDER, names.EXECUTOR)
        field = "spec.build.scratchSize" if is_builder else "the ephemeral-storage limit"
        return Trouble(reasons.OUT_OF_DISK, f"pod {pod.name} was evicted: {why}; raise {field}")
    return Trouble(reasons.EVICTED, f"pod {pod.name} was ended by its cluster: {why}; another one takes its place")


def _diagnose_waiting(pod: _Pod, container: Container) -> Trouble | None:
    """Diagnose a waiting container: an image that cannot be pulled, its own or a mounted one, or a failed start."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    if reason in _PULLING:
        why = _flatten_stable(_PULL_PREFIX.sub("", message))
        why = f": {why}" if why else ""
        volumes = (pod.body.get("spec") or {}).get("volumes") or ()
        mounted = [(volume.get("image") or {}).get("reference") for volume in volumes]
        shown = next((reference for reference in mounted if reference and reference in message), "")
        if shown and _NOT_FOUND.search(message) and not _OF_NODE.search(message):
            return Trouble(
                reasons.IMAGE_NOT_FOUND,
                f"image {shown}, which pod {pod.name} should mount, is not in its registry{why}; it is pushed again,"
                " after longer and longer pauses, unless the pod's template is outdated",
            )
        image = shown or container.get("image") or ""
        return Trouble(
            reasons.IMAGE_PULL_FAILED,
            f"image {image} of pod {pod.name} cannot be pulled{why}; correct the image or imagePullSecrets",
        )
    if reason in _STARTING:
        return _diagnose_start(pod.name, container.get("name") or "", message)
    return None


def _diagnose_end(pod: _Pod, container: Container) -> Trouble | None:
    """Diagnose a container that has ended or restarted. In a crash loop it is waiting, running or terminated at times,
    but the trouble stays the same."""
    state, last_state = container.get("state") or {}, container.get("lastState") or {}
    terminated = state.get("terminated") or last_state.get("terminated")
    if not terminated or not terminated.get("exitCode"):
        return None
    name, reason = container.get("name") or "", terminated.get("reason") or ""
    if reason in _LOST and pod.result is None:
        return Trouble(reasons.EVICTED, f"container {name} of pod {pod.name} was lost by its node")
    # A container without probes that was killed without a message was killed for its memory, even if nothing says so.
    has_no_probes = pod.component in _WITHOUT_PROBES or name == FETCH
    is_killed_silently = terminated["exitCode"] == _SIGKILL and pod.result is None and has_no_probes
    if reason == "OOMKilled" or is_killed_silently:
        return _diagnose_out_of_memory(pod, name, is_certain=reason == "OOMKilled")
    if reason in _NEVER_RAN:
        return _diagnose_start(pod.name, name, terminated.get("message") or "")
    return _diagnose_exit(pod, name, terminated) if pod.result is None else None


def _diagnose_exit(pod: _Pod, container: str, terminated: Mapping[str, Any]) -> Trouble:
    """Diagnose, from its termination message, a container that ended by itself."""
    message = terminated.get("message") or ""
    members = message_members(message)
    sentence = flatten(str(members.get("message") or ("" if members else message)))
    how = f"exit code {terminated['exitCode']}" + (f": {sentence}" if sentence else "")
    reported = str(members.get("reason"))
    if container == FETCH:
        reason = reported if reported in _FETCH_REASONS else reasons.FETCH_FAILED
        return Trouble(reason, f"pod {pod.name} cannot fetch its shard ({how}); it tries again")
    if pod.component == names.PUSHER:
        reason = reported if reported in _PUSH_REASONS else reasons.PUSH_FAILED
        return Trouble(reason, f"pod {pod.name} cannot push the images of its rollout ({how}); it tries again")
    if pod.component == names.SHARDS and reported in _SERVING_REASONS:
        what = f"pod {pod.name} cannot serve its shard from its volume ({how}); it tries again"
        return Trouble(_SERVING_REASONS[reported], what)
    if pod.component == names.BUILDER:
        return Trouble(reasons.BUILD_FAILED, f"pod {pod.name} ended without a result ({how}); look at its log")
    return Trouble(reasons.CRASH_LOOPING, f"container {container} of pod {pod.name} ended ({how}); look at its log")


def _diagnose_out_of_memory(pod: _Pod, container: str, *, is_certain: bool) -> Trouble:
    """Diagnose a kill for memory. A container without probes is killed for nothing else, even if the kernel's report
    does not reach the kubelet."""
    spec = pod.body.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    found: Container = next((item for item in containers if item.get("name") == container), {})
    limit = ((found.get("resources") or {}).get("limits") or {}).get("memory")
    how, of_limit = "" if is_certain else " (exit code 137), most likely", f" of {limit}" if limit else ""
    return Trouble(
        reasons.OUT_OF_MEMORY,
        f"container {container} of pod {pod.name} was killed{how} for using more memory than its limit{of_limit};"
        f" raise {RESOURCE_FIELDS.get(pod.component, 'its resources')}.limits.memory",
    )


# Pods.


_NODE_AWAY: Final = 300.0
"""Seconds after which an unready pod counts as lost: Kubernetes deletes a lost node's pods after the same time."""
_SLOW_KUBELET: Final = 30.0
"""Seconds by which a busy node may exceed a pod's grace period."""


def parse_pod(body: Body) -> Pod:
    """Parse the pod ``body`` of a dataset."""
    header, status, labels = parse_header(body), read_status(body), read_labels(body)
    component = labels.get(names.COMPONENT) or ""
    ready = find_condition(body, "Ready")
    is_ready = ready.get("status") == "True"
    lost_after = None
    if not is_ready and is_deleting(body):
        # How long the operator must see it unready before its kubelet counts as lost: node controllers make the pods of
        # silent nodes unready. Durations only, because times in a pod are from other clocks.
        grace_seconds = body["metadata"].get("deletionGracePeriodSeconds") or 0
        lost_after = Absence(unready=_NODE_AWAY, deleting=grace_seconds + _SLOW_KUBELET)
    result = None
    if component == names.BUILDER:  # its termination message
        states = (container.get("state") or {} for container in status.get("containerStatuses") or ())
        terminated = next((state["terminated"] for state in states if state.get("terminated")), None)
        result = None if terminated is None else parse_build_result(terminated.get("message"))
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
        lost_after=lost_after,
        trouble=diagnose_pod(body, component, result),
        result=result,
        deletion=parse_deletion(body),
    )


def awaits_images(body: Body) -> bool:
    """Return whether the pod still waits for a node, its volumes or its network, before its images are pulled. If it
    has a node, only events say what is wrong. A kubelet that does not report PodReadyToStartContainers counts
    as waiting until a container runs."""
    is_pending = read_status(body).get("phase") == "Pending"
    if not is_pending or find_condition(body, "PodReadyToStartContainers").get("status") == "True":
        return False
    return not any((container.get("state") or {}).get("running") for container in _container_statuses(body))


@dataclass(frozen=True, slots=True)
class Drift:
    """How an object differs from what the operator wrote."""

    fingerprint: bytes = b""
    """Fingerprint of the parts of the object on which the result depends."""
    changed: str = ""
    """Hash of the operator's fields if they changed. Empty if they did not, if the operator did not write the object,
    or if the API server does not say which fields the operator wrote."""
    changed_by: str = ""
    """The manager, other than the operator, that set the number of pods or last changed the object."""


def parse_job(body: Body) -> BuildJob:
    """Parse the Job ``body`` of a build."""
    header = parse_header(body)
    state, failure = _job_state(body), None
    # For any other reason, such as BackoffLimitExceeded, only the pod knows the cause.
    if state == "Failed" and find_condition(body, "Failed").get("reason") == reasons.DEADLINE_EXCEEDED:
        seconds = (body.get("spec") or {}).get("activeDeadlineSeconds")
        what = f"the build took longer than {seconds} seconds and was ended; raise spec.build.deadlineSeconds"
        failure = Trouble(reasons.DEADLINE_EXCEEDED, what)
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
    header, state, trouble = parse_header(body), _job_state(body), None
    if state == "Running" and (body.get("spec") or {}).get("suspend") is True:
        trouble = Trouble(
            reasons.PUSH_FAILED,
            f"Job {header.name}, which pushes the images of its rollout, is suspended (its spec.suspend is true):"
            " resume it, or delete it so that it is made again",
        )
    elif state == "Failed":
        failed = find_condition(body, "Failed")
        said = ": ".join(filter(None, (failed.get("reason"), failed.get("message"))))
        trouble = Trouble(
            reasons.PUSH_FAILED,
            f"Job {header.name}, which pushes the images of its rollout, should never fail, but Kubernetes ended it"
            f" ({flatten(said) or 'no reason is given'}); it will be made again. Make sure that no policy sets its"
            " activeDeadlineSeconds, backoffLimit or podFailurePolicy",
        )
    return ExistingObject(
        ref=ObjectRef("Job", header.name, header.uid),
        digest=read_annotations(body).get(names.DIGEST) or "",
        rollout=names.read_rollout(header.name),
        generation=read_labels(body).get(names.GENERATION) or "",
        deleting=is_deleting(body),
        trouble=trouble,
        push_state=state,
    )


def _job_state(body: Body) -> JobState:
    if find_condition(body, "Complete").get("status") == "True":
        return "Succeeded"
    return "Failed" if find_condition(body, "Failed").get("status") == "True" else "Running"


def parse_shard_set(body: Body, drift: Drift | None = None) -> ShardSet:
    """Parse the StatefulSet ``body`` of a shard; ``drift`` if known. If its name is not one that the
    operator gives, it is a copy, and its labels count."""
    header, status, labels = parse_header(body), read_status(body), read_labels(body)
    drift = drift or compare_fields(body)
    rollout = names.read_rollout(header.name)
    shard = names.read_shard(header.name) if rollout else None
    is_present = int(status.get("observedGeneration") or 0) >= int(body["metadata"].get("generation") or 0)
    return ShardSet(
        ref=ObjectRef("StatefulSet", header.name, header.uid),
        rollout=rollout or labels.get(names.ROLLOUT) or "",
        generation=labels.get(names.GENERATION) or "",
        shard=parse_number(labels.get(names.SHARD)) if shard is None else shard,
        digest=read_annotations(body).get(names.DIGEST) or "",
        replicas=_replicas(body),
        ready=int(status.get("readyReplicas") or 0) if is_present else 0,
        changed=drift.changed,
        changed_by=drift.changed_by,
        deleting=is_deleting(body),
        password_key=names.recover_password_key(labels.get(names.PASSWORD_KEY) or ""),
        deletion=parse_deletion(body),
    )


def parse_existing(kind: str, body: Body, drift: Drift | None = None) -> ExistingObject:
    """Parse an object of ``kind``, and say why a Deployment cannot create pods; ``drift`` if known. The object's
    rollout or build is read from its name, because labels may be edited."""
    header, drift = parse_header(body), drift or compare_fields(body)
    rollout, build = names.read_rollout(header.name), names.read_build(header.name)
    generation = read_labels(body).get(names.GENERATION) or "" if rollout else build
    is_daemon = kind == names.DAEMON_SET.name
    failure, trouble = find_condition(body, "ReplicaFailure"), None
    if kind == "Deployment" and failure.get("status") == "True":
        trouble = diagnose_warning(kind, header.name, failure.get("reason") or "", failure.get("message") or "")
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
        trouble=trouble,
    )


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
