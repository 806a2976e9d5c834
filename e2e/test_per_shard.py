"""A rollout shard by shard under load, with room for one more shard.

Each key is answered from its shard's generation and never goes back, and a batch lists its generations.
"""

from __future__ import annotations

import json
import time
from typing import Final

import pytest
from e2e.support import wrong_answers
from e2e.support.figures import record
from e2e.support.kubectl import find, until
from e2e.support.scenario import BRISK, PATIENT, Scenario

pytestmark = pytest.mark.under_load

SHARDS: Final = 4
SURGE: Final = 1
ROLLOUT: Final = BRISK | {"strategy": "PerShard", "maxSurgeShards": SURGE}
ROUTER: Final = PATIENT | {"deadlineMilliseconds": 5000}
NOT_SERVED: Final = 412
PODS: Final = "app.kubernetes.io/component=shard"


def test_shards_change_one_by_one_with_room_for_one_more(scenario: Scenario) -> None:
    keys = scenario.source("records", version="old", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=SHARDS, router=ROUTER, rollout=ROLLOUT))
    scenario.wait_settled("records", generation="g1")

    with scenario.load("records", keys, per_shard=1) as load:
        scenario.source("records", version="new", records=2000)
        asked = time.monotonic()
        scenario.refresh("records")
        seen = _Seen(scenario)
        until(seen.has_mixed, seconds=240, what="shards of both generations")
        assert {answer.status for answer in scenario.lookup("records", keys[:10], generation="g2")} == {NOT_SERVED}
        until(seen.has_settled, seconds=480, what="all shards of g2")
        took = time.monotonic() - asked
        load.wait_answers(load.report().answers + 1000, seconds=240)
        report = load.stop()

    record("per-shard", "answers", report.answers)
    record("per-shard", "failed, wrong or mixed answers", report.failed + report.wrong + report.mixed, at_most=0)
    record("per-shard", "keys that went back to an older generation", report.back, at_most=0)
    record("per-shard", "batches of two generations", sum(held["answers"] for held in report.together.values()))
    record("per-shard", "slowest answer", report.longest, "s")
    record("per-shard", "shard pods at a time, most", seen.most_pods, at_most=SHARDS + SURGE)
    record("per-shard", f"refresh to all of {SHARDS} shards", took, "s")
    report.check(g1="old", g2="new")
    assert report.together.keys() == {"g1, g2"}
    versions = report.together["g1, g2"]["versions"]
    wrong_answers.check(versions == ["new", "old"], report.where, f"batches of g1 and g2 answered {versions}")
    assert seen.most_pods == SHARDS + SURGE, "as many as may be, and no more"
    assert seen.shard_counts >= {(SHARDS - 1, 1), (1, SHARDS - 1)}, "one shard after the other"
    scenario.check_version("records", keys, "new")


class _Seen:
    """Observations during the rollout."""

    def __init__(self, scenario: Scenario) -> None:
        self.most_pods = 0
        self.shard_counts: set[tuple[int, int]] = set()
        """The number of shards that answer from g1 and from g2, as a router reports them."""
        self._scenario = scenario

    def has_mixed(self) -> bool:
        """Return whether both generations have answered."""
        self._look()
        return bool(self.shard_counts)

    def has_settled(self) -> bool:
        """Return whether the dataset has settled."""
        self._look()
        return bool(self._scenario.wait_settled("records", generation="g2", seconds=0))

    def _look(self) -> None:
        # Count pods that are being deleted too: they still take room.
        self.most_pods = max(self.most_pods, len(find("pods", self._scenario.namespace, PODS)))
        counts = self._ask_router().get("shardGenerations")
        if counts:
            self.shard_counts.add((counts.get("g1", 0), counts.get("g2", 0)))

    def _ask_router(self) -> dict[str, dict[str, int]]:
        fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
        url = f"{self._scenario.url('records')}/v1/dataset"
        answer: dict[str, dict[str, int]] = json.loads(self._scenario.client_run("python", "-c", fetch, url))
        return answer
