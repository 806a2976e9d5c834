"""Rules for every pod and every object, whatever the dataset: security, requests, ports, labels, names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from manifest_samples import (
    BUILD,
    CONFIG,
    FULL_CONFIG,
    GATEWAY_CONFIG,
    airports,
    dataset,
    everything,
    from_config_map,
    generation,
    rendered,
    rollout,
)

from lookupdb.wording import parse_quantity
from lookupdb_operator import manifests, names
from lookupdb_operator.model import Config, Manifest, ObservedDataset

SAMPLES = [
    pytest.param(airports(), CONFIG, id="airports"),
    pytest.param(everything(), FULL_CONFIG, id="everything"),
    pytest.param(from_config_map(), FULL_CONFIG, id="from a ConfigMap"),
    pytest.param(everything(), GATEWAY_CONFIG, id="behind a gateway"),
    pytest.param(airports(serving={"workers": 64}, router={"workers": 64}), CONFIG, id="64 workers"),
    pytest.param(airports(serving={"resources": {"requests": {}, "limits": {}}}), CONFIG, id="empty resources"),
]


def _objects(of: ObservedDataset, config: Config) -> list[Manifest]:
    return [manifest for objects in rendered(of, config).values() for manifest in objects]


def _templates(of: ObservedDataset, config: Config) -> Iterator[dict[str, Any]]:
    for manifest in _objects(of, config):
        if "template" in manifest.get("spec", {}):
            yield manifest["spec"]["template"]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def violations(pod: dict[str, Any]) -> Iterator[str]:
    """Violations of the Pod Security Standards' restricted profile, and of our stricter rules."""
    allowed = {
        "configMap",
        "emptyDir",
        "persistentVolumeClaim",
        "secret",
        "projected",
        "csi",
        "downwardAPI",
        "ephemeral",
    }
    if {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(pod):
        yield "the host's namespaces"
    for volume in pod["volumes"]:
        if not set(volume) - {"name"} <= allowed or len(volume) != 2:
            yield f"volume {volume}"
    security = pod["securityContext"]
    if not security["runAsNonRoot"] or security["runAsUser"] < 10000 or security["runAsGroup"] < 10000:
        yield "root"
    if security["seccompProfile"] != {"type": "RuntimeDefault"}:
        yield "seccomp"
    if pod["automountServiceAccountToken"] is not False or pod["enableServiceLinks"] is not False:
        yield "a token, or others' addresses"
    for container in _containers(pod):
        own = container["securityContext"]
        if own != {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }:
            yield f"{container['name']}: {own}"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "a host port"


@pytest.mark.parametrize(("of", "config"), SAMPLES)
def test_every_pod_is_restricted(of: ObservedDataset, config: Config) -> None:
    templates = list(_templates(of, config))
    assert len(templates) == 2 + of.spec["shards"]
    assert [list(violations(template["spec"])) for template in templates] == [[]] * len(templates)


@pytest.mark.parametrize(("of", "config"), SAMPLES)
def test_every_container_requests_cpu_memory_and_disk_within_its_limits(of: ObservedDataset, config: Config) -> None:
    for template in _templates(of, config):
        for container in _containers(template["spec"]):
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert {"cpu", "memory", "ephemeral-storage"} <= set(requests)
            assert "memory" in limits
            assert all(
                parse_quantity(requests[name]) <= parse_quantity(limits[name]) for name in requests if name in limits
            )


@pytest.mark.parametrize(("of", "config"), SAMPLES)
def test_ports_and_mounts_are_what_server_side_apply_can_tell_apart(of: ObservedDataset, config: Config) -> None:
    for template in _templates(of, config):
        volumes = [volume["name"] for volume in template["spec"]["volumes"]]
        assert len(set(volumes)) == len(volumes)
        for container in _containers(template["spec"]):
            ports = container.get("ports", [])
            assert len({port["name"] for port in ports}) == len({port["containerPort"] for port in ports}) == len(ports)
            assert all(port["protocol"] == "TCP" and len(port["name"]) <= 15 for port in ports)
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(set(paths)) == len(paths)
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    for manifest in _objects(of, config):
        if manifest["kind"] == "Service":
            assert all(port["protocol"] == "TCP" for port in manifest["spec"]["ports"])


@pytest.mark.parametrize(("of", "config"), SAMPLES)
def test_every_object_belongs_to_its_dataset(of: ObservedDataset, config: Config) -> None:
    for manifest in _objects(of, config):
        metadata = manifest["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("LookupDataset", of.name, of.uid)
        assert owner["controller"] is owner["blockOwnerDeletion"] is True
        assert metadata["namespace"] == of.namespace
        assert metadata["labels"][names.DATASET] == of.name
        assert manifests.read_digest(manifest)


@pytest.mark.parametrize(("of", "config"), SAMPLES)
def test_there_are_no_nulls(of: ObservedDataset, config: Config) -> None:
    def nulls(value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(nulls, value.values()))
        return any(map(nulls, value)) if isinstance(value, list) else value is None

    assert not any(nulls(manifest) for manifest in _objects(of, config))


@pytest.mark.parametrize(("of", "config"), SAMPLES)
def test_selectors_select_their_own_pods_and_no_others(of: ObservedDataset, config: Config) -> None:
    objects = _objects(of, config)
    labels = {
        (one["kind"], one["metadata"]["name"]): one["spec"]["template"]["metadata"]["labels"]
        for one in objects
        if "template" in one.get("spec", {})
    }
    for manifest in objects:
        if manifest["kind"] in ("StatefulSet", "Deployment"):
            selector = manifest["spec"]["selector"]["matchLabels"].items()
            selected = [key for key, pod in labels.items() if selector <= pod.items()]
            assert selected == [(manifest["kind"], manifest["metadata"]["name"])]
    for manifest in objects:
        if manifest["kind"] == "PodDisruptionBudget":
            selector = manifest["spec"]["selector"]["matchLabels"].items()
            (selected_one,) = [key for key, pod in labels.items() if selector <= pod.items()]
            assert selected_one[1] == manifest["metadata"]["name"]


def test_only_builders_and_fetchers_have_credentials_and_the_stores_win() -> None:
    having: dict[str, list[str]] = {}
    for template in _templates(everything(), FULL_CONFIG):
        for container in _containers(template["spec"]):
            having[container["name"]] = [source["secretRef"]["name"] for source in container.get("envFrom", ())]
    store = f"people-store-{everything().uid[:8]}"
    assert having == {
        "build": ["people-source", store],
        "fetch": [store],
        "serve": [],
        "route": [],
    }


def test_a_claims_files_are_read_only_and_stay_their_owners() -> None:
    (pod,) = [template["spec"] for template in _templates(everything(), CONFIG) if "people-files" in str(template)]
    (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "source"]
    assert mount["readOnly"] is True
    assert "fsGroup" not in pod["securityContext"]


def test_labels_of_our_own_cannot_be_overridden() -> None:
    for template in _templates(airports(), FULL_CONFIG):
        labels = template["metadata"]["labels"]
        assert (labels[names.DATASET], labels["team"]) == ("airports", "data")


@pytest.mark.parametrize(("of", "config"), SAMPLES)
def test_every_volume_on_a_nodes_disk_has_a_limit_within_what_is_requested(of: ObservedDataset, config: Config) -> None:
    for template in _templates(of, config):
        pod = template["spec"]
        volumes = {one["name"]: one["emptyDir"]["sizeLimit"] for one in pod["volumes"] if "emptyDir" in one}
        assert {"tmp"} <= set(volumes)
        (kept,) = {container["resources"]["requests"]["ephemeral-storage"] for container in _containers(pod)}
        assert max(map(parse_quantity, volumes.values())) <= parse_quantity(kept) or of.name == "people", (
            "people asks for less"
        )


def test_a_cluster_may_choose_who_pods_run_as() -> None:
    config = dataclasses.replace(CONFIG, pod_security={})
    for template in _templates(airports(), config):
        security = template["spec"]["securityContext"]
        assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    config = dataclasses.replace(CONFIG, pod_security={"runAsUser": 1000650000, "fsGroup": 1000650000})
    builders = [pod["spec"] for pod in _templates(everything(), config) if pod["spec"].get("restartPolicy") == "Never"]
    assert [builder["securityContext"].get("fsGroup") for builder in builders] == [None], "a claim's files stay"
    for template in _templates(airports(), config):
        security = template["spec"]["securityContext"]
        assert (security["runAsUser"], security["fsGroup"], "runAsGroup" in security) == (1000650000, 1000650000, False)


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_what_serves_listens_at_the_operators_address(address: str) -> None:
    config = dataclasses.replace(CONFIG, pod_host=address)
    listening = [
        words[words.index("--host") + 1]
        for template in _templates(airports(), config)
        for words in (container["args"] for container in template["spec"]["containers"])
        if "--host" in words
    ]
    assert listening == [address] * (1 + airports().spec["shards"])


DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
OF_A_STATEFUL_SET = 52
"""Eleven characters less than a label: -<hash of the revision> follows it."""


def _labels_within(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, member in value.items():
            if name in ("labels", "matchLabels"):
                yield from member.items()
            yield from _labels_within(member)
    elif isinstance(value, list):
        for item in value:
            yield from _labels_within(item)


@pytest.mark.parametrize(("rollout_name", "shards"), [("r9999", 1024), ("r9999999", 10)])
def test_names_and_labels_of_the_longest_dataset_are_within_kubernetes_limits(rollout_name: str, shards: int) -> None:
    long = "d" * 40
    resource = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"namespace": "n" * 63, "name": long, "uid": "u" * 36},
        "spec": {"source": {"url": "s3://b/f.csv"}, "key": {"columns": ["id"]}, "shards": shards, "replicas": 64},
    }
    of = dataset(resource)
    built = generation(of, "g999999999")
    sets = manifests.render_shards(of, rollout(rollout_name, built.generation), built, 64, FULL_CONFIG)
    build = dataclasses.replace(BUILD, generation=built.generation)
    others = [*manifests.render_builder(of, build, FULL_CONFIG), *manifests.render_routers(of, FULL_CONFIG)]
    for manifest in [sets[0], *sets[-2:], *others, *manifests.render_network_policies(of, FULL_CONFIG)]:
        assert DNS_LABEL.fullmatch(manifest["metadata"]["name"])
        assert all(LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) for key, value in _labels_within(manifest))
    last = sets[-2]
    assert last["kind"] == "StatefulSet"
    assert last["metadata"]["name"].endswith(f"-s{shards - 1}")
    assert len(last["metadata"]["name"]) <= OF_A_STATEFUL_SET
    assert DNS_LABEL.fullmatch(f"{last['metadata']['name']}-63")  # the host name of its last pod
    assert len(names.build(long, "g999999999")) + len("-abcde") <= 63  # the host name of a builder


def test_no_two_datasets_names_meet() -> None:
    # Each ends in the kind of the object, so that a dataset may have the name of another one's object.
    called = ("a", "a-r1", "a-r1-s0", "a-g1", "a-g1-build", "a-router", "a-routing-table", "a-shard", "a-store")
    owners: dict[tuple[str, str], str] = {}
    for name in called:
        resource = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"namespace": "n", "name": name, "uid": f"{len(owners):08x}-of-{name}"},
            "spec": {"source": {"url": "s3://b/f.csv"}, "key": {"columns": ["id"]}, "shards": 2}
            | {"router": {"autoscaling": {"maxReplicas": 3}}},
        }
        of = dataset(resource)
        built = generation(of, "g1")
        for objects in (
            *rendered(of).values(),
            manifests.render_shards(of, rollout("r1", "g1"), built, 1, CONFIG),
            manifests.render_builder(of, dataclasses.replace(BUILD, generation="g1"), CONFIG),
        ):
            for manifest in objects:
                place = manifest["kind"], manifest["metadata"]["name"]
                assert owners.setdefault(place, name) == name, place


def test_a_builder_knows_what_it_needs_and_no_more() -> None:
    _, job = manifests.render_builder(airports(), BUILD, CONFIG)
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not {"--active", "--unless-fingerprint", "--volume", "--threads"} & set(words)
    assert words[-1] == "--no-local-files"


def test_pods_are_spread_where_nodes_have_no_zone() -> None:
    # If a node lacks the label of one spread constraint, the scheduler ignores it for all of them.
    parts = rendered(airports())
    for manifest in (*parts["router"], *parts["shards"]):
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            spec = manifest["spec"]["template"]["spec"]
            keys = [constraint["topologyKey"] for constraint in spec["topologySpreadConstraints"]]
            assert keys == ["kubernetes.io/hostname"]
            (preferred,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            assert preferred["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
