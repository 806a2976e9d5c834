"""`lookupdb up` reports the fields that work only in a cluster, and serves without them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.up_stack import PATIENT, Stack, build_people, people

pytestmark = pytest.mark.long

__all__ = ["people"]

TOKENS = "auth: {tokens: {secretName: clients}}"
LEFT_OUT = f"{PATIENT.replace('router: {', f'router: {{{TOKENS}, ')}  store: {{url: 's3://team/lookups'}}\n"


def test_it_says_once_what_it_leaves_out_and_serves(people: Callable[..., Stack], tmp_path: Path) -> None:
    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(LEFT_OUT)
    stack = people("--watch", "--watch-seconds", "0.1")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    stack.says("people: spec.store applies only in a cluster: ")
    stack.says("people: spec.router.auth applies only in a cluster: ")
    assert stack.generations() == ["g1"], "they change no generation, and the store is the folder"
    (tmp_path / "people.yaml").write_text(f"{LEFT_OUT}  adopt: {{uid: 3f2b9c1e}}\n")
    stack.says("people: spec.adopt applies only in a cluster: ")
    assert stack.output.count("spec.store applies") == 1
    assert stack.output.count("spec.router.auth applies") == 1


def test_the_uid_of_a_cluster_is_left_out_where_generations_are_named_and_removed(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    (tmp_path / "people.yaml").write_text(PATIENT.replace("name: people", "name: people, uid: 3f2b9c1e-77aa", 1))
    stack = people()
    stack.says("Ctrl-C stops everything")
    (path,) = re.findall(r"lookupdb.open\('(.+)'\)", stack.output)
    assert (Path(path) / "g1" / "manifest.json").exists()
