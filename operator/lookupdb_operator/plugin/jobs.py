"""Jobs of the plugin: their manifest and their progress. No I/O.

Each is made from a shard's StatefulSet, has a deadline, is removed ten minutes after its end, and is owned by its
dataset. Its pod ends at once when the Job is deleted.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from lookupdb.manifest import find_generations
from lookupdb_operator import names
from lookupdb_operator.cluster.workloads import FETCH, awaits_images, diagnose_pod, diagnose_warning
from lookupdb_operator.console.dataset import Dataset, Members, NotPossible
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import BuiltGeneration

# Judge a Job's progress. Obstacles are described as the operator does (``cluster.workloads``).
#
# source                obstacles
# events of the Job     its pod cannot be created: quota, admission, missing objects
# conditions            it is suspended, has failed, took too long
# the pod's status      no node fits, image, memory, eviction, lost node
# events of the pod     volumes and network, before its image is pulled


Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a Job with one pod."""

    phase: Literal["Starting", "Running", "Succeeded", "Failed"]
    pod: str = ""
    """The pod whose log says more; empty if none."""
    why: str = ""
    """Its obstacle, or why it failed; empty if only its log shows that."""


def judge_job(job: Body, pod: Body | None, warnings: Iterable[Body], component: str = names.DIFF) -> JobProgress:
    """Return the progress of ``job``, whose container is called ``component``. ``warnings`` are events about its pod,
    or about the Job while it has no pod."""
    name, status = job["metadata"]["name"], job.get("status") or {}
    conditions = {found["type"]: found for found in status.get("conditions") or () if found.get("status") == "True"}
    phase = "" if pod is None else (pod.get("status") or {}).get("phase") or "Pending"
    pod_name = "" if pod is None else pod["metadata"]["name"]
    if phase == "Succeeded":
        return JobProgress("Succeeded", pod_name)
    trouble = None if pod is None else diagnose_pod(pod, component, None)
    if phase == "Failed":  # the log says more about a container that ended by itself
        is_by_itself = trouble is None or trouble.reason == reasons.CRASH_LOOPING
        return JobProgress("Failed", pod_name, "" if trouble is None or is_by_itself else trouble.message)
    if failed := conditions.get("Failed"):
        reason = failed.get("reason")
        why = f"Job {name} failed: {failed.get('message') or reason or 'it does not say why'}"
        if reason == reasons.DEADLINE_EXCEEDED:
            seconds = (job.get("spec") or {}).get("activeDeadlineSeconds")
            why = f"Job {name} took longer than {seconds} seconds and was ended; raise --timeout"
        elif reason == "BackoffLimitExceeded":  # its pod failed; the message does not say why
            why = f"the pod of Job {name} failed, and is gone"
        return JobProgress("Failed", why=why)
    if phase == "Running":
        return JobProgress("Running", pod_name, f"pod {pod_name} runs")
    if pod is None and "Suspended" in conditions:
        return JobProgress("Starting", why=f"Job {name} is suspended: resume it")
    if pod is None:
        trouble = _diagnose_warnings("Job", name, warnings, component)
    elif trouble is None and awaits_images(pod):
        trouble = _diagnose_warnings("Pod", pod_name, warnings, component)
    why = f"Job {name} has no pod yet" if pod is None else f"pod {pod_name} has not started yet"
    return JobProgress("Starting", pod_name, why if trouble is None else trouble.message)


def _diagnose_warnings(kind: str, name: str, warnings: Iterable[Body], component: str) -> Trouble | None:
    """Diagnose the newest of ``warnings`` that says anything."""
    for event in sorted(warnings, key=lambda event: str(event.get("lastTimestamp") or ""), reverse=True):
        reason, message = str(event.get("reason") or ""), str(event.get("message") or "")
        if (trouble := diagnose_warning(kind, name, reason, message, component=component)) is not None:
            return trouble
    return None


# Render a Job.
#
# The Job copies a shard's StatefulSet, whose init container has the image, the store's address, and a token for the
# gateway or a reference to the store's credentials. So the user needs the right to create Jobs, but not to read
# Secrets. Servers that map shards from a volume have no such container: then the Job reads their volume. The
# operator ignores the Job, because its labels are not those of the operator's Jobs.


DIFF_LABELS: Final = {names.APP: "lookupdb", names.COMPONENT: names.DIFF}
"""The chart's NetworkPolicy for the store admits pods with these labels."""
LOAD_LABELS: Final = {names.APP: "lookupdb", names.COMPONENT: names.LOAD}
"""NetworkPolicies of routers, and the chart's for the store, admit pods with these labels."""
MAX_KEY_BYTES: Final = 200_000
"""The most bytes of the user's keys: they become an annotation, and an object's annotations have at most 256 KiB."""
KEYS_ANNOTATION: Final = f"{names.GROUP}/load-keys"
_KEYS_PATH: Final = "/etc/lookupdb/load"
_CA_PATH: Final = "/etc/lookupdb/load-ca"
_CA_FILE: Final = "ca.crt"
_SCRATCH_MOUNTS: Final = [{"name": "scratch", "mountPath": path} for path in (names.SCRATCH_PATH, "/tmp")]  # noqa: S108 - of the pod's own
_SPARE_BYTES: Final = 64 << 20
_STORAGE: Final = "ephemeral-storage"
_BASE_MEMORY: Final = 256
_SENDER_MEMORY: Final = 256
"""MiB of memory for each sender."""
_SUFFIX_BYTES: Final = 4
_KEPT_SECONDS: Final = 600
_GRACE_SECONDS: Final = 2
_FOLDERS_IN_STORE: Final = 4
"""Segments of a generation's folder: cluster, namespace, dataset, generation."""
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
_CONTAINER_MEMBERS: Final = ("image", "imagePullPolicy", "command", "securityContext")


def render_difference_job(
    dataset: Dataset,
    shard_set: Members,
    generations: tuple[BuiltGeneration, BuiltGeneration],
    *,
    sampled: bool,
    samples: int,
    deadline_seconds: int,
) -> dict[str, Any]:
    """Return the Job that compares ``generations``, made from a StatefulSet of ``dataset``, with a limit of
    ``deadline_seconds``. Its log is the output of ``lookupdb diff --json``. Its name is chosen here, so that it can be
    deleted even if the answer to its creation is lost. Raises NotPossible if the dataset's servers reach no store."""
    before, after = generations
    # Files are compared one by one, unless all keys are compared and shard counts differ.
    if sampled or before.shards == after.shards:
        scratch_bytes = before.largest_shard_bytes + after.largest_shard_bytes + _SPARE_BYTES
    else:
        scratch_bytes = before.bytes + after.bytes + _SPARE_BYTES
    words = [before.generation, after.generation]
    options = ["--dataset", dataset.key, "--json", "--samples", str(samples), *(["--sampled"] if sampled else [])]
    name = names.command_job(dataset.name, "diff", secrets.token_hex(_SUFFIX_BYTES))
    return _render_store_job(dataset, shard_set, name, ["diff", *words], options, scratch_bytes, deadline_seconds)


def render_prune_job(
    dataset: Dataset, shard_set: Members, options: Sequence[str], deadline_seconds: int
) -> dict[str, Any]:
    """Return the Job that removes generations of ``dataset`` that nothing needs. Its log is the output of ``lookupdb
    prune --json``. Raises NotPossible if the dataset's servers reach no store."""
    protected = sorted(find_generations(dataset.status), key=names.read_number)
    keep = ["--keep", str(dataset.spec.get("keepGenerations", len(protected) or 1)), "--json", *options]
    keep += [word for generation in protected for word in ("--protect", generation)]
    name = names.command_job(dataset.name, "prune", secrets.token_hex(_SUFFIX_BYTES))
    words = ["prune", dataset.key]
    return _render_store_job(dataset, shard_set, name, words, keep, _SPARE_BYTES, deadline_seconds)


def _render_store_job(
    dataset: Dataset,
    shard_set: Members,
    name: str,
    words: Sequence[str],
    options: Sequence[str],
    scratch_bytes: int,
    deadline_seconds: int,
) -> dict[str, Any]:
    """Return the Job ``name`` that runs `lookupdb WORDS OPTIONS` on the store of ``dataset``."""
    fetcher = _find_fetcher(shard_set)
    resources, storage = fetcher.get("resources", {}), {_STORAGE: str(scratch_bytes + _SPARE_BYTES)}
    limits = resources.get("limits", {})
    container = {
        **{member: fetcher[member] for member in (*_CONTAINER_MEMBERS, "envFrom") if member in fetcher},
        "name": names.DIFF,
        "resources": {
            **resources,
            "requests": {**resources.get("requests", {}), **storage},
            "limits": {**limits, **(storage if _STORAGE in limits else {})},
        },
        "args": [*words, *_read_store_words(fetcher, dataset), *options],
        "env": [*fetcher.get("env", ()), {"name": "TMPDIR", "value": names.SCRATCH_PATH}],
        "volumeMounts": [*_SCRATCH_MOUNTS, *_find_store_access(fetcher.get("volumeMounts", ()))],
    }
    volumes = [
        {"name": "scratch", "emptyDir": {"sizeLimit": str(scratch_bytes)}},
        *_find_store_access(shard_set["spec"]["template"]["spec"].get("volumes", ())),
    ]
    return _render_job(dataset, shard_set, name, DIFF_LABELS, container, volumes, deadline_seconds)


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """A key of a Secret or ConfigMap."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class LoadJobOptions:
    """The user's options."""

    words: Sequence[str]
    """Options of `lookupdb load`, without the router, the keys and the output."""
    processes: int
    keys: Sequence[str] | None
    """None: sample the active or requested generation."""
    largest_shard_bytes: int
    """Bytes of that generation's largest shard; shards are copied from the store one by one."""
    token: ObjectKey | None = None
    """Secret with the token."""
    ca_secret: ObjectKey | None = None
    ca_config_map: ObjectKey | None = None
    deadline_seconds: int = 3600


def render_load_job(dataset: Dataset, shard_set: Members, options: LoadJobOptions) -> dict[str, Any]:
    """Return the Job that puts a load on the dataset's routers and logs the result as a line of JSON. It has no token
    of the API server, and uses the routers' Service as any client does. Raises NotPossible if it cannot ask them."""
    endpoint = dataset.status.get("endpoint")
    if not endpoint:
        raise NotPossible(f"{dataset.key} has no routers yet", hint=dataset.command("status"))
    tls = (dataset.spec.get("router") or {}).get("tls") or {}
    if "clientCA" in tls:
        raise NotPossible(f"the routers of {dataset.key} require a certificate of clients, and the Job has none")
    fetcher, is_sampled = _find_fetcher(shard_set), options.keys is None
    scratch_bytes = str(_SPARE_BYTES + (options.largest_shard_bytes if is_sampled else 0))
    # Kubernetes would replace $(NAME) by a variable such as the token, and $$ by $.
    words = ["load", str(endpoint), *(word.replace("$", "$$") for word in options.words), "--json"]
    environment: list[Members] = [{"name": "TMPDIR", "value": names.SCRATCH_PATH}]
    mounts: list[Members] = [*_SCRATCH_MOUNTS]
    volumes: list[Members] = [{"name": "scratch", "emptyDir": {"sizeLimit": scratch_bytes}}]
    if options.keys is None:
        words += ["--keys=sample", *_read_store_words(fetcher, dataset), "--dataset", dataset.key]
        environment = [*fetcher.get("env", ()), *environment]
        mounts += _find_store_access(fetcher.get("volumeMounts", ()))
        volumes += _find_store_access(shard_set["spec"]["template"]["spec"].get("volumes", ()))
    else:
        words.append(f"--keys={_KEYS_PATH}/keys")
        mounts.append({"name": "load-keys", "mountPath": _KEYS_PATH, "readOnly": True})
        field = {"path": "keys", "fieldRef": {"fieldPath": f"metadata.annotations['{KEYS_ANNOTATION}']"}}
        volumes.append({"name": "load-keys", "downwardAPI": {"items": [field]}})
    if tls:
        words.append(f"--ca-file={_CA_PATH}/{_CA_FILE}")
        mounts.append({"name": "load-ca", "mountPath": _CA_PATH, "readOnly": True})
        volumes.append({"name": "load-ca", **_render_authority(options, str(tls.get("secretName", "")))})
    if options.token is not None:
        reference = {"secretKeyRef": {"name": options.token.name, "key": options.token.key}}
        environment.append({"name": "LOOKUPDB_TOKEN", "valueFrom": reference})
    # A CPU for each sender and one for the parent; half of them are requested.
    memory = f"{_BASE_MEMORY + _SENDER_MEMORY * options.processes}Mi"
    room = {"memory": memory, _STORAGE: scratch_bytes}
    container = {
        **{member: fetcher[member] for member in _CONTAINER_MEMBERS if member in fetcher},
        **({"envFrom": fetcher["envFrom"]} if is_sampled and "envFrom" in fetcher else {}),
        "name": names.LOAD,
        "resources": {
            "requests": {"cpu": f"{500 * (options.processes + 1)}m", **room},
            "limits": {"cpu": str(options.processes + 1), **room},
        },
        "args": words,
        "env": environment,
        "volumeMounts": mounts,
    }
    name = names.command_job(dataset.name, "load", secrets.token_hex(_SUFFIX_BYTES))
    annotations = {} if options.keys is None else {KEYS_ANNOTATION: "".join(f"{key}\n" for key in options.keys)}
    seconds = options.deadline_seconds
    return _render_job(dataset, shard_set, name, LOAD_LABELS, container, volumes, seconds, annotations)


def _render_authority(options: LoadJobOptions, certificate_secret: str) -> dict[str, Any]:
    """Return the volume with the CA of the routers' certificate: the named one, or the one in the certificate's Secret,
    where cert-manager writes it. No other entry of that Secret is mounted."""
    if options.ca_config_map is not None:
        item = {"key": options.ca_config_map.key, "path": _CA_FILE}
        return {"configMap": {"name": options.ca_config_map.name, "items": [item]}}
    chosen = options.ca_secret or ObjectKey(certificate_secret, _CA_FILE)
    return {"secret": {"secretName": chosen.name, "items": [{"key": chosen.key, "path": _CA_FILE}]}}


def _render_job(
    dataset: Dataset,
    shard_set: Members,
    name: str,
    labels: Mapping[str, str],
    container: Members,
    volumes: Sequence[Members],
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
    return names.JOB.make(
        {"name": name, "labels": dict(labels), "ownerReferences": [owner]},
        spec={
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_seconds,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {
                "metadata": {"labels": dict(labels), **({"annotations": dict(annotations)} if annotations else {})},
                "spec": {
                    **{member: template[member] for member in _POD_MEMBERS if member in template},
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": _GRACE_SECONDS,
                    "containers": [container],
                    "volumes": list(volumes),
                },
            },
        },
    )


def choose_shard_set(dataset: Dataset, shard_sets: Sequence[Members]) -> Members:
    """Return the StatefulSet from which the Job is made: the newest of ``shard_sets`` (oldest first) that serves,
    because its image and credentials work; else the newest. Raises NotPossible if there is none."""
    if not shard_sets:
        raise NotPossible(f"{dataset.key} has no shard server yet, from which the Job would take its image and store")
    routed = dataset.routed_shards()
    serving = [body for body in shard_sets if (body["metadata"].get("labels") or {}).get(names.ROLLOUT) in routed]
    return (serving or shard_sets)[-1]


def _find_fetcher(shard_set: Members) -> Members:
    """Return the init container that fetches a shard, with the image and access to the store. Without one, return the
    server itself, which may have the store on a volume."""
    template = shard_set["spec"]["template"]["spec"]
    containers = (*template.get("initContainers", ()), *template["containers"])
    fetcher: Members = next((container for container in containers if container["name"] == FETCH), containers[-1])
    return fetcher


def _read_store_words(fetcher: Members, dataset: Dataset) -> list[str]:
    """Return the options that name the store of ``dataset``. Raises NotPossible if its servers have no access to it."""
    of_dataset, words = ["--uid", dataset.uid], fetcher["args"]
    if fetcher["name"] == FETCH:
        flags = ("--store", "--cluster-id")
        return [*(word for flag in flags for word in (flag, words[words.index(flag) + 1])), *of_dataset]
    folder = PurePosixPath(words[1])
    if len(folder.relative_to(names.DATA_PATH).parts) < _FOLDERS_IN_STORE:
        raise NotPossible(
            f"the servers of {dataset.key} take their shards from images, and have no access to a store",
            hint="run lookupdb where the store can be reached: lookupdb --help",
        )
    store, cluster = str(folder.parents[_FOLDERS_IN_STORE - 1]), folder.parts[-_FOLDERS_IN_STORE]
    return ["--store", store, "--cluster-id", cluster, *of_dataset]


def _find_store_access(members: Iterable[Members]) -> list[Members]:
    """Return the volumes or mounts that hold the gateway's token or the store's folders."""
    return [
        member
        for member in members
        if member["name"] == names.STORE_TOKEN_VOLUME
        or (member["name"] == names.DATA_VOLUME and ("persistentVolumeClaim" in member or "readOnly" in member))
    ]
