"""A dataset is rolled out shard by shard under load: never more servers than the surge allows, and all answers right,
also when a newer wish turns it round midway."""

from __future__ import annotations

import time
from typing import Final

import pytest
from e2e.support.figures import record
from e2e.support.kubectl import find, until
from e2e.support.load import Report
from e2e.support.story import BRISK, PATIENT, Story

pytestmark = pytest.mark.in_pairs

SHARDS: Final = 4
SURGE: Final = 1
ROLLOUT: Final = {**BRISK, "strategy": "PerShard", "maxSurgeShards": SURGE}
SERVERS: Final = "app.kubernetes.io/component=shard"


def test_shards_change_one_by_one_and_never_more_servers_than_the_surge_allows(story: Story) -> None:
    keys = story.source("records", version="old", records=2000)
    story.apply(story.dataset("records", "records", shards=SHARDS, router=PATIENT, rollout=ROLLOUT))
    story.wait_settled("records", generation="g1")

    with story.load("records", keys, per_shard=1) as load:
        began = time.monotonic()
        story.source("records", version="new", records=2000)
        story.refresh("records")
        seen = _watch_until_settled(story, "g2")
        took = time.monotonic() - began
        load.wait_generation("g2", seconds=60)
        report = load.stop()

    record("per-shard", f"{SHARDS} shards one by one, from the refresh to settled", took, "s")
    _check(report, seen)
    assert report.back == 0
    assert any(f"of {SHARDS} shards answer from g2, the others from g1" in message for message in seen.messages)
    story.check_version("records", keys, "new")


def test_a_pin_midway_goes_back_shard_by_shard_from_what_serves(story: Story) -> None:
    keys = story.source("records", version="old", records=2000)
    story.apply(story.dataset("records", "records", shards=SHARDS, router=PATIENT, rollout=ROLLOUT))
    story.wait_settled("records", generation="g1")

    with story.load("records", keys, per_shard=1) as load:
        story.source("records", version="new", records=2000)
        story.refresh("records")
        load.wait_generation("g2", seconds=300)
        story.change("records", generation="g1")
        seen = _watch_until_settled(story, "g1")
        report = load.stop()

    _check(report, seen)
    sets = {found["metadata"]["name"].rpartition("-s")[2] for found in find("statefulsets", story.namespace)}
    assert sets == {str(shard) for shard in range(SHARDS)}
    story.check_version("records", keys, "old")


class _Seen:
    """What was seen of a rollout at its busiest."""

    def __init__(self) -> None:
        self.sets = self.pods = 0
        self.messages: set[str] = set()

    def note(self, story: Story) -> None:
        """Look once."""
        self.sets = max(self.sets, len(find("statefulsets", story.namespace)))
        self.pods = max(self.pods, len(find("pods", story.namespace, SERVERS)))
        self.messages.add(story.condition("records", "RolledOut")["message"])


def _watch_until_settled(story: Story, generation: str) -> _Seen:
    seen = _Seen()

    def look() -> bool:
        seen.note(story)
        return bool(story.wait_settled("records", generation=generation, seconds=0))

    until(look, seconds=600, what=f"{generation} is settled, shard by shard")
    return seen


def _check(report: Report, seen: _Seen) -> None:
    """That nobody was answered wrongly or not at all, that batches came from both generations, and that there never
    were more servers than was asked for."""
    most = SHARDS + SURGE
    record("per-shard", "pods of shards at a time, at most", seen.pods, at_most=most)
    record("per-shard", "answers", report.answers)
    record("per-shard", "answers out of both generations", sum(held["answers"] for held in report.together.values()))
    record("per-shard", "failed, wrong or mixed answers", report.failed + report.wrong + report.mixed, at_most=0)
    record("per-shard", "slowest answer", report.longest, "s")
    assert report.is_faultless, str(report)
    assert {name: held["versions"] for name, held in report.generations.items()} == {"g1": ["old"], "g2": ["new"]}
    assert {names: held["versions"] for names, held in report.together.items()} == {"g1, g2": ["new", "old"]}
    assert SHARDS < seen.pods <= most, f"{seen.pods} pods of {SHARDS} shards"
    assert seen.sets <= most
