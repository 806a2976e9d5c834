"""Requests to the API server on the wire, and the results made of its responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from kubernetes.aio.client import Configuration
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from operator_support.loopback import without_authorities
from operator_support.recording_server import connected, serving

from lookupdb_operator import names
from lookupdb_operator.cluster.api import (
    ApiError,
    Conflict,
    NamespaceTerminating,
    NotFound,
    Refused,
    Unauthorized,
    Unreachable,
)
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.cluster.cluster import Cluster, WarningEvent
from lookupdb_operator.cluster.parse import parse_dataset
from lookupdb_operator.manifests import render_image_probe
from lookupdb_operator.model import ObjectRef
from lookupdb_operator.status import DatasetStatus

Json = dict[str, Any]

DATASET = parse_dataset(
    {
        "metadata": {"name": "airports", "namespace": "maps", "uid": "ds-1", "resourceVersion": "7", "generation": 1},
        "spec": {"source": {"url": "example://airports"}, "key": {"columns": ["iata"]}},
    }
)
CONFIG_MAP: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "maps", "name": "c"}, "data": {}}


@pytest.fixture(autouse=True)
def _no_authorities() -> Iterator[None]:
    with without_authorities():
        yield


async def test_apply() -> None:
    async with connected() as (server, cluster):
        server.then(CONFIG_MAP | {"metadata": {"uid": "u"}})
        assert (await cluster.apply(CONFIG_MAP))["metadata"] == {"uid": "u"}
        await cluster.apply(CONFIG_MAP, force=False)
    forced, _, asking = server.asked
    assert (forced.method, forced.path) == ("PATCH", "/api/v1/namespaces/maps/configmaps/c")
    assert forced.query == {"fieldManager": names.FIELD_MANAGER, "force": "true"}
    assert forced.headers["content-type"] == "application/apply-patch+yaml"
    assert forced.headers["authorization"] == "Bearer t"
    assert forced.headers["user-agent"].startswith("lookupdb-operator/")
    assert forced.body == CONFIG_MAP
    assert asking.query["force"] == "false"


OWNED = {"ownerReferences": [{"uid": "ds-1", "controller": True}]}


async def test_a_name_that_is_taken_is_left_alone() -> None:
    ours = CONFIG_MAP | {"metadata": CONFIG_MAP["metadata"] | OWNED}
    async with connected() as (server, cluster):
        for taken in ({}, {"ownerReferences": None}, {"ownerReferences": [{"uid": "ds-0", "controller": True}]}):
            server.then({"items": [{"metadata": {"name": "c"} | taken}]})
            with pytest.raises(Conflict, match="ConfigMap c exists and is not this dataset's"):
                await cluster.apply(ours, force=False)
        assert {request.method for request in server.asked} == {"GET"}
        server.then({"items": [{"metadata": {"name": "c"} | OWNED}]})
        await cluster.apply(ours, force=False)
        server.then({"items": []})
        await cluster.apply(ours, force=False)
    assert [request.method for request in server.asked[3:]] == ["GET", "PATCH"] * 2
    assert server.asked[0].path == "/api/v1/namespaces/maps/configmaps"
    assert server.asked[0].query == {"fieldSelector": "metadata.name=c", "limit": "1"}


async def test_delete_is_of_one_object_and_happy_when_it_is_gone() -> None:
    async with connected() as (server, cluster):
        for status in (200, 404, 409):
            server.then({"message": "m"}, status)
            await cluster.delete(ObjectRef("StatefulSet", "airports-r1-s0", "set-1"), "maps")
        server.then({"message": "m"}, 403)
        with pytest.raises(Refused):
            await cluster.delete(ObjectRef("StatefulSet", "airports-r1-s0", "set-1"), "maps")
    request = server.asked[0]
    assert (request.method, request.path) == ("DELETE", "/apis/apps/v1/namespaces/maps/statefulsets/airports-r1-s0")
    assert request.body["preconditions"] == {"uid": "set-1"}
    assert request.body["propagationPolicy"] == "Background"
    assert "gracePeriodSeconds" not in request.body


async def test_a_lost_pod_is_deleted_without_its_kubelets_word() -> None:
    async with connected() as (server, cluster):
        await cluster.delete(ObjectRef("Pod", "airports-r1-s0-0", "pod-1", by_force=True), "maps")
    (request,) = server.asked
    assert (request.method, request.path) == ("DELETE", "/api/v1/namespaces/maps/pods/airports-r1-s0-0")
    assert (request.body["gracePeriodSeconds"], request.body["preconditions"]) == (0, {"uid": "pod-1"})


async def test_a_status_is_replaced_under_the_version_that_was_observed() -> None:
    async with connected() as (server, cluster):
        await cluster.write_status(DATASET, DatasetStatus(last_generation=3))
    (request,) = server.asked
    path = f"/apis/{names.API_VERSION}/namespaces/maps/lookupdatasets/airports/status"
    assert (request.method, request.path) == ("PUT", path)
    assert request.body["metadata"] == {
        "namespace": "maps",
        "name": "airports",
        "uid": "ds-1",
        "resourceVersion": "7",
    }
    assert request.body["status"] == DatasetStatus(last_generation=3).to_json()


async def test_an_event() -> None:
    async with connected() as (server, cluster):
        await cluster.post_event(DATASET, "Warning", "BuildFailed", "ü" * 2000)
    (request,) = server.asked
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/maps/events")
    assert request.body["metadata"] == {"namespace": "maps", "generateName": "airports."}
    assert request.body["involvedObject"]["uid"] == "ds-1"
    assert (request.body["type"], request.body["reason"]) == ("Warning", "BuildFailed")
    assert 1000 < len(request.body["message"].encode()) <= 1024


def event(uid: str, message: str, **times: Any) -> Json:
    return {"involvedObject": {"uid": uid}, "reason": "FailedCreate", "message": message, "metadata": {}, **times}


async def test_the_latest_warning_of_each() -> None:
    async with connected() as (server, cluster):
        first = [
            event("a", "new", lastTimestamp="2026-03-01T12:00:09Z"),
            event("a", "old", lastTimestamp="2026-03-01T12:00:01Z"),
            event("", "about nothing"),
        ]
        second = [event("b", "series", eventTime="2026-03-01T12:00:00.000000Z", series={"lastObservedTime": "2027"})]
        server.then({"items": first, "metadata": {"continue": "more"}})
        server.then({"items": second, "metadata": {}})
        warnings = await cluster.list_warnings("maps")
    assert warnings == {"a": WarningEvent("FailedCreate", "new"), "b": WarningEvent("FailedCreate", "series")}
    assert [request.query.get("continue") for request in server.asked] == [None, "more"]
    assert {request.query["fieldSelector"] for request in server.asked} == {"type=Warning"}


async def test_events_are_read_to_a_bound() -> None:
    async with connected() as (server, cluster):
        for _ in range(10):
            server.then({"items": None, "metadata": {"continue": "more"}})
        assert await cluster.list_warnings("maps") == {}
    assert len(server.asked) < 10


async def test_secrets() -> None:
    secret: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "own", "name": "s"}}
    async with connected() as (server, cluster):
        server.then(secret, 201)
        assert await cluster.create_secret(secret)
        server.then({"reason": "AlreadyExists", "message": "m"}, 409)
        assert not await cluster.create_secret(secret)
        server.then(secret)
        assert await cluster.get_secret("own", "s") == secret
        server.then({"message": "m"}, 404)
        assert await cluster.get_secret("own", "s") is None
    assert [(request.method, request.path) for request in server.asked[1:3]] == [
        ("POST", "/api/v1/namespaces/own/secrets"),
        ("GET", "/api/v1/namespaces/own/secrets/s"),
    ]


async def test_a_namespaces_uid() -> None:
    async with connected() as (server, cluster):
        server.then({"metadata": {"uid": "u"}})
        assert await cluster.namespace_uid("kube-system") == "u"
    assert server.asked[0].path == "/api/v1/namespaces/kube-system"


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (400, {"message": "bad"}, Refused),
        (401, {"message": "Unauthorized"}, Unauthorized),
        (403, {"message": "exceeded quota: q"}, Refused),
        (
            403,
            {"message": "it is being terminated", "details": {"causes": [{"reason": "NamespaceTerminating"}]}},
            NamespaceTerminating,
        ),
        (403, {"message": "forbidden", "details": {"causes": [{"reason": "Other"}, "what?"]}}, Refused),
        (403, {"message": "forbidden", "details": "what?"}, Refused),
        (404, {"message": "not found"}, NotFound),
        (409, {"message": "the object has been modified", "reason": "Conflict"}, Conflict),
        (422, {"message": "invalid"}, Refused),
        (429, {"message": "too many requests"}, Unreachable),
        (500, {"message": "failed calling webhook"}, Unreachable),
        (500, {"message": "failed to create typed patch object (maps/c; /v1, Kind=ConfigMap): .data.a"}, Refused),
        (503, {}, Unreachable),
        (504, ["what?"], Unreachable),
    ],
)
async def test_errors_are_distinguished(status: int, answer: Any, error: type[ApiError]) -> None:
    async with connected() as (server, cluster):
        server.then(answer, status)
        with pytest.raises(ApiError) as caught:
            await cluster.apply(CONFIG_MAP)
    assert type(caught.value) is error
    assert caught.value.subject == "ConfigMap c"
    assert str(caught.value).startswith("ConfigMap c: ")
    if isinstance(answer, dict) and answer:
        assert answer["message"] in caught.value.message


async def test_how_long_to_wait_is_known() -> None:
    for header, expected in (("7", 7.0), ("86400", 60.0), ("soon", None)):
        async with connected() as (server, cluster):  # sends nothing within its own timeout
            server.then({"message": "m"}, 429, **{"Retry-After": header})
            with pytest.raises(Unreachable) as caught:
                await cluster.apply(CONFIG_MAP)
            assert caught.value.retry_after == expected


async def test_an_answer_that_is_not_json() -> None:
    async with connected() as (server, cluster):
        server.answers.append(web.Response(status=502, text="<html>Bad gateway</html>"))
        with pytest.raises(Unreachable, match="Bad gateway"):
            await cluster.apply(CONFIG_MAP)
        server.answers.append(web.Response(text="<html>"))
        with pytest.raises(Unreachable, match="not JSON"):
            await cluster.apply(CONFIG_MAP)


async def test_a_server_that_is_not_there(unused_tcp_port: int) -> None:
    api = Api(Configuration(host=f"http://127.0.0.1:{unused_tcp_port}"))
    cluster = Cluster(api, admin_port=unused_tcp_port)
    try:
        with pytest.raises(Unreachable, match="does not answer"):
            await cluster.apply(CONFIG_MAP)
        report = await cluster.ask_router("127.0.0.1", "ds-1")
        assert report.table_version is None
        assert "does not answer" in report.problem
    finally:
        await cluster.close()
        await api.close()


async def test_a_token_that_was_rotated_is_read_again(tmp_path: Path) -> None:
    token, certificate = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    certificate.write_text("unused")
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    loader: Any = InClusterConfigLoader(str(token), str(certificate), environ=environment)  # type: ignore[no-untyped-call]
    configuration = Configuration()
    loader.load_and_set(configuration)
    configuration.ssl_ca_cert = None
    async with serving() as server:
        api = Api(configuration)
        loader.host = configuration.host = f"http://127.0.0.1:{server.port}"
        try:
            await api.request("GET", "/one", subject="x")
            token.write_text("second")
            loader.token_expires_at -= loader._token_refresh_period
            await api.request("GET", "/two", subject="x")
        finally:
            await api.close()
    assert [request.headers["authorization"] for request in server.asked] == ["bearer first", "bearer second"]


async def test_a_kubeconfig_is_used_where_there_is_no_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with serving() as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
            "users": [{"name": "u", "user": {"token": "mine"}}],
        }
        await asyncio.to_thread((tmp_path / "kubeconfig").write_text, yaml.safe_dump(config))
        api = await Api.connect(str(tmp_path / "kubeconfig"))
        await api.request("GET", "/x", subject="x")
        await api.close()
    assert server.asked[0].headers["authorization"] == "Bearer mine"


async def test_no_credentials_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="KUBECONFIG"):
        await Api.connect(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (names.POD, "/api/v1/namespaces/maps/pods/x"),
        (names.DATASET_KIND, "/apis/lookupdb.dev/v1alpha1/namespaces/maps/lookupdatasets/x"),
        (names.AUTOSCALER, "/apis/autoscaling/v2/namespaces/maps/horizontalpodautoscalers/x"),
    ],
)
def test_paths(kind: names.Kind, path: str) -> None:
    assert kind.path("maps", "x") == path
    assert names.find_kind(kind.name) is kind


def test_what_is_watched() -> None:
    assert names.SECRET not in names.WATCHED, "Secrets are never read in the namespaces of datasets"
    assert names.EVENT not in names.WATCHED


class TestImageVolumes:
    """A dry run shows whether an API server keeps image volumes; nothing of it stays."""

    async def keeps(self, answer: Callable[[Json], tuple[Json, int]]) -> bool | None:
        async with connected() as (server, cluster):
            server.then(*answer(render_image_probe("maps")))
            kept = await cluster.keeps_image_volumes("maps")
            (asked,) = server.asked
            assert (asked.method, asked.query["dryRun"]) == ("PATCH", "All")
            assert asked.path.startswith("/apis/apps/v1/namespaces/maps/statefulsets/")
            return kept

    async def test_are_kept(self) -> None:
        assert await self.keeps(lambda probe: (probe, 200))

    @pytest.mark.parametrize("volumes", [[], [{"name": "data", "emptyDir": {}}]], ids=["left out", "emptied"])
    async def test_are_left_out(self, volumes: list[Json]) -> None:
        def without(probe: Json) -> tuple[Json, int]:
            probe["spec"]["template"]["spec"]["volumes"] = volumes
            return probe, 200

        assert await self.keeps(without) is False

    @pytest.mark.parametrize(
        ("message", "kept"),
        [
            ('.spec.template.spec.volumes[name="data"].image: field not declared in schema', False),
            ('spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"', False),
            ("exceeded quota: sets", None),
            ("denied by a policy", None),
        ],
    )
    async def test_are_refused_or_something_else_is(self, message: str, kept: bool | None) -> None:
        status = {"kind": "Status", "message": message, "reason": "Invalid", "code": 422}
        assert await self.keeps(lambda probe: (status, 422)) is kept
