"""`lookupdb up` whose files are damaged or lost: they are built again, and nothing wrong is served meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.up_stack import Stack, eventually, people

pytestmark = pytest.mark.long

__all__ = ["people"]


def zero(generation: Path) -> None:
    (shard,) = generation.glob("shard-*.lmdb")
    shard.chmod(0o644)
    shard.write_bytes(bytes(shard.stat().st_size))


@pytest.mark.parametrize("harm", [zero, shutil.rmtree], ids=["zeros", "removed"])
def test_what_is_damaged_is_built_again_once_its_server_dies(
    people: Callable[..., Stack], harm: Callable[[Path], None]
) -> None:
    stack = people()
    assert stack.find("ada@example.com")
    (server,) = stack.state["shards"]
    (generation,) = stack.data.rglob("people-local/g1")
    harm(generation)
    os.kill(server["pid"], signal.SIGKILL)
    eventually(lambda: stack.state["generation"] == "g2", "another generation")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}


def test_what_was_damaged_while_nothing_ran_is_built_again(people: Callable[..., Stack]) -> None:
    stack = people()
    assert stack.find("ada@example.com")
    assert stack.stop() == 0
    (generation,) = stack.data.rglob("people-local/g1")
    shutil.rmtree(generation)
    again = people()
    assert again.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    assert again.state["generation"] == "g2"
