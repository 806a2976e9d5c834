"""What there is in the model cluster: objects, pods, how long things take."""

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
    """One object that is no pod."""

    manifest: Manifest
    uid: str
    born: datetime
    changed: datetime
    observed: tuple[Manifest, ExistingObject] | None = None
    """What the operator last observed of it, and of which manifest: manifests are replaced, never changed."""
    edited: Manifest | None = None
    """What somebody has made of it by hand, until it is written again."""


@dataclass
class Process:
    """One pod, with what runs in it."""

    name: str
    uid: str
    owner: str
    """uid of what made it."""
    component: str
    labels: Mapping[str, str]
    born: datetime
    ready: bool = False
    ended: bool = False
    dies_at: datetime | None = None
    deleted_at: datetime | None = None
    finalizers: tuple[str, ...] = ()
    is_lost: bool = False
    """Its node is gone, and nobody ends it there."""
    annotation: str = ""
    trouble: Trouble | None = None
    result: BuildResult | None = None
    table: dict[str, Any] | None = None
    """The routing table that a router answers from."""
    mounted: dict[str, Any] | None = None
    """The routing table that its kubelet has synced: what a router reads when it starts again."""
    down_until: datetime | None = None
    """A router's container has ended and is started again then."""
    nudged: datetime | None = None
    template: str = ""
    """Of its pod, as the Deployment had it: of a router."""
    needs_secret: bool = False
    """Whether it is not started without the store's Secret."""
    keys: dict[str, bytes] = field(default_factory=dict)
    """The keys of passwords that a router has read, by their fingerprints, until it starts again."""


@dataclass
class Takes:
    """Seconds."""

    build: float = 3
    start: float = 2
    router_start: float = 1
    table: float = 1
    slow_table: float = 20
    """Without the nudge."""
    stop: float = 1


@functools.lru_cache(maxsize=1000)
def completed(given: bytes) -> tuple[dict[str, Any], spec.DatasetSpec, dict[Any, Any]]:
    """A spec with its defaults, the same parsed, and what is rendered of it, which worlds that ask for it share."""
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
    """The least spec with these members, checked and completed as the API server does. Lives combine some dozen values
    of members in thousands of ways, and no rule of the CRD is about two that they combine."""
    least = {"source": {"url": "s3://data/v1.csv"}, "key": {"columns": ["id"]}}
    resource = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": _METADATA}
    whole: dict[str, Any] = schema.complete_resource({**resource, "spec": {**least, **orjson.loads(given)}})["spec"]
    return whole


def ref(thing: Thing) -> ObjectRef:
    """Its name and uid."""
    return ObjectRef(thing.manifest["kind"], thing.manifest["metadata"]["name"], thing.uid)


def is_push(thing: Thing) -> bool:
    """Whether it is the Job that pushes a rollout's images."""
    return thing.manifest["kind"] == "Job" and bool(names.read_rollout(thing.manifest["metadata"]["name"]))


def label(thing: Thing, name: str) -> str:
    """One of its labels; empty when it has none of that name."""
    return str(thing.manifest["metadata"]["labels"].get(name, ""))


def existing(thing: Thing) -> ExistingObject:
    """As the operator observes it."""
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
