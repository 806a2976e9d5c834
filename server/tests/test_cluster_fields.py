"""The fields of a manifest that apply only in a cluster, and the message about each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lookupdb.dataset.spec import CLUSTER_FIELDS, DatasetSpec, describe_left_out, parse_resource

EACH: dict[str, dict[str, Any]] = {
    "store": {"store": {"url": "s3://team/lookups", "secretName": "people-store"}},
    "adopt": {"adopt": {"uid": "3f2b9c1e"}},
    "sync": {"sync": {"keep": 3}},
    "router.tls": {"router": {"tls": {"secretName": "people-tls"}}},
    "router.auth": {"router": {"auth": {"tokens": {"secretName": "people-clients"}}}},
}


def parsed(**spec: Any) -> DatasetSpec:
    full = {"source": {"url": "people.csv"}, "key": {"columns": ["id"]}} | spec
    resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": {"name": "people"}}
    return parse_resource({**resource, "spec": full}, base=Path("/"))


def test_a_manifest_without_them_has_none() -> None:
    assert parsed().cluster_fields == ()


def test_each_has_an_example_here() -> None:
    assert EACH.keys() == CLUSTER_FIELDS.keys()


@pytest.mark.parametrize("path", EACH)
def test_each_is_found_and_said_in_a_line(path: str) -> None:
    spec = parsed(**EACH[path])
    assert spec.cluster_fields == (path,)
    assert spec.content_hash() == parsed().content_hash()
    assert DatasetSpec.from_json(spec.to_json()) == spec
    (line,) = describe_left_out(spec.cluster_fields)
    assert line.startswith(f"spec.{path} applies only in a cluster: ")
    assert "\n" not in line
