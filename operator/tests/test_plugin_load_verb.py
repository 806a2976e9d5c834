"""kubectl lookupdb load, against the API server in memory: a Job is created, followed, read and deleted."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from operator_support.job_pods import put_job_pod, put_shard_servers
from operator_support.kube import Kube, Refusal, Write, serving
from operator_support.plugin_program import Ended, run_plugin
from operator_support.running import until
from plugin_samples import body, generation

from lookupdb.load.plan import (
    DatasetFacts,
    LoadOrder,
    LoadPlan,
    SenderPlan,
    Tally,
    make_profile,
    make_target,
)
from lookupdb.load.result import Recording, make_document, parse_condition


def make_result(*conditions: str) -> dict[str, Any]:
    """The result of a load of one second."""
    recording = Recording(1, 1)
    recording.take(0, 0, Tally(scheduled=5, answered=5, found=5, latencies=[900] * 5, lags=[10] * 5))
    recording.finish()
    plan = LoadPlan(
        make_profile(5, 5, ramp=0, duration=1, warmup=0),
        *("poisson", 0, 1, False, 1.0, "uniform", 1, 8, 1, 5.0),
    )
    target = make_target("http://airports-router.shop.svc", None, None, [])
    facts = DatasetFacts("shop", "airports", 28_298, "g12")
    order = LoadOrder(SenderPlan(plan, target, 0, None, ["key"] * 10), facts, is_asked_by_name=False, key_source="keys")
    judged = [parse_condition(text) for text in conditions]
    began = "2026-11-24T00:00:00Z"
    return make_document(order, recording, started_at=began, seconds=1.0, is_interrupted=False, conditions=judged)


def make_log(*conditions: str) -> str:
    """The output of the Job."""
    line = json.dumps(make_result(*conditions), separators=(",", ":"))
    return f"0 of 1 s: 5/s answered\n\x1b[2Jodd line\n{line}\n"


@pytest_asyncio.fixture(name="kube")
async def _kube(tmp_path: Path) -> AsyncIterator[Kube]:
    async with serving(tmp_path) as kube:
        kube.put(body(generations=[generation("g12"), generation("g13", largestShardBytes=9_000_000)]))
        put_shard_servers(kube)
        yield kube


async def _load(kube: Kube, tmp_path: Path, phase: str, log: str, *words: str) -> tuple[Ended, Any]:
    """Run the program while the Job's pod runs and ends as ``phase``; return both."""
    followed: list[str] = []

    def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/log") and "follow" in request.query:
            followed.append(request.query["container"])
        return web.Response(text=log if request.path.endswith("/log") else "")

    kube.proxied = answer
    running = asyncio.ensure_future(run_plugin(tmp_path / "kubeconfig", "load", "airports", *words, "-n", "shop"))
    await until(lambda: running.done() or bool(kube.all("Job")), "a Job")
    if running.done():
        return await running, None
    (job,) = kube.all("Job")
    put_job_pod(kube, "Running")
    await until(lambda: running.done() or followed == ["load"], "its log is followed")
    put_job_pod(kube, phase)
    return await running, job


async def test_prints_what_it_shows_meanwhile_and_the_result(kube: Kube, tmp_path: Path) -> None:
    ended, job = await _load(kube, tmp_path, "Succeeded", make_log(), "--rate", "50")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("shop/airports at http://airports-router.shop.svc, 1.0 s measured\n")
    assert "         5 answered\n" in ended.out
    assert "0 of 1 s: 5/s answered\n" in ended.err
    assert "\x1b" not in ended.err
    assert "LoadResult" not in ended.err
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:3] == ["load", "http://airports-router.shop.svc", "--rate=50.0"]
    assert not kube.all("Job"), "it is deleted"
    assert not any("exec" in path or "proxy" in path for _, path in kube.reads), "nothing but its log is needed"


async def test_prints_json_for_machines(kube: Kube, tmp_path: Path) -> None:
    ended, _ = await _load(kube, tmp_path, "Succeeded", make_log(), "--json")
    assert json.loads(ended.out) == json.loads(json.dumps(make_result()))


async def test_a_condition_that_holds_ends_it_with_7_though_its_pod_has_failed(kube: Kube, tmp_path: Path) -> None:
    ended, job = await _load(kube, tmp_path, "Failed", make_log("p50>1us"), "--fail-if", "p50>1us")
    assert ended.code == 7
    assert "5 answered" in ended.out
    assert "--fail-if 'p50>1us' holds: it is 900 µs" in ended.err
    assert "--fail-if=p50>1us" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not kube.all("Job")


async def test_of_a_load_that_was_refused_tells_why_and_deletes_it(kube: Kube, tmp_path: Path) -> None:
    ended, _ = await _load(kube, tmp_path, "Failed", "error: the router answered 401: who are you\n  give a token\n")
    assert (ended.code, ended.out) == (1, "")
    assert "the Job failed: the router answered 401: who are you give a token" in ended.err
    assert not kube.all("Job")


async def test_keys_of_a_file_are_sent_with_it(kube: Kube, tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("KJFK\nEGLL\n")
    _, job = await _load(kube, tmp_path, "Succeeded", make_log(), "--keys", str(tmp_path / "keys.txt"))
    (keys,) = job["spec"]["template"]["metadata"]["annotations"].values()
    assert sorted(keys.split()) == ["EGLL", "KJFK"]


async def test_of_a_candidate_the_store_and_the_routers_are_asked(kube: Kube, tmp_path: Path) -> None:
    _, job = await _load(kube, tmp_path, "Succeeded", make_log(), "--at", "g13")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert {"--at=g13", "--keys=sample"} <= set(container["args"])
    assert int(container["resources"]["requests"]["ephemeral-storage"]) == 9_000_000 + (64 << 20)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--rate", "5000"], 2, "--beyond-default-bounds"),
        (["--fail-if", "p99"], 2, "is not a condition"),
        (["--header", "Cookie: a"], 2, "would show a secret"),
        (["--keys", "/nothing/here"], 2, "--keys /nothing/here cannot be read"),
        (["--at", "g99"], 1, "has no g99"),
        (["--at", "13"], 2, "a generation is called"),
        (["--token-secret", "../x"], 2, "is not a name"),
    ],
)
async def test_what_cannot_be_is_refused_before_a_job_is_made(
    kube: Kube, tmp_path: Path, words: list[str], code: int, told: str
) -> None:
    ended = await run_plugin(tmp_path / "kubeconfig", "load", "airports", *words, "-n", "shop")
    assert (ended.code, ended.out) == (code, "")
    assert told in ended.err
    assert kube.writes == []


async def test_a_dataset_that_is_not_there_is_reported(kube: Kube, tmp_path: Path) -> None:
    ended = await run_plugin(tmp_path / "kubeconfig", "load", "cities", "-n", "shop")
    assert ended.code == 1
    assert "there is no LookupDataset cities in namespace shop" in ended.err


async def test_who_may_not_make_jobs_gets_an_error(kube: Kube, tmp_path: Path) -> None:
    def refuse(write: Write) -> None:
        raise Refusal(403, "ann cannot create jobs", "Forbidden")

    kube.before_write = refuse
    ended = await run_plugin(tmp_path / "kubeconfig", "load", "airports", "-n", "shop")
    assert (ended.code, [write.verb for write in kube.writes]) == (1, ["post"])
    assert "ann cannot create jobs" in ended.err


async def test_nothing_stays_when_somebody_ends_it(kube: Kube, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from lookupdb_operator.plugin.cli import main; main()", "load", "airports"]
    where = ["-n", "shop", "--kubeconfig", str(tmp_path / "kubeconfig")]
    process = await asyncio.create_subprocess_exec(
        *command, *where, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await until(lambda: kube.all("Job") or process.returncode is not None, "a Job")
    kube.proxied = lambda request: web.Response(text="3 of 10 s: all is well\n")
    put_job_pod(kube, "Running")
    assert process.stderr is not None
    while b"all is well" not in (line := await process.stderr.readline()):
        assert line, "its log is shown"
    process.send_signal(signal.SIGTERM)
    _, errors = await process.communicate()
    assert (process.returncode, "Traceback" in errors.decode()) == (143, False), errors.decode()
    assert not kube.all("Job")
