"""Placement of pods: the component's fields, then those of spec.scheduling, then our own, each whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from manifest_samples import BUILD, CONFIG, airports, generation, rollout

from lookupdb_operator import manifests, names
from lookupdb_operator.manifests.pods import render_placement
from lookupdb_operator.model import Config

SELECTOR = {"a": "b"}
OURS = {"labelSelector": {"matchLabels": SELECTOR}}
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
OWN_AFFINITY = {
    "podAntiAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": {"topologyKey": ZONE, **OURS}}]},
}
OWN_SPREAD = [{"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "ScheduleAnyway", **OURS}]


def _placed(pod: dict[str, Any], scheduling: dict[str, Any] | None = None, *, spreads: bool = True) -> dict[str, Any]:
    return render_placement(scheduling or {}, pod, SELECTOR, spreads=spreads)


def test_without_a_word_pods_are_spread_over_nodes_and_zones_as_far_as_that_goes() -> None:
    assert _placed({}) == {"affinity": OWN_AFFINITY, "topologySpreadConstraints": OWN_SPREAD}
    assert _placed({}, spreads=False) == {}


@pytest.mark.parametrize(
    ("scheduling", "pod", "found"),
    [
        pytest.param({"nodeSelector": {"a": "1"}}, {}, {"nodeSelector": {"a": "1"}}, id="of all"),
        pytest.param({}, {"nodeSelector": {"a": "1"}}, {"nodeSelector": {"a": "1"}}, id="of the component"),
        pytest.param(
            {"nodeSelector": {"a": "1", "b": "2"}},
            {"nodeSelector": {"a": "3"}},
            {"nodeSelector": {"a": "3"}},
            id="the component's takes the place of the other, whole",
        ),
        pytest.param(
            {"tolerations": [{"key": "a", "operator": "Exists"}], "priorityClassName": "high"},
            {"tolerations": []},
            {"priorityClassName": "high"},
            id="none, though all others have some",
        ),
        pytest.param({"priorityClassName": "a"}, {"priorityClassName": "b"}, {"priorityClassName": "b"}, id="priority"),
        pytest.param({}, {"serviceAccountName": "reader"}, {"serviceAccountName": "reader"}, id="service account"),
        pytest.param({}, {"nodeSelector": {"a": ""}}, {"nodeSelector": {"a": ""}}, id="a label without value"),
    ],
)
def test_a_field_of_a_component_takes_the_place_of_that_of_scheduling(
    scheduling: dict[str, Any], pod: dict[str, Any], found: dict[str, Any]
) -> None:
    assert _placed(pod, scheduling, spreads=False) == found


@pytest.mark.parametrize(
    ("affinity", "found"),
    [
        pytest.param(
            {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": []}]}}},
            OWN_AFFINITY | {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}},
            id="to nodes: our own to pods stays",
        ),
        pytest.param(
            {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOST}]}},
            {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOST, **OURS}]}},
            id="from pods: in place of ours, of the same pods",
        ),
        pytest.param({"podAntiAffinity": {}}, {}, id="none at all"),
        pytest.param(
            {
                "podAffinity": {
                    PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": ZONE, "labelSelector": {}}}]
                }
            },
            OWN_AFFINITY
            | {
                "podAffinity": {
                    PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": ZONE, "labelSelector": {}}}]
                }
            },
            id="to other pods, any of them",
        ),
    ],
)
def test_affinities(affinity: dict[str, Any], found: dict[str, Any]) -> None:
    assert _placed({"affinity": affinity}).get("affinity", {}) == found


def test_spread_constraints_take_the_place_of_ours_and_are_about_the_same_pods_unless_they_say_which() -> None:
    constraint = {"maxSkew": 2, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    others = constraint | {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
    placed = _placed({"topologySpreadConstraints": [constraint, others]})
    assert placed["topologySpreadConstraints"] == [constraint | OURS, others]
    assert "topologySpreadConstraints" not in _placed({"topologySpreadConstraints": []})


COMPONENTS = {"build": "Job", "serving": "StatefulSet", "router": "Deployment"}
POD: dict[str, Any] = {
    "labels": {"team": "data"},
    "annotations": {"example.com/a": ""},
    "serviceAccountName": "reader",
    "priorityClassName": "high",
    "extraEnv": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
}


def _templates(config: Config = CONFIG, /, **spec: Any) -> dict[str, dict[str, Any]]:
    of = airports(**spec)
    objects = (
        *manifests.render_builder(of, BUILD, config),
        *manifests.render_shards(of, rollout(), generation(of), 1, config),
        *manifests.render_routers(of, config),
    )
    return {one["kind"]: one["spec"]["template"] for one in objects if "template" in one.get("spec", {})}


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_said_of_one_components_pods_changes_no_others(component: str) -> None:
    before, after = _templates(), _templates(**{component: {"pod": POD}})
    kind = COMPONENTS[component]
    assert {name for name in before if before[name] != after[name]} == {kind}
    pod = after[kind]["spec"]
    assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("reader", "high")
    assert pod["automountServiceAccountToken"] is False, "whoever it runs as, it gets no token"
    assert after[kind]["metadata"]["labels"].items() > {"team": "data"}.items()
    assert after[kind]["metadata"]["annotations"].items() >= {"example.com/a": ""}.items()
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        # The API server drops an empty value: it would never hold what was written.
        assert container["env"][-2:] == [{"name": "A"}, POD["extraEnv"][1]]
        assert [variable["name"] for variable in container["env"][:2]] == ["LOOKUPDB_LOG_FORMAT", "HOME"]


def test_traces_are_of_routers_and_builders_and_the_sampler_of_routers() -> None:
    variables = [
        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"},
        {"name": "OTEL_TRACES_SAMPLER", "value": "always_on"},
        {"name": "OTEL_TRACES_SAMPLER_ARG", "value": "1"},
    ]
    config = replace(CONFIG, tracing_env=tuple(variables))
    own = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://elsewhere:4318"}
    before = _templates(build={"pod": {"extraEnv": [own]}})
    after = _templates(config, build={"pod": {"extraEnv": [own]}})
    assert {kind for kind in before if before[kind] != after[kind]} == {"Deployment"}
    assert after["Deployment"]["spec"]["containers"][0]["env"][2:] == variables
    assert after["Job"]["spec"]["containers"][0]["env"][2] == own, "a dataset's own variables come first"
    assert variables[0] in _templates(config)["Job"]["spec"]["containers"][0]["env"]
    assert variables[1] not in _templates(config)["Job"]["spec"]["containers"][0]["env"]


def test_pods_terms_are_about_pods_of_their_own_component() -> None:
    term = {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOST}]}}
    templates = _templates(**{component: {"pod": {"affinity": term}} for component in COMPONENTS})
    for template in templates.values():
        (found,) = template["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
        selected = found["labelSelector"]["matchLabels"].items()
        assert selected <= template["metadata"]["labels"].items()
        assert {names.DATASET_UID, names.COMPONENT} <= {name for name, _ in selected}
