"""The Job that puts a load on a dataset's routers, within the cluster. Pure but for a random name.

It is made from the StatefulSet of a shard: its init container has the image, and what reads the store where keys are
sampled. It has no token of the API server. It asks the routers' Service as any client does: where a NetworkPolicy says
who may, it has to name ``LABELS``.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.plugin.changes import NotPossible
from lookupdb_operator.plugin.dataset import Dataset, Members
from lookupdb_operator.plugin.job_template import (
    CONTAINER_MEMBERS,
    SCRATCH,
    SPARE_BYTES,
    STORAGE,
    find_fetcher,
    find_store_access,
    read_store_words,
    render_job,
)

LABELS: Final = {names.APP: "lookupdb", names.COMPONENT: names.LOAD}
"""Not those by which the operator knows what is its own. NetworkPolicies that name clients of routers go by them, and
the chart's of the store."""
MAX_KEY_BYTES: Final = 200_000
"""Of keys that are given: an object's annotations, of which they are one, have 256 KiB."""
KEYS_ANNOTATION: Final = f"{names.GROUP}/load-keys"
_KEYS_PATH: Final = "/etc/lookupdb/load"
_CA_PATH: Final = "/etc/lookupdb/load-ca"
_CA_FILE: Final = "ca.crt"
_SUFFIX_BYTES: Final = 4
_BASE_MEMORY: Final = 256
_SENDER_MEMORY: Final = 256
"""MiB."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """A member of a Secret or a ConfigMap."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class LoadJobOptions:
    """What a person has asked for."""

    words: Sequence[str]
    """Of `lookupdb load`, but for the router, the keys, and what the result goes to."""
    processes: int
    keys: Sequence[str] | None
    """None: a sample of the generation that answers, or is asked for."""
    largest_shard_bytes: int
    """Of that one: its shards are copied from the store one by one."""
    token: ObjectKey | None = None
    """In a Secret."""
    ca_secret: ObjectKey | None = None
    ca_config_map: ObjectKey | None = None
    deadline_seconds: int = 3600


def render_load_job(dataset: Dataset, shard_set: Members, options: LoadJobOptions) -> dict[str, Any]:
    """The Job. Its log has the result, a line of JSON. Raises NotPossible for routers that cannot be asked so."""
    endpoint = dataset.status.get("endpoint")
    if not endpoint:
        raise NotPossible(f"{dataset.key} has no routers yet", hint=f"kubectl lookupdb status -n {dataset.namespace}")
    tls = (dataset.spec.get("router") or {}).get("tls") or {}
    if "clientCA" in tls:
        raise NotPossible(f"the routers of {dataset.key} want clients to have a certificate, and the Job has none")
    authority = _render_authority(options, str(tls.get("secretName", ""))) if tls else None
    template = shard_set["spec"]["template"]["spec"]
    token = find_store_access(template.get("volumes", ())) if options.keys is None else []
    return render_job(
        dataset,
        shard_set,
        names.load_job(dataset.name, secrets.token_hex(_SUFFIX_BYTES)),
        LABELS,
        _render_container(dataset, shard_set, options, str(endpoint), has_authority=authority is not None),
        [
            {"name": "scratch", "emptyDir": {"sizeLimit": str(_count_scratch_bytes(options))}},
            *([] if options.keys is None else [_KEYS_VOLUME]),
            *([] if authority is None else [{"name": "load-ca", **authority}]),
            *token,
        ],
        deadline_seconds=options.deadline_seconds,
        annotations=None if options.keys is None else {KEYS_ANNOTATION: "".join(f"{key}\n" for key in options.keys)},
    )


_KEYS_VOLUME: Final = {
    "name": "load-keys",
    "downwardAPI": {
        "items": [{"path": "keys", "fieldRef": {"fieldPath": f"metadata.annotations['{KEYS_ANNOTATION}']"}}]
    },
}


def _render_authority(options: LoadJobOptions, certificate_secret: str) -> dict[str, Any]:
    """The volume with the authority of the routers' certificate: the one that is named, or that which stands beside the
    certificate, as cert-manager writes it. Nothing else of its Secret is mounted."""
    if options.ca_config_map is not None:
        item = {"key": options.ca_config_map.key, "path": _CA_FILE}
        return {"configMap": {"name": options.ca_config_map.name, "items": [item]}}
    chosen = options.ca_secret or ObjectKey(certificate_secret, _CA_FILE)
    return {"secret": {"secretName": chosen.name, "items": [{"key": chosen.key, "path": _CA_FILE}]}}


def _render_container(
    dataset: Dataset, shard_set: Members, options: LoadJobOptions, endpoint: str, *, has_authority: bool
) -> dict[str, Any]:
    fetcher = find_fetcher(shard_set)
    is_sampled = options.keys is None
    # Kubernetes would write variables, such as the token, in place of $(NAME), and $ in place of $$.
    given = [word.replace("$", "$$") for word in options.words]
    words = ["load", endpoint, *given, "--json=-"]
    words += ["--keys=sample", *read_store_words(fetcher, dataset)] if is_sampled else [f"--keys={_KEYS_PATH}/keys"]
    mounts: list[dict[str, Any]] = [{"name": "scratch", "mountPath": path} for path in (SCRATCH, "/tmp")]  # noqa: S108 - of the pod's own
    if not is_sampled:
        mounts.append({"name": "load-keys", "mountPath": _KEYS_PATH, "readOnly": True})
    if has_authority:
        mounts.append({"name": "load-ca", "mountPath": _CA_PATH, "readOnly": True})
        words.append(f"--ca-file={_CA_PATH}/{_CA_FILE}")
    environment = [*(fetcher.get("env", ()) if is_sampled else ()), {"name": "TMPDIR", "value": SCRATCH}]
    if options.token is not None:
        reference = {"secretKeyRef": {"name": options.token.name, "key": options.token.key}}
        environment.append({"name": "LOOKUPDB_TOKEN", "valueFrom": reference})
    return {
        **{member: fetcher[member] for member in CONTAINER_MEMBERS if member in fetcher},
        **({"envFrom": fetcher["envFrom"]} if is_sampled and "envFrom" in fetcher else {}),
        "name": names.LOAD,
        "resources": _render_resources(options),
        "args": words,
        "env": environment,
        "volumeMounts": [*mounts, *(find_store_access(fetcher.get("volumeMounts", ())) if is_sampled else ())],
    }


def _render_resources(options: LoadJobOptions) -> dict[str, Any]:
    """A processor for each sender and one for what reads them; of these half is reserved."""
    memory = f"{_BASE_MEMORY + _SENDER_MEMORY * options.processes}Mi"
    storage = str(_count_scratch_bytes(options))
    return {
        "requests": {"cpu": f"{500 * (options.processes + 1)}m", "memory": memory, STORAGE: storage},
        "limits": {"cpu": str(options.processes + 1), "memory": memory, STORAGE: storage},
    }


def _count_scratch_bytes(options: LoadJobOptions) -> int:
    return SPARE_BYTES + (options.largest_shard_bytes if options.keys is None else 0)
