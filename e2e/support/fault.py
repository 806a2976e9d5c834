"""A fault that befalls a dataset that serves, how it shows, and the spec that ends it."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from e2e.support import pods, wrong
from e2e.support.kubectl import Manifest, find, until
from e2e.support.story import Story

DATASET: Final = "records"
RECORDS: Final = 300
KEYS: Final = [f"key-{number:05}" for number in range(RECORDS)]
SPEC: Final[Mapping[str, Any]] = {
    "router": {"replicas": 1, "drainSeconds": 0},
    "rollout": {"drainSeconds": 0},
}
"""Of datasets that only have to show that they serve: nothing waits for long."""
BAD_ROW: Final = 17
"""The line of bad.csv with a row of more fields than there are columns."""


QUOTA: Final[Manifest] = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "memory"},
    "spec": {"hard": {"requests.memory": "16Gi"}},
}
"""Of a namespace whose datasets may ask for too much."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a spec."""

    reason: str
    """Of the condition and of the Event."""
    says: str
    """A regular expression that the condition's sentence holds."""
    broken: Manifest
    """Merged into a healthy spec."""


def limited(part: str, memory: str) -> Manifest:
    """``part`` (build, serving) with this memory limit."""
    return {part: {"resources": {"limits": {"memory": memory}}}}


def of_pods(part: str) -> dict[str, Fault]:
    """By name, what may befall the pods of a build and of a rollout alike; ``part`` of the spec is theirs."""
    nowhere = {"scheduling": {"nodeSelector": {"lookupdb.dev/e2e": "nowhere"}}}
    return {
        "image-absent": Fault("ImagePullFailed", r"localhost:1/absent:1", {"image": "localhost:1/absent:1"}),
        "killed": Fault("OutOfMemory", r"killed.*limit of 24Mi", limited(part, "24Mi")),
        "quota-exceeded": Fault("QuotaExceeded", r"exceeded quota.*requests\.memory=64Gi", limited(part, "64Gi")),
        "no-node": Fault("Unschedulable", r"didn't match Pod's node affinity/selector", nowhere),
    }


def data(version: str) -> Manifest:
    """The ConfigMap ``version``: ``records.csv`` with that version in all rows, and ``bad.csv`` with a bad row."""
    rows = [f"{key},{version},{version} of {key}" for key in KEYS]
    good = ["id,version,text", *rows]
    bad = [*good[: BAD_ROW - 1], f"{KEYS[BAD_ROW - 2]},{version},one field,too many", *good[BAD_ROW:]]
    return pods.config_map(version, {"records.csv": "\n".join(good) + "\n", "bad.csv": "\n".join(bad) + "\n"})


def source(version: str) -> Manifest:
    """``spec.source`` of what ``data(version)`` made; as a merge it removes what a fault has put there."""
    volume = {"configMapName": version, "claimName": None}
    return {"url": "volume://records.csv", "volume": volume, "secretName": None}


def healthy(version: str, **further: Any) -> Manifest:
    """What makes every spec of this module's faults sound again, as a merge."""
    faults = dict.fromkeys(("gates", "image", "build", "serving", "scheduling"))
    return {"source": source(version)} | faults | further


def serving(story: Story) -> Manifest:
    """The one dataset of a module's faults, made or mended so that it serves; its status."""
    with contextlib.suppress(AssertionError):
        return story.settled(DATASET, seconds=0)
    version = f"data-{secrets.token_hex(3)}"
    story.apply(data(version))
    if not find("lookupdatasets.lookupdb.dev", story.namespace):
        story.apply(story.dataset(DATASET, version, **SPEC))
    else:
        story.change(DATASET, **healthy(version))
    return story.settled(DATASET)


def merged(base: Manifest, change: Manifest) -> Manifest:
    """``base`` with ``change`` in it."""
    both = dict(base)
    for member, value in change.items():
        inner = both.get(member)
        both[member] = merged(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return both


def shows(story: Story, fault: Fault, heard: int, *conditions: tuple[str, str], seconds: float = 300) -> None:
    """Waits until the fault stands in Degraded and ``conditions`` with its sentence, and in one Event more than
    ``heard``; what served goes on serving."""
    for kind, truth in (("Degraded", "True"), *conditions):
        found = story.wait_condition(DATASET, kind, truth, reason=fault.reason, seconds=seconds)
        assert re.search(fault.says, found["message"]), f"{kind} does not say {fault.says!r}: {found['message']}"
        assert found["message"].endswith((".", "!")), f"not a sentence: {found['message']}"
    until(lambda: warnings(story, fault.reason) > heard, seconds=30, what=f"an Event {fault.reason}")
    assert story.condition(DATASET, "Ready")["status"] == "True", "what served goes on serving"


def warnings(story: Story, reason: str) -> int:
    """How often people were warned of ``reason``, in Events about the dataset."""
    told = (
        event
        for event in find("events", story.namespace)
        if event["involvedObject"]["kind"] == "LookupDataset" and event["type"] == "Warning"
    )
    return sum(event.get("count") or 1 for event in told if event["reason"] == reason)


def answers(story: Story) -> tuple[str, str]:
    """Generation and version that every key is answered with; all with the same."""
    found = story.lookup(DATASET, KEYS, batch=100)
    assert {answer.status for answer in found} == {200}, found[:3]
    pairs = {(answer.generation, answer.value["version"]) for answer in found}
    wrong.check(len(pairs) == 1, f"{story.namespace}/{DATASET}", f"answered {pairs}")
    return pairs.pop()


def number(name: str) -> int:
    """12 of g12 and r12."""
    return int(name[1:])
