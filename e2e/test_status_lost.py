"""A dataset's status is wiped, by hand or with a backup, under load: what serves goes on, and numbers go on too."""

from __future__ import annotations

import json

import pytest
from e2e.support.kubectl import kubectl
from e2e.support.story import BRISK, LDS, PATIENT, Story

pytestmark = pytest.mark.in_pairs


def test_a_status_that_is_wiped_takes_nothing_from_what_serves(story: Story) -> None:
    keys = story.source("records", version="same", records=2000)
    story.apply(story.dataset("records", "records", shards=2, router=PATIENT, rollout=BRISK))
    before = story.wait_settled("records")

    with story.load("records", keys) as load:
        wiped = json.dumps([{"op": "remove", "path": "/status"}])
        kubectl(
            "patch",
            LDS,
            "records",
            "--namespace",
            story.namespace,
            "--subresource=status",
            "--type=json",
            f"--patch={wiped}",
        )
        after = story.wait_settled("records", generation="g2")
        load.wait_answers(load.report().answers + 2000, seconds=240)
        report = load.stop()

    assert after["rollouts"][0]["rollout"] == "r2"
    assert after["table"]["version"] > before["table"]["version"]
    report.check(g1="same", g2="same")
