"""Bad data is live, and somebody goes back by one field, under load: at once while the old servers stand, by a rollout
from the store otherwise. What was left does not come back before its source changes."""

from __future__ import annotations

import base64
import csv
import gzip
import io
from pathlib import Path
from typing import Any, Final

import yaml
from e2e.support.figures import BUSY, record
from e2e.support.kubectl import Manifest, kubectl, until
from e2e.support.load import Load, Report
from e2e.support.story import BRISK, EXAMPLES, PATIENT, Story

STANDING_SECONDS: Final = 2
STORE_SECONDS: Final = 20
CSV: Final = Path(__file__).parents[1] / "server" / "lookupdb" / "data" / "airports.csv.gz"
AIRPORTS: Final = "airports.csv.gz"


def test_servers_that_stand_take_over_and_what_was_left_stays_away(story: Story) -> None:
    keys = story.source("records", version="good", records=2000)
    story.apply(story.dataset("records", "records", shards=4, router=PATIENT, rollout=BRISK | {"keepPrevious": "30m"}))
    story.wait_settled("records", generation="g1")

    with story.load("records", keys) as load:
        story.source("records", version="bad", records=2000)
        story.refresh("records")
        story.wait_settled("records", generation="g2", rollouts=2)

        began = _pin(story, "records", load)
        story.wait_settled("records", generation="g1", rollouts=2)

        story.change("records", generation=None)
        story.wait_condition("records", "RolledOut", "True", reason="RolledBack")
        story.refresh("records")
        status = story.wait_settled("records", generation="g1", rollouts=2)
        assert status["builds"][-1]["outcome"] == "unchanged"
        assert story.condition("records", "RolledOut")["reason"] == "RolledBack"

        story.source("records", version="better", records=2000)
        story.refresh("records")
        better = _settled_generation(story, "records", "UpToDate", rollouts=2)
        load.wait_generation(better, seconds=60)
        report = load.stop()

    _check("servers that stand", report, began, better, at_most=STANDING_SECONDS)
    story.check_version("records", keys, "better")


def test_airports_go_back_to_what_is_in_the_store_and_refreshes_wait_while_pinned(story: Story) -> None:
    dataset, keys = _apply_airports(story, "good")
    story.wait_settled(dataset, generation="g1")

    with story.load(dataset, keys[::20]) as load:
        _source_airports(story, "bad")
        story.refresh(dataset)
        story.wait_settled(dataset, generation="g2")

        began = _pin(story, dataset, load)
        story.wait_settled(dataset, generation="g1")

        _source_airports(story, "better")
        story.refresh(dataset)
        status = story.wait_settled(dataset, generation="g1")
        waiting = status["generations"][-1]["generation"]
        assert waiting not in ("g1", "g2"), "a refresh is built while another generation is pinned"
        assert f"{waiting} is built, and waits" in story.condition(dataset, "RolledOut")["message"]
        assert waiting not in load.report().generations

        story.change(dataset, generation=None)
        better = _settled_generation(story, dataset, "UpToDate")
        assert better == waiting
        report = load.stop()

    _check("airports in the store", report, began, better, at_most=STORE_SECONDS)


def _pin(story: Story, dataset: str, load: Load) -> float:
    """Pin g1 and wait until it is active; the time of the command, by the clock of the load."""
    began = load.now()
    story.change(dataset, generation="g1")
    story.wait_condition(dataset, "RolledOut", "True", reason="Pinned")
    return began


def _settled_generation(story: Story, dataset: str, reason: str, rollouts: int = 1) -> str:
    """The generation that serves when nothing is left to do and RolledOut says ``reason``."""

    def look() -> Manifest | None:
        return story.wait_settled(dataset, rollouts=rollouts, seconds=0)

    story.wait_condition(dataset, "RolledOut", "True", reason=reason)
    return str(until(look, seconds=300, what=f"{dataset} settled")["generation"])


def _check(figure: str, report: Report, began: float, better: str, *, at_most: float) -> None:
    """That nobody was answered wrongly or not at all, and how long the bad data was live after the command."""
    took = report.generations["g2"]["last"] - began
    record(
        "pin", f"{figure}: rollback, from the command to the last router on the old data", took, "s", at_most=at_most
    )
    record("pin", f"{figure}: answers", report.answers)
    record("pin", f"{figure}: failed, wrong or mixed answers", report.failed + report.wrong + report.mixed, at_most=0)
    record("pin", f"{figure}: slowest answer", report.longest, "s")
    report.check(rollbacks=1, **{"g1": "good", "g2": "bad", better: "better"})
    assert took <= BUSY * at_most


def _apply_airports(story: Story, version: str) -> tuple[str, list[str]]:
    """The example, from a ConfigMap of the same rows with a version; the name of the dataset and the keys."""
    keys = _source_airports(story, version)
    manifest = yaml.safe_load((EXAMPLES / "airports.yaml").read_text())
    spec: dict[str, Any] = manifest["spec"]
    spec["source"] |= {"url": f"volume://{AIRPORTS}", "volume": {"configMapName": "airports"}}
    story.apply({**manifest, "spec": spec | {"router": PATIENT, "rollout": BRISK}})
    return str(manifest["metadata"]["name"]), keys


def _source_airports(story: Story, version: str) -> list[str]:
    """The ConfigMap with all airports, each with ``version``; the keys."""
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
    # Applied by the client, it would be held twice: once in an annotation, which is bounded.
    flags = ("--server-side", "--force-conflicts", "--namespace", story.namespace)
    kubectl("apply", *flags, "-f", "-", stdin=yaml.safe_dump(config_map))
    return [row["icao"] for row in rows]
