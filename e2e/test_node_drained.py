"""A node is drained under load. With two servers of each shard and two routers, no answer is lost."""

from __future__ import annotations

from e2e.support import nodes
from e2e.support.figures import record
from e2e.support.kubectl import Manifest, find, kubectl, until
from e2e.support.scenario import PATIENT, Scenario

OURS = "!lookupdb.dev/e2e"
"""Excludes the scenario's clients from the drain."""


def test_no_answer_is_lost_while_a_node_is_drained(scenario: Scenario) -> None:
    keys = scenario.source("records", version="same", records=2000)
    scenario.apply(scenario.dataset("records", "records", shards=2, replicas=2, router=PATIENT | {"replicas": 2}))
    scenario.wait_settled("records")
    node = nodes.spare_worker()
    assert _pods_on(scenario, node), f"nothing of the dataset runs on {node}"

    with scenario.load("records", keys, per_second=500) as load:
        try:
            kubectl(
                *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={OURS}"),
                *("--timeout=240s",),
                timeout=250,
            )
            until(lambda: not _pods_on(scenario, node), seconds=240, what=f"nothing left on {node}")
            scenario.wait_settled("records")
            before = load.report().answers
            load.wait_answers(before + 2000, seconds=240)
        finally:
            kubectl("uncordon", node)
        report = load.stop()

    record("node-drained", "answers", report.answers)
    record("node-drained", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    record("node-drained", "slowest answer", report.longest, "s")
    report.check(g1="same")


def _pods_on(scenario: Scenario, node: str) -> list[Manifest]:
    pods = find("pods", scenario.namespace, "lookupdb.dev/dataset=records")
    return [pod for pod in pods if pod["spec"].get("nodeName") == node and pod["status"]["phase"] == "Running"]
