"""Somebody works with ``kubectl lookupdb`` alone: sees a dataset, looks keys up, refreshes, goes back, takes the pin
away. What it says is done is done."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from e2e.support.command import CommandFailed
from e2e.support.figures import record
from e2e.support.kubectl import kubectl
from e2e.support.story import PATIENT, Story

pytestmark = pytest.mark.side_by_side

WAIT = ("--wait", "--timeout", "300")


@pytest.fixture(autouse=True)
def _plugin_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kubectl finds it, as after ``pip install``."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def test_a_dataset_is_seen_refreshed_and_rolled_back_by_the_plugin_alone(story: Story) -> None:
    keys = story.source("records", version="old", records=300)
    spec = {"shards": 2, "router": PATIENT | {"drainSeconds": 0}, "rollout": {"drainSeconds": 0, "keepPrevious": "10m"}}
    story.apply(story.dataset("records", "records", **spec))
    story.wait_settled("records", generation="g1")
    assert _plugin(story, "status", "records").startswith(f"{story.namespace}/records: Ready, serves g1, 300 records")

    with story.gentle_load("records", keys) as load:
        assert json.loads(_plugin(story, "get", "records", keys[7])) == {
            "id": keys[7],
            "version": "old",
            "text": f"old of {keys[7]}",
        }
        with pytest.raises(CommandFailed, match=r"exit code 3: .*'absent' is not in records"):
            _plugin(story, "get", "records", "absent")

        story.source("records", version="new", records=300)
        assert "is answered" in _plugin(story, "refresh", "records", *WAIT)
        assert story.status("records")["generation"] == "g2"
        assert json.loads(_plugin(story, "get", "records", keys[7]))["version"] == "new"
        story.wait_settled("records", generation="g2", rollouts=2)

        began = time.monotonic()
        assert _plugin(story, "rollback", "records", *WAIT) == f"{story.namespace}/records: g1 serves, and is pinned\n"
        record("plugin", "rollback --wait to servers that stand", time.monotonic() - began, "s")
        assert story.status("records")["generation"] == "g1"
        assert "pinned to g1" in _plugin(story, "status", "records")

        assert "g1 is not pinned any more" in _plugin(story, "unpin", "records")
        story.wait_condition("records", "RolledOut", "True", reason="RolledBack")
        assert f"{story.namespace}/records: RolledBack, serves g1" in _plugin(story, "status", "records")
        top = json.loads(_plugin(story, "top", "records", "-o", "json"))
        report = load.stop()

    assert [len(top[kind]) for kind in ("servers", "routers")] == [2, 2]
    assert not [problem for kind in ("servers", "routers") for pod in top[kind] if (problem := pod["problem"])]
    assert sum(router["requests"] for router in top["routers"]) > 0
    report.check(rollbacks=1, g1="old", g2="new")
    story.check_version("records", keys, "old")


def _plugin(story: Story, verb: str, *arguments: str) -> str:
    """Standard output of ``kubectl lookupdb VERB ARGUMENTS`` in the story's namespace."""
    return kubectl("lookupdb", verb, *arguments, "--namespace", story.namespace, timeout=330)
