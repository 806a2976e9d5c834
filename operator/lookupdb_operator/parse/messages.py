"""What Kubernetes says in words, in events and conditions, told apart by pattern: each diagnosis is a cause of
``causes``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Trouble
from lookupdb_operator.parse import causes
from lookupdb_operator.plan import reasons

_MAX_CHARACTERS: Final = 600

_REFUSED_POD: Final = re.compile(
    r"^(Error creating: )?(create Pod \S+ in StatefulSet \S+ failed error: )?"
    r"(pods \"[^\"]*\" is forbidden: |Pod \"[^\"]*\" is invalid: )?"
)
"""How a controller begins to say that it may not make a pod."""
_QUOTA: Final = re.compile(r"exceeded quota|must specify|(maximum|minimum) \S+ usage per|limit to request ratio|quota")
_LACKING: Final = re.compile(r"serviceaccount \"[^\"]*\" not found|no PriorityClass with name")
_AMOUNT: Final = re.compile(r"(?:(?:limits|requests)\.)?(?:cpu|memory|ephemeral-storage|hugepages-\w+)\b")
_COMPONENTS: Final = {"Job": names.BUILDER, "StatefulSet": names.SHARDS, "Deployment": names.ROUTER}
"""By the kind that makes pods, what they are."""
_MISSING: Final = re.compile(r"(?P<kind>secret|configmap|persistentvolumeclaim) \"(?P<name>[^\"\s]+)\" not found", re.I)
_MISSING_KEY: Final = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) (?P<name>\S+)")
_NO_HELP: Final = re.compile(
    r"(?:[.,]? *(?:no new claims to deallocate|preemption: .*|(?<=not found\.) not found))+$", re.S
)
"""What the scheduler tried instead."""
_PASSING: Final = re.compile(r"failed to sync (configmap|secret) cache|object \"[^\"]*\"/\"[^\"]*\" not registered")
_KINDS: Final = {"secret": "Secret", "configmap": "ConfigMap", "persistentvolumeclaim": "PersistentVolumeClaim"}
_NOT_FOUND: Final = re.compile(r"code = NotFound|: not found\b|(manifest|name) unknown", re.I)
"""How containerd and CRI-O say that a registry has no such image, or lacks a part of it."""
_OF_NODE: Final = re.compile(r"no match for platform|parent snapshot|no processor for", re.I)
"""What a node does not find: no push helps."""
_PULL_PREFIX: Final = re.compile(
    r"^Back-off pulling image \"[^\"]*\"(: )?|ErrImagePull: |rpc error: code = \w+ desc = "
)
_VOLATILE: Final = re.compile(
    r" \(pod: \"[^\"]*\", container: \S+\)|\"?\b[0-9a-f]{64}\b\"?|(?<=[0-9\]]):[0-9]{4,5}(?=->)"
)
"""Uids of pods, names of sandboxes, and the ports that a failed connection came from."""


def diagnose_warning(kind: str, name: str, reason: str, message: str, *, component: str = "") -> Trouble | None:
    """What a Warning event, or a condition, says about the object ``name``; None when that is nothing to act upon, or
    when the object's own status tells it better. ``component`` is what its pods are, if not what the operator's own of
    this kind are."""
    match reason:
        case "FailedCreate":
            return _diagnose_refused_pods(kind, name, message, component or _COMPONENTS.get(kind, ""))
        case "FailedMount" | "FailedAttachVolume" | "FailedMapVolume" if not _PASSING.search(message):
            return diagnose_mount(name, message)
        case "FailedCreatePodSandBox" | "FailedCreatePodContainer" | "FailedValidation":
            return causes.SANDBOX_FAILED.trouble(pod=name, why=_flatten_stable(message))
    return None


def diagnose_scheduling(pod: str, component: str, message: str) -> Trouble:
    """What the scheduler says of a pod that it has not placed."""
    is_claim_unbound = "unbound immediate PersistentVolumeClaims" in message or any(_find_missing(message))
    why = flatten(_NO_HELP.sub("", message))
    if is_claim_unbound:
        return causes.CLAIM_UNBOUND.trouble(pod=pod, why=why, field=causes.VOLUME_FIELDS.get(component, "its volumes"))
    return causes.UNSCHEDULABLE.trouble(pod=pod, why=why)


def diagnose_mount(pod: str, message: str) -> Trouble:
    """What the kubelet says of a Secret, ConfigMap or claim that it cannot mount into a pod."""
    missing, is_secret = next(_find_missing(message), ("", False))
    if not missing:
        return causes.MOUNT_FAILED.trouble(pod=pod, why=flatten(message))
    cause = causes.SECRET_MISSING if is_secret else causes.VOLUME_MISSING
    return cause.trouble(pod=pod, missing=missing)


def diagnose_start(pod: str, container: str, message: str) -> Trouble:
    """What the kubelet says of a container that it cannot create or start."""
    if any(_find_missing(message)):
        return diagnose_mount(pod, message)
    return causes.START_FAILED.trouble(pod=pod, container=container, why=_flatten_stable(message))


def diagnose_pull(pod: str, image: str, message: str, mounted: Collection[str] = ()) -> Trouble:
    """What the kubelet says of an image that it cannot pull: ``image``, the container's, or one of those that are
    ``mounted`` as volumes, of which no container tells."""
    why = _flatten_stable(_PULL_PREFIX.sub("", message))
    why = f": {why}" if why else ""
    shown = next((reference for reference in mounted if reference in message), "")
    if shown and _NOT_FOUND.search(message) and not _OF_NODE.search(message):
        return causes.IMAGE_NOT_FOUND.trouble(pod=pod, image=shown, why=why)
    return causes.IMAGE_PULL_FAILED.trouble(pod=pod, image=shown or image, why=why)


def flatten(message: str) -> str:
    """``message`` on one line, of bounded length, without its last full stop."""
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    return reasons.shorten(line, _MAX_CHARACTERS).removesuffix(".")


def _flatten_stable(message: str) -> str:
    """``message`` flattened, without what is another in each attempt."""
    return flatten(_VOLATILE.sub("", message))


def _diagnose_refused_pods(kind: str, name: str, message: str, component: str) -> Trouble:
    workload, why = f"{kind} {name}", flatten(_REFUSED_POD.sub("", message))
    if _QUOTA.search(why):
        return causes.QUOTA_EXCEEDED.trouble(workload=workload, why=why, remedy=_quota_remedy(component, why))
    cause = causes.PODS_LACK if _LACKING.search(why) else causes.PODS_REFUSED
    return cause.trouble(workload=workload, why=why)


def _quota_remedy(component: str, message: str) -> str:
    """What to do about a quota, or a limit range, that does not let pods of ``component`` in."""
    field = causes.RESOURCE_FIELDS.get(component, "resources")
    unspecified = dict.fromkeys(_AMOUNT.findall(message.partition("must specify ")[2]))
    if unspecified:
        # A quota calls requests.cpu cpu, too.
        members = (name if name.startswith(("limits.", "requests.")) else f"requests.{name}" for name in unspecified)
        return "set " + " and ".join(f"{field}.{member}" for member in members)
    return f"raise the namespace's quota or lower {field}"


def _find_missing(message: str) -> Iterator[tuple[str, bool]]:
    """Each object that ``message`` says is missing, in words, and whether it is a Secret."""
    for found in _MISSING.finditer(message):
        kind = found["kind"].lower()
        yield f"{_KINDS[kind]} {found['name']}, which does not exist", kind == "secret"
    for found in _MISSING_KEY.finditer(message):
        name = found["name"].rpartition("/")[2]
        yield f"key {found['key']} in {found['kind']} {name}, which lacks it", found["kind"] == "Secret"
