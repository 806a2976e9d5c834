"""What an API server stores of a status when its CustomResourceDefinition is older than the operator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from lookupdb import schema

Object = dict[str, Any]


def pruning(*paths: str) -> Callable[[Object], Object]:
    """What the CRD leaves of a status, without the fields ``paths`` of the status (``rollouts[].push``)."""
    fields = copy.deepcopy(schema.resource_schema()["properties"]["status"])
    for path in paths:
        node, (*parents, name) = fields, path.split(".")
        for parent in parents:
            node = node["properties"][parent.removesuffix("[]")]
            node = node["items"] if parent.endswith("[]") else node
        del node["properties"][name]
        node["required"] = [required for required in node.get("required", []) if required != name]
    return lambda status: _pruned(status, fields)


def _pruned(value: Any, fields: Object) -> Any:
    if isinstance(value, list):
        return [_pruned(item, fields["items"]) for item in value]
    if isinstance(value, dict) and "properties" in fields:
        known = fields["properties"]
        return {name: _pruned(item, known[name]) for name, item in value.items() if name in known}
    return value
