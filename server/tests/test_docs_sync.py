"""docs/how-to/sync.md and examples/sync: `lookupdb sync` takes their command lines, the pod is restricted, and the
announcement is valid."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from lookupdb.cli.fetch import sync as command
from lookupdb.dataset import schema
from lookupdb.errors import CorruptFile, NotEnoughRoom, StoreDenied, StoreError
from lookupdb.manifest import parse_announcement

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "sync.md").read_text()
EXAMPLES = Path(__file__).parents[2] / "examples" / "sync"
DEPLOYMENT: dict[str, Any] = yaml.safe_load((EXAMPLES / "deployment.yaml").read_text())
(UNIT,) = re.findall(r"^```ini\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
(SIDECAR,) = POD["initContainers"]
(PROGRAM,) = POD["containers"]

LINES = [
    *re.findall(r"^ +lookupdb sync (.*)$", TEXT, re.MULTILINE),
    *re.findall(r"^ExecStart=\S+/lookupdb sync (.*)$", UNIT, re.MULTILINE),
    shlex.join(SIDECAR["args"][1:]),
]


def parse(words: str) -> dict[str, Any]:
    with click.Context(command) as context:
        command.parse_args(context, shlex.split(words))
        return dict(context.params)


def test_command_lines_are_found() -> None:
    assert len(LINES) == 3


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_names_what_is_to_be_kept(line: str) -> None:
    params = parse(line)
    assert params["names"] or params["tables"]


def test_the_sidecar_finds_what_it_is_given() -> None:
    params = parse(LINES[-1])
    mounts = {mount["name"]: mount["mountPath"] for mount in SIDECAR["volumeMounts"]}
    assert str(params["folder"]) == mounts["lookups"]
    assert str(params["tables"][0].parent) == mounts["people"]
    (token,) = [variable["value"] for variable in SIDECAR["env"]]
    assert token == f"{mounts['store-token']}/token"
    probes = [SIDECAR["startupProbe"], SIDECAR["livenessProbe"]]
    assert {probe["httpGet"]["port"] for probe in probes} == {params["admin_port"]}
    assert {volume["name"] for volume in POD["volumes"]} >= mounts.keys()
    assert "lookupdb.dev/sync" in DEPLOYMENT["spec"]["template"]["metadata"]["labels"]


def test_the_eight_workers_of_the_program_only_read() -> None:
    assert "--workers=8" in PROGRAM["command"]
    (mount,) = (mount for mount in PROGRAM["volumeMounts"] if mount["name"] == "lookups")
    assert mount["readOnly"] is True
    assert PROGRAM["env"] == [{"name": "LOOKUPDB_SYNC_DIR", "value": mount["mountPath"]}]


def test_the_pod_is_of_the_profile_restricted() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (SIDECAR, PROGRAM):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
    allowed = {"configMap", "emptyDir", "projected", "name"}
    assert all(volume.keys() <= allowed for volume in POD["volumes"])


def test_the_announcement_is_one() -> None:
    (text,) = re.findall(r'^    (\{"formatVersion".*?\})$', TEXT, re.MULTILINE | re.DOTALL)
    announcement = parse_announcement(text.encode(), "docs/how-to/sync.md")
    assert (announcement.generation, announcement.version) == ("g12", 17)
    assert json.loads(announcement.to_json()) == json.loads(text)


def test_reasons_are_those_of_errors() -> None:
    assert {f"`{error.reason}`" for error in (StoreError, StoreDenied, CorruptFile, NotEnoughRoom)} <= set(
        re.findall(r"`\w+`", TEXT)
    )


def test_the_example_for_nodes_is_a_dataset_and_a_program_that_reads_its_folder() -> None:
    dataset, deployment = yaml.safe_load_all((EXAMPLES / "nodes.yaml").read_text())
    sync = schema.complete_resource(dataset)["spec"]["sync"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"][0]["hostPath"]["path"] == sync["hostPath"]
    assert pod["nodeSelector"] == sync["nodeSelector"]
    assert pod["containers"][0]["volumeMounts"][0]["readOnly"] is True


def test_the_program_opens_a_dataset_of_the_folder() -> None:
    tree = ast.parse((EXAMPLES / "app.py").read_text())
    assert any(isinstance(node, ast.FunctionDef) and node.name == "app" for node in tree.body)
