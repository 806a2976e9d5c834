"""What there is in the model cluster: objects, pods, how long things take."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from lookupdb import schema, spec
from lookupdb_operator import names
from lookupdb_operator.manifests import read_digest
from lookupdb_operator.model import BuildResult, ExistingObject, Manifest, ObjectRef, Trouble

NAMESPACE, NAME, UID = "default", "airports", "uid-1"


@dataclass
class Thing:
    """One object that is no pod."""

    manifest: Manifest
    uid: str
    born: datetime
    changed: datetime


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
    lost_at: datetime | None = None
    """Its node is gone; from then on nobody waits for it."""
    annotation: str = ""
    trouble: Trouble | None = None
    result: BuildResult | None = None
    table: dict[str, Any] | None = None
    """The routing table that a router answers from."""
    mounted: dict[str, Any] | None = None
    """The routing table that its kubelet has synced: what a router reads when it starts anew."""
    down_until: datetime | None = None
    """A router's container has ended and is started anew then."""
    nudged: datetime | None = None
    template: str = ""
    """Of its pod, as the Deployment had it: of a router."""


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


@functools.cache
def completed(given: bytes) -> tuple[dict[str, Any], spec.DatasetSpec, dict[Any, Any]]:
    """A spec with its defaults, the same parsed, and what is rendered of it, which worlds that ask for it share."""
    metadata = {"namespace": NAMESPACE, "name": NAME, "uid": UID}
    resource = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": orjson.loads(given)}
    whole = schema.complete_resource(resource)
    return whole["spec"], spec.parse_completed_resource(whole), {}


def ref(thing: Thing) -> ObjectRef:
    """Its name and uid."""
    return ObjectRef(thing.manifest["kind"], thing.manifest["metadata"]["name"], thing.uid)


def label(thing: Thing, name: str) -> str:
    """One of its labels; empty when it has none of that name."""
    return str(thing.manifest["metadata"]["labels"].get(name, ""))


def existing(thing: Thing) -> ExistingObject:
    """As the operator observes it."""
    labels = label(thing, names.ROLLOUT), label(thing, names.GENERATION)
    version = int(thing.manifest["metadata"]["annotations"].get(names.TABLE_VERSION, 0))
    replicas = thing.manifest["spec"]["replicas"] if thing.manifest["kind"] == "Deployment" else 0
    return ExistingObject(ref(thing), read_digest(thing.manifest), *labels, version, replicas)
