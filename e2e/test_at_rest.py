"""Where nothing changes, nothing is written: not over minutes, not by an operator that has just started."""

from __future__ import annotations

import time
from typing import Final

from e2e.support import kinds, release
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, find_everywhere, until
from e2e.support.story import LDS, Story

KINDS: Final = f"{LDS},{kinds.OF_A_DATASET}"
REST_SECONDS: Final = 30
WRITES: Final = "lookupdb_operator_api_writes_total"
RECONCILES: Final = "lookupdb_operator_reconciles_total"


def test_nothing_is_written_at_rest(story: Story) -> None:
    dataset = story.apply_example("airports")
    story.wait_settled(dataset)
    until(lambda: _is_only_dataset(story), seconds=400, what="the datasets of other stories gone")
    writes = _wait_quiet()
    before = _versions(story)

    time.sleep(REST_SECONDS)
    assert release.operator_total(WRITES) == writes
    assert _versions(story) == before

    release.restart_operator()
    until(lambda: release.operator_total(RECONCILES) >= 1, seconds=60, what="a pass of the new operator")
    time.sleep(REST_SECONDS)
    written = release.operator_total(WRITES)
    record("at-rest", "API writes of an operator that starts where nothing changed", written, "", at_most=0)
    assert _versions(story) == before
    assert written == 0


def _is_only_dataset(story: Story) -> bool:
    """Whether the datasets of all other stories are gone."""
    return {item["metadata"]["namespace"] for item in find_everywhere(LDS)} == {story.namespace}


def _wait_quiet() -> float:
    """Wait until the operator has written nothing for a while (the list of living datasets follows within 10 s)."""
    last = [-1.0, 0.0]

    def look() -> bool:
        now = release.operator_total(WRITES)
        if now != last[0]:
            last[:] = [now, time.monotonic()]
        return time.monotonic() - last[1] > 15

    until(look, seconds=120, what="15 s without a write")
    return last[0]


def _versions(story: Story) -> dict[str, str]:
    return {_object_name(item): item["metadata"]["resourceVersion"] for item in find(KINDS, story.namespace)}


def _object_name(item: Manifest) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"
