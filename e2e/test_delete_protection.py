"""A protected dataset stays and answers, whatever is to be deleted, until somebody lifts that. With its namespace it
goes."""

from __future__ import annotations

from typing import Final

import pytest
from e2e.support.command import CommandFailed
from e2e.support.kubectl import find, get, kubectl, until
from e2e.support.story import LDS, Story

pytestmark = pytest.mark.side_by_side

PROTECTION: Final = "lookupdb.dev/delete-protection"


def test_a_protected_dataset_stays_until_somebody_lifts_that(story: Story) -> None:
    keys = story.source("records", version="v1", records=300)
    story.apply(story.dataset("records", "records", shards=2))
    story.wait_settled("records")
    kubectl("annotate", LDS, "records", "--namespace", story.namespace, f"{PROTECTION}=true")
    uid = get(LDS, "records", story.namespace)["metadata"]["uid"]

    for arguments in (("records",), ("--all",), ("records", "--force", "--grace-period=0")):
        with pytest.raises(
            CommandFailed, match=f"kubectl annotate lookupdatasets.lookupdb.dev records .*{PROTECTION}-"
        ):
            kubectl("delete", LDS, *arguments, "--namespace", story.namespace)
    found = get(LDS, "records", story.namespace)["metadata"]
    assert (found["uid"], "deletionTimestamp" in found) == (uid, False)
    story.check_version("records", keys, "v1")

    kubectl("annotate", LDS, "records", "--namespace", story.namespace, f"{PROTECTION}-")
    story.delete(LDS, "records")
    until(lambda: not find("pods", story.namespace, "lookupdb.dev/dataset=records"), seconds=120, what="all of it gone")


def test_a_protected_namespace_stays_and_one_that_goes_takes_protected_datasets_with_it(story: Story) -> None:
    story.source("records", version="v1", records=300)
    story.apply(story.dataset("records", "records", shards=2))
    story.wait_settled("records")
    kubectl("annotate", LDS, "records", "--namespace", story.namespace, f"{PROTECTION}=true")
    kubectl("annotate", "namespace", story.namespace, f"{PROTECTION}=true")
    with pytest.raises(CommandFailed, match=f"kubectl annotate namespaces {story.namespace} {PROTECTION}-"):
        kubectl("delete", "namespace", story.namespace)

    kubectl("annotate", "namespace", story.namespace, f"{PROTECTION}-")
    kubectl("delete", "namespace", story.namespace, "--timeout=240s", timeout=250)
