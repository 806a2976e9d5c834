"""Completion: the script for shells, and the names of the programs that shells and kubectl look for."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from lookupdb_operator.plugin.cli import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_script(shell: str) -> None:
    ended = CliRunner().invoke(cli, ["completion", shell])
    assert ended.exit_code == 0
    assert "_KUBECTL_LOOKUPDB_COMPLETE" in ended.output


def test_the_programs_are_called_as_kubectl_looks_for_them() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    for name in ("kubectl-lookupdb", "kubectl_complete-lookupdb"):
        module, _, function = project["project"]["scripts"][name].partition(":")
        assert callable(getattr(importlib.import_module(module), function))
