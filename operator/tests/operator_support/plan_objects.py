"""Objects and pods of the model cluster, and how long things take."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson

from lookupdb.dataset import schema, spec
from lookupdb_operator import names
from lookupdb_operator.manifests import content_mark, read_digest, read_table_version
from lookupdb_operator.model import BuildResult, ExistingObject, Manifest, ObjectRef, Trouble

NAMESPACE, NAME, UID = "default", "airports", "uid-1"
_METADATA: Final = {"namespace": NAMESPACE, "name": NAME, "uid": UID}


@dataclass
class Thing:
    """One object other than a pod."""

    manifest: Manifest
    uid: str
    born: datetime
    changed: datetime
    observed: tuple[Manifest, ExistingObject] | None = None
    """The operator's last observation of it, and of which manifest: manifests are replaced, never changed."""
    edited: Manifest | None = None
    """An edit by hand, until the next write."""


@dataclass
class Process:
    """One pod and what runs in it."""

    name: str
    uid: str
    owner: str
    """uid of its maker."""
    component: str
    labels: Mapping[str, str]
    born: datetime
    ready: bool = False
    ended: bool = False
    dies_at: datetime | None = None
    deleted_at: datetime | None = None
    finalizers: tuple[str, ...] = ()
    is_lost: bool = False
    """Its node is gone, and nobody there ends it."""
    annotation: str = ""
    trouble: Trouble | None = None
    result: BuildResult | None = None
    table: dict[str, Any] | None = None
    """The routing table that a router answers from."""
    mounted: dict[str, Any] | None = None
    """The routing table that its kubelet has synced, which a router reads when it restarts."""
    down_until: datetime | None = None
    """When a router's container, which has ended, restarts."""
    nudged: datetime | None = None
    template: str = ""
    """Hash of a router's pod template in the Deployment."""
    needs_secret: bool = False
    """True: it needs the store's Secret to start."""
    keys: dict[str, bytes] = field(default_factory=dict)
    """Fingerprints of the password keys that a router has read, until it restarts."""


@dataclass
class Takes:
    """Durations in seconds."""

    build: float = 3
    start: float = 2
    router_start: float = 1
    table: float = 1
    slow_table: float = 20
    """Without the nudge."""
    stop: float = 1


@functools.lru_cache(maxsize=1000)
def completed(given: bytes) -> tuple[dict[str, Any], spec.DatasetSpec, dict[Any, Any]]:
    """Return a spec with its defaults, the same parsed, and its renderings, which worlds with the same spec share."""
    members: dict[str, Any] = orjson.loads(given)
    whole = {
        **_complete(b"{}"),
        **{
            name: _complete(orjson.dumps({name: value}, option=orjson.OPT_SORT_KEYS))[name]
            for name, value in members.items()
        },
    }
    return whole, spec.parse_completed_resource({"metadata": _METADATA, "spec": whole}), {}


@functools.cache
def _complete(given: bytes) -> dict[str, Any]:
    """Return the smallest spec with these members, checked and completed as the API server does. Lives combine a few
    dozen values in thousands of ways, and no CRD rule is about two of them together."""
    least = {"source": {"url": "s3://data/v1.csv"}, "key": {"columns": ["id"]}}
    resource = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": _METADATA}
    whole: dict[str, Any] = schema.complete_resource({**resource, "spec": {**least, **orjson.loads(given)}})["spec"]
    return whole


def ref(thing: Thing) -> ObjectRef:
    """Its name and uid."""
    return ObjectRef(thing.manifest["kind"], thing.manifest["metadata"]["name"], thing.uid)


def is_push(thing: Thing) -> bool:
    """Return whether it is the Job that pushes a rollout's images."""
    return thing.manifest["kind"] == "Job" and bool(names.read_rollout(thing.manifest["metadata"]["name"]))


def label(thing: Thing, name: str) -> str:
    """Return one of its labels; empty if it has none of that name."""
    return str(thing.manifest["metadata"]["labels"].get(name, ""))


def existing(thing: Thing) -> ExistingObject:
    """Return it as the operator observes it."""
    if thing.observed is None or thing.observed[0] is not thing.manifest:
        thing.observed = thing.manifest, _observe(thing)
    return thing.observed[1]


def _observe(thing: Thing) -> ExistingObject:
    rollout, build = names.read_rollout(ref(thing).name), names.read_build(ref(thing).name)
    labels = rollout, label(thing, names.GENERATION) if rollout else build
    version = int(thing.manifest["metadata"]["annotations"].get(names.TABLE_VERSION, 0))
    replicas = thing.manifest["spec"]["replicas"] if thing.manifest["kind"] == "Deployment" else 0
    return ExistingObject(
        ref(thing),
        read_digest(thing.manifest),
        *labels,
        version,
        replicas=replicas,
        text_version=read_table_version(thing.manifest),
        content=content_mark(thing.manifest),
        changed="edited" if thing.edited is thing.manifest else "",
        changed_by="by-hand" if thing.edited is thing.manifest else "",
        trouble=thing.manifest.get("failure"),
        push_state=thing.manifest.get("state", "Running") if is_push(thing) else None,
    )
