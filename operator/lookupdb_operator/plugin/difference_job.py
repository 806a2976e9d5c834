"""The Job that compares two generations of a dataset where the store is: nothing of them is downloaded to a person's
machine. Pure but for a random name.

It is made from the StatefulSet of a shard, whose init container has the image, the store's address (that of spec.store,
if there is one), and a token for the gateway before it, or else the store's credentials by reference. So a person needs
the right to make Jobs in the namespace, and none to read Secrets. The operator does not know the Job: it ends by its
deadline, is collected ten minutes later, and goes with its dataset. Its pod has nothing to finish, and ends at once
when it is deleted.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.plugin.dataset import Dataset, Members
from lookupdb_operator.status import BuiltGeneration

LABELS: Final = {names.APP: "lookupdb", names.COMPONENT: names.DIFF}
"""Not those by which the operator knows what is its own. The chart's NetworkPolicy of the store goes by them."""
CONTAINER: Final = names.DIFF
_SCRATCH: Final = "/scratch"
_SPARE_BYTES: Final = 64 << 20
_KEPT_SECONDS: Final = 600
_GRACE_SECONDS: Final = 2
_SUFFIX_BYTES: Final = 4
_FETCHER: Final = "fetch"
_STORAGE: Final = "ephemeral-storage"
_STORE_FLAGS: Final = ("--store", "--cluster-id")
_POD_MEMBERS: Final = (
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "serviceAccountName",
    "imagePullSecrets",
    "securityContext",
    "automountServiceAccountToken",
    "enableServiceLinks",
)
_CONTAINER_MEMBERS: Final = ("image", "imagePullPolicy", "command", "envFrom", "securityContext")


def render_difference_job(
    dataset: Dataset,
    shard_set: Members,
    generations: tuple[BuiltGeneration, BuiltGeneration],
    *,
    sampled: bool,
    samples: int,
    deadline_seconds: int,
) -> dict[str, Any]:
    """The Job that compares ``generations``, from a StatefulSet of ``dataset``, for ``deadline_seconds`` at most. Its
    log is the document that ``lookupdb diff --json`` writes. Its name is its own before it is made: it can be deleted
    though nobody has heard that it was."""
    name = names.difference_job(dataset.name, secrets.token_hex(_SUFFIX_BYTES))
    template = shard_set["spec"]["template"]["spec"]
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": dataset.name,
        "uid": dataset.uid,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": LABELS, "ownerReferences": [owner]},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_seconds,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {
                    **{member: template[member] for member in _POD_MEMBERS if member in template},
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": _GRACE_SECONDS,
                    "containers": [_render_container(dataset, template, generations, sampled=sampled, samples=samples)],
                    "volumes": [
                        _render_scratch(generations, sampled=sampled),
                        *_copy_token(template.get("volumes", ())),
                    ],
                },
            },
        },
    }


def _render_container(
    dataset: Dataset,
    template: Members,
    generations: tuple[BuiltGeneration, BuiltGeneration],
    *,
    sampled: bool,
    samples: int,
) -> dict[str, Any]:
    fetcher = next(container for container in template["initContainers"] if container["name"] == _FETCHER)
    words = fetcher["args"]
    store = [word for flag in _STORE_FLAGS for word in (flag, words[words.index(flag) + 1])]
    whose = ["--dataset", dataset.key, "--uid", dataset.uid]
    how = ["--json", "--samples", str(samples), *(["--sampled"] if sampled else [])]
    return {
        **{member: fetcher[member] for member in _CONTAINER_MEMBERS if member in fetcher},
        "name": CONTAINER,
        "resources": _render_resources(fetcher, _count_scratch_bytes(generations, sampled=sampled) + _SPARE_BYTES),
        "args": ["diff", *(generation.generation for generation in generations), *store, *whose, *how],
        "env": [*fetcher.get("env", ()), {"name": "TMPDIR", "value": _SCRATCH}],
        "volumeMounts": [
            {"name": "scratch", "mountPath": _SCRATCH},
            {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 - of the pod's own
            *_copy_token(fetcher.get("volumeMounts", ())),
        ],
    }


def _copy_token(members: Iterable[Members]) -> list[Members]:
    """Of volumes or mounts that of the token for the store's gateway; none without a gateway."""
    return [member for member in members if member["name"] == names.STORE_TOKEN_VOLUME]


def _render_resources(fetcher: Members, storage_bytes: int) -> dict[str, Any]:
    """The fetcher's, but for what stands on the node's disk: a fetcher has one file, and perhaps not even there."""
    resources, storage = fetcher.get("resources", {}), {_STORAGE: str(storage_bytes)}
    limits = resources.get("limits", {})
    return {
        **resources,
        "requests": {**resources.get("requests", {}), **storage},
        "limits": {**limits, **(storage if _STORAGE in limits else {})},
    }


def _render_scratch(generations: tuple[BuiltGeneration, BuiltGeneration], *, sampled: bool) -> dict[str, Any]:
    return {"name": "scratch", "emptyDir": {"sizeLimit": str(_count_scratch_bytes(generations, sampled=sampled))}}


def _count_scratch_bytes(generations: tuple[BuiltGeneration, BuiltGeneration], *, sampled: bool) -> int:
    """Room for the files that are compared at a time: one of each generation, unless all keys are compared and their
    numbers of shards differ."""
    before, after = generations
    if sampled or before.shards == after.shards:
        size = before.largest_shard_bytes + after.largest_shard_bytes
    else:
        size = before.bytes + after.bytes
    return size + _SPARE_BYTES
