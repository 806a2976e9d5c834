"""The store goes, or refuses the credentials: lookups do not notice, builds and new servers say so, and go on when it
is back."""

from __future__ import annotations

import base64
import secrets
from typing import Final

from e2e.support import fault as faults
from e2e.support import store
from e2e.support.fault import DATASET, Fault
from e2e.support.story import LDS, Story

OTHER: Final = "others"
AWAY: Final = Fault("StoreUnavailable", r"cannot \w+ s3://lookupdb at http://\S+:7070: \S+ refuses connections", {})
DENIED: Final = Fault(
    "StoreDenied", r"cannot \w+ s3://lookupdb at http://\S+:7070: access denied: SignatureDoesNotMatch", {}
)
"""Each message says what could not be done, and names the address: remedies speak of the store too."""


def test_nothing_is_built_or_fetched_while_the_store_is_away(shared_story: Story) -> None:
    story = shared_story
    faults.ensure_serving(story)
    source = story.resource(DATASET)["spec"]["source"]["volume"]["configMapName"]
    story.apply(story.dataset(OTHER, source, **faults.SPEC))
    story.wait_settled(OTHER)
    served = {dataset: faults.read_answers(story, dataset) for dataset in (DATASET, OTHER)}
    earlier_warnings = faults.count_warnings(story, AWAY.reason)

    with store.stopped():  # whoever fetches, and whoever builds, waits a minute for it: both at the same time
        story.change(DATASET, serving={"workers": 2})
        version = _change_source(story, OTHER)
        faults.check_shown(story, AWAY, earlier_warnings, ("RolledOut", "False"))
        faults.check_shown(story, AWAY, 0, ("Built", "False"), dataset=OTHER)
        assert {dataset: faults.read_answers(story, dataset) for dataset in (DATASET, OTHER)} == served

    story.change(DATASET, gates={"minRecords": 2})
    story.change(OTHER, gates={"minRecords": 2})
    for dataset, expected in ((DATASET, served[DATASET][1]), (OTHER, version)):
        after = story.wait_settled(dataset)
        assert faults.read_answers(story, dataset) == (after["generation"], expected)
    assert faults.count_warnings(story, AWAY.reason) == earlier_warnings + 1
    assert faults.count_warnings(story, AWAY.reason, OTHER) == 1
    story.delete(LDS, OTHER)


def test_a_build_whose_credentials_the_store_refuses_says_so(shared_story: Story) -> None:
    story = shared_story
    faults.ensure_serving(story)
    served = faults.read_answers(story)
    earlier_warnings = faults.count_warnings(story, DENIED.reason)

    with store.other_credentials(AWS_SECRET_ACCESS_KEY=base64.b64encode(b"wrong").decode()):
        version = _change_source(story)
        faults.check_shown(story, DENIED, earlier_warnings, ("Built", "False"))
        assert faults.read_answers(story) == served

    # The gateway has the right credentials, and what failed of the wrong ones is tried again, unasked.
    after = story.wait_settled(DATASET)
    assert faults.read_answers(story) == (after["generation"], version)
    # One of the tries again may have fallen into the moments until no gateway with the wrong ones was left.
    assert 1 <= faults.count_warnings(story, DENIED.reason) - earlier_warnings <= 2


def _change_source(story: Story, dataset: str = DATASET) -> str:
    version = f"data-{secrets.token_hex(3)}"
    story.apply(faults.source_data(version))
    story.change(dataset, source=faults.source(version))
    return version
