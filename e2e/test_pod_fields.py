"""Pods have the fields that the spec gives them, in a restricted namespace, and ``kubectl get`` shows a dataset in a
line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from e2e.support import restricted
from e2e.support.kubectl import Manifest, find, kubectl, until
from e2e.support.scenario import PATIENT, Scenario

pytestmark = pytest.mark.side_by_side

COMPONENTS: Final = {"build": "builder", "serving": "shard", "router": "router"}
"""Part of the spec → component label of the pods that it configures."""
COLUMNS: Final = ["NAME", "READY", "PHASE", "HEALTH", "GENERATION", "DATA AGE", "SHARDS", "RECORDS", "AGE"]


def test_pods_have_the_fields_of_the_spec_and_the_dataset_its_columns(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario("pod-fields", labels=restricted.LABELS)
    parts: dict[str, Any] = {part: {"pod": _fields(part)} for part in COMPONENTS}
    parts["router"] |= PATIENT | {"drainSeconds": 0}
    scenario.apply(scenario.dataset("records", "records", shards=2, **parts))
    until(
        lambda: _check_pods(scenario, "build"), seconds=60, what="a builder with its fields, that waits for its source"
    )

    keys = scenario.source("records", version="v1", records=300)
    scenario.wait_settled("records")
    with scenario.gentle_load("records", keys) as load:
        load.wait_answers(300, seconds=60)
        assert _check_pods(scenario, "serving") == 2
        assert _check_pods(scenario, "router") == 2
        report = load.stop()

    report.check(g1="v1")
    assert restricted.find_refusals(scenario.namespace) == []
    assert _columns(scenario) == dict(
        zip(COLUMNS[:5], ["records", "True", "Ready", "Healthy", "g1"], strict=True), SHARDS="2/2", RECORDS="300"
    )


def _fields(part: str) -> Manifest:
    """Return ``pod`` of a part of the spec. Values contain the part's name."""
    return {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "labels": {"team": part},
        "annotations": {"example.com/owner": part},
        "extraEnv": [{"name": "EXAMPLE_PART", "value": part}],
        "serviceAccountName": "default",
    }


def _check_pods(scenario: Scenario, part: str) -> int:
    """Return the number of pods of a part of the spec, and assert that all have its fields."""
    pods = find("pods", scenario.namespace, f"app.kubernetes.io/component={COMPONENTS[part]}")
    fields = _fields(part)
    for pod in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        assert spec["nodeSelector"] == fields["nodeSelector"]
        assert spec["serviceAccountName"] == fields["serviceAccountName"]
        assert fields["labels"].items() <= metadata["labels"].items()
        assert fields["annotations"].items() <= metadata["annotations"].items()
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            assert fields["extraEnv"][0] in container["env"], container["name"]
    return len(pods)


def _columns(scenario: Scenario) -> dict[str, str]:
    """Return what ``kubectl get`` shows of the dataset, without ages."""
    header, line = kubectl("get", "lds", "records", "--namespace", scenario.namespace).rstrip("\n").splitlines()
    assert re.split(r" {2,}", header.rstrip()) == COLUMNS
    shown = dict(zip(COLUMNS, line.split(), strict=True))
    ages = [shown.pop(name) for name in ("DATA AGE", "AGE")]
    assert all(re.fullmatch(r"(\d+[smh])+", age) for age in ages), ages
    return shown
