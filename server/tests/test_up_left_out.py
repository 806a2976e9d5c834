"""What `lookupdb up` says of a manifest's fields that hold in a cluster alone, and serves all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.up_stack import MANIFEST, Stack, build_people, people

__all__ = ["people"]

TOKENS = "auth: {tokens: {secretName: clients}}"
LEFT_OUT = f"{MANIFEST.replace('router: {', f'router: {{{TOKENS}, ')}  store: {{url: 's3://team/lookups'}}\n"


def test_it_says_once_what_it_leaves_out_and_serves(people: Callable[..., Stack], tmp_path: Path) -> None:
    build_people(tmp_path)
    (tmp_path / "people.yaml").write_text(LEFT_OUT)
    stack = people("--watch", "--watch-seconds", "0.1")
    assert stack.find("ada@example.com")
    stack.says("people: spec.store applies only in a cluster: ")
    stack.says("people: spec.router.auth applies only in a cluster: ")
    assert stack.generations() == ["g1"], "they change no generation, and the store is the folder"
    (tmp_path / "people.yaml").write_text(f"{LEFT_OUT}  adopt: {{uid: 3f2b9c1e}}\n")
    stack.says("people: spec.adopt applies only in a cluster: ")
    assert stack.output.count("spec.store applies") == 1
    assert stack.output.count("spec.router.auth applies") == 1
    assert stack.stop() == 0
