"""The limits in docs/operations/teams.md are those of the code, the chart and the CRD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lookupdb.dataset import schema
from lookupdb_operator.gateway.service import command as gateway
from lookupdb_operator.plan.turns import DEFAULT_LIMIT

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "docs" / "operations" / "teams.md").read_text().split())
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "charts" / "lookupdb" / "values.yaml").read_text())
SPEC: dict[str, Any] = schema.complete_resource(
    {
        "apiVersion": schema.api_version(),
        "kind": "LookupDataset",
        "metadata": {"name": "people"},
        "spec": {"source": {"url": "https://example.com/people.csv"}, "key": {"columns": ["email"]}},
    }
)["spec"]


def default(option: str) -> Any:
    return next(parameter.default for parameter in gateway.params if parameter.name == option)


def test_the_gateways_share_of_a_namespace_is_what_admission_gives() -> None:
    short = default("max_requests") // 4
    transfers = default("max_requests") - short
    assert f"{transfers} transfers of files, and {short} short requests" in TEXT
    assert default("memory") == "256MiB", "of which a quarter is for short requests"
    assert "192 MiB for files, 64 MiB for short requests" in TEXT
    assert "a gateway pod (two by default)" in TEXT
    assert VALUES["gateway"]["replicas"] == 2


@pytest.mark.parametrize("value", ["maxConcurrentBuilds", "maxConcurrentRollouts"])
def test_turns_are_as_many_as_the_chart_and_the_operator_give(value: str) -> None:
    assert VALUES["operator"][value] == DEFAULT_LIMIT
    assert f"{DEFAULT_LIMIT} (`operator.{value}`)" in TEXT


def test_what_a_dataset_may_keep_and_how_long_it_may_build() -> None:
    assert f"`build.deadlineSeconds` ({SPEC['build']['deadlineSeconds'] / 3600:g} h)" in TEXT
    assert f"`keepGenerations` ({SPEC['keepGenerations']}, and up to 100)" in TEXT
    size = VALUES["store"]["embedded"]["persistence"]["size"].removesuffix("Gi")
    assert f"the embedded store has {size} GiB for all" in TEXT


def test_who_may_look_up_is_everybody_unless_a_value_says_otherwise() -> None:
    assert VALUES["networkPolicies"]["routerClients"] == []
    assert "clients" not in SPEC["router"]
    assert "auth" not in SPEC["router"]
    assert "**By default, everybody who can reach a router.**" in TEXT
