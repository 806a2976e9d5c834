"""An operator beside a CustomResourceDefinition that is older, newer, or missing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from operator_support.kube import Kube, Refusal
from operator_support.kube_story import dataset, seen, step_to_build
from operator_support.running import Running, operating, options, until

from lookupdb.dataset import schema
from lookupdb_operator import main
from lookupdb_operator.main import OutdatedCrd, find_missing

pytest_plugins = ["operator_support.cluster_fixtures"]

Object = dict[str, Any]
PATH = "/openapi/v3/apis/lookupdb.dev/v1alpha1"


def crd_without(*paths: str) -> Object:
    """Return the CRD's schema without the fields ``paths`` (``status.rollouts[].push``)."""
    changed = copy.deepcopy(schema.resource_schema())
    for path in paths:
        node, (*parents, name) = changed, path.split(".")
        for parent in parents:
            node = node["properties"][parent.removesuffix("[]")]
            node = node["items"] if parent.endswith("[]") else node
        del node["properties"][name]
    return changed


def test_the_same_crd_lacks_nothing() -> None:
    assert list(find_missing(schema.resource_schema(), schema.resource_schema())) == []


@pytest.mark.parametrize(
    "paths",
    [
        ("status.rollouts[].push",),
        ("spec.sync",),
        ("spec.gates.maxShrinkPercent", "status.phase"),
        ("spec",),
        ("status",),
    ],
)
def test_each_field_that_an_older_crd_lacks_is_found(paths: tuple[str, ...]) -> None:
    found = list(find_missing(schema.resource_schema(), crd_without(*paths)))
    for path in paths:
        assert [each for each in found if each == path or each.startswith(f"{path}.")], found
    assert all(each.startswith(paths) for each in found)


def test_values_that_an_older_crd_refuses_are_found() -> None:
    older = copy.deepcopy(schema.resource_schema())
    older["properties"]["spec"]["properties"]["deletionPolicy"]["enum"].remove("Retain")
    assert list(find_missing(schema.resource_schema(), older)) == ["spec.deletionPolicy=Retain"]


@pytest.mark.parametrize("member", ["items", "additionalProperties"])
def test_what_lies_in_lists_and_maps_is_compared(member: str) -> None:
    def of(fields: Object) -> Object:
        inner = {"type": "object", "properties": fields}
        return {"properties": {"spec": {"properties": {"x": {member: inner}}}, "status": {}}}

    suffix = {"items": "[]", "additionalProperties": ".*"}[member]
    assert list(find_missing(of({"a": {}, "b": {}}), of({"a": {}}))) == [f"spec.x{suffix}.b"]
    anything = {"properties": {"spec": {"x-kubernetes-preserve-unknown-fields": True}, "status": {}}}
    assert list(find_missing(of({"a": {}}), anything)) == []


def test_a_newer_crd_lacks_nothing() -> None:
    newer = copy.deepcopy(schema.resource_schema())
    newer["properties"]["status"]["properties"]["new"] = {"type": "string"}
    newer["properties"]["spec"]["properties"]["deletionPolicy"]["enum"].append("New")
    assert list(find_missing(schema.resource_schema(), newer)) == []


async def test_an_operator_ends_beside_an_older_crd_and_says_what_mends_it(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main.wait_for_crd, "__defaults__", (0.5,))
    kube.crd = crd_without("status.rollouts[].push", "spec.sync")
    kube.put(dataset())
    operator = Running(options(), None)
    operator.start()
    try:
        await until(lambda: any("lacks 2 of" in message for message in caplog.messages), "the sentence")
    finally:
        await operator.stop()
    error = operator.error
    assert isinstance(error, OutdatedCrd)
    assert "lookupdatasets.lookupdb.dev of this cluster lacks 2 of the fields and values" in str(error)
    assert "spec.sync, status.rollouts[].push" in str(error)
    assert "kubectl apply --server-side -f crds/" in (error.hint or "")
    assert kube.writes == []
    assert not any(record.exc_info for record in caplog.records), "a sentence, and no traceback"


async def test_a_crd_that_is_upgraded_just_now_is_waited_for_and_no_probe_is_answered(kube: Kube) -> None:
    kube.crd = crd_without("status.rollouts[].push")
    kube.put(dataset())
    async with operating(options()) as operator:
        await until(lambda: kube.reads.count(("GET", PATH)) > 1, "a second look", lambda: seen(kube))
        assert await operator.ask("/healthz") == (0, "")
        kube.crd = schema.resource_schema()
        await step_to_build(kube)
        assert (await operator.ask("/healthz"))[0] == 200


async def test_a_crd_that_is_not_there_yet_is_waited_for(kube: Kube, caplog: pytest.LogCaptureFixture) -> None:
    kube.crd = None
    kube.put(dataset())
    async with operating(options()):
        await until(lambda: kube.reads.count(("GET", PATH)) > 1, "a second look", lambda: seen(kube))
        assert any("does not publish the schema" in message for message in caplog.messages)
        kube.crd = schema.resource_schema()
        await step_to_build(kube)


async def test_who_may_not_read_the_schema_finds_that_in_the_log(kube: Kube, caplog: pytest.LogCaptureFixture) -> None:
    kube.refused[PATH] = Refusal(403, f'User "x" cannot get path "{PATH}"')
    kube.put(dataset())
    async with operating(options()):
        await until(lambda: any("cannot get path" in message for message in caplog.messages), "a line", lambda: "")
        del kube.refused[PATH]
        await step_to_build(kube)
