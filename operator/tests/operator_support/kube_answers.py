"""The kinds of an API server, and the objects that a list or watch selects."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lookupdb_operator import names
from lookupdb_operator.names import Kind

CRD = Kind("CustomResourceDefinition", "apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)
KINDS = (*names.ALL, CRD)


def matches(item: dict[str, Any], request: web.Request) -> bool:
    """Return whether a list or watch selects the object."""
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
