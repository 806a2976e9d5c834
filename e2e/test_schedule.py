"""A dataset is checked every minute: an unchanged source builds nothing, a changed one is served. The status lists
both."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

import pytest
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, until
from e2e.support.scenario import PATIENT, Scenario

pytestmark = pytest.mark.side_by_side

INTERVAL: Final = 60
JITTER: Final = INTERVAL / 10
SPEC: Final = {"router": PATIENT | {"drainSeconds": 0}, "rollout": {"drainSeconds": 0}}


def test_a_source_is_looked_at_every_minute_and_built_when_it_has_changed(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=300)
    scenario.apply(scenario.dataset("records", "records", refresh={"schedule": "* * * * *"}, **SPEC))
    scenario.wait_settled("records", generation="g1")

    with scenario.gentle_load("records", keys) as load:
        unchanged = until(lambda: _looked_at(scenario, times=2), seconds=4 * INTERVAL, what="two checks by schedule")
        assert unchanged["generation"] == "g1"
        assert [build["outcome"] for build in unchanged["builds"]] == ["built", "unchanged"]
        first, again = unchanged["builds"]
        assert unchanged["lastChecked"] == again["finishedAt"] > first["finishedAt"]
        assert 0 < _seconds_between(unchanged["lastChecked"], unchanged["nextCheck"]) <= INTERVAL + JITTER

        scenario.source("records", version="new", records=300)
        changed = time.monotonic()
        serving = until(lambda: _serves_other(scenario, "g1"), seconds=5 * INTERVAL, what="the changed source served")
        record("schedule", "changed source to serving, looked at every minute", time.monotonic() - changed, "s")
        built = next(build for build in reversed(serving["builds"]) if build["outcome"] == "built")
        assert (built["generation"], built["records"]) == (serving["generation"], 300)

        scenario.change("records", refresh={"suspend": True})
        until(lambda: "nextCheck" not in scenario.status("records"), seconds=30, what="a schedule that rests")
        last = scenario.wait_settled("records", generation=serving["generation"])
        report = load.stop()

    report.check(rollbacks=0, g1="old", **{last["generation"]: "new"})
    scenario.check_version("records", keys, "new")


def _looked_at(scenario: Scenario, *, times: int) -> Manifest | None:
    """Return the status once the source was found unchanged this many times."""
    status = scenario.status("records")
    last = status["builds"][-1]
    return status if last["outcome"] == "unchanged" and last.get("count", 1) >= times else None


def _serves_other(scenario: Scenario, old: str) -> Manifest | None:
    status = scenario.status("records")
    return status if status["generation"] != old else None


def _seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
