"""Values: the effect of every toggle, the messages for refused ones, and a description for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart_support import CHART, EXTERNAL, NO_GATEWAY, Values, find_schema_errors, render, render_refused
from lookupdb import __version__
from lookupdb.dataset import schema

DIGEST = "sha256:" + "0" * 64
POD: Values = {
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "data"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
}

VARIANTS: dict[str, Values] = {
    "defaults": {},
    "external store": EXTERNAL,
    "bucket without credentials": {"store": {"url": "gs://bucket", "embedded": {"enabled": False}}},
    "listed namespaces": {"watchNamespaces": ["one", "two"], "clusterId": "c1"},
    "one namespace": {"watchNamespaces": ["one"]},
    "no CRD": {"crds": {"enabled": False}},
    "CRD goes": {"crds": {"keep": False}},
    "delete protection beside a CRD by hand": {"crds": {"enabled": False}, "deleteProtection": {"enabled": True}},
    "no delete protection": {"deleteProtection": {"enabled": False}},
    "no RBAC": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "mine"}},
    "no network policies": {"networkPolicies": {"enabled": False}},
    "no Redis protocol": {"router": {"resp": {"enabled": False}}},
    "named peers": {
        "networkPolicies": {
            "routerClients": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}],
            "monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        }
    },
    "monitoring": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "objectives": {
        "prometheusRule": {
            "enabled": True,
            "slo": {"availability": {"objective": 99.99}, "latency": {"objective": 95, "thresholdSeconds": 1}},
        }
    },
    "traces": {
        "tracing": {
            "endpoint": "https://collector.example:4318",
            "sampler": "parentbased_traceidratio",
            "samplerArg": "0.01",
            "headersSecret": "collector",
        }
    },
    "users by the cluster": {"podSecurity": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},
    "users of ours, on IPv6": {"podSecurity": {"runAsUser": 2000, "fsGroup": 3000}, "listenAddress": "::"},
    "no gateway": NO_GATEWAY,
    "no gateway before a bucket": {**EXTERNAL, **NO_GATEWAY},
    "one gateway": {"gateway": {"replicas": 1, "serviceAccount": {"create": False, "name": "mine"}}},
    "Spark": {"spark": {"image": "registry.example/lookupdb-spark:1", "namespaces": ["one", "two"]}},
    "no sweep": {"sweep": {"enabled": False}},
    "console": {"console": {"enabled": True}, "podMonitor": {"enabled": True}},
    "console before listed namespaces": {
        "console": {"enabled": True, "token": {"audience": "lookupdb:pages", "subjects": ["ops/*"]}},
        "watchNamespaces": ["one", "two"],
    },
    "console behind a proxy": {
        "console": {
            "enabled": True,
            "access": "Proxy",
            "proxy": {"secretName": "proxy"},
            "ca": {"configMapName": "authorities"},
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}],
        }
    },
    "console for anyone": {"console": {"enabled": True, "access": "Anyone"}, "rbac": {"create": False}},
    "claim of ours": {"store": {"embedded": {"persistence": {"existingClaim": "mine"}}}},
    "sidecar": {"store": {"embedded": {"metadata": "sidecar", "persistence": {"storageClass": "nfs"}}}},
    "part of an umbrella chart": {
        "global": {"imageRegistry": "mirror.example:5000", "imagePullSecrets": ["all"], "somebodyElses": {"a": 1}}
    },
    "pods": {
        "operator": {**POD, "extraArgs": ["--workers=8"], "extraEnvFrom": [{"secretRef": {"name": "proxy"}}]},
        "sweep": {**POD, "extraArgs": ["--dry-run"]},
        "gateway": {**POD, "extraArgs": ["--max-requests=64"], "extraEnvFrom": [{"secretRef": {"name": "proxy"}}]},
        "console": {**POD, "enabled": True, "extraArgs": ["--port=7075"]},
        "store": {"embedded": POD, "env": {"AWS_REGION": "eu-central-1"}},
        "imagePullSecrets": [{"name": "registry"}, {"name": "other"}],
        "commonLabels": {"owner": "data"},
        "datasetPodLabels": {"owner": "data"},
        "image": {"repository": "registry.example/lookupdb", "digest": DIGEST},
    },
}


def test_every_variant_is_valid_kubernetes() -> None:
    assert find_schema_errors(render(values) for values in VARIANTS.values()) == ""


def test_a_typo_in_an_object_is_noticed() -> None:
    found = find_schema_errors([render({"operator": {"affinity": {"podAffinty": {}}}}), render()])
    assert "podAffinty" in found


REFUSED: dict[str, tuple[Values, str]] = {
    "neither store": ({"store": {"embedded": {"enabled": False}}}, "there is no store: set store.url"),
    "both stores": ({"store": {"url": "s3://b"}}, "only one of them can hold generations"),
    "secret of no bucket": ({"store": {"secretName": "s"}}, "the embedded store makes its own credentials"),
    "a store that pods may not reach": ({"gateway": {"reads": "redirect"}}, "shard pods cannot be sent to it"),
    "a proxy without a password": (
        {"console": {"enabled": True, "access": "Proxy"}},
        "anyone who reaches the console could claim to be the proxy",
    ),
    "no way to see the console": ({"console": {"access": "None"}}, "access"),
    "an audience of the API server": (
        {"console": {"token": {"audience": "https://kubernetes.default.svc"}}},
        "audience",
    ),
    "an overseer of nowhere": ({"console": {"token": {"subjects": ["*"]}}}, "subjects"),
    "no gateway at all": ({"gateway": {"replicas": 0}}, "replicas"),
    "unknown value": ({"oprator": {}}, "oprator"),
    "unknown value below": ({"store": {"embedded": {"persistence": {"sise": "1Gi"}}}}, "sise"),
    "store of another kind": ({"store": {"url": "http://b", "embedded": {"enabled": False}}}, "store"),
    "name too long": ({"fullnameOverride": "x" * 41}, "fullnameOverride"),
    "no pull secret": ({"global": {"imagePullSecrets": [{"nam": "a"}]}}, "imagePullSecrets"),
    "root": ({"podSecurity": {"runAsUser": 0}}, "runAsUser"),
    "no user": ({"podSecurity": {"runAsUser": "me"}}, "runAsUser"),
    "no address to listen on": ({"listenAddress": "127.0.0.1"}, "listenAddress"),
    "no endpoint of traces": ({"tracing": {"endpoint": "collector:4318"}}, "endpoint"),
    "no sampler": ({"tracing": {"sampler": "some"}}, "sampler"),
    "no quantity": ({"operator": {"resources": {"limits": {"memory": "much"}}}}, "memory"),
}


@pytest.mark.parametrize(("values", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_refused_with_a_reason(values: Values, sentence: str) -> None:
    assert sentence in render_refused(values)


def test_an_umbrella_charts_registry_and_pull_secrets_are_everybodys() -> None:
    umbrella = {"imageRegistry": "mirror.example", "imagePullSecrets": ["all", {"name": "own"}]}
    rendered = render({"global": umbrella, "imagePullSecrets": [{"name": "own"}]})
    for name, pod in rendered.pod_templates():
        assert pod["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "all"}], name
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
            assert container["image"].startswith(("mirror.example/lookupdb:", "mirror.example/versity/")), name
    assert f"--image=mirror.example/lookupdb:{__version__}" in rendered.operator_arguments()
    assert "--image-pull-secrets=own,all" in rendered.operator_arguments()


@pytest.mark.parametrize(
    ("repository", "image"),
    [
        ("team/lookupdb", "mirror.example/team/lookupdb:1"),
        ("registry.example/lookupdb", "registry.example/lookupdb:1"),
        ("registry:5000/lookupdb", "registry:5000/lookupdb:1"),
        ("localhost/lookupdb", "localhost/lookupdb:1"),
    ],
)
def test_a_repository_keeps_the_registry_that_it_names(repository: str, image: str) -> None:
    values = {"global": {"imageRegistry": "mirror.example"}, "image": {"repository": repository, "tag": "1"}}
    assert f"--image={image}" in render(values).operator_arguments()


def test_every_value_is_described() -> None:
    undescribed = []
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        is_value = ":" in line and not line.strip().startswith("#")
        if is_value and not before.lstrip().startswith("#"):
            undescribed.append(line)
    assert undescribed == []


def test_schema_and_values_name_the_same() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    document = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    described = set(_properties(document, document))
    optional = {path for path in described if path[-1] == "claims"}
    assert described - optional == set(_leaves(values, described))


def _properties(node: Any, document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if "$ref" in node:
        node = document["$defs"][node["$ref"].removeprefix("#/$defs/")]
    closed = node.get("properties", {})
    if path and not closed:
        yield path
    for name, child in closed.items():
        yield from _properties(child, document, (*path, name))


def _leaves(node: Any, described: set[tuple[str, ...]], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if path in described or not isinstance(node, dict):
        yield path
        return
    for name, child in node.items():
        yield from _leaves(child, described, (*path, name))


def test_every_object_of_the_schema_is_closed() -> None:
    document = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    pending, opened = [document], []
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if "properties" in node and node.get("additionalProperties") is not False:
                opened.append(node["properties"].keys())
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    assert opened == [{"imageRegistry", "imagePullSecrets"}], "only what an umbrella chart gives to all its charts"


def test_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    (container,) = render().get_object("Deployment", "lookupdb")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"lookupdb:{__version__}"


def test_the_example_of_the_chart_is_a_dataset() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    for example in yaml.safe_load(chart["annotations"]["artifacthub.io/crdsExamples"]):
        schema.complete_resource(example)
