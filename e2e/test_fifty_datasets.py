"""One operator and fifty datasets, ten of which serve: all are built, and the operator stays within its memory."""

from __future__ import annotations

from typing import Any, Final

from e2e.support import release
from e2e.support.figures import record
from e2e.support.kubectl import find, run_in, until
from e2e.support.story import LDS, Story

NAMES: Final = [f"records-{number:02}" for number in range(50)]
SERVING: Final = NAMES[:10]
MEASURED: Final = f"with {len(NAMES)} datasets, {len(SERVING)} of them serving"
MEMORY_BYTES: Final = 200 * 1024 * 1024
BUILD: Final = {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}}


def test_fifty_datasets_fit_one_operator(story: Story) -> None:
    keys = story.source("records", version="v1", records=100)
    # Those that serve come first: on a machine made for one dataset they would else wait for forty builds.
    story.apply(*(story.dataset(name, "records", **_requesting("10m")) for name in SERVING))
    until(
        lambda: _datasets_with(story, "Ready") == set(SERVING), seconds=360, what=f"{len(SERVING)} datasets that serve"
    )
    story.apply(*(story.dataset(name, "records", **_requesting("1000")) for name in NAMES[len(SERVING) :]))
    until(lambda: _datasets_with(story, "Built") == set(NAMES), seconds=420, what=f"{len(NAMES)} datasets built")

    held = _read_memory()
    for what, value in held.items():
        figure = f"operator's memory {MEASURED}, {what}"
        record("fifty-datasets", figure, value / 1024 / 1024, "MiB", at_most=MEMORY_BYTES >> 20)
    assert max(held.values()) <= MEMORY_BYTES
    assert release.operator_pod()["status"]["containerStatuses"][0]["restartCount"] == 0
    assert _datasets_with(story, "Ready") == set(SERVING), "what has no node does not serve, what serves stays"
    for name in SERVING:
        story.check_version(name, keys, "v1")


def _requesting(cpu: str) -> dict[str, Any]:
    """A spec whose servers and router request ``cpu``: no node is large enough for 1000."""
    return {
        "shards": 1,
        "replicas": 1,
        "build": BUILD,
        "serving": {"resources": {"requests": {"cpu": cpu}}},
        "router": {"replicas": 1, "drainSeconds": 0, "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}},
    }


def _datasets_with(story: Story, condition: str) -> set[str]:
    """Names of the datasets whose ``condition`` is True."""
    found = find(LDS, story.namespace)
    return {dataset["metadata"]["name"] for dataset in found if _is_true(dataset.get("status", {}), condition)}


def _is_true(status: dict[str, Any], condition: str) -> bool:
    return any(entry["type"] == condition and entry["status"] == "True" for entry in status.get("conditions", []))


def _read_memory() -> dict[str, int]:
    """The operator's resident memory in bytes: now, and the most that ever was."""
    name = release.operator_pod()["metadata"]["name"]
    text = run_in(name, release.NAMESPACE, "python", "-c", "print(open('/proc/1/status').read())")
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {what: int(lines[key].split()[0]) * 1024 for what, key in {"resident": "VmRSS", "at most": "VmHWM"}.items()}
