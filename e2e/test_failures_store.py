"""The store goes, or refuses the credentials: lookups do not notice, builds and new servers say so, and go on when it
is back."""

from __future__ import annotations

import base64
import secrets
from typing import Final

from e2e.support import fault as faults
from e2e.support import store
from e2e.support.fault import DATASET, Fault
from e2e.support.kubectl import Manifest, find, until
from e2e.support.story import Story

AWAY: Final = Fault("StoreUnavailable", r"cannot \w+ s3://lookupdb at http://\S+:7070: \S+ refuses connections", {})
DENIED: Final = Fault(
    "StoreDenied", r"cannot \w+ s3://lookupdb at http://\S+:7070: access denied: SignatureDoesNotMatch", {}
)
"""Each message says what could not be done, and names the address: remedies speak of the store too."""


def test_nothing_is_built_or_fetched_while_the_store_is_away(shared_story: Story) -> None:
    story = shared_story
    faults.ensure_serving(story)
    served = faults.read_answers(story)
    earlier_warnings = faults.count_warnings(story, AWAY.reason)

    with store.stopped():
        story.change(DATASET, serving={"workers": 2})
        until(lambda: _fetchers(story), seconds=60, what="a server that fetches")
        version = _change_source(story)
        # Both wait a minute for the store before they give up.
        faults.check_shown(story, AWAY, earlier_warnings, ("RolledOut", "False"))
        assert faults.read_answers(story) == served
        faults.check_shown(story, AWAY, earlier_warnings + 1, ("Built", "False"))
        assert faults.read_answers(story) == served

    story.change(DATASET, gates={"minRecords": 2})
    after = story.wait_settled(DATASET)
    assert faults.read_answers(story) == (after["generation"], version)
    assert faults.count_warnings(story, AWAY.reason) == earlier_warnings + 2, "one of fetching, one of building"


def test_a_build_whose_credentials_the_store_refuses_says_so(shared_story: Story) -> None:
    story = shared_story
    faults.ensure_serving(story)
    served = faults.read_answers(story)
    earlier_warnings = faults.count_warnings(story, DENIED.reason)

    with store.other_credentials(AWS_SECRET_ACCESS_KEY=base64.b64encode(b"wrong").decode()):
        version = _change_source(story)
        faults.check_shown(story, DENIED, earlier_warnings, ("Built", "False"))
        assert faults.read_answers(story) == served

    # The right credentials are handed on, and what failed of the wrong ones is tried again, unasked.
    after = story.wait_settled(DATASET)
    assert faults.read_answers(story) == (after["generation"], version)
    assert faults.count_warnings(story, DENIED.reason) == earlier_warnings + 1


def _fetchers(story: Story) -> list[Manifest]:
    """Shard servers that do not serve yet."""
    pods = find("pods", story.namespace, "app.kubernetes.io/component=shard")
    return [pod for pod in pods if pod["status"]["phase"] == "Pending"]


def _change_source(story: Story) -> str:
    version = f"data-{secrets.token_hex(3)}"
    story.apply(faults.source_data(version))
    story.change(DATASET, source=faults.source(version))
    return version
