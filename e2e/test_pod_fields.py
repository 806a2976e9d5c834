"""Every component's pods are made with what the spec says of them, where pods are restricted; and ``kubectl get`` shows
a dataset in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from e2e.support import restricted
from e2e.support.kubectl import Manifest, find, kubectl, until
from e2e.support.story import PATIENT, Story

pytestmark = pytest.mark.side_by_side

COMPONENTS: Final = {"build": "builder", "serving": "shard", "router": "router"}
"""The component in the labels of the pods, by the part of the spec that has their fields."""
COLUMNS: Final = ["NAME", "READY", "PHASE", "HEALTH", "GENERATION", "DATA AGE", "SHARDS", "RECORDS", "AGE"]


def test_pods_have_the_fields_of_the_spec_and_the_dataset_its_columns(new_story: Callable[..., Story]) -> None:
    story = new_story("pod-fields", labels=restricted.LABELS)
    parts: dict[str, Any] = {part: {"pod": _fields(part)} for part in COMPONENTS}
    parts["router"] |= PATIENT | {"drainSeconds": 0}
    story.apply(story.dataset("records", "records", shards=2, **parts))
    until(lambda: _check_pods(story, "build"), seconds=60, what="a builder with its fields, that waits for its source")

    keys = story.source("records", version="v1", records=300)
    story.wait_settled("records")
    with story.gentle_load("records", keys) as load:
        load.wait_answers(300, seconds=60)
        assert _check_pods(story, "serving") == 2
        assert _check_pods(story, "router") == 2
        report = load.stop()

    report.check(g1="v1")
    assert restricted.find_refusals(story.namespace) == []
    assert _columns(story) == dict(
        zip(COLUMNS[:5], ["records", "True", "Ready", "Healthy", "g1"], strict=True), SHARDS="2/2", RECORDS="300"
    )


def _fields(part: str) -> Manifest:
    """``pod`` of a part of the spec, with its name in what can be told apart."""
    return {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "labels": {"team": part},
        "annotations": {"example.com/owner": part},
        "extraEnv": [{"name": "EXAMPLE_PART", "value": part}],
        "serviceAccountName": "default",
    }


def _check_pods(story: Story, part: str) -> int:
    """The number of the pods of a part of the spec; asserts that all of them have its fields."""
    pods = find("pods", story.namespace, f"app.kubernetes.io/component={COMPONENTS[part]}")
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


def _columns(story: Story) -> dict[str, str]:
    """What ``kubectl get`` shows of the dataset, without its ages."""
    header, line = kubectl("get", "lds", "records", "--namespace", story.namespace).rstrip("\n").splitlines()
    assert re.split(r" {2,}", header.rstrip()) == COLUMNS
    shown = dict(zip(COLUMNS, line.split(), strict=True))
    ages = [shown.pop(name) for name in ("DATA AGE", "AGE")]
    assert all(re.fullmatch(r"(\d+[smh])+", age) for age in ages), ages
    return shown
