"""One operator manages fifty datasets, ten of which serve, within its memory limit."""

from __future__ import annotations

from typing import Any, Final

from e2e.support import release
from e2e.support.figures import record
from e2e.support.kubectl import find, run_in, until
from e2e.support.scenario import LDS, Scenario

NAMES: Final = [f"records-{number:02}" for number in range(50)]
SERVING: Final = NAMES[:10]
MEASURED: Final = f"with {len(NAMES)} datasets, {len(SERVING)} of them serving"
MEMORY_BYTES: Final = 200 * 1024 * 1024
BUILD: Final = {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}}


def test_fifty_datasets_fit_one_operator(scenario: Scenario) -> None:
    keys = scenario.source("records", version="v1", records=100)
    # Apply the serving ones first: otherwise they would wait for forty builds.
    scenario.apply(*(scenario.dataset(name, "records", **_requesting("10m")) for name in SERVING))
    until(
        lambda: _datasets_with(scenario, "Ready") == set(SERVING),
        seconds=360,
        what=f"{len(SERVING)} datasets that serve",
    )
    scenario.apply(*(scenario.dataset(name, "records", **_requesting("1000")) for name in NAMES[len(SERVING) :]))
    until(lambda: _datasets_with(scenario, "Built") == set(NAMES), seconds=420, what=f"{len(NAMES)} datasets built")

    held = _read_memory()
    for what, value in held.items():
        figure = f"operator's memory {MEASURED}, {what}"
        record("fifty-datasets", figure, value / 1024 / 1024, "MiB", at_most=MEMORY_BYTES >> 20)
    assert max(held.values()) <= MEMORY_BYTES
    assert release.operator_pod()["status"]["containerStatuses"][0]["restartCount"] == 0
    assert _datasets_with(scenario, "Ready") == set(SERVING), "what has no node does not serve, what serves stays"
    for name in SERVING:
        scenario.check_version(name, keys, "v1")


def _requesting(cpu: str) -> dict[str, Any]:
    """Return a spec whose servers and router request ``cpu``. No node has room for 1000."""
    return {
        "shards": 1,
        "replicas": 1,
        "build": BUILD,
        "serving": {"resources": {"requests": {"cpu": cpu}}},
        "router": {"replicas": 1, "drainSeconds": 0, "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}},
    }


def _datasets_with(scenario: Scenario, condition: str) -> set[str]:
    """Return the names of the datasets whose ``condition`` is True."""
    found = find(LDS, scenario.namespace)
    return {dataset["metadata"]["name"] for dataset in found if _is_true(dataset.get("status", {}), condition)}


def _is_true(status: dict[str, Any], condition: str) -> bool:
    return any(entry["type"] == condition and entry["status"] == "True" for entry in status.get("conditions", []))


def _read_memory() -> dict[str, int]:
    """Return the operator's resident memory in bytes, current and peak."""
    name = release.operator_pod()["metadata"]["name"]
    text = run_in(name, release.NAMESPACE, "python", "-c", "print(open('/proc/1/status').read())")
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {what: int(lines[key].split()[0]) * 1024 for what, key in {"resident": "VmRSS", "at most": "VmHWM"}.items()}
