"""A person works with ``kubectl lookupdb`` alone: status, lookups, refresh, rollback, gate messages, diff, reject,
promote.

Each command has done what it reports.
"""

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
from e2e.support.scenario import PATIENT, Scenario

pytestmark = pytest.mark.side_by_side

WAIT = ("--wait", "--timeout", "300")


@pytest.fixture(autouse=True)
def _plugin_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the plugin where kubectl finds it, as ``pip install`` does."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def test_a_dataset_is_seen_refreshed_and_rolled_back_by_the_plugin_alone(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=300)
    spec = {"shards": 2, "router": PATIENT | {"drainSeconds": 0}, "rollout": {"drainSeconds": 0, "keepPrevious": "10m"}}
    scenario.apply(scenario.dataset("records", "records", **spec))
    scenario.wait_settled("records", generation="g1")
    assert _plugin(scenario, "status", "records").startswith(
        f"{scenario.namespace}/records: Ready, serves g1, 300 records"
    )

    with scenario.gentle_load("records", keys) as load:
        assert json.loads(_plugin(scenario, "get", "records", keys[7])) == {
            "id": keys[7],
            "version": "old",
            "text": f"old of {keys[7]}",
        }
        with pytest.raises(CommandFailed, match=r"exit code 3: .*'absent' is not in records"):
            _plugin(scenario, "get", "records", "absent")

        scenario.source("records", version="new", records=300)
        assert "the refresh is done" in _plugin(scenario, "refresh", "records", *WAIT)
        assert scenario.status("records")["generation"] == "g2"
        assert json.loads(_plugin(scenario, "get", "records", keys[7]))["version"] == "new"
        scenario.wait_settled("records", generation="g2", rollouts=2)

        began = time.monotonic()
        assert (
            _plugin(scenario, "rollback", "records", *WAIT)
            == f"{scenario.namespace}/records: g1 serves, and is pinned\n"
        )
        record("plugin", "rollback --wait to servers that stand", time.monotonic() - began, "s")
        assert scenario.status("records")["generation"] == "g1"
        assert "pinned to g1" in _plugin(scenario, "status", "records")

        assert "g1 is no longer pinned" in _plugin(scenario, "unpin", "records")
        scenario.wait_condition("records", "RolledOut", "True", reason="RolledBack")
        assert f"{scenario.namespace}/records: RolledBack, serves g1" in _plugin(scenario, "status", "records")
        top = json.loads(_plugin(scenario, "top", "records", "--json"))
        report = load.stop()

    assert [len(top[kind]) for kind in ("servers", "routers")] == [2, 2]
    assert not [problem for kind in ("servers", "routers") for pod in top[kind] if (problem := pod["problem"])]
    assert sum(router["requests"] for router in top["routers"]) > 0
    report.check(rollbacks=1, g1="old", g2="new")
    scenario.check_version("records", keys, "old")


def test_candidates_are_read_about_compared_rejected_and_promoted_by_the_plugin_alone(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=300)
    rollout = {"drainSeconds": 0, "promotion": "Manual"}
    scenario.apply(
        scenario.dataset("records", "records", shards=2, router=PATIENT | {"drainSeconds": 0}, rollout=rollout)
    )
    scenario.wait_settled("records", generation="g1")

    with scenario.gentle_load("records", keys) as load:
        scenario.source("records", version="small", records=100)
        with pytest.raises(CommandFailed, match="GateClosed"):
            _plugin(scenario, "refresh", "records", *WAIT)
        assert "maxShrinkPercent" in _plugin(scenario, "logs", "records")
        assert json.loads(_plugin(scenario, "logs", "records", "--json"))["generation"] == "g2"

        rejected = _refresh_to_candidate(scenario, "second")
        version = json.loads(_plugin(scenario, "get", "records", keys[7], "--generation", rejected))["version"]
        assert (version, json.loads(_plugin(scenario, "get", "records", keys[7]))["version"]) == ("second", "old")
        began = time.monotonic()
        difference = json.loads(_plugin(scenario, "diff", "records", "--json"))
        record("plugin", "diff of a candidate, by a Job", time.monotonic() - began, "s")
        assert [difference[side]["generation"] for side in ("before", "after")] == ["g1", rejected]
        assert [difference[kind] for kind in ("added", "removed", "changed", "same")] == [0, 0, 300, 0]
        assert kubectl("get", "jobs", "--namespace", scenario.namespace, "--output=name") == "", "a Job is left"
        assert f"{rejected} is rejected" in _plugin(scenario, "reject", "records")
        scenario.wait_condition("records", "RolledOut", "True", reason="Rejected")

        promoted = _refresh_to_candidate(scenario, "third")
        assert f"{promoted} serves" in _plugin(scenario, "promote", "records", promoted, *WAIT)
        assert scenario.status("records")["generation"] == promoted
        report = load.stop()

    report.check(rollbacks=0, g1="old", **{promoted: "third"})
    scenario.check_version("records", keys, "third")


def test_a_load_is_put_on_the_routers_by_a_job_that_leaves_nothing(scenario: Scenario, tmp_path: Path) -> None:
    keys = scenario.source("records", version="old", records=300)
    scenario.apply(scenario.dataset("records", "records", shards=2, router=PATIENT))
    scenario.wait_settled("records", generation="g1")
    words = ("--rate", "100", "--duration", "5", "--warmup", "1", "--fail-if", "errors>0", "--json")

    sampled = json.loads(_plugin(scenario, "load", "records", *words))
    assert 300 < sampled["requests"]["answered"] == sampled["requests"]["scheduled"] < 700, "by chance 500"
    assert (sampled["keys"]["found"], sampled["keys"]["missing"]) == (sampled["keys"]["asked"], 0)
    record("plugin", "load by a Job, 99th percentile at 100/s", sampled["latency"]["percentiles"]["99"] / 1e6, "s")

    asked = tmp_path / "keys.txt"
    asked.write_text("\n".join([*keys[:9], "absent"]))
    of_file = json.loads(_plugin(scenario, "load", "records", *words, "--keys", str(asked), "--batch", "10"))
    assert of_file["keys"]["missing"] > 0
    assert of_file["keys"]["found"] > 5 * of_file["keys"]["missing"]
    with pytest.raises(CommandFailed, match="exit code 7: "):
        _plugin(scenario, "load", "records", *words, "--fail-if", "p50>1us")
    assert kubectl("get", "jobs", "--namespace", scenario.namespace, "--output=name") == "", "a Job is left"


def _refresh_to_candidate(scenario: Scenario, version: str) -> str:
    """Refresh to a generation that waits for promotion, and return it."""
    scenario.source("records", version=version, records=300)
    assert "the refresh is done" in _plugin(scenario, "refresh", "records", *WAIT)
    scenario.wait_condition("records", "RolledOut", "False", reason="CandidateWaiting")
    return str(scenario.status("records")["candidate"]["generation"])


def _plugin(scenario: Scenario, verb: str, *arguments: str) -> str:
    """Return the output of ``kubectl lookupdb VERB ARGUMENTS`` in the scenario's namespace."""
    return kubectl("lookupdb", verb, *arguments, "--namespace", scenario.namespace, timeout=330)
