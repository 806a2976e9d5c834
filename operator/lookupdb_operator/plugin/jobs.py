"""Jobs of the plugin: their manifest and their progress. No I/O.

Each is made from a shard's StatefulSet, has a deadline, is removed ten minutes after its end, and is owned by its
dataset. Its pod ends at once when it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from lookupdb_operator import names
from lookupdb_operator.cluster.diagnosis import diagnose_pod, diagnose_warning
from lookupdb_operator.cluster.workloads import awaits_images
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.plugin.changes import Dataset, Members, NotPossible

# Judge a Job's progress. Obstacles are described as the operator does (``cluster.diagnosis``).
#
# source                obstacles
# events of the Job     its pod cannot be created: quota, admission, missing objects
# conditions            it is suspended, has failed, took too long
# the pod's status      no node fits, image, memory, eviction, lost node
# events of the pod     volumes and network, before its image is pulled


Body = Mapping[str, Any]

_POD_ENDED: Final = "BackoffLimitExceeded"
"""A Job's reason if its pod failed; it does not say why."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a Job with one pod."""

    phase: Literal["Starting", "Running", "Succeeded", "Failed"]
    pod: str = ""
    """The pod whose log says more; empty if none."""
    why: str = ""
    """Its obstacle, or why it failed; empty if only its log says so."""


def judge_job(job: Body, pod: Body | None, warnings: Iterable[Body], component: str = names.DIFF) -> JobProgress:
    """Return the progress of ``job``, whose container is called ``component``. ``warnings`` are events about its pod,
    or about the Job while it has no pod."""
    name = job["metadata"]["name"]
    failed = _find_condition(job, "Failed")
    if pod is not None and (ended := _judge_ended_pod(pod, component)) is not None:
        return ended
    if failed:
        return JobProgress("Failed", why=_describe_failure(name, job, failed))
    if pod is not None:
        return _judge_pod(pod, warnings, component)
    if _find_condition(job, "Suspended"):
        return JobProgress("Starting", why=f"Job {name} is suspended: resume it")
    trouble = _diagnose_warnings("Job", name, warnings, component)
    return JobProgress("Starting", why=f"Job {name} has no pod yet" if trouble is None else trouble.message)


def _judge_ended_pod(pod: Body, component: str) -> JobProgress | None:
    """Judge a pod that has ended. Its log says more about a container that ended by itself."""
    name, phase = pod["metadata"]["name"], _phase(pod)
    if phase == "Succeeded":
        return JobProgress("Succeeded", name)
    if phase != "Failed":
        return None
    trouble = diagnose_pod(pod, component, None)
    is_by_itself = trouble is None or trouble.reason == reasons.CRASH_LOOPING
    return JobProgress("Failed", name, "" if trouble is None or is_by_itself else trouble.message)


def _judge_pod(pod: Body, warnings: Iterable[Body], component: str) -> JobProgress:
    name = pod["metadata"]["name"]
    if _phase(pod) == "Running":
        return JobProgress("Running", name, f"pod {name} runs")
    trouble = diagnose_pod(pod, component, None)
    if trouble is None and awaits_images(pod):
        trouble = _diagnose_warnings("Pod", name, warnings, component)
    return JobProgress("Starting", name, f"pod {name} has not started yet" if trouble is None else trouble.message)


def _describe_failure(name: str, job: Body, condition: Body) -> str:
    if condition.get("reason") == reasons.DEADLINE_EXCEEDED:
        seconds = (job.get("spec") or {}).get("activeDeadlineSeconds")
        return f"Job {name} took longer than {seconds} seconds and was ended; raise --timeout"
    if condition.get("reason") == _POD_ENDED:
        return f"the pod of Job {name} failed, and is gone"
    return f"Job {name} failed: {condition.get('message') or condition.get('reason') or 'it does not say why'}"


def _diagnose_warnings(kind: str, name: str, warnings: Iterable[Body], component: str) -> Trouble | None:
    """Diagnose the newest of ``warnings`` that says anything."""

    def diagnose(event: Body) -> Trouble | None:
        reason, message = str(event.get("reason") or ""), str(event.get("message") or "")
        return diagnose_warning(kind, name, reason, message, component=component)

    newest_first = sorted(warnings, key=lambda event: str(event.get("lastTimestamp") or ""), reverse=True)
    return next((trouble for event in newest_first if (trouble := diagnose(event)) is not None), None)


def _phase(pod: Body) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _find_condition(job: Body, kind: str) -> Body | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((found for found in conditions if found.get("type") == kind and found.get("status") == "True"), None)


SCRATCH: Final = "/scratch"
SPARE_BYTES: Final = 64 << 20
STORAGE: Final = "ephemeral-storage"
_KEPT_SECONDS: Final = 600
_GRACE_SECONDS: Final = 2
_FETCHER: Final = "fetch"
_FOLDERS_IN_STORE: Final = 4
"""Segments of a generation's folder: cluster, namespace, dataset, generation."""
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
    """Return the Job ``name`` with one pod of ``container``, and a limit of ``deadline_seconds``."""
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
    """Return the StatefulSet of ``shard_sets``, oldest first, to make the Job from: the newest that serves, because its
    image and credentials work; else the newest. Raises NotPossible if there is none."""
    if not shard_sets:
        raise NotPossible(f"{dataset.key} has no shard server yet, from which the Job would take its image and store")
    routed = dataset.routed_shards()
    serving = [body for body in shard_sets if _read_rollout(body) in routed]
    return (serving or shard_sets)[-1]


def _read_rollout(shard_set: Members) -> str | None:
    return (shard_set["metadata"].get("labels") or {}).get(names.ROLLOUT)


def find_fetcher(shard_set: Members) -> Members:
    """Return the init container that fetches a shard, which has the image and access to the store; without one, the
    server itself, which may have the store on a volume."""
    template = shard_set["spec"]["template"]["spec"]
    containers = (*template.get("initContainers", ()), *template["containers"])
    fetcher: Members = next((container for container in containers if container["name"] == _FETCHER), containers[-1])
    return fetcher


def read_store_words(fetcher: Members, dataset: Dataset) -> list[str]:
    """Return the options that name the store of ``dataset``. Raises NotPossible if its servers have no access to it."""
    return [*_find_store(fetcher, dataset), "--dataset", dataset.key, "--uid", dataset.uid]


def _find_store(fetcher: Members, dataset: Dataset) -> list[str]:
    words = fetcher["args"]
    if fetcher["name"] == _FETCHER:
        return [word for flag in _STORE_FLAGS for word in (flag, words[words.index(flag) + 1])]
    folder = PurePosixPath(words[1])
    if len(folder.relative_to(names.DATA_PATH).parts) < _FOLDERS_IN_STORE:
        raise NotPossible(
            f"the servers of {dataset.key} take their shards from images, and have no access to a store",
            hint="run lookupdb where the store can be reached: lookupdb --help",
        )
    return ["--store", str(folder.parents[_FOLDERS_IN_STORE - 1]), "--cluster-id", folder.parts[-_FOLDERS_IN_STORE]]


def find_store_access(members: Iterable[Members]) -> list[Members]:
    """Return those of the volumes or mounts that hold the gateway's token or the store's folders."""
    return [
        member
        for member in members
        if member["name"] == names.STORE_TOKEN_VOLUME
        or (member["name"] == names.DATA_VOLUME and ("persistentVolumeClaim" in member or "readOnly" in member))
    ]
