"""What an API server answers that does not hang on its state but for one object: discovery, selectors, merges."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lookupdb_operator import kinds
from lookupdb_operator.kinds import Kind

CRD = Kind("CustomResourceDefinition", "apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)
KINDS = (*kinds.ALL, CRD)


def matches(item: dict[str, Any], request: web.Request) -> bool:
    """Whether an object is one that a list or watch selects."""
    for term in filter(None, request.query.get("labelSelector", "").split(",")):
        name, has_value, value = term.partition("=")
        held = item["metadata"]["labels"].get(name)
        if held is None or (has_value and held != value.lstrip("=")):
            return False
    for term in filter(None, request.query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        held = item
        for part in path.split("."):
            held = held.get(part, {}) if isinstance(held, dict) else {}
        if held != value.lstrip("="):
            return False
    return True


def merged(old: Any, new: Any) -> Any:
    """``new`` over ``old``, as a merge patch; lists are replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    both = {name: merged(old.get(name), value) for name, value in new.items()}
    return {**old, **both}


def discovery(parts: list[str]) -> dict[str, Any]:
    """What there is below a path of at most three parts."""
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        versions = sorted({(kind.group, kind.version) for kind in KINDS if kind.group})
        return {
            "kind": "APIGroupList",
            "groups": [
                {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}
                for group, version in versions
            ],
        }
    if parts[0] == "version":
        return {"major": "1", "minor": "36"}
    of = "/".join(parts[1:])
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources = [
        {"name": kind.plural, "singularName": kind.name.lower(), "kind": kind.name, "namespaced": kind.namespaced}
        | {"verbs": verbs}
        for kind in KINDS
        if kind.api_version == of
    ]
    return {"kind": "APIResourceList", "groupVersion": of, "resources": resources}
