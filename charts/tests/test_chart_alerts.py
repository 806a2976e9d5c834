"""promtool checks and tests the chart's rules. Each alert has a test that it fires and a test that it does not, and a
runbook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
import yaml
from e2e.support import prometheus

from chart_support import (
    NAMESPACE,
    NO_GATEWAY,
    ROOT,
    Rendered,
    Values,
    find_rule_groups,
    find_rules,
    promtool,
    render,
    render_refused,
)

ENABLED: Final[Values] = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
TESTS: Final = Path(__file__).with_name("alert_rules.yaml")
RUNBOOKS: Final = ROOT / "docs" / "runbooks"


def alert_names() -> set[str]:
    return {rule["alert"] for rule in find_rules({}) if "alert" in rule}


def write(path: Path, document: object) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
    return str(path)


def slo(**latency: float) -> Values:
    return {"prometheusRule": {"enabled": True, "slo": {"latency": latency}}}


@pytest.mark.parametrize(
    "values",
    [{}, ENABLED, NO_GATEWAY, slo(thresholdSeconds=1), slo(thresholdSeconds=0.00005, objective=99.95)],
    ids=["defaults", "monitored", "no gateway", "one second", "50 microseconds"],
)
def test_promtool_finds_nothing_in_the_rules(tmp_path: Path, values: Values) -> None:
    path = write(tmp_path / "rules.yaml", {"groups": find_rule_groups(values)})
    assert promtool("check", "rules", "--lint=all", "--lint-fatal", path) == ""


def test_alerts_fire_and_do_not(tmp_path: Path) -> None:
    without = [{name: value for name, value in rule.items() if name != "annotations"} for rule in find_rules({})]
    write(tmp_path / "rules.yaml", {"groups": [{"name": "all", "rules": without}]})
    document = yaml.safe_load(TESTS.read_text(encoding="utf-8")) | {"rule_files": ["rules.yaml"]}
    assert promtool("test", "rules", write(tmp_path / "tests.yaml", document)) == ""


def test_every_alert_is_tested_both_ways() -> None:
    tests = yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alert_names()
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alert_names()


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("Lookup*.md")} == alert_names()
    chosen = {"prometheusRule": {"enabled": True, "runbookUrl": "https://wiki.example/{alert}"}}
    for values, url in (({}, "https://lookupdb.dev/docs/runbooks/{}.html"), (chosen, "https://wiki.example/{}")):
        for rule in find_rules(values):
            if "alert" in rule:
                assert rule["annotations"]["runbook_url"] == url.format(rule["alert"])


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("Lookup*.md")), ids=lambda page: page.stem)
def test_a_runbook_says_what_the_alert_means_and_what_to_do(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, *headings = [line for line in text.splitlines() if line.startswith("#")]
    assert title == f"# {page.stem}"
    assert headings == ["## Impact", "## Diagnosis", "## Fix", "## Seen"]
    assert 90 <= len(text.split()) <= 200


def test_the_threshold_of_latency_is_a_bucket() -> None:
    message = render_refused(slo(thresholdSeconds=0.03))
    assert "thresholdSeconds" in message
    assert "0.025" in message, "the buckets are listed"
    assert "objective" in render_refused(slo(objective=0.99))


def test_prometheus_can_read_what_the_pod_monitors_select(tmp_path: Path) -> None:
    """As e2e runs it."""
    rendered: Rendered = render(ENABLED)
    monitoring = [item for item in rendered.objects if item["kind"] in ("PodMonitor", "PrometheusRule")]
    configuration = prometheus.configuration(monitoring, "127.0.0.1:8001")
    jobs = {scrape["job_name"] for scrape in configuration["scrape_configs"]}
    assert jobs == {f"{NAMESPACE}/{name}" for name in ("lookupdb", "lookupdb-gateway", "lookupdb-datasets")}
    shorter = prometheus.shorten(find_rule_groups(ENABLED), prometheus.FASTER)
    path = write(tmp_path / "rules.yaml", {"groups": shorter})
    assert promtool("check", "rules", path) == ""
    assert "[10000ms]" in json.dumps(shorter), "five minutes"
    assert promtool("check", "config", write(tmp_path / "prometheus.yaml", configuration)) == ""
