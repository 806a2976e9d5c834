"""A team builds by Spark in a namespace that enforces the restricted pod security standard. Without rights the
condition says which are missing; with the chart's Role the dataset is served although an executor is killed. A second
team with the same rights in its own namespace gains nothing by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from e2e.support import pods, release, restricted, spark
from e2e.support.command import CommandFailed
from e2e.support.kubectl import delete, find, kubectl, run_in, until
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

API: Final = "https://kubernetes.default.svc"
STORE: Final = "store"
CLUSTER: Final = "api"
BUILDER: Final = "app.kubernetes.io/component=builder"
REFUSED: Final = {
    "spark.kubernetes.namespace": "kube-system",
    "spark.kubernetes.executor.podTemplateFile": "/tmp/pod.yaml",
    "spark.kubernetes.authenticate.serviceAccountName": "default",
    "spark.kubernetes.driver.pod.name": "another",
    "spark.kubernetes.container.image": "another",
    "spark.master": "k8s://https://elsewhere",
    "spark.driver.host": "192.0.2.1",
    "spark.authenticate": "false",
    "spark.network.crypto.enabled": "false",
}
"""Settings of Spark that are lookupdb's."""

Request = dict[str, Any]


def test_a_team_builds_by_spark_and_another_team_gains_nothing_by_it(new_scenario: Callable[..., Scenario]) -> None:
    spark.load_image()
    team = new_scenario("spark", labels=restricted.LABELS)
    intruder = new_scenario("spark-intruder", labels=restricted.LABELS)
    keys = team.source("records", version="v1", records=3000)
    account, *role = spark.rights(team.namespace)
    team.apply(account)
    team.apply(team.dataset("records", "records", shards=2, router={"drainSeconds": 0}, build=spark.build()))
    team.wait_condition(
        "records", "Built", "False", reason="RightsMissing", message_pattern="create.* pods in namespace"
    )
    assert spark.executors(team.namespace) == []
    _prepare(intruder)

    team.apply(*role)
    team.refresh("records")
    driver = until(lambda: _find_driver(team), seconds=180, what="an executor that runs, and its driver")
    intruder.apply(spark.false_executor(driver["status"]["podIP"]))
    killed = spark.executors(team.namespace)[0]["metadata"]["name"]
    kubectl("delete", "pod", killed, "--namespace", team.namespace, "--grace-period=0", "--force")
    assert _find_driver(team), "it was killed in the middle of the build"
    _check_executors(team, driver)
    _check_api(intruder, team)

    status = team.wait_settled("records")
    team.check_version("records", keys, "v1")
    assert status["generations"][-1]["records"] == len(keys)
    until(lambda: not spark.executors(team.namespace), seconds=60, what="no executor left")
    assert restricted.find_refusals(team.namespace) == []
    _check_false_executor(intruder)


def test_settings_of_spark_that_would_reach_further_are_refused_by_name(new_scenario: Callable[..., Scenario]) -> None:
    scenario = new_scenario("spark-settings")
    for name, value in REFUSED.items():
        build = spark.build(conf={name: value})
        manifest = scenario.dataset("records", "records", build=build)
        with pytest.raises(CommandFailed, match="lookupdb sets addresses"):
            kubectl(
                "apply", "--dry-run=server", "--namespace", scenario.namespace, "-f", "-", stdin=json.dumps(manifest)
            )


def _find_driver(team: Scenario) -> Any:
    """Return the driver's pod while it and an executor run."""
    running = [pod for pod in spark.executors(team.namespace) if pod["status"]["phase"] == "Running"]
    drivers = [pod for pod in find("pods", team.namespace, BUILDER) if pod["status"]["phase"] == "Running"]
    return drivers[0] if running and drivers else None


def _check_executors(team: Scenario, driver: Any) -> None:
    """Assert that executors go with the driver's pod, carry the dataset's labels, and have no API token."""
    for pod in spark.executors(team.namespace):
        metadata, spec = pod["metadata"], pod["spec"]
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == [driver["metadata"]["uid"]]
        assert metadata["labels"]["lookupdb.dev/dataset"] == "records"
        assert spec["automountServiceAccountToken"] is False
        assert spec["serviceAccountName"] == "default"
        assert spec["activeDeadlineSeconds"] == 21600
        assert spark.PLACE.get("nodeSelector", {}).items() <= spec.get("nodeSelector", {}).items()


def _prepare(intruder: Scenario) -> None:
    """Give the other team what a team has that builds by Spark, and a pod with the driver's tokens."""
    intruder.apply(*spark.rights(intruder.namespace))
    pod = pods.intruder({STORE: release.AUDIENCE, CLUSTER: ""})
    pod["spec"]["serviceAccountName"] = spark.ACCOUNT
    intruder.apply(pod)
    kubectl("wait", "--for=condition=Ready", f"pod/{pods.INTRUDER}", "-n", intruder.namespace, "--timeout=90s")


def _check_api(intruder: Scenario, team: Scenario) -> None:
    """Assert that the driver has rights to pods of its own namespace only, and none to another team's store."""
    own, other = (f"{API}/api/v1/namespaces/{one.namespace}" for one in (intruder, team))
    allowed: list[Request] = [_request("GET", f"{own}/pods")]
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    forbidden = [
        _request("GET", f"{other}/pods"),
        _request("POST", f"{other}/pods", json.dumps(pods.stranger("planted"))),
        _request("DELETE", f"{other}/pods"),
        _request("GET", f"{API}/api/v1/pods"),
        _request("GET", f"{API}/api/v1/nodes"),
        *(_request("GET", f"{where}/{kind}") for where in (own, other) for kind in ("secrets", "configmaps")),
        _request("POST", f"{own}/serviceaccounts/default/token", json.dumps(review)),
        _request("POST", f"{own}/pods/{pods.INTRUDER}/exec?command=id&stdout=1"),
        _request("GET", f"{API}/apis/lookupdb.dev/v1alpha1/namespaces/{team.namespace}/lookupdatasets"),
        _request("GET", f"{release.gateway_url()}/v1/list?prefix={_folder(team)}", token=STORE),
    ]
    answers = _send(intruder, [*allowed, *forbidden])
    assert answers[0][0] == 200, f"or nothing below means anything: {answers[0]}"
    for request, (status, body) in zip(forbidden, answers[1:], strict=True):
        assert status == 403, (request, status, body)


def _check_false_executor(intruder: Scenario) -> None:
    """Assert that the driver rejects an executor without the build's secret, and tells it nothing."""

    def look() -> Any:
        (pod,) = find("pods", intruder.namespace, "app=false-executor")
        return pod if pod["status"]["phase"] in ("Succeeded", "Failed") else None

    pod = until(look, seconds=120, what="the end of the false executor")
    log = kubectl("logs", "false-executor", "--namespace", intruder.namespace)
    assert pod["status"]["phase"] == "Failed", log
    assert "Starting executor ID" not in log
    delete("pod", "false-executor", intruder.namespace)


def _folder(team: Scenario) -> str:
    cluster = json.loads(kubectl("get", "namespace", "kube-system", "-o", "json"))["metadata"]["uid"]
    return f"{cluster}/{team.namespace}"


def _request(method: str, url: str, body: str = "", *, token: str = CLUSTER) -> Request:
    content = {"body": body, "headers": {"Content-Type": "application/json"}} if body else {}
    return {"method": method, "url": url, "token": token, **content}


def _send(scenario: Scenario, requests: list[Request]) -> list[tuple[int, str]]:
    asked = json.dumps({"requests": requests})
    result = run_in(pods.INTRUDER, scenario.namespace, "python", "/inside/intrude.py", stdin=asked)
    return [(status, body) for status, body in json.loads(result)["answers"]]
