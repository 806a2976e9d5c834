"""Bad data is live, and one field rolls it back under load: at once if the old servers still run, else by a rollout.

The bad generation does not return before its source changes.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from e2e.support.figures import BUSY, record
from e2e.support.kubectl import Manifest, kubectl, until
from e2e.support.load import Load, Report
from e2e.support.scenario import BRISK, EXAMPLES, PATIENT, Scenario

pytestmark = pytest.mark.under_load

STANDING_SECONDS: Final = 2
STORE_SECONDS: Final = 20
CSV: Final = Path(__file__).parents[1] / "server" / "lookupdb" / "data" / "airports.csv.gz"
AIRPORTS: Final = "airports.csv.gz"


def test_servers_that_stand_take_over_and_what_was_left_stays_away(scenario: Scenario) -> None:
    keys = scenario.source("records", version="good", records=2000)
    scenario.apply(
        scenario.dataset("records", "records", shards=4, router=PATIENT, rollout=BRISK | {"keepPrevious": "30m"})
    )
    scenario.wait_settled("records", generation="g1")

    with scenario.load("records", keys) as load:
        scenario.source("records", version="bad", records=2000)
        scenario.refresh("records")
        scenario.wait_settled("records", generation="g2", rollouts=2)

        began = _pin(scenario, "records", load)
        scenario.wait_settled("records", generation="g1", rollouts=2)

        scenario.change("records", generation=None)
        scenario.wait_condition("records", "RolledOut", "True", reason="RolledBack")
        scenario.refresh("records")
        status = scenario.wait_settled("records", generation="g1", rollouts=2)
        assert status["builds"][-1]["outcome"] == "unchanged"
        assert scenario.condition("records", "RolledOut")["reason"] == "RolledBack"

        scenario.source("records", version="better", records=2000)
        scenario.refresh("records")
        better = _settled_generation(scenario, "records", "UpToDate", rollouts=2)
        load.wait_generation(better, seconds=60)
        report = load.stop()

    _check("servers that stand", report, began, better, at_most=STANDING_SECONDS)
    scenario.check_version("records", keys, "better")


def test_airports_go_back_to_what_is_in_the_store_and_refreshes_wait_while_pinned(scenario: Scenario) -> None:
    dataset, keys = _apply_airports(scenario, "good")
    scenario.wait_settled(dataset, generation="g1")

    with scenario.load(dataset, keys[::20]) as load:
        _source_airports(scenario, "bad")
        scenario.refresh(dataset)
        scenario.wait_settled(dataset, generation="g2")

        began = _pin(scenario, dataset, load)
        scenario.wait_settled(dataset, generation="g1")

        _source_airports(scenario, "better")
        scenario.refresh(dataset)
        status = scenario.wait_settled(dataset, generation="g1")
        waiting = status["generations"][-1]["generation"]
        assert waiting not in ("g1", "g2"), "a refresh is built while another generation is pinned"
        assert f"{waiting} is built, and waits" in scenario.condition(dataset, "RolledOut")["message"]
        assert waiting not in load.report().generations

        scenario.change(dataset, generation=None)
        better = _settled_generation(scenario, dataset, "UpToDate")
        assert better == waiting
        report = load.stop()

    _check("airports in the store", report, began, better, at_most=STORE_SECONDS)


def _pin(scenario: Scenario, dataset: str, load: Load) -> float:
    """Pin g1 and wait until it is active. Return when, by the load's clock, it was pinned."""
    began = load.now()
    scenario.change(dataset, generation="g1")
    scenario.wait_condition(dataset, "RolledOut", "True", reason="Pinned")
    return began


def _settled_generation(scenario: Scenario, dataset: str, reason: str, rollouts: int = 1) -> str:
    """Return the generation that serves once the dataset has settled and RolledOut has ``reason``."""

    def look() -> Manifest | None:
        return scenario.wait_settled(dataset, rollouts=rollouts, seconds=0)

    scenario.wait_condition(dataset, "RolledOut", "True", reason=reason)
    return str(until(look, seconds=300, what=f"{dataset} settled")["generation"])


def _check(figure: str, report: Report, began: float, better: str, *, at_most: float) -> None:
    """Assert that every answer came and was right. Record how long the bad data stayed live."""
    took = report.generations["g2"]["last"] - began
    record(
        "pin", f"{figure}: rollback, from the command to the last router on the old data", took, "s", at_most=at_most
    )
    record("pin", f"{figure}: answers", report.answers)
    record("pin", f"{figure}: failed, wrong or mixed answers", report.failed + report.wrong + report.mixed, at_most=0)
    record("pin", f"{figure}: slowest answer", report.longest, "s")
    report.check(rollbacks=1, **{"g1": "good", "g2": "bad", better: "better"})
    assert took <= BUSY * at_most


def _apply_airports(scenario: Scenario, version: str) -> tuple[str, list[str]]:
    """Apply the example with a ConfigMap of the same rows plus a version. Return the dataset's name and the keys."""
    keys = _source_airports(scenario, version)
    manifest = yaml.safe_load((EXAMPLES / "airports.yaml").read_text())
    spec: dict[str, Any] = manifest["spec"]
    spec["source"] |= {"url": f"volume://{AIRPORTS}", "volume": {"configMapName": "airports"}}
    scenario.apply({**manifest, "spec": spec | {"router": PATIENT, "rollout": BRISK}})
    return str(manifest["metadata"]["name"]), keys


def _source_airports(scenario: Scenario, version: str) -> list[str]:
    """Apply the ConfigMap with all airports, each with ``version``. Return the keys."""
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(CSV.read_bytes()).decode(), newline="")))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*rows[0], "version"])
    writer.writeheader()
    writer.writerows(row | {"version": version} for row in rows)
    packed = base64.b64encode(gzip.compress(text.getvalue().encode(), mtime=0)).decode()
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "airports"},
        "binaryData": {AIRPORTS: packed},
    }
    # A client-side apply would copy it into an annotation, whose size is limited.
    flags = ("--server-side", "--force-conflicts", "--namespace", scenario.namespace)
    kubectl("apply", *flags, "-f", "-", stdin=yaml.safe_dump(config_map))
    return [row["icao"] for row in rows]
