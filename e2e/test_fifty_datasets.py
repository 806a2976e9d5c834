"""One operator and fifty datasets: all are built, and the operator stays within its memory."""

from __future__ import annotations

from typing import Any, Final

from e2e.support import release
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, run_in, until
from e2e.support.story import LDS, Story

DATASETS: Final = 50
MEMORY_BYTES: Final = 200 * 1024 * 1024
SMALL: Final[dict[str, Any]] = {
    "build": {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}},
    "serving": {"resources": {"requests": {"cpu": "1000"}}},
    "router": {"replicas": 1, "resources": {"requests": {"cpu": "1000"}}},
}
"""Fifty datasets on a machine that is made for one: they are built; no node is large enough for what serves them."""


def test_fifty_datasets_fit_one_operator(story: Story) -> None:
    story.source("records", version="v1", records=100)
    story.apply(*(story.dataset(f"records-{number:02}", "records", **SMALL) for number in range(DATASETS)))
    until(lambda: len(_with(story, "Built")) == DATASETS, seconds=900, what=f"{DATASETS} datasets built")

    held = _memory()
    for what, value in held.items():
        record("fifty-datasets", f"operator's memory, {what}", value / 1024 / 1024, "MiB", at_most=MEMORY_BYTES >> 20)
    assert max(held.values()) <= MEMORY_BYTES
    assert release.operator_pod()["status"]["containerStatuses"][0]["restartCount"] == 0


def _with(story: Story, condition: str) -> list[Manifest]:
    """The datasets with this condition true."""
    return [dataset for dataset in find(LDS, story.namespace) if _is(dataset, condition)]


def _is(dataset: Manifest, condition: str) -> bool:
    conditions = dataset.get("status", {}).get("conditions", [])
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def _memory() -> dict[str, int]:
    """Bytes: what is resident now, and the most that ever was."""
    name = release.operator_pod()["metadata"]["name"]
    text = run_in(name, release.NAMESPACE, "python", "-c", "print(open('/proc/1/status').read())")
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {what: int(lines[key].split()[0]) * 1024 for what, key in {"resident": "VmRSS", "at most": "VmHWM"}.items()}
