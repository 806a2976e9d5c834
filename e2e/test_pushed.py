"""Pushes under load: each answer comes completely from one generation, and bad pushes change nothing."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

import pytest
from e2e.support import helm, pods, release
from e2e.support.command import CommandFailed
from e2e.support.figures import record
from e2e.support.kubectl import kubectl, run_in
from e2e.support.scenario import PATIENT, Scenario

pytestmark = pytest.mark.under_load

ANSWERS: Final = 50_000
RECORDS: Final = 2000
OWN: Final = "own"
_WRITE: Final = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"


class Pusher:
    """A pod that pushes to the dataset ``records``, with the token of its pusher, and has no other rights."""

    def __init__(self, scenario: Scenario) -> None:
        self._namespace = scenario.namespace
        self.cluster = helm.cluster_id()
        scenario.apply(*pods.pusher("records-pusher", {OWN: release.AUDIENCE}))
        kubectl("wait", "--for=condition=Ready", f"pod/{pods.PUSHER}", "-n", self._namespace, "--timeout=60s")

    def run(self, *command: str, stdin: str | None = None) -> str:
        return run_in(pods.PUSHER, self._namespace, *command, stdin=stdin)

    def push(self, manifest: dict[str, Any], keys: list[str], version: str) -> dict[str, Any]:
        lines = ["id,version,text", *(f"{key},{version},{version} of {key}" for key in keys)]
        self.run("python", "-c", _WRITE, f"{pods.WORK}/rows.csv", stdin="\n".join(lines) + "\n")
        self.run("python", "-c", _WRITE, f"{pods.WORK}/manifest.yaml", stdin=json.dumps(manifest))
        words = [
            "push",
            "-f",
            f"{pods.WORK}/manifest.yaml",
            f"{pods.WORK}/rows.csv",
            "--scratch",
            f"{pods.WORK}/scratch",
        ]
        words += ["--store", release.gateway_url(), "--cluster-id", self.cluster, "--memory-limit", "384MiB"]
        token = f"LOOKUPDB_STORE_TOKEN_FILE={pods.TOKENS}/{OWN}"
        done: dict[str, Any] = json.loads(self.run("env", token, "lookupdb", *words, "--progress", "none", "--json"))
        return done

    def attack(self, requests: list[dict[str, Any]]) -> list[tuple[int, str]]:
        """Send requests with the token; return the answers."""
        result = self.run("python", "/inside/intrude.py", stdin=json.dumps({"requests": requests}))
        return [(status, body) for status, body in json.loads(result)["answers"]]


def test_pushes_fail_and_mix_nothing(scenario: Scenario) -> None:
    keys = [f"key-{number:05}" for number in range(RECORDS)]
    spec = {"source": {"pushed": True}, "shards": 4, "router": PATIENT}
    scenario.apply(scenario.dataset("records", "none", **spec))
    scenario.wait_condition("records", "Built", "False", reason="WaitingForSource")
    manifest = scenario.resource("records")
    pusher = Pusher(scenario)
    assert pusher.push(manifest, keys, "old")["generation"] == "g1"
    scenario.refresh("records")
    scenario.wait_settled("records")
    first = scenario.status("records")["generation"]

    with scenario.load("records", keys, per_second=500) as load:
        load.wait_answers(ANSWERS // 4, seconds=300)
        with pytest.raises(CommandFailed, match="maxShrinkPercent"):
            pusher.push(manifest, keys[: RECORDS // 2], "short")
        other = {**manifest, "spec": {**manifest["spec"], "shards": 3}}
        pusher.push(other, keys, "other")
        scenario.refresh("records")
        scenario.wait_condition("records", "Degraded", "True", reason="PushRejected")
        pusher.push(manifest, keys, "new")
        scenario.refresh("records")
        scenario.wait_settled("records")
        second = scenario.status("records")["generation"]
        load.wait_generation(second, seconds=240)
        load.wait_answers(ANSWERS, seconds=600)
        report = load.stop()

    record("pushed", "answers", report.answers)
    record("pushed", "failed or mixed answers", report.failed + report.mixed + report.wrong, at_most=0)
    versions: dict[str, Any] = {first: "old", second: "new"}
    report.check(**versions)
    scenario.check_version("records", keys, "new")
    _check_rights(scenario, pusher, f"{second}/manifest.json")
    scenario.check_version("records", keys, "new")


def _check_rights(scenario: Scenario, pusher: Pusher, served: str) -> None:
    uid = scenario.resource("records")["metadata"]["uid"]
    part = f"{pusher.cluster}/{scenario.namespace}"
    dataset = f"{part}/records-{uid[:8]}"
    forbidden = [
        _object("PUT", f"{dataset}/{served}", body="{}"),
        _object("GET", f"{dataset}/{served}"),
        _object("PUT", f"{dataset}/active.json", body="{}"),
        _object("PUT", f"{part}/others-{uid[:8]}/pushed/g1/manifest.json", body="{}"),
        _object("PUT", f"{pusher.cluster}/kube-system/records-{uid[:8]}/pushed/g1/manifest.json", body="{}"),
    ]
    for request, (status, body) in zip(forbidden, pusher.attack(forbidden), strict=True):
        assert status == 403, (request, status, body)
    allowed = _object("PUT", f"{dataset}/pushed/g99/note.json", body="{}")
    assert [status for status, _ in pusher.attack([allowed])] == [200], "or nothing above means anything"


def _object(method: str, path: str, **members: Any) -> dict[str, Any]:
    return {"method": method, "url": f"{release.gateway_url()}/v1/object/{quote(path)}", "token": OWN, **members}
