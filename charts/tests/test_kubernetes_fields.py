"""Detection of changed objects by managedFields, checked against Kubernetes' own schemas, which define what one field
is."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart_support import ROOT, schema_of
from lookupdb_operator import manifests, names

Json = Any

GOLDEN = sorted((ROOT / "operator" / "tests" / "golden").glob("*/*.yaml"))
OBJECTS = [
    pytest.param(item, id=f"{path.parent.name} {item['kind']} {item['metadata']['name']}")
    for path in GOLDEN
    for item in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if item["kind"] not in (names.KIND, "Job", "Secret")  # a Job cannot be changed; Secrets are never read
]


@pytest.mark.parametrize("manifest", OBJECTS)
def test_what_an_api_server_holds_is_as_it_was_written(manifest: Json) -> None:
    assert manifests.hash_held_fields(held(manifest)) == stamp(manifest)


@pytest.mark.parametrize("manifest", OBJECTS)
def test_every_change_of_a_field_is_noticed(manifest: Json) -> None:
    body, fields = held(manifest), fields_of_manifest(manifest)
    paths = list(leaves(fields))
    assert len(paths) >= 10
    fingerprint = manifests.take_fingerprint(body)
    for path in paths:
        if path[-1] in IGNORED:
            continue
        taken = copy.deepcopy(fields)
        _take(taken, path)
        body["metadata"]["managedFields"] = managed(taken)
        assert manifests.hash_held_fields(body) != stamp(manifest), path
        assert manifests.take_fingerprint(body) != fingerprint, path


IGNORED = (f"f:{names.DIGEST}", f"f:{names.FIELDS}", "f:replicas")
"""The two stamps, which cannot cover themselves, and the field of autoscalers."""


def stamp(manifest: Json) -> str:
    text: str = manifest["metadata"]["annotations"][names.FIELDS]
    return text


def held(manifest: Json) -> Json:
    """Return ``manifest`` as an API server holds it: with defaults, fields of others, and managedFields."""
    body = copy.deepcopy(manifest)
    body["metadata"]["managedFields"] = managed(fields_of_manifest(manifest))
    body["metadata"] |= {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    spec = body.get("spec") or {}
    if "template" in spec:
        pod = spec["template"]["spec"]
        pod |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            container |= {"terminationMessagePath": "/dev/termination-log"}
            for amounts in container["resources"].values():
                amounts |= {name: CANONICAL.get(amount, amount) for name, amount in amounts.items()}
            for port in container.get("ports", ()):
                port["hostPort"] = 0
    if body["kind"] == "Service":
        spec |= {"ipFamilies": ["IPv4"], "sessionAffinity": "None"}
        spec["ports"].reverse()
    return body


CANONICAL = {"2500m": "2500m", "128Mi": "131072Ki", "250m": "0.25", "2": "2000m"}
"""Other spellings of quantities in the golden files."""


def managed(fields: Json) -> Json:
    other = {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:status": {}}}
    return [other, {"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}]


def fields_of_manifest(manifest: Json) -> Json:
    """Return FieldsV1 of the manager that applies ``manifest``, as structured-merge-diff notes them."""
    schema = schema_of(manifest)
    fields = fields_of(manifest, schema, schema["definitions"])
    for name in ("f:apiVersion", "f:kind"):
        del fields[name]
    for name in ("f:name", "f:namespace"):
        del fields["f:metadata"][name]
    return fields


def fields_of(value: Json, schema: Json, definitions: Json) -> Json:
    list_type, map_type = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-map-type")
    target = resolved(schema, definitions)
    list_type = list_type or target.get("x-kubernetes-list-type")
    map_type = map_type or target.get("x-kubernetes-map-type")
    if isinstance(value, dict) and value and map_type != "atomic":
        below = target.get("properties", {})
        free = target.get("additionalProperties") or {}
        return {f"f:{name}": fields_of(member, below.get(name) or free, definitions) for name, member in value.items()}
    if isinstance(value, list) and list_type == "map":
        keys = schema.get("x-kubernetes-list-map-keys") or target["x-kubernetes-list-map-keys"]
        return {
            "k:" + json.dumps({key: item[key] for key in keys}): {
                **(
                    {} if resolved(target["items"], definitions).get("x-kubernetes-map-type") == "atomic" else {".": {}}
                ),
                **fields_of(item, target["items"], definitions),
            }
            for item in value
        }
    assert not (isinstance(value, list) and list_type == "set"), "no list of ours is a set"
    return {}


def resolved(schema: Json, definitions: Json) -> Json:
    """Return ``schema``, or the definition that it refers to."""
    for part in (schema, *schema.get("allOf", ()), *schema.get("oneOf", ()), *schema.get("anyOf", ())):
        if "$ref" in part:
            return definitions[part["$ref"].rpartition("/")[2]]
    return schema


def leaves(fields: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, below in fields.items():
        if name == ".":
            continue
        if any(member != "." for member in below):
            yield from leaves(below, (*path, name))
        else:
            yield (*path, name)


def _take(fields: Json, path: tuple[str, ...]) -> None:
    """Remove a field, and every parent that is empty then."""
    name, *rest = path
    if rest:
        _take(fields[name], tuple(rest))
    if not rest or not fields[name]:
        del fields[name]
