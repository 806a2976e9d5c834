"""What a `lookupdb up` keeps (objects, in memory and in files, and servers), and what it serves besides lookups: the
objects, to commands and Kubernetes' clients, and the console."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from kubernetes import client, config
from operator_support.local_up import api, folder, get_dataset, load, running
from operator_support.loopback import listening
from plugin_samples import body, condition, dataset, router
from support.waiting import soon

from lookupdb.errors import LookupdbError, UsageError
from lookupdb.up.run_state import RunFolder
from lookupdb_operator import names
from lookupdb_operator.cluster.api import APPLY_PATCH, JSON, Conflict, NotFound, Refused, Unreachable
from lookupdb_operator.console.dataset import FoundKey
from lookupdb_operator.console.source import Elsewhere, PodClient
from lookupdb_operator.local.api import ADDRESS, ADMIN, OBJECTS, FolderApi, LocalApi
from lookupdb_operator.local.kubelet import LocalServer, UpOptions, child_environment
from lookupdb_operator.local.server import ApiServer, LocalSource, writing_kubeconfig
from lookupdb_operator.local.up import BuildFailed, Up
from lookupdb_operator.plan import reasons

__all__ = ["api", "folder", "running"]

DATASETS = names.DATASET_KIND.path("shop")
ONE = names.DATASET_KIND.path("shop", "airports")
DEPLOYMENTS = names.DEPLOYMENT.path("shop")
SERVERS = names.STATEFUL_SET.path("shop")
NOTE = {"metadata": {"annotations": {"a": "1"}}}


async def apply(api: LocalApi, manager: str = names.FIELD_MANAGER, **spec: Any) -> dict[str, Any]:
    """Apply a StatefulSet that the dataset owns."""
    owner = {"kind": names.KIND, "name": "airports", "uid": "local"}
    labels = {names.DATASET: "airports"}
    meta = {"namespace": "shop", "name": "airports-r1-s0", "labels": labels, "ownerReferences": [owner]}
    item = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec}
    query, path = {"fieldManager": manager, "force": "true"}, f"{SERVERS}/airports-r1-s0"
    answer: dict[str, Any] = await api.request(
        "PATCH", path, subject="it", query=query, body=item, content_type=APPLY_PATCH
    )
    return answer


async def test_a_restart_keeps_objects_and_ignores_other_files_and_versions_grow_on(
    api: LocalApi, folder: RunFolder
) -> None:
    (folder.path / OBJECTS / "Job.broken.json").write_text("{")
    again = load(folder)
    found = get_dataset(again)
    assert found == get_dataset(api)
    changed = await again.request("PATCH", ONE, subject="it", body=NOTE)
    assert int(changed["metadata"]["resourceVersion"]) > int(found["metadata"]["resourceVersion"])


async def test_only_a_change_of_the_spec_is_another_generation(api: LocalApi) -> None:
    changes = (NOTE, {"metadata": {"annotations": {"a": "2"}}}, {"spec": {"shards": 2}})
    kept = [await api.request("PATCH", ONE, subject="it", body=change) for change in changes]
    first, noted, changed = (item["metadata"]["generation"] for item in kept)
    assert (noted - first, changed - first) == (0, 1)
    tried = await api.request("PATCH", ONE, subject="it", body={"spec": {"shards": 3}}, query={"dryRun": "All"})
    assert (tried["kind"], tried["spec"]["shards"], get_dataset(api)["spec"]["shards"]) == (names.KIND, 3, 2)


async def test_more_servers_than_up_starts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(body()))
    up = Up(UpOptions((tmp_path / "a.yaml",), tmp_path, 0, 0, False, 0.1, None, None), lambda _: None)
    up._api.put(body())
    for shards, said in ((65, "airports needs 65 shard servers"), (0, "spec.shards")):
        with pytest.raises(Refused, match=said):
            await up._api.request("PATCH", ONE, subject="it", body={"spec": {"shards": shards}})
    changed = await up._api.request("PATCH", ONE, subject="it", body={"spec": {"shards": 64}})
    assert changed["spec"]["shards"] == 64


def test_each_failure_of_a_series_says_what_keeps_serving_and_when_the_next_attempt_is(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(body()))
    said: list[str] = []
    up = Up(UpOptions((tmp_path / "a.yaml",), tmp_path, 0, 0, False, 0.1, None, None), said.append)
    up._api.watchers.append(up._note)
    up._datasets[0].active = "g12"
    for number in (13, 14, 14, 15):
        outlook = f"g12 keeps serving. The next attempt is at {number} o'clock."
        failure = {"reason": "BadSource", "message": "f.csv:\nis bad", "generation": f"g{number}"}
        degraded = condition("Degraded", "True", "BadSource", f"f.csv: is bad. {outlook}")
        up._api.put(body(failure=failure, conditions=[degraded]))
    # An event reports the first one.
    assert said == [f"airports: g12 keeps serving. The next attempt is at {hour} o'clock." for hour in (14, 15)]


@pytest.mark.parametrize(
    ("manifest", "awaited"),
    [
        ({"source": {"pushed": True}}, "the first push to {inbox}"),
        ({"refresh": {"successFile": "s3://b/_SUCCESS"}}, "the success file s3://b/_SUCCESS"),
    ],
    ids=["no push", "no success file"],
)
async def test_a_start_without_its_source_promises_no_attempt_and_says_what_to_do(
    tmp_path: Path, manifest: dict[str, Any], awaited: str
) -> None:
    (tmp_path / "a.yaml").write_text(json.dumps(body(spec=manifest)))
    said: list[str] = []
    up = Up(UpOptions((tmp_path / "a.yaml",), tmp_path, 0, 0, True, 0.1, None, None), said.append)
    found = {"reason": reasons.WAITING_FOR_SOURCE, "message": "waiting for it. The next check for it is at noon."}
    up._say_why({"namespace": "shop", "name": "airports"}, found)
    assert said == ["airports: waiting for it."]
    dataset = up._datasets[0]
    up._api.put(body(spec=manifest, generation=None, generations=[], failure=found))
    with pytest.raises(BuildFailed) as ended:
        up._is_settled(dataset)
    assert ended.value.hint == f"make {awaited.format(inbox=dataset.inbox.url)}"


async def test_what_the_operator_leaves_out_of_an_apply_is_removed_and_what_a_scale_leaves_out_stays(
    api: LocalApi,
) -> None:
    await apply(api, replicas=1, serviceName="airports-r1")
    assert (await apply(api, "other", replicas=3))["spec"] == {"replicas": 3, "serviceName": "airports-r1"}
    assert (await apply(api, replicas=1))["spec"] == {"replicas": 1}


async def test_a_deleted_object_goes_with_its_file(api: LocalApi, folder: RunFolder) -> None:
    made = await apply(api)
    events: list[tuple[str, str]] = []
    api.watchers.append(lambda event, item: events.append((event, item["kind"])))
    where = f"{SERVERS}/airports-r1-s0"
    with pytest.raises(Conflict):
        await api.request("DELETE", where, subject="it", body={"preconditions": {"uid": "another"}})
    condition = {"preconditions": {"uid": made["metadata"]["uid"]}}
    await api.request("DELETE", where, subject="it", body=condition)
    assert events == [("DELETED", "StatefulSet")]
    assert list((folder.path / OBJECTS).glob("StatefulSet.*")) == []
    with pytest.raises(NotFound):
        await api.request("DELETE", where, subject="it", body=condition)


async def test_lists_are_by_labels_and_fields(api: LocalApi) -> None:
    await apply(api)
    for query, count in (
        ({"labelSelector": names.DATASET}, 1),
        ({"labelSelector": f"{names.DATASET}=others"}, 0),
        ({"fieldSelector": "metadata.name=airports-r1-s0"}, 1),
        ({"fieldSelector": "metadata.name=airports-r1-s1"}, 0),
    ):
        found = await api.request("GET", SERVERS, subject="all", query=query)
        assert len(found["items"]) == count, query


async def test_what_cannot_be_written_is_written_later_but_an_edit_is_refused(api: LocalApi, folder: RunFolder) -> None:
    objects = folder.path / OBJECTS
    objects.rename(objects.with_name("elsewhere"))
    objects.write_text("a file in its place")
    api.put_status(get_dataset(api), {"records": 7})
    before = get_dataset(api)
    with pytest.raises(Refused, match=r"airports: nothing is changed: .*json cannot be written: .*; correct this, and"):
        await api.request("PATCH", ONE, subject="it", body={"spec": {"shards": 2}})
    assert get_dataset(api) == before
    assert "cannot be written: " in api.flush()
    objects.unlink()
    assert api.flush() == ""
    assert get_dataset(load(folder)) == get_dataset(api)


async def test_no_edit_of_two_writers_is_lost(running: LocalApi, folder: RunFolder) -> None:
    async def write(number: int) -> None:
        change = {"metadata": {"annotations": {f"n{number}": "x"}}}
        await FolderApi(folder).request("PATCH", ONE, subject="it", body=change)
        running.put_status(get_dataset(running), {**get_dataset(running)["status"], "records": number})

    await asyncio.gather(*map(write, range(20)))
    assert get_dataset(running)["metadata"]["annotations"] == {f"n{number}": "x" for number in range(20)}


@pytest.mark.usefixtures("running")
async def test_only_the_user_can_read_the_address(folder: RunFolder) -> None:
    assert (folder.path / OBJECTS).stat().st_mode & 0o777 == 0o700


async def test_an_up_that_cannot_write_its_address_goes_on(
    api: LocalApi, folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.path / OBJECTS / ADDRESS).mkdir()
    async with ApiServer(api, PodClient()).listening([folder.path / OBJECTS]):
        assert "commands cannot reach this `lookupdb up`" in caplog.text


@pytest.mark.parametrize(
    ("error", "message", "method", "path", "content"),
    [
        (NotFound, "there is no LookupDataset cities", "GET", f"{DATASETS}/cities", None),
        (NotFound, "there is no /apis/apps/v9/things here", "GET", "/apis/apps/v9/things", None),
        (NotFound, "/scale here", "PATCH", f"{ONE}/scale", {"spec": {"replicas": 2}}),
        (Conflict, "modified", "PATCH", ONE, {"metadata": {"resourceVersion": "99"}}),
        (Conflict, "modified", "PUT", f"{ONE}/status", {"metadata": {"resourceVersion": "99"}, "status": {}}),
        (Refused, "nothing else can be created", "POST", DATASETS, body("cities")),
        (Refused, "spec.shards", "PATCH", ONE, {"spec": {"shards": -1}}),
        (Refused, "expected a merge patch", "PATCH", ONE, ["no object"]),
        (Refused, "cannot change", "PATCH", ONE, {"metadata": {"name": "other"}}),
        (Refused, "mapping of text to text", "PATCH", ONE, {"metadata": {"labels": ["a"]}}),
        (NotFound, "no pod x runs", "GET", f"{names.POD.path('shop')}/x:9090/proxy/metrics", None),
    ],
)
@pytest.mark.usefixtures("running")
async def test_what_the_api_refuses_is_reported_as_a_cluster_does(
    folder: RunFolder, error: type[Exception], message: str, method: str, path: str, content: Any
) -> None:
    with pytest.raises(error, match=message):
        await FolderApi(folder).request(method, path, subject="it", body=content)


PATCH = f"PATCH TOKEN{ONE} HTTP/1.1\r\nHost: up\r\n".encode()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", b""),
        (b"what\r\n\r\n", b" 400 "),
        (PATCH + b"Content-Length: x\r\n\r\n", b" 400 "),
        (PATCH + b"Content-Length: 7\r\nContent-Encoding: gzip\r\n\r\nno gzip", b" 422 "),
        (PATCH + b"Content-Length: 5000000\r\n\r\n" + b" " * 5_000_000, b" 422 "),
        (PATCH + b"Content-Length: 5410\r\n\r\n" + b'{"spec":' + b'{"a":' * 900 + b"1" + b"}" * 901, b" 422 "),
    ],
    ids=["nothing", "what", "length", "gzip", "too long", "too deep"],
)
async def test_what_is_no_request_changes_nothing(
    running: LocalApi, folder: RunFolder, text: bytes, code: bytes
) -> None:
    address = urlsplit(json.loads((folder.path / OBJECTS / ADDRESS).read_text())["url"])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(text.replace(b"TOKEN", address.path.encode()))
    if not text:
        writer.write_eof()
    assert code in await reader.readline()
    writer.close()
    assert await FolderApi(folder).request("GET", ONE, subject="it") == get_dataset(running)


async def test_an_up_that_hangs_at_its_start_is_named(
    api: LocalApi, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookupdb_operator.local.api._START_SECONDS", 0.1)
    with folder.lock(), pytest.raises(Unreachable, match="`lookupdb up` of shop/airports does not answer"):
        await FolderApi(folder).request("GET", ONE, subject="it")


def use_client(path: Path) -> None:
    """Read, change and fail to delete a dataset with Kubernetes' own client."""
    connect: Any = config.new_client_from_config
    with connect(str(path)) as connection:
        datasets: Any = client.CustomObjectsApi(connection)
        about = (*names.API_VERSION.split("/"), "shop", names.DATASET_KIND.plural)
        listed = datasets.list_namespaced_custom_object(*about)["items"]
        assert [item["metadata"]["name"] for item in listed] == ["airports"]
        change = {"spec": {"shards": 2, "router": {"replicas": 5}}}
        patched = datasets.patch_namespaced_custom_object(*about, "airports", change)["spec"]
        assert (patched["shards"], patched["router"]["replicas"]) == (2, 1)
        with pytest.raises(client.ApiException, match="422"):
            datasets.delete_namespaced_custom_object(*about, "airports")
        with pytest.raises(client.ApiException, match="422"):
            datasets.patch_namespaced_custom_object(*about, "airports", {"spec": {"shards": 0}})
        assert client.CoreApi(connection).get_api_versions().versions == ["v1"]


def refuse(url: str, method: str = "GET", media_type: str = JSON, content: Any = None) -> tuple[int, str]:
    """Return code and message of the refusal of a request."""
    data = json.dumps(content).encode() if content else None
    request = urllib.request.Request(url, data, {"Content-Type": media_type}, method=method)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    return refused.value.code, json.load(refused.value).get("message", "")


async def check_kubeconfig(path: Path) -> None:
    """The clients of the file at ``path`` may change datasets, and make nothing."""
    assert path.stat().st_mode & 0o777 == 0o600
    await asyncio.to_thread(use_client, path)
    address = json.loads(path.read_text())["clusters"][0]["cluster"]["server"]
    meta = {"namespace": "shop", "name": "web", "labels": {"app": "web"}}
    web_server = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"replicas": 1}}
    for words, code, message in (
        (("/api/v1/namespaces/shop/pods/r1-s0-0%3A9090/proxy/metrics",), 404, "no pod r1-s0-0 runs"),
        (
            (f"{DATASETS}/cities?fieldManager=kubectl", "PATCH", APPLY_PATCH, body("cities")),
            404,
            "there is no LookupDataset cities",
        ),
        ((DEPLOYMENTS, "POST", JSON, web_server), 422, "nothing else can be created"),
        ((f"{DEPLOYMENTS}/web", "PATCH", APPLY_PATCH, web_server), 422, "nothing else can be created"),
    ):
        found = await asyncio.to_thread(refuse, address + words[0], *words[1:])
        assert (found[0], message in found[1]) == (code, True), found
    guessed = f"{address.rpartition('/')[0]}/guessed/api"
    assert (await asyncio.to_thread(refuse, guessed))[0] == 401


async def test_a_client_of_kubernetes_reads_and_changes_datasets(api: LocalApi, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    async with ApiServer(api, PodClient()).listening([]) as url:
        with writing_kubeconfig(path, url):
            await check_kubeconfig(path)
    assert api.all(names.DEPLOYMENT) == []
    assert not path.exists()


def test_only_a_file_of_an_up_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("apiVersion: v1\nkind: Config\nclusters: [{name: production}]\n")
    with pytest.raises(UsageError, match="exists, and no `lookupdb up` has written it"), writing_kubeconfig(path, "a"):
        pass
    assert "production" in path.read_text()
    path.write_bytes(b"")
    with writing_kubeconfig(path, "a"):
        left = path.read_bytes()
    path.write_bytes(left)  # of an `up` that was killed
    with writing_kubeconfig(path, "b"):
        assert path.read_bytes() != left
        path.write_text("of an `up` that began later")
    assert path.exists()


@pytest.fixture
async def source() -> AsyncIterator[LocalSource]:
    """The console's source. Router 0 has many metrics, and as many bytes of value as its key says; router 1 fails."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.host.startswith("localhost"):
            assert request.transport is not None
            request.transport.close()
        if request.path == "/metrics":
            return web.Response(text="lookupdb_router_private_bytes 7\n" * 50_000)
        return web.Response(body=b"x" * int(request.query["key"]), headers={"Lookupdb-Generation": "g12"})

    async with listening(answer) as port:
        pods, api = PodClient(), LocalApi()
        for number, host in enumerate(("127.0.0.1", "localhost")):
            about = {"namespace": "shop", "name": router(number).name, "annotations": {ADMIN: f"{host}:{port}"}}
            api.put({"kind": "Pod", "metadata": about})
        yield LocalSource(api, Path(), lambda *_: f"http://127.0.0.1:{port}", pods)
        await pods.close()


async def test_the_console_has_whole_values_and_metrics_or_says_why_not(source: LocalSource) -> None:
    for size in (10, 1 << 20):
        found = await source.look_up(dataset(), str(size), None)
        assert isinstance(found, FoundKey)
        assert len(found.value) == size
    too_large = await source.look_up(dataset(), str((1 << 20) + 1), "g12")
    assert isinstance(too_large, Elsewhere)
    assert too_large.command.endswith("--generation g12 1048577")
    assert (await source.read_metrics(dataset(), router(0))).count("\n") == 50_000
    with pytest.raises(LookupdbError, match="does not answer"):
        await source.read_metrics(dataset(), router(1))


def test_servers_get_the_environment_of_up_without_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"AWS_REGION": "eu-1", "LOOKUPDB_THREADS": "2", "LOOKUPDB_PORT": "8080"}
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    assert child_environment().items() & mine.items() == {("AWS_REGION", "eu-1"), ("LOOKUPDB_THREADS", "2")}


async def test_a_server_that_ends_or_is_killed_is_started_again(tmp_path: Path) -> None:
    words, starts = ["serve", str(tmp_path / "absent"), "--shard", "0"], asyncio.Semaphore(1)
    server = LocalServer(words, tmp_path / "one", lambda: None, starts)
    try:
        await soon(lambda: server.end, "it ends")
        assert server.end
        assert 0 < server.end[0] < 128
        assert "absent" in server.end[1]
        await soon(lambda: server.pid, "it runs again")
        assert server.pid
        os.kill(server.pid, signal.SIGKILL)
        await soon(lambda: server.end == (137, "killed by signal 9 (Killed)"), "its end is reported")
    finally:
        await server.stop()
