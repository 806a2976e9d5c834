"""Why something does not get on, told apart by what Kubernetes says in words.

Sentences say what was found, where, and what to do. They hold nothing that changes by itself (back-off times, counts,
random names of pods that were never made), because each new sentence is a write of the status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import reasons

_MESSAGE_AT_MOST: Final = 600

_NOT_MADE: Final = re.compile(
    r"^(Error creating: )?(create Pod \S+ in StatefulSet \S+ failed error: )?"
    r"(pods \"[^\"]*\" is forbidden: |Pod \"[^\"]*\" is invalid: )?"
)
_QUOTA: Final = re.compile(r"exceeded quota|must specify|(maximum|minimum) \S+ usage per|limit to request ratio|quota")
_AMOUNT: Final = re.compile(r"(?:(?:limits|requests)\.)?(?:cpu|memory|ephemeral-storage|hugepages-\w+)\b")
_RESOURCES: Final = {
    "Job": "spec.build.resources",
    "StatefulSet": "spec.serving.resources",
    "Deployment": "spec.router.resources",
}
"""By the kind that makes the pods, the field that says what they need."""
_MISSING: Final = re.compile(r"(?P<kind>secret|configmap|persistentvolumeclaim) \"(?P<name>[^\"]+)\" not found", re.I)
_MISSING_KEY: Final = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) (?P<name>\S+)")
_NO_HELP: Final = re.compile(
    r"(?:[.,]? *(?:no new claims to deallocate|preemption: .*|(?<=not found\.) not found))+$", re.S
)
"""What the scheduler tried instead."""
_PASSING: Final = re.compile(r"failed to sync (configmap|secret) cache|object \"[^\"]*\"/\"[^\"]*\" not registered")
_TITLES: Final = {"secret": "Secret", "configmap": "ConfigMap", "persistentvolumeclaim": "PersistentVolumeClaim"}
_PULLING: Final = re.compile(r"^Back-off pulling image \"[^\"]*\"(: )?|ErrImagePull: |rpc error: code = \w+ desc = ")
_RANDOM: Final = re.compile(
    r" \(pod: \"[^\"]*\", container: \S+\)|\"?\b[0-9a-f]{64}\b\"?|(?<=[0-9\]]):[0-9]{4,5}(?=->)"
)
"""Uids of pods, names of sandboxes, and the ports that a failed connection came from."""


def warned(kind: str, name: str, reason: str, message: str) -> Trouble | None:
    """What a Warning event, or a condition, says about the object ``name``; None when that is nothing to act upon, or
    when the object's own status tells it better."""
    match reason:
        case "FailedCreate":
            return _not_made(kind, name, message)
        case "FailedMount" | "FailedAttachVolume" | "FailedMapVolume":
            return None if _PASSING.search(message) else mounting(name, message)
        case "FailedCreatePodSandBox" | "FailedCreatePodContainer" | "FailedValidation":
            return Trouble(
                reasons.CRASH_LOOPING,
                f"pod {name} cannot be started on its node: {brief(_RANDOM.sub('', message))}; look at the node",
            )
    return None


def scheduling(pod: str, message: str) -> Trouble:
    """The scheduler's word on a pod that it has not placed."""
    told = brief(_NO_HELP.sub("", message))
    missing = next(_missing(message), None)
    if missing or "unbound immediate PersistentVolumeClaims" in message:
        return Trouble(
            reasons.VOLUME_MISSING,
            f"pod {pod} waits for its volume: {told}; create the claim, or correct spec.source.volume",
        )
    return Trouble(
        reasons.UNSCHEDULABLE,
        f"no node takes pod {pod}: {told}; add nodes, or change resources or spec.scheduling",
    )


def mounting(pod: str, message: str) -> Trouble:
    """Something that a pod is given is not there, in the kubelet's words."""
    for what, is_secret in _missing(message):
        if is_secret:
            return Trouble(reasons.SECRET_MISSING, f"pod {pod} needs {what}; create it")
        return Trouble(
            reasons.VOLUME_MISSING,
            f"pod {pod} needs {what}; create it, or correct spec.source.volume",
        )
    return Trouble(
        reasons.VOLUME_MISSING,
        f"a volume of pod {pod} cannot be mounted: {brief(message)}; see what spec.source.volume names",
    )


def starting(pod: str, container: str, message: str) -> Trouble:
    """A container that the kubelet cannot make or start."""
    if next(_missing(message), None):
        return mounting(pod, message)
    return Trouble(
        reasons.CRASH_LOOPING,
        f"container {container} of pod {pod} cannot be started: {brief(_RANDOM.sub('', message))}; correct the image",
    )


def pulling(pod: str, image: str, message: str) -> Trouble:
    """An image that the kubelet cannot get."""
    told = brief(_RANDOM.sub("", _PULLING.sub("", message)))
    why = f": {told}" if told else ""
    return Trouble(
        reasons.IMAGE_PULL_FAILED,
        f"image {image} of pod {pod} cannot be pulled{why}; correct the image or imagePullSecrets",
    )


def brief(message: str) -> str:
    """``message`` on one line, of bounded length, without its last full stop."""
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    line = line if len(line) <= _MESSAGE_AT_MOST else line[: _MESSAGE_AT_MOST - 1] + "…"
    return line.removesuffix(".")


def _not_made(kind: str, name: str, message: str) -> Trouble:
    what, told = f"{kind} {name}", brief(_NOT_MADE.sub("", message))
    if _QUOTA.search(told):
        text = f"{what} may not make its pods: {told}; {_quota_remedy(kind, told)}"
        return Trouble(reasons.QUOTA_EXCEEDED, text)
    return Trouble(
        reasons.APPLY_REFUSED, f"{what} may not make its pods: {told}; see what the namespace's policies allow"
    )


def _quota_remedy(kind: str, message: str) -> str:
    """What to do about a quota, or a limit range, that does not let pods of ``kind`` in."""
    field = _RESOURCES.get(kind, "resources")
    unspecified = dict.fromkeys(_AMOUNT.findall(message.partition("must specify ")[2]))
    if unspecified:
        # A quota calls requests.cpu cpu, too.
        members = (name if name.startswith(("limits.", "requests.")) else f"requests.{name}" for name in unspecified)
        return "set " + " and ".join(f"{field}.{member}" for member in members)
    return f"raise the namespace's quota or lower {field}"


def _missing(message: str) -> Iterator[tuple[str, bool]]:
    """What is missing, as it is called, and whether it is a Secret."""
    for found in _MISSING.finditer(message):
        kind = found["kind"].lower()
        yield f"{_TITLES[kind]} {found['name']}, which does not exist", kind == "secret"
    for found in _MISSING_KEY.finditer(message):
        what = f"key {found['key']} in {found['kind']} {found['name'].rpartition('/')[2]}, which lacks it"
        yield what, found["kind"] == "Secret"
