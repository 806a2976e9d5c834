"""kubectl lookupdb as a program, against the API server in memory: its requests, output and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from operator_support.kube import Kube, Refusal, Write, serving
from operator_support.plugin_program import Ended, run_plugin
from plugin_samples import STATUS, answer_lookup, body, condition, generation

from lookupdb.cli.options import Seconds
from lookupdb_operator import names
from lookupdb_operator.console.dataset import Dataset
from lookupdb_operator.plugin import change_verbs, read_verbs
from lookupdb_operator.plugin import cluster_session as port_forward
from lookupdb_operator.plugin.cli import answer_kubectl, cli
from lookupdb_operator.plugin.options import run_in
from lookupdb_operator.plugin.session import DatasetSession

Run = Callable[..., Any]
UID = "uid-of-airports"


@pytest_asyncio.fixture(name="kube")
async def _kube(tmp_path: Path) -> AsyncIterator[Kube]:
    async with serving(tmp_path) as kube:
        kube.put(body())
        yield kube


@pytest.fixture(name="plugin")
def _plugin(tmp_path: Path) -> Run:
    async def run(*words: str, namespace: str = "shop", **more: Any) -> Ended:
        return await run_plugin(tmp_path / "kubeconfig", *words, "-n", namespace, **more)

    return run


def _dataset(kube: Kube) -> Any:
    return kube.get("LookupDataset", "shop", "airports")


def _pod(name: str, component: str, **labels: str) -> Any:
    own = {names.DATASET: "airports", names.DATASET_UID: UID, names.COMPONENT: component, **labels}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "labels": own},
        "spec": {"containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready},
    }


def _server(shard: int, rollout: str = "r34") -> Any:
    return _pod(f"airports-{rollout}-s{shard}-0", "shard", **{names.ROLLOUT: rollout, names.SHARD: str(shard)})


# status


async def test_status_shows_one_with_its_pods_or_all(kube: Kube, plugin: Run) -> None:
    kube.put(_server(0))
    one = await plugin("status", "airports")
    assert (one.code, one.err) == (0, "")
    assert one.out.startswith("shop/airports: Ready, serves g12")
    assert "2 shards × 2, 1 server ready" in one.out
    listed = await plugin("ls")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["NAME", "airports"]


async def test_status_again_and_again_until_somebody_has_seen_enough(
    kube: Kube, plugin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        kube.put({**_dataset(kube), "status": body(generation="g13")["status"]})
        if len(sleeps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(read_verbs, "_pause", sleep)
    ended = await plugin("status", "airports", "--watch", "--interval", "7")
    assert (ended.code, sleeps) == (130, [7, 7])
    shown = [line for line in ended.out.splitlines() if line.startswith("shop/airports")]
    assert ["serves g12" in shown[0], "serves g13" in shown[1]] == [True, True]


async def test_who_may_not_list_pods_sees_the_rest(kube: Kube, plugin: Run) -> None:
    kube.refused["/api/v1/namespaces/shop/pods"] = Refusal(403, "ann cannot list pods", "Forbidden")
    ended = await plugin("status", "airports")
    assert ended.code == 0
    assert "Pods cannot be listed:\n  ann cannot list pods\n" in ended.out
    assert "Routers:" not in ended.out, "that there are none is not known"
    assert json.loads((await plugin("status", "airports", "--json")).out)["problem"] == "ann cannot list pods"
    assert (await plugin("top", "airports")).code == 1


async def test_credentials_come_from_a_program_as_kubectls_do(kube: Kube, plugin: Run, tmp_path: Path) -> None:
    tokens = []

    def note(request: web.Request) -> web.Response:
        tokens.append(request.headers["Authorization"])
        return answer_lookup(request)

    kube.proxied = note
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-a-program"},
    }
    path = tmp_path / "kubeconfig"
    config = yaml.safe_load(path.read_text())
    program = {"apiVersion": credential["apiVersion"], "command": "echo", "args": [json.dumps(credential)]}
    config["users"][0]["user"] = {"exec": program | {"interactiveMode": "Never"}}
    path.write_text(yaml.safe_dump(config))
    assert (await plugin("get", "airports", "KJFK")).code == 0
    assert tokens == ["Bearer from-a-program"]


async def test_status_of_all_namespaces_in_pages(kube: Kube, plugin: Run) -> None:
    elsewhere = body("cities")
    elsewhere["metadata"]["namespace"] = "travel"
    kube.put(elsewhere)
    listed = await plugin("ls", "-A")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [["shop", "airports"], ["travel", "cities"]]
    assert [one["name"] for one in json.loads((await plugin("ls", "-A", "--json")).out)] == [
        "airports",
        "cities",
    ]


async def test_status_for_machines(kube: Kube, plugin: Run) -> None:
    kube.put(_server(1))
    told = json.loads((await plugin("status", "airports", "--json")).out)
    assert told["status"] == _dataset(kube)["status"]
    assert [pod["shard"] for pod in told["pods"]] == [1]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["status", "cities"], 1, "there is no LookupDataset cities in namespace shop"),
        (["status", "airports", "--json", "--watch"], 2, "exclude each other"),
        (["status", "airports", "--context", "other"], 1, "has no context other"),
        (["rollback"], 2, "Missing argument 'DATASET'"),
        (["stats"], 2, "No such command"),
        (["rollback", "airports", "g7"], 1, "holds no g7"),
        (["promote", "airports"], 1, "no candidate"),
        (["logs", "airports"], 1, "has no pod of a build"),
    ],
)
async def test_what_cannot_be_done_is_said_in_a_sentence(
    kube: Kube, plugin: Run, words: list[str], code: int, told: str
) -> None:
    ended = await plugin(*words)
    assert (ended.code, ended.out) == (code, "")
    assert told in ended.err
    assert kube.writes == []


async def test_the_namespace_is_that_of_the_context(kube: Kube, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    config = yaml.safe_load(path.read_text())
    config["contexts"][0]["context"]["namespace"] = "shop"
    path.write_text(yaml.safe_dump(config))
    assert (await run_plugin(path, "status", "airports")).code == 0
    config["contexts"].append({"name": "other", "context": {"cluster": "test", "user": "test", "namespace": "travel"}})
    path.write_text(yaml.safe_dump(config))
    assert "in namespace travel" in (await run_plugin(path, "status", "airports", "--context", "other")).err


async def test_a_kubeconfig_that_is_not_there_is_named(kube: Kube, tmp_path: Path) -> None:
    ended = await run_plugin(tmp_path / "nothing", "status", "airports")
    assert (ended.code, ended.out) == (1, "")
    assert f"there is no kubeconfig {tmp_path / 'nothing'}\n" in ended.err
    assert "current-context" not in ended.err


async def test_of_a_context_that_is_not_there_the_others_are_reported(kube: Kube, tmp_path: Path) -> None:
    ended = await run_plugin(tmp_path / "kubeconfig", "status", "airports", "--context", "prod")
    assert (ended.code, ended.out) == (1, "")
    assert "has no context prod\n" in ended.err
    assert f"it has {yaml.safe_load((tmp_path / 'kubeconfig').read_text())['contexts'][0]['name']}\n" in ended.err


# Any verb


@pytest.mark.parametrize(
    "words",
    [
        ("status", ""),
        ("refresh", ".."),
        ("top", "shop/airports/status"),
        ("get", "airports", "KJFK", "--generation", "g13\r\nX-Other: 1"),
        ("promote", "airports", "g13\x1b"),
    ],
)
async def test_what_nothing_is_called_is_asked_of_no_server(kube: Kube, plugin: Run, words: tuple[str, ...]) -> None:
    ended = await plugin(*words)
    assert (ended.code, ended.out) == (2, "")
    assert " is not a " in ended.err or "a generation is called" in ended.err


@pytest.mark.parametrize("namespace", ["", ".", "..", "shop/.."])
async def test_a_namespace_is_one_and_never_all(kube: Kube, plugin: Run, namespace: str) -> None:
    ended = await plugin("status", namespace=namespace)
    assert (ended.code, ended.out) == (2, "")


async def test_no_message_gives_a_terminal_orders(kube: Kube, plugin: Run) -> None:
    message = "no \x1b]0;title\x07 source"
    conditions = [{"type": "Built", "status": "False", "reason": "BadSource", "message": message}]
    kube.put({**_dataset(kube), "status": body(conditions=conditions)["status"]})
    ended = await plugin("refresh", "airports", "--wait", "--timeout", "0.1")
    assert ended.err.count("BadSource: no  ]0;title  source") == 2, "while it waits, and when time is up"
    assert ended.err.replace("\n", "").isprintable()


# Changes of a dataset


def _patched(kube: Kube) -> list[str]:
    return [f"{write.verb} {write.kind}/{write.name}{write.subresource}" for write in kube.writes]


async def test_a_refresh_is_the_annotation(kube: Kube, plugin: Run) -> None:
    ended = await plugin("refresh", "airports")
    value = _dataset(kube)["metadata"]["annotations"][names.REFRESH]
    assert ended.out == f"shop/airports: refresh {value} is requested\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", value)
    assert _patched(kube) == ["patch LookupDataset/airports"]


BAD_SOURCE = [condition("Built", "False", "BadSource", "no file")]
FAILED = {"failure": {"refresh": "before", "reason": "BadSource", "message": "no file"}, "conditions": BAD_SOURCE}


@pytest.mark.parametrize("status", [{}, FAILED], ids=["all is well", "what was asked for before has failed"])
async def test_who_waits_for_an_operator_that_does_not_react_reads_so_and_not_what_was_before(
    kube: Kube, plugin: Run, status: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_verbs, "_SILENCE_SECONDS", 0.0)
    kube.put({**_dataset(kube), "status": body(**status)["status"]})
    ended = await plugin("refresh", "airports", "--wait", "--timeout", "0.1")
    assert (ended.code, ended.out) == (1, "")
    told, error = ended.err.splitlines()[:2]
    assert told.startswith("It waits for the operator, which has not reacted for 0 s: check that its pod is ready")
    assert "shop/airports is not done after 0.1 s: it waits for the operator, which has not reacted for" in error
    assert "Why." not in ended.err
    assert "BadSource" not in ended.err


async def test_who_hardly_waits_does_not_read_that_the_operator_is_silent(kube: Kube, plugin: Run) -> None:
    ended = await plugin("refresh", "airports", "--wait", "--timeout", "0")
    assert ended.code == 1
    assert "shop/airports is not done after 0 s: it waits for the operator to take it up\n" in ended.err


async def test_who_waits_for_a_pin_that_is_taken_away_reads_so_at_once(
    kube: Kube, plugin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = DatasetSession.get_dataset

    async def get_dataset(session: DatasetSession, name: str) -> Dataset:
        found = await look(session, name)
        return replace(found, spec={}) if kube.writes else found

    monkeypatch.setattr(DatasetSession, "get_dataset", get_dataset)
    ended = await plugin("rollback", "airports", "g11", "--wait")
    assert (ended.code, ended.out) == (1, "")
    assert "shop/airports: g11 is no longer pinned: the pin was removed\n" in ended.err


async def test_who_waits_reads_what_for_and_at_the_end_what_came_of_it(
    kube: Kube, plugin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_verbs, "_EVERY", 0.0)
    before: dict[str, Any] = {"refreshed": "before", "refreshedBy": 12}
    kube.put({**_dataset(kube), "status": body(lastGeneration=12, **before)["status"]})
    building = {"conditions": [condition("Built", "False", "Building", "g13 is being built.")], **before}
    looks: Iterator[dict[str, Any]] = iter(
        [before, building, building, {"generation": "g13", "generations": [generation("g13", refresh="later")]}]
    )

    async def get_dataset(_: Any, name: str) -> Dataset:
        status, annotations = next(looks), _dataset(kube)["metadata"].get("annotations", {})
        if "generations" in status:  # another refresh has replaced this one
            status = {**status, "refreshed": "later", "refreshedBy": 13}
            annotations = {names.REFRESH: "later"}
        return replace(Dataset.from_body(body(name, **status)), annotations=annotations)

    monkeypatch.setattr(DatasetSession, "get_dataset", get_dataset)
    ended = await plugin("refresh", "airports", "--wait")
    assert (ended.code, ended.out) == (0, "shop/airports: the refresh is done: g13 serves\n")
    assert ended.err == "Building: g13 is being built.\n"


async def test_a_refresh_says_that_another_generation_is_pinned(kube: Kube, plugin: Run) -> None:
    await plugin("pin", "airports", "g11")
    ended = await plugin("refresh", "airports")
    assert "requested; g11 is pinned, and serves until kubectl lookupdb unpin" in ended.out


@pytest.mark.parametrize("verb", ["promote", "reject"])
async def test_a_candidate_is_promoted_or_rejected(kube: Kube, plugin: Run, verb: str) -> None:
    candidate = {"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:55:00Z"}
    kube.put({**_dataset(kube), "status": body(candidate=candidate)["status"]})
    assert (await plugin(verb, "airports", "g12")).code == 1
    assert kube.writes == []
    ended = await plugin(verb, "airports")
    assert ended.code == 0
    assert _dataset(kube)["metadata"]["annotations"] == {f"lookupdb.dev/{verb}": "g13"}


async def test_a_rollback_pins_and_unpin_takes_the_pin_away(kube: Kube, plugin: Run) -> None:
    ended = await plugin("rollback", "airports")
    assert ended.out == "shop/airports: g11 is requested, and is pinned\n"
    assert _dataset(kube)["spec"]["generation"] == "g11"
    assert json.loads((await plugin("unpin", "airports", "--json")).out)["name"] == "airports"
    assert "generation" not in _dataset(kube)["spec"]


async def test_a_rollback_of_what_has_changed_meanwhile_is_not_done(kube: Kube, plugin: Run) -> None:
    def overtake(write: Write) -> None:
        kube.before_write = lambda write: None
        kube.put({**_dataset(kube), "status": body(generation="g13", generations=[generation("g13")])["status"]})

    kube.before_write = overtake
    ended = await plugin("rollback", "airports")
    assert ended.code == 1
    assert "the object has been modified" in ended.err
    assert "generation" not in _dataset(kube)["spec"]


async def test_what_may_not_be_written_is_reported(kube: Kube, plugin: Run) -> None:
    def forbid(write: Write) -> None:
        raise Refusal(403, 'User "ann" cannot patch resource "lookupdatasets"', "Forbidden")

    kube.before_write = forbid
    ended = await plugin("unpin", "airports")
    assert ended.out == "shop/airports: nothing is pinned\n"
    ended = await plugin("refresh", "airports")
    assert (ended.code, "cannot patch" in ended.err) == (1, True)


# logs and top


async def test_the_log_of_the_newest_build(kube: Kube, plugin: Run) -> None:
    asked = []

    def log(request: web.Request) -> web.Response:
        asked.append((request.path, dict(request.query)))
        return web.Response(text="reading\nfailed\n")

    kube.proxied = log
    for number in (9, 10):
        kube.put(_pod(f"airports-g{number}-build-x", "builder", **{names.GENERATION: f"g{number}"}))
    ended = await plugin("logs", "airports", "--tail", "5")
    assert (ended.code, ended.out) == (0, "reading\nfailed\n")
    path = "/api/v1/namespaces/shop/pods/airports-g10-build-x/log"
    assert asked == [(path, {"container": "build", "tailLines": "5"})]
    assert json.loads((await plugin("logs", "airports", "--json")).out) == {
        "namespace": "shop",
        "name": "airports",
        "pod": "airports-g10-build-x",
        "generation": "g10",
        "lines": ["reading", "failed"],
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20.0), ("5m", 300.0), ("1h30m", 5400.0), ("250ms", 0.25), ("1.5h", 5400.0), ("90", 90.0), ("0.5", 0.5)],
)
def test_a_time_to_wait_is_written_as_for_kubectl(text: str, seconds: float) -> None:
    assert Seconds(0).convert(text, None, None) == seconds


def test_a_time_that_is_none_is_refused() -> None:
    for text in ("nan", "inf", "-inf", "1e+300", "20x", "s", "", "5m20"):
        with pytest.raises(click.BadParameter, match=r"is not a |is not in the range"):
            Seconds(0).convert(text, None, None)


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "airports", "--timeout"),
        ("diff", "airports", "--start-timeout"),
        ("rollback", "airports", "g11", "--wait", "--timeout"),
        ("status", "airports", "--watch", "--interval"),
        ("top", "airports", "--interval"),
    ],
    ids=" ".join,
)
async def test_seconds_are_those_of_a_clock(kube: Kube, plugin: Run, words: tuple[str, ...]) -> None:
    ended = await plugin(*words, "nan")
    assert ended.code == 2
    assert "nan" in ended.err
    assert not kube.writes


async def test_top_measures_the_servers_of_the_active_table_and_the_routers(kube: Kube, plugin: Run) -> None:
    counts = {"lookups": 0}

    def metrics(request: web.Request) -> web.Response:
        pod = request.path.split("/")[6]
        if pod.startswith("airports-router"):
            return web.json_response({"kind": "Status", "message": "pods/proxy is forbidden"}, status=403)
        counts["lookups"] += 50
        return web.Response(text=f"lookupdb_shard_lookups_total {counts['lookups']}\nlookupdb_shard_file_bytes 10\n")

    kube.proxied = metrics
    kube.put(_server(0))
    kube.put(_server(0, "r33"))
    kube.put(_pod("airports-router-x", "router"))
    ended = await plugin("top", "airports", "--interval", "0.2")
    lines = ended.out.splitlines()
    assert lines[1].split()[:2] == ["0", "airports-r34-s0-0"]
    assert lines[-1].split(maxsplit=1) == ["airports-router-x", "pods/proxy is forbidden"]
    told = json.loads((await plugin("top", "airports", "--interval", "0.2", "--all-rollouts", "--json")).out)
    assert [server["pod"] for server in told["servers"]] == ["airports-r33-s0-0", "airports-r34-s0-0"]
    assert all(server["lookups"] > 0 for server in told["servers"])


async def test_top_measures_every_shard_in_the_middle_of_a_rollout_shard_by_shard(kube: Kube, plugin: Run) -> None:
    """Each shard in the rollout that the routing table routes it to."""
    kube.proxied = lambda request: web.Response(text="lookupdb_shard_lookups_total 1\n")
    part = {"generation": "g11", "workers": 1}
    parts = [part | {"rollout": "r32", "shardRanges": "3"}, part | {"rollout": "r33", "shardRanges": "0,2"}]
    kube.put(body(table=STATUS["table"] | {"parts": parts}))
    for rollout in ("r32", "r33", "r34"):
        for shard in range(4):
            kube.put(_server(shard, rollout))
    told = json.loads((await plugin("top", "airports", "--interval", "0.1", "--json")).out)
    expected = ["r32-s3", "r33-s0", "r33-s2", "r34-s1"]
    assert [server["pod"] for server in told["servers"]] == [f"airports-{name}-0" for name in expected]
    kube.put(body(table=STATUS["table"] | {"parts": [part | {"rollout": "r33", "shardRanges": "0..2"}]}))
    ended = await plugin("top", "airports", "--interval", "0.1")
    assert (ended.code, "not one that this version reads" in ended.err) == (1, True)


async def test_top_asks_through_kubectl_where_the_proxy_reaches_nothing(
    kube: Kube, plugin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied, forwarded = [], []

    def blocked(request: web.Request) -> web.Response:
        proxied.append(request.path)
        return web.json_response({"kind": "Status", "message": "dial tcp 10.0.0.1:9090: i/o timeout"}, status=503)

    async def read_through(kubectl: list[str], pod: str, port: int, path: str) -> str:
        forwarded.append((kubectl[0], kubectl[-1], pod, port, path))
        return f"lookupdb_shard_lookups_total {len(forwarded)}\n"

    kube.proxied = blocked
    monkeypatch.setattr(port_forward, "read_through", read_through)
    kube.put(_server(0))
    ended = await plugin("top", "airports", "--interval", "0.1")
    assert "airports-r34-s0-0" in ended.out
    assert len(proxied) == 1, "it is not tried again"
    assert forwarded == [("kubectl", "shop", "airports-r34-s0-0", 9090, "/metrics")] * 2


# Completion


async def test_kubectl_completes_verbs_and_the_names_of_datasets(kube: Kube, tmp_path: Path) -> None:
    async def complete(*words: str) -> list[str]:
        return await asyncio.to_thread(lambda: list(answer_kubectl(cli, words)))

    found = await complete("ro")
    assert [line.split("\t")[0] for line in found] == ["rollback", ":4"]
    config = ["--kubeconfig", str(tmp_path / "kubeconfig"), "-n", "shop"]
    assert await complete("status", *config, "air") == ["airports", ":4"]
    assert await complete("status", *config, "x") == [":4"]
    assert await complete("status", "--kubeconfig", "/nowhere", "air") == [":4"], "a shell is not told of errors"


def test_a_terminal_that_is_closed_ends_a_command_which_cleans_up_first() -> None:
    cleaned = []

    async def work(_: DatasetSession) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(SystemExit) as end:
        run_in(nullcontext(cast("DatasetSession", None)), work)
    assert (end.value.code, cleaned) == (129, [True])
