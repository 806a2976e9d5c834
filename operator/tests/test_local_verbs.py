"""`lookupdb status`, `pin` and the others on a laptop: by the socket of a `lookupdb up`, or by its files."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import pytest
import pytest_asyncio
from click.shell_completion import ShellComplete
from operator_support.plugin_program import Ended, run_lookupdb
from plugin_samples import body, condition, generation

from lookupdb import cli
from lookupdb.manifest import find_generations
from lookupdb.up.run_state import RunFolder, list_build_logs, note_build_end, renew_build_log
from lookupdb_operator import names
from lookupdb_operator.cluster.api import AlreadyExists, Conflict, NotFound, Refused, Unreachable
from lookupdb_operator.console.source import PodClient
from lookupdb_operator.local.api import OBJECTS, LocalApi, SocketApi
from lookupdb_operator.local.dataset import keep_pin
from lookupdb_operator.local.server import ApiServer
from lookupdb_operator.plugin.cli import cli as kubectl_cli

ONE = names.DATASET_KIND.path("shop", "airports")
PODS = names.POD.path("shop")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / ("deep" * 30), "shop", "airports")  # longer than the address of a socket


@pytest.fixture(name="api")
def _api(folder: RunFolder) -> LocalApi:
    api = LocalApi()
    api.add_folder("shop", "airports", folder.path / OBJECTS)
    api.put(body())
    return api


@pytest_asyncio.fixture(name="running")
async def _running(folder: RunFolder, api: LocalApi) -> AsyncIterator[LocalApi]:
    """The API server of an `up` that runs, with a router whose admin port answers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /metrics HTTP/1.1\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nlookupdb_router_requests_total 5\n")
        writer.close()

    admin = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{admin.sockets[0].getsockname()[1]}"
    labels = {names.DATASET: "airports", names.DATASET_UID: "local", names.COMPONENT: names.ROUTER}
    meta = {"namespace": "shop", "name": "airports-router-0", "labels": labels}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}, "status": {}})
    pods = PodClient()
    server = ApiServer(api, lambda _, pod: address if pod == "airports-router-0" else None, pods)
    with folder.lock():
        async with server.listening(folder.path / OBJECTS):
            yield api
    await pods.close()
    admin.close()


async def lookupdb(folder: RunFolder, *words: str) -> Ended:
    return await run_lookupdb(*words, "--data", str(folder.path.parents[1]))


def held(api: LocalApi) -> dict[str, Any]:
    found = api.get(names.DATASET_KIND, "shop", "airports")
    assert found is not None
    return found


async def test_a_rollback_reaches_the_up_that_runs(running: LocalApi, folder: RunFolder) -> None:
    ended = await lookupdb(folder, "rollback", "shop/airports")
    assert (ended.code, ended.out) == (0, "shop/airports: g11 is requested, and is pinned\n"), ended.err
    assert held(running)["spec"]["generation"] == "g11"
    again = await lookupdb(folder, "rollback", "airports", "-n", "shop")
    assert (again.code, "pinned to g11 already" in again.err) == (1, True)
    options = f"--data {folder.path.parents[1]}"
    assert f"lookupdb unpin {options} shop/airports removes the pin" in again.err
    assert (await lookupdb(folder, "unpin", "shop/airports")).code == 0
    assert "generation" not in held(running)["spec"]


async def test_no_edit_of_two_writers_is_lost(running: LocalApi, folder: RunFolder) -> None:
    async def write(number: int) -> None:
        change = {"metadata": {"annotations": {f"n{number}": "x"}}}
        await SocketApi(folder).request("PATCH", ONE, subject="it", body=change)
        running.put_status(held(running), {**held(running)["status"], "records": number})

    await asyncio.gather(*map(write, range(20)))
    assert held(running)["metadata"]["annotations"] == {f"n{number}": "x" for number in range(20)}


async def test_status_and_top_ask_the_up_that_runs(running: LocalApi, folder: RunFolder) -> None:
    ended = await lookupdb(folder, "status", "shop/airports")
    assert ended.out.startswith("shop/airports: Ready, serves g12"), ended.err
    assert "0/1 ready, routing table 7" in ended.out
    top = json.loads((await lookupdb(folder, "top", "shop/airports", "--interval", "0.1", "--json")).out)
    assert [(router["pod"], router["requests"]) for router in top["routers"]] == [("airports-router-0", 0.0)]


@pytest.mark.usefixtures("running")
async def test_a_dataset_that_has_not_served_yet_has_no_address_of_a_cluster(folder: RunFolder) -> None:
    assert ".svc" not in (await lookupdb(folder, "status", "shop/airports")).out


async def test_addresses_and_advice_are_those_of_a_laptop(running: LocalApi, folder: RunFolder) -> None:
    folder.write_state({"url": "http://127.0.0.1:8080"})
    annotate = "kubectl annotate lds airports -n shop --overwrite lookupdb.dev/promote=g13"
    message = f"It serves after {annotate}, and ends after lookupdb.dev/reject=g13, or so."
    waits = condition("RolledOut", "False", "CandidateWaiting", message)
    running.put_status(held(running), body(conditions=[waits], candidate={"generation": "g13"})["status"])
    out = (await lookupdb(folder, "status", "shop/airports")).out
    assert "\n  http://127.0.0.1:8080\n" in out
    target = f"--data {folder.path.parents[1]} shop/airports g13"
    assert f"after lookupdb promote {target}, and ends after lookupdb reject {target}, or" in out
    assert "kubectl" not in out


async def test_only_the_user_can_open_the_socket(running: LocalApi, folder: RunFolder) -> None:
    objects = folder.path / OBJECTS
    assert [path.stat().st_mode & 0o777 for path in (objects, objects / "api.sock")] == [0o700, 0o600]


async def test_an_up_without_a_socket_goes_on(
    api: LocalApi, folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.path / OBJECTS / "api.sock").mkdir()
    async with ApiServer(api, lambda *_: None, PodClient()).listening(folder.path / OBJECTS):
        assert "commands cannot reach this `lookupdb up`" in caplog.text


async def test_what_the_api_refuses_is_told_as_a_cluster_tells_it(running: LocalApi, folder: RunFolder) -> None:
    api = SocketApi(folder)
    for error, method, path, wrong in (
        (NotFound, "GET", names.DATASET_KIND.path("shop", "cities"), None),
        (NotFound, "GET", "/apis/apps/v9/things", None),
        (Conflict, "PATCH", ONE, {"metadata": {"resourceVersion": "99"}}),
        (AlreadyExists, "POST", names.DATASET_KIND.path("shop"), body()),
        (Refused, "PATCH", ONE, {"spec": {"shards": -1}}),
        (Refused, "PATCH", ONE, ["no object"]),
    ):
        with pytest.raises(error):
            await api.request(method, path, subject="it", body=wrong)
    with pytest.raises(NotFound, match="no pod x runs"):
        await api.fetch(f"{PODS}/x:9090/proxy/metrics", subject="it")


@pytest.mark.parametrize("text", [b"", b"what\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"])
async def test_what_is_no_request_changes_nothing(running: LocalApi, folder: RunFolder, text: bytes) -> None:
    opened = os.open(folder.path / OBJECTS, os.O_RDONLY)
    reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{opened}/api.sock")
    writer.write(text)
    writer.write_eof()
    assert b" 200 " not in await reader.read()
    writer.close()
    os.close(opened)
    assert await SocketApi(folder).request("GET", ONE, subject="it") == held(running)


async def test_without_an_up_the_files_say_what_was_and_take_a_change(api: LocalApi, folder: RunFolder) -> None:
    listed = await lookupdb(folder, "ls", "-A")
    assert listed.out.splitlines()[1].split()[:4] == ["shop", "airports", "False", "Stopped"], listed.err
    assert (await lookupdb(folder, "status", "shop/airports")).out.startswith("shop/airports: Stopped, served g12")
    ended = await lookupdb(folder, "pin", "shop/airports", "g11")
    assert ended.out == "shop/airports: g11 is requested, and is pinned; it takes effect at the next `lookupdb up`\n"
    again = LocalApi()
    again.add_folder("shop", "airports", folder.path / OBJECTS)
    assert held(again)["spec"]["generation"] == "g11"
    assert held(again)["status"] == body()["status"]


@pytest.mark.parametrize("words", [["refresh", "shop/airports", "--wait"], ["top", "shop/airports"]], ids=str)
async def test_what_needs_an_up_fails_at_once_and_changes_nothing(
    api: LocalApi, folder: RunFolder, words: list[str]
) -> None:
    before = (folder.path / OBJECTS / "LookupDataset.airports.json").read_bytes()
    ended = await lookupdb(folder, *words)
    assert (ended.code, "no `lookupdb up` runs for shop/airports" in ended.err) == (1, True)
    assert (folder.path / OBJECTS / "LookupDataset.airports.json").read_bytes() == before


async def test_an_up_that_hangs_at_its_start_is_named(
    api: LocalApi, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookupdb_operator.local.api._START_SECONDS", 0.1)
    with folder.lock(), pytest.raises(Unreachable, match="`lookupdb up` of shop/airports does not answer"):
        await SocketApi(folder).request("GET", ONE, subject="it")


async def test_an_unknown_dataset_is_no_new_folder(api: LocalApi, folder: RunFolder) -> None:
    ended = await lookupdb(folder, "pin", "cities", "g1")
    assert (ended.code, "no `lookupdb up` has served default/cities from" in ended.err) == (1, True)
    assert [path.name for path in folder.path.parent.iterdir()] == ["shop.airports"]


async def test_the_log_is_that_of_the_newest_build(api: LocalApi, folder: RunFolder) -> None:
    assert "no build of shop/airports has begun" in (await lookupdb(folder, "logs", "shop/airports")).err
    for number in (9, 10, 11):
        path = renew_build_log(folder.path, f"g{number}")
        path.write_text("read\n")
    (folder.path / "build-g10-kept.log").write_text("a user's copy\n")
    note_build_end(path, '{"message": "no file"}')
    note_build_end(path, "no report")
    assert (await lookupdb(folder, "logs", "shop/airports")).out == "read\nno file\n"
    assert json.loads((await lookupdb(folder, "logs", "shop/airports", "--tail", "1", "--json")).out) == {
        "namespace": "shop",
        "name": "airports",
        "pod": "build-g11",
        "generation": "g11",
        "lines": ["no file"],
    }
    assert [found for found, _ in list_build_logs(folder.path)] == ["g10", "g11"]


async def test_history_has_builds_and_generations_without_one(api: LocalApi, folder: RunFolder) -> None:
    build = {"generation": "g12", "outcome": "built", "reason": "Built", "seconds": 3, "records": 28_298, "count": 1}
    failed = {"generation": "g13", "outcome": "failed", "reason": "BadSource", "message": "no file", "count": 2}
    times = {"finishedAt": "2026-01-02T10:00:00Z"}
    api.put_status(held(api), body(builds=[build | times, failed | times])["status"])
    lines = (await lookupdb(folder, "history", "shop/airports")).out.splitlines()
    assert [line.split()[0] for line in lines] == ["GENERATION", "g13", "g12", "g11"]
    assert (lines[1].split()[1:4], lines[1].endswith("BadSource: no file")) == (["failed", "×", "2"], True)
    assert ("active" in lines[2], "3 s" in lines[2], "has served" in lines[3]) == (True, True, True)
    told = json.loads((await lookupdb(folder, "history", "shop/airports", "--json")).out)
    assert [found["state"] for found in told["generations"]] == [["has served"], ["active"]]
    assert [found["outcome"] for found in told["builds"]] == ["built", "failed"]


async def test_shells_complete_datasets_and_generations(api: LocalApi, folder: RunFolder) -> None:
    data = ["--data", str(folder.path.parents[1]), "-n", "shop"]

    def complete(*words: str) -> list[str]:
        *arguments, begin = words
        found = ShellComplete(cli.cli, {}, "lookupdb", "_X").get_completions(arguments, begin)
        return [item.value for item in found]

    assert await asyncio.to_thread(complete, "status", *data, "air") == ["airports"]
    assert await asyncio.to_thread(complete, "pin", *data, "airports", "g") == ["g12", "g11"]
    assert await asyncio.to_thread(complete, "pin", *data, "nothing", "g") == []
    for verb in ("get", "load", "diff", "prune"):
        assert complete(verb, *data[:2], "shop/") == ["shop/airports"]
    assert complete("diff", *data[:2], "shop/airports", "g12", "g") == ["g12", "g11"]


def test_a_command_about_a_laptop_loads_no_client_of_clusters(api: LocalApi, folder: RunFolder) -> None:
    code = "import sys; from lookupdb.cli import cli; cli(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    words = ["ls", "-A", "--data", str(folder.path.parents[1])]
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "airports" in ended.stdout
    assert not {"aiohttp", "kubernetes", "kopf", "duckdb", "lmdb"} & set(ended.stdout.split())


@pytest.mark.parametrize(
    ("spec", "noted", "manifest", "kept"),
    [
        ({}, "", {}, None),
        ({"generation": "g2"}, "", {}, "g2"),
        ({"generation": "g2"}, "", {"generation": "g3"}, "g3"),
        ({"generation": "g2"}, "g3", {"generation": "g3"}, "g3"),
        ({"generation": "g3"}, "g3", {}, None),
    ],
    ids=["no pin", "a command's stays", "the manifest's wins", "so it did before", "the manifest's went"],
)
def test_an_edit_of_the_manifest_keeps_a_commands_pin(
    spec: dict[str, str], noted: str, manifest: dict[str, str], kept: str | None
) -> None:
    note = f"{names.GROUP}/pinned-by-manifest"
    annotations = {note: noted}
    applied = keep_pin({"spec": dict(manifest)}, {"spec": spec}, annotations)
    assert applied["spec"].get("generation") == kept
    assert annotations[note] == manifest.get("generation", "")


VERBS = (
    "ls",
    "status",
    "history",
    "refresh",
    "promote",
    "reject",
    "override-gates",
    "rollback",
    "pin",
    "unpin",
    "diff",
    "logs",
    "top",
    "prune",
)


@pytest.mark.parametrize("verb", VERBS)
def test_both_programs_have_the_command_in_one_shape(verb: str) -> None:
    context = click.Context(cli.cli)
    for group in (cli.cli, kubectl_cli):
        command = group.get_command(context, verb)
        assert command is not None
        flags = {option: parameter for parameter in command.params for option in parameter.opts}
        json_flag = flags["--json"]
        assert isinstance(json_flag, click.Option)
        assert json_flag.is_flag
        arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        assert verb == "ls" or (arguments[0].metavar or "").startswith("DATASET")


async def test_generations_that_the_status_names_are_not_pruned(api: LocalApi, folder: RunFolder) -> None:
    ended = await lookupdb(folder, "prune", "nothing", "--dry-run")
    assert (ended.code, "how many generations of nothing to keep" in ended.err) == (2, True)
    status = body(generations=[generation("g3")], candidate={"generation": "g9"}, builds=[{"generation": "g1"}])
    assert find_generations(status["status"]) == {"g3", "g9", "g12"}
