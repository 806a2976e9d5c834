"""Digests of objects, of the inputs of a build, and of the pods of a rollout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from manifest_samples import BUILD, CONFIG, FULL_CONFIG, airports, everything, generation, rendered, rollout

from lookupdb_operator import manifests, names
from lookupdb_operator.manifests.objects import digest, stamp
from lookupdb_operator.model import Config

RESOURCES = {"limits": {"memory": "3Gi"}}


def _config(**members: Any) -> Config:
    return dataclasses.replace(CONFIG, **members)


def test_equal_content_has_equal_digests_whatever_the_order_of_members() -> None:
    one = {"metadata": {"name": "a", "labels": {"x": "1", "y": "2"}}, "data": {"k": "v"}}
    other = {"data": {"k": "v"}, "metadata": {"labels": {"y": "2", "x": "1"}, "name": "a"}}
    assert manifests.read_digest(stamp(one)) == manifests.read_digest(stamp(other))


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata": {"name": "a"}, "data": {"k": "w"}},
        {"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"k": "v"}},
        {"metadata": {"name": "a"}, "data": {"k": "v", "l": ""}},
        {"metadata": {"name": "a"}, "data": {"k": ["v"]}},
    ],
)
def test_other_content_has_another_digest(changed: dict[str, Any]) -> None:
    assert manifests.read_digest(stamp({"metadata": {"name": "a"}, "data": {"k": "v"}})) != manifests.read_digest(
        stamp(changed)
    )


def test_a_digest_is_sixteen_hex_digits_of_the_object_without_it() -> None:
    for objects in rendered(everything(), FULL_CONFIG).values():
        for manifest in objects:
            annotations = {
                k: v for k, v in manifest["metadata"]["annotations"].items() if k not in (names.DIGEST, names.FIELDS)
            }
            bare = {**manifest, "metadata": {k: v for k, v in manifest["metadata"].items() if k != "annotations"}}
            if annotations:
                bare["metadata"]["annotations"] = annotations
            if manifest["kind"] == "Deployment":  # an autoscaler may own its number of pods
                bare["spec"] = {name: value for name, value in bare["spec"].items() if name != "replicas"}
            assert manifests.read_digest(manifest) == digest(bare)
            assert len(manifests.read_digest(manifest)) == 16


@pytest.mark.parametrize("held", [{}, {"metadata": {}}, {"metadata": {"annotations": None}}, {"metadata": None}])
def test_an_object_without_digest_has_an_empty_one(held: dict[str, Any]) -> None:
    assert manifests.read_digest(held) == ""


def test_stamping_leaves_its_argument_alone() -> None:
    manifest: dict[str, Any] = {"metadata": {"name": "a", "annotations": {"b": "c"}}}
    assert stamp(manifest)["metadata"]["annotations"].keys() == {"b", names.DIGEST, names.FIELDS}
    assert manifest == {"metadata": {"name": "a", "annotations": {"b": "c"}}}


def test_rendering_twice_gives_the_same() -> None:
    assert rendered(everything(), FULL_CONFIG) == rendered(everything(), FULL_CONFIG)


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        pytest.param({"gates": {"minRecords": 1}}, CONFIG, id="a gate"),
        pytest.param({"key": {"columns": ["iata"]}}, CONFIG, id="content"),
        pytest.param({"shards": 5}, CONFIG, id="shards"),
        pytest.param({"build": {"resources": RESOURCES}}, CONFIG, id="memory"),
        pytest.param({"build": {"deadlineSeconds": 100}}, CONFIG, id="deadline"),
        pytest.param({"build": {"scratchSize": "1Gi"}}, CONFIG, id="scratch"),
        pytest.param({"image": "other"}, CONFIG, id="image"),
        pytest.param({"scheduling": {"nodeSelector": {"a": "b"}}}, CONFIG, id="scheduling"),
        pytest.param({"build": {"pod": {"extraEnv": [{"name": "A", "value": "b"}]}}}, CONFIG, id="its pod"),
        pytest.param({}, _config(image="other"), id="the operator's image"),
        pytest.param({}, _config(store="s3://other"), id="store"),
        pytest.param({}, _config(cluster="c2"), id="cluster"),
        pytest.param({}, _config(image_pull_secrets=("s",)), id="the operator's pull secrets"),
    ],
)
def test_a_build_is_superseded_by_whatever_it_is_made_from(spec: dict[str, Any], config: Config) -> None:
    assert manifests.build_digest(airports(), CONFIG) != manifests.build_digest(airports(**spec), config)


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"keepGenerations": 9},
        {"serving": {"workers": 4, "storageClassName": "fast", "pod": {"labels": {"a": "b"}}}},
        {"router": {"replicas": 5, "maxKeys": 10, "pod": {"labels": {"a": "b"}}, "service": {"type": "NodePort"}}},
        {"rollout": {"drainSeconds": 60}},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_a_build_is_not_superseded_by_what_its_builder_does_not_see(spec: dict[str, Any]) -> None:
    assert manifests.build_digest(airports(), CONFIG) == manifests.build_digest(airports(**spec), CONFIG)


def test_a_builds_digest_is_the_same_for_every_build_of_a_spec() -> None:
    dataset = airports()
    build = dataclasses.replace(BUILD, generation="g99", active="g98", unless_fingerprint="f")
    digests = [
        [manifests.read_digest(one) for one in manifests.render_builder(dataset, b, CONFIG)] for b in (BUILD, build)
    ]
    assert digests[0] != digests[1]
    assert manifests.build_digest(dataset, CONFIG) == manifests.build_digest(airports(), CONFIG)


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        pytest.param({"serving": {"workers": 2}}, CONFIG, id="workers"),
        pytest.param({"serving": {"resources": RESOURCES}}, CONFIG, id="resources"),
        pytest.param({"serving": {"hotFraction": 0.5}}, CONFIG, id="hot fraction"),
        pytest.param({"image": "other"}, CONFIG, id="image"),
        pytest.param({"imagePullSecrets": [{"name": "s"}]}, CONFIG, id="pull secrets"),
        pytest.param({"scheduling": {"priorityClassName": "high"}}, CONFIG, id="scheduling"),
        pytest.param({"serving": {"pod": {"annotations": {"a": "b"}}}}, CONFIG, id="its pods"),
        pytest.param({"serving": {"storageClassName": "fast"}}, CONFIG, id="storage class"),
        pytest.param({}, _config(image="other"), id="the operator's image"),
        pytest.param({}, _config(image_pull_policy="Always"), id="pull policy"),
        pytest.param({}, _config(store="s3://other"), id="store"),
        pytest.param({}, _config(cluster="c2"), id="cluster"),
        pytest.param({}, _config(pod_labels={"team": "data"}), id="pod labels"),
    ],
)
def test_a_rollouts_template_changes_with_what_its_pods_are_made_from(spec: dict[str, Any], config: Config) -> None:
    built = generation(airports())
    assert manifests.template_digest(airports(), built, CONFIG) != manifests.template_digest(
        airports(**spec), built, config
    )


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"name": "g13"}, id="name"),
        pytest.param({"shards": 5}, id="shards"),
        pytest.param({"largest_shard_bytes": 400 << 20}, id="largest shard"),
    ],
)
def test_a_rollouts_template_changes_with_the_generation(other: dict[str, Any]) -> None:
    dataset = airports()
    assert manifests.template_digest(dataset, generation(dataset), CONFIG) != manifests.template_digest(
        dataset, generation(dataset, **other), CONFIG
    )


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        pytest.param({"replicas": 5}, CONFIG, id="replicas"),
        pytest.param({"router": {"replicas": 5}}, CONFIG, id="router"),
        pytest.param({"router": {"service": {"type": "NodePort"}}}, CONFIG, id="the routers' Service"),
        pytest.param({"router": {"clients": [{"podSelector": {}}]}}, CONFIG, id="the routers' clients"),
        pytest.param({"router": {"pod": {"labels": {"a": "b"}}}}, CONFIG, id="routers' pods"),
        pytest.param({"build": {"pod": {"labels": {"a": "b"}}}}, CONFIG, id="builders' pods"),
        pytest.param({"gates": {}}, CONFIG, id="gates"),
        pytest.param({"build": {"resources": RESOURCES}}, CONFIG, id="build"),
        pytest.param({"rollout": {"drainSeconds": 60}}, CONFIG, id="drain"),
        pytest.param({}, _config(network_policies=False, admin_clients=({},)), id="network policies"),
        pytest.param({}, _config(router_resp=False), id="what routers speak"),
        pytest.param({}, _config(identity="a/b"), id="who we are"),
    ],
)
def test_a_rollouts_template_does_not_change_with_anything_else(spec: dict[str, Any], config: Config) -> None:
    built = generation(airports())
    assert manifests.template_digest(airports(), built, CONFIG) == manifests.template_digest(
        airports(**spec), built, config
    )


def test_the_objects_of_a_rollout_differ_from_shard_to_shard_and_with_replicas_as_little_as_can_be() -> None:
    dataset = airports()
    two, three = (manifests.render_shards(dataset, rollout(), generation(dataset), n, CONFIG) for n in (2, 3))
    changed = [one for one, other in zip(two, three, strict=True) if one != other]
    assert [one["kind"] for one in changed] == ["StatefulSet"] * 4
    assert _templates(two) == _templates(three)


def _templates(objects: tuple[dict[str, Any], ...]) -> list[Any]:
    return [one["spec"]["template"] for one in objects if one["kind"] == "StatefulSet"]


def test_what_is_part_of_an_object_is_applied_in_another_name() -> None:
    dataset = airports()
    scaled = manifests.render_scale(dataset, rollout(), 3, 5)
    whole = manifests.render_shards(dataset, rollout(), generation(dataset), 2, CONFIG)[-2]
    assert (scaled["kind"], scaled["metadata"]["name"]) == (whole["kind"], whole["metadata"]["name"])
    assert scaled["spec"] == {"replicas": 5}
    manager: Callable[[dict[str, Any]], str] = manifests.field_manager
    assert manager(whole) == names.FIELD_MANAGER != manager(scaled)
    assert all(manager(one) == names.FIELD_MANAGER for objects in rendered(dataset).values() for one in objects)
