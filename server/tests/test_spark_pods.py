"""Spark on Kubernetes: a driver asks for its rights before anything else, and an executor's pod becomes Spark's
process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.web import QuietHandler, web_server

from lookupdb.errors import EngineMissing, ExecutorsRefused, RightsMissing
from lookupdb.spark.pods import VERBS, check_pods, java_command

POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "4",
    "SPARK_EXECUTOR_MEMORY": "2048m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "people-g1-build-x-exec-3",
    "PATH": "/usr/bin",
}


class Api:
    """An API server that allows some verbs."""

    def __init__(self, url: str) -> None:
        self.master = f"k8s://{url}"
        self.allowed: set[str] = set(VERBS)
        self.status = 201
        self.refusal = ""
        self.asked: list[Any] = []


@pytest.fixture
def api() -> Iterator[Api]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 - http.server calls it so
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            held.asked.append((self.path, self.headers["Authorization"], asked))
            status, answer = held.status, asked | {"message": "wrong"}
            if asked["kind"] == "Pod":
                status, answer = (403, {"message": held.refusal}) if held.refusal else (201, asked)
            elif status == 201:
                answer = {"status": {"allowed": asked["spec"]["resourceAttributes"]["verb"] in held.allowed}}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with web_server(Handler) as url:
        held = Api(url)
        yield held


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name, text in {"token": "abc\n", "namespace": "people", "ca.crt": ""}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def conf(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "executor.yaml"
    container = {"name": "executor", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}
    path.write_text(json.dumps({"kind": "Pod", "metadata": {"labels": {}}, "spec": {"containers": [container]}}))
    return {"spark.kubernetes.executor.podTemplateFile": str(path)}


def test_a_driver_with_all_rights_begins_if_an_executor_would_be_let_in(
    api: Api, account: Path, conf: dict[str, str]
) -> None:
    check_pods(api.master, conf, 4, 1 << 30, account)
    *reviews, (path, _, pod) = api.asked
    assert {token for _, token, _ in api.asked} == {"Bearer abc"}
    assert {path for path, _, _ in reviews} == {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}
    attributes = [review["spec"]["resourceAttributes"] for _, _, review in reviews]
    assert attributes == [{"namespace": "people", "verb": verb, "resource": "pods"} for verb in VERBS]
    assert path == "/api/v1/namespaces/people/pods?dryRun=All", "nothing is made"
    (container,) = pod["spec"]["containers"]
    requests = {"ephemeral-storage": "1Gi", "cpu": "4", "memory": str(1 << 30)}
    assert container["resources"] == {"requests": requests, "limits": {"memory": str(1 << 30)}}

    check_pods(api.master, conf | {"spark.kubernetes.executor.request.cores": "500m"}, 4, 1 << 30, account)
    assert api.asked[-1][2]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "500m"


def test_missing_rights_are_named_with_where_to_get_them(api: Api, account: Path, conf: dict[str, str]) -> None:
    api.allowed -= {"create", "watch"}
    with pytest.raises(RightsMissing) as caught:
        check_pods(api.master, conf, 1, 1, account)
    assert "may not watch, create pods in namespace people" in caught.value.message
    assert "spark.namespaces" in str(caught.value.hint)
    assert (caught.value.reason, caught.value.exit_code) == ("RightsMissing", 2)


def test_executors_that_a_quota_keeps_out_are_refused_in_the_words_of_kubernetes(
    api: Api, account: Path, conf: dict[str, str]
) -> None:
    api.refusal = 'pods "executor-x" is forbidden: exceeded quota: team, requested: requests.memory=64Gi'
    with pytest.raises(ExecutorsRefused, match="exceeded quota: team") as caught:
        check_pods(api.master, conf, 1, 64 << 30, account)
    assert caught.value.reason == "ExecutorsRefused"


def test_an_api_server_that_does_not_answer_is_no_missing_right(api: Api, account: Path) -> None:
    api.status = 500
    with pytest.raises(EngineMissing, match=r"cannot be checked with Kubernetes: 500 wrong") as caught:
        check_pods(api.master, {}, 1, 1, account)
    assert not isinstance(caught.value, RightsMissing)


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_nothing_is_asked_of_other_masters(master: str, account: Path) -> None:
    check_pods(master, {}, 1, 1, account)


def test_nothing_is_asked_outside_of_a_pod(api: Api, tmp_path: Path) -> None:
    check_pods(api.master, {}, 1, 1, tmp_path / "absent")
    assert api.asked == []


def test_an_executor_becomes_the_process_that_its_variables_describe() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Doption={number}" for number in (10, 9, 0)}
    command = java_command(POD | options, "/spark/jars")
    assert command[:5] == ["java", "-Doption=0", "-Doption=9", "-Doption=10", "-Xmx2048m"], "in order of their numbers"
    assert command[5:8] == ["-cp", "/spark/jars/*", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"]
    flags = dict(zip(command[8::2], command[9::2], strict=True))
    assert flags == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
        "--executor-id": "3",
        "--cores": "4",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.8",
        "--resourceProfileId": "0",
        "--podName": "people-g1-build-x-exec-3",
    }
