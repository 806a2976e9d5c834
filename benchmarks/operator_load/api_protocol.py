"""Requests and answers of an API server, whatever it holds. The simulator here uses it, and so does the operator tests'
server in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lookupdb.dataset import schema
from lookupdb_operator import names
from lookupdb_operator.names import DATASET_KIND, Kind

Object = dict[str, Any]

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True)
class ResourcePath:
    """The parts of a request's path."""

    api_version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> ResourcePath | None:
    """Return the resource of ``path``; None for a question about resources."""
    parts = path.strip("/").split("/")
    length = 2 if parts[0] == "api" else 3
    if parts[0] not in ("api", "apis") or len(parts) <= length:
        return None
    version, rest, namespace = "/".join(parts[1:length]), parts[length:], ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return ResourcePath(version, rest[0], namespace, *rest[1:2], *(["/".join(rest[2:])] if len(rest) > 2 else []))


def discovery(path: str, kinds: Iterable[Kind]) -> Object:
    """Return the answer below ``path`` when it names no resource."""
    parts = path.strip("/").split("/")
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        versions = sorted({(kind.group, kind.version) for kind in kinds if kind.group})
        return {
            "kind": "APIGroupList",
            "groups": [
                {"name": group, "versions": [named], "preferredVersion": named}
                for group, version in versions
                for named in [{"groupVersion": f"{group}/{version}", "version": version}]
            ],
        }
    if parts[0] == "openapi":
        return openapi(schema.resource_schema())
    if parts[0] == "version":
        return {"major": "1", "minor": "36"}
    api_version = "/".join(parts[1:])
    resources = [
        {"name": kind.plural, "singularName": kind.name.lower(), "kind": kind.name, "namespaced": kind.namespaced}
        | {"verbs": _VERBS}
        for kind in kinds
        if kind.api_version == api_version
    ]
    return {"kind": "APIResourceList", "groupVersion": api_version, "resources": resources}


def openapi(crd_schema: Object) -> Object:
    """Return the document of the group of LookupDatasets, whose CustomResourceDefinition has ``crd_schema``."""
    kind = {"group": DATASET_KIND.group, "version": DATASET_KIND.version, "kind": DATASET_KIND.name}
    named = {"dev.lookupdb.v1alpha1.LookupDataset": {**crd_schema, "x-kubernetes-group-version-kind": [kind]}}
    return {"openapi": "3.0.0", "components": {"schemas": named}}


def merge_patch(old: Any, new: Any) -> Any:
    """Merge ``new`` into ``old`` (RFC 7386): lists are replaced, null removes a member."""
    if not isinstance(new, dict):
        return new
    held = old if isinstance(old, dict) else {}
    merged = {name: merge_patch(held.get(name), value) for name, value in new.items() if value is not None}
    return {name: value for name, value in {**held, **merged}.items() if name not in new or new[name] is not None}


def build_result(job: Object) -> Object:
    """Return the final message of ``job``'s builder after a success."""
    generation = job["metadata"]["labels"][names.GENERATION]
    return {
        "outcome": "built",
        "generation": generation,
        "fingerprint": f"of-{generation}",
        "records": 28000,
        "fileBytes": 4 << 20,
        "largestShardBytes": 1 << 20,
        "builtAt": "2030-01-01T00:00:00Z",
    }


def check_result(job: Object) -> Object:
    """Return the final message of ``job``'s builder if the source has not changed."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = container["args"]
    return {"outcome": "unchanged", "fingerprint": words[words.index("--unless-fingerprint") + 1]}
