"""What the Jobs of the plugin have in common: each is made from the StatefulSet of a shard, ends by its deadline, is
collected ten minutes later, and goes with its dataset. Its pod has nothing to finish, and ends at once when it is
deleted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.plugin.changes import NotPossible
from lookupdb_operator.plugin.dataset import Dataset, Members

SCRATCH: Final = "/scratch"
SPARE_BYTES: Final = 64 << 20
STORAGE: Final = "ephemeral-storage"
_KEPT_SECONDS: Final = 600
_GRACE_SECONDS: Final = 2
_FETCHER: Final = "fetch"
_FOLDERS_IN_STORE: Final = 4
"""Of a generation's folder: the cluster's, the namespace's, the dataset's, its own."""
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
CONTAINER_MEMBERS: Final = ("image", "imagePullPolicy", "command", "securityContext")


def render_job(
    dataset: Dataset,
    shard_set: Members,
    name: str,
    labels: Mapping[str, str],
    container: Members,
    volumes: Sequence[Members],
    *,
    deadline_seconds: int,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The Job ``name`` of one pod, of ``container``, for ``deadline_seconds`` at most."""
    template = shard_set["spec"]["template"]["spec"]
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": dataset.name,
        "uid": dataset.uid,
        "blockOwnerDeletion": False,
    }
    noted = {"annotations": dict(annotations)} if annotations else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(labels), "ownerReferences": [owner]},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_seconds,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {
                "metadata": {"labels": dict(labels), **noted},
                "spec": {
                    **{member: template[member] for member in _POD_MEMBERS if member in template},
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": _GRACE_SECONDS,
                    "containers": [container],
                    "volumes": list(volumes),
                },
            },
        },
    }


def choose_shard_set(dataset: Dataset, shard_sets: Sequence[Members]) -> Members:
    """The one of ``shard_sets``, oldest first, from which the Job is made: the newest that serves, whose image and
    credentials have been of use. One that starts may never run. Without one that serves, the newest. Raises NotPossible
    if there is none."""
    if not shard_sets:
        raise NotPossible(f"{dataset.key} has no shard server from which to know the image and the store")
    routed = dataset.routed_shards()
    serving = [body for body in shard_sets if _read_rollout(body) in routed]
    return (serving or shard_sets)[-1]


def _read_rollout(shard_set: Members) -> str | None:
    return (shard_set["metadata"].get("labels") or {}).get(names.ROLLOUT)


def find_fetcher(shard_set: Members) -> Members:
    """The init container that fetches a shard: it has the image, and what reaches the store. Where nothing is fetched,
    the server, which may have the store's folders on a volume."""
    template = shard_set["spec"]["template"]["spec"]
    containers = (*template.get("initContainers", ()), *template["containers"])
    fetcher: Members = next((container for container in containers if container["name"] == _FETCHER), containers[-1])
    return fetcher


def read_store_words(fetcher: Members, dataset: Dataset) -> list[str]:
    """The options that say where the generations of ``dataset`` are. Raises NotPossible if its servers have neither the
    store nor its folders."""
    return [*_find_store(fetcher, dataset), "--dataset", dataset.key, "--uid", dataset.uid]


def _find_store(fetcher: Members, dataset: Dataset) -> list[str]:
    words = fetcher["args"]
    if fetcher["name"] == _FETCHER:
        return [word for flag in _STORE_FLAGS for word in (flag, words[words.index(flag) + 1])]
    folder = PurePosixPath(words[1])
    if len(folder.relative_to(names.DATA_PATH).parts) < _FOLDERS_IN_STORE:
        raise NotPossible(
            f"the servers of {dataset.key} have their shards from images, and reach no store",
            hint="do it where the store is: lookupdb --help",
        )
    return ["--store", str(folder.parents[_FOLDERS_IN_STORE - 1]), "--cluster-id", folder.parts[-_FOLDERS_IN_STORE]]


def find_store_access(members: Iterable[Members]) -> list[Members]:
    """Of volumes or mounts that of the token for the store's gateway, if there is one, and that of the store's own
    folders, if servers map their shards there."""
    return [
        member
        for member in members
        if member["name"] == names.STORE_TOKEN_VOLUME
        or (member["name"] == names.DATA_VOLUME and ("persistentVolumeClaim" in member or "readOnly" in member))
    ]
