"""Faults of a serving dataset: the change that breaks its spec, how conditions and Events show it, and the
correction."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from e2e.support import pods, wrong_answers
from e2e.support.kubectl import Manifest, find, until
from e2e.support.scenario import Scenario

DATASET: Final = "records"
RECORDS: Final = 300
KEYS: Final = [f"key-{number:05}" for number in range(RECORDS)]
SPEC: Final[Mapping[str, Any]] = {"router": {"replicas": 1, "drainSeconds": 0}, "rollout": {"drainSeconds": 0}}
"""For datasets that only have to serve: nothing drains for long."""
BAD_ROW: Final = 17
"""The line of bad.csv with more fields than columns."""


QUOTA: Final[Manifest] = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "memory"},
    "spec": {"hard": {"requests.memory": "16Gi"}},
}
"""For namespaces whose datasets may ask for too much."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A defect of a spec, and how it must show."""

    reason: str
    """The reason of the condition and of the Event."""
    message_pattern: str
    """A regular expression for the condition's message."""
    broken: Manifest
    """Members to merge into a healthy spec."""


def memory_limit(part: str, memory: str) -> Manifest:
    """Return members of a spec that give ``part`` (build, serving) this memory limit."""
    return {part: {"resources": {"limits": {"memory": memory}}}}


def pod_faults(part: str) -> dict[str, Fault]:
    """Return the faults, by name, that pods of builds and rollouts share. ``part`` is their part of the spec."""
    nowhere = {"scheduling": {"nodeSelector": {"lookupdb.dev/e2e": "nowhere"}}}
    return {
        "image-absent": Fault("ImagePullFailed", r"localhost:1/absent:1", {"image": "localhost:1/absent:1"}),
        "killed": Fault("OutOfMemory", r"killed.*limit of 12Mi", memory_limit(part, "12Mi")),
        "quota-exceeded": Fault("QuotaExceeded", r"exceeded quota.*requests\.memory=64Gi", memory_limit(part, "64Gi")),
        "no-node": Fault("Unschedulable", r"didn't match Pod's node affinity/selector", nowhere),
    }


def source_data(version: str) -> Manifest:
    """Return the ConfigMap ``version``: ``records.csv`` with that version in all rows, and ``bad.csv`` with a bad
    row."""
    rows = [f"{key},{version},{version} of {key}" for key in KEYS]
    good = ["id,version,text", *rows]
    bad = [*good[: BAD_ROW - 1], f"{KEYS[BAD_ROW - 2]},{version},one field,too many", *good[BAD_ROW:]]
    return pods.config_map(version, {"records.csv": "\n".join(good) + "\n", "bad.csv": "\n".join(bad) + "\n"})


def source(version: str) -> Manifest:
    """Return ``spec.source`` for the ConfigMap of ``source_data(version)``. Merging it also removes faulty members."""
    volume = {"configMapName": version, "claimName": None}
    return {"url": "volume://records.csv", "volume": volume, "secretName": None}


def healthy_spec(version: str, **further: Any) -> Manifest:
    """Return members that, merged, remove every fault of this module from a spec."""
    faults = dict.fromkeys(("gates", "image", "build", "serving", "scheduling"))
    return {"source": source(version)} | faults | further


def ensure_serving(scenario: Scenario) -> Manifest:
    """Create or repair the dataset until it serves, and return its status."""
    with contextlib.suppress(AssertionError):
        return scenario.wait_settled(DATASET, seconds=0)
    version = f"data-{secrets.token_hex(3)}"
    scenario.apply(source_data(version))
    if not find("lookupdatasets.lookupdb.dev", scenario.namespace):
        scenario.apply(scenario.dataset(DATASET, version, **SPEC))
    else:
        scenario.change(DATASET, **healthy_spec(version))
    return scenario.wait_settled(DATASET)


def merge(base: Manifest, change: Manifest) -> Manifest:
    """Return ``base`` with ``change`` merged in, object by object."""
    both = dict(base)
    for member, value in change.items():
        inner = both.get(member)
        both[member] = merge(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return both


def check_shown(
    scenario: Scenario, fault: Fault, earlier_warnings: int, *conditions: tuple[str, str], dataset: str = DATASET
) -> None:
    """Wait until Degraded, ``conditions`` and one more Event than ``earlier_warnings`` show the fault. Assert that the
    dataset still serves."""
    for kind, truth in (("Degraded", "True"), *conditions):
        # A cause may show in several ways: a stopped server is silent at first, and rejects connections later.
        found = scenario.wait_condition(
            dataset, kind, truth, reason=fault.reason, message_pattern=fault.message_pattern
        )
        message = found["message"]
        assert message.endswith((".", "!")), f"not a sentence: {message}"
    until(
        lambda: count_warnings(scenario, fault.reason, dataset) > earlier_warnings,
        seconds=30,
        what=f"an Event {fault.reason}",
    )
    assert scenario.condition(dataset, "Ready")["status"] == "True", "the old data keep serving"


def count_warnings(scenario: Scenario, reason: str, dataset: str = DATASET) -> int:
    """Return the number of Warning events about the dataset with ``reason``, repetitions included."""
    warnings = (
        event
        for event in find("events", scenario.namespace)
        if (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("LookupDataset", dataset)
        and event["type"] == "Warning"
    )
    return sum(event.get("count") or 1 for event in warnings if event["reason"] == reason)


def read_answers(scenario: Scenario, dataset: str = DATASET) -> tuple[str, str]:
    """Return the generation and version of all answers; assert that all are the same."""
    found = scenario.lookup(dataset, KEYS, batch=100)
    assert {answer.status for answer in found} == {200}, found[:3]
    pairs = {(answer.generation, answer.value["version"]) for answer in found}
    wrong_answers.check(len(pairs) == 1, f"{scenario.namespace}/{dataset}", f"answered {pairs}")
    return pairs.pop()


def parse_number(name: str) -> int:
    """Return the 12 of g12 or r12."""
    return int(name[1:])
