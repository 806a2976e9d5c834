"""Two teams call their datasets the same, each in its own namespace: neither sees, nor loses, anything of the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.support.story import LDS, Story

pytestmark = pytest.mark.side_by_side


def test_datasets_of_one_name_in_two_namespaces_are_two(new_story: Callable[..., Story]) -> None:
    stories = {name: new_story(f"namespace-{name}") for name in ("one", "two")}
    keys = []
    for name, story in stories.items():
        keys = story.source("records", version=name, records=300)
        story.apply(story.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    for name, story in stories.items():
        story.wait_settled("records")
        story.check_version("records", keys, name)

    one, two = stories.values()
    one.delete(LDS, "records")
    one.source("records", version="again", records=300)
    one.apply(one.dataset("records", "records", shards=2, router={"drainSeconds": 0}))
    one.wait_settled("records", generation="g1")
    one.check_version("records", keys, "again")  # not what was deleted
    assert two.wait_settled("records")["generation"] == "g1"
    two.check_version("records", keys, "two")
