"""kubectl lookupdb diff, against the API server in memory: a Job is created, awaited, read and deleted."""

from __future__ import annotations

import asyncio
import copy
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
from plugin_samples import STATUS, body, dataset, generation
from test_plugin_difference_job import CANDIDATE, DOCUMENT

from lookupdb_operator import names
from lookupdb_operator.cluster.api import Unreachable
from lookupdb_operator.plugin import cluster_verbs, session
from lookupdb_operator.plugin.cluster_session import ClusterSession
from lookupdb_operator.plugin.cluster_verbs import Patience
from lookupdb_operator.plugin.jobs import JobProgress, choose_shard_set


@pytest_asyncio.fixture(name="kube")
async def _kube(tmp_path: Path) -> AsyncIterator[Kube]:
    async with serving(tmp_path) as kube:
        kube.put(body(generations=[generation("g12"), generation("g13")], candidate=CANDIDATE))
        put_shard_servers(kube)
        yield kube


async def _compared(
    kube: Kube, tmp_path: Path, phase: str, log: str, *words: str, verb: str = "diff"
) -> tuple[Ended, Any]:
    """Run the program while the Job's pod ends as ``phase``; return both."""
    kube.proxied = lambda request: web.Response(text=log if request.path.endswith("/log") else "")
    running = asyncio.ensure_future(run_plugin(tmp_path / "kubeconfig", verb, "airports", *words, "-n", "shop"))
    await until(lambda: running.done() or bool(kube.all("Job")), "a Job")
    job = put_job_pod(kube, phase)
    return await running, job


async def test_compares_what_serves_with_its_candidate(kube: Kube, tmp_path: Path) -> None:
    ended, job = await _compared(kube, tmp_path, "Succeeded", json.dumps(DOCUMENT, indent=2))
    assert ended.code == 0
    assert "error" not in ended.err
    assert ended.out.startswith("before   g12, 3,000 records, s3://b/g12\nafter    g13, 3,001 records, s3://b/g13\n")
    assert job["metadata"]["name"].startswith("airports-diff-")
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert (arguments[:3], arguments[-1]) == (["diff", "g12", "g13"], "--sampled")
    assert not kube.all("Job"), "it is deleted"


async def test_compares_all_keys_and_prints_json(kube: Kube, tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT, indent=2)
    ended, job = await _compared(kube, tmp_path, "Succeeded", text, "g13", "g12", "--exact", "--json")
    assert json.loads(ended.out) == DOCUMENT
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:3] == ["diff", "g13", "g12"]
    assert "--sampled" not in arguments


async def test_a_result_of_another_version_is_only_shown_as_json(kube: Kube, tmp_path: Path) -> None:
    ended, _ = await _compared(kube, tmp_path, "Succeeded", '{\n"compared": 1}')
    assert (ended.code, ended.out) == (1, "")
    assert "the Job's result is of another version of lookupdb: KeyError('before')" in ended.err
    ended, _ = await _compared(kube, tmp_path, "Succeeded", '{\n"compared": 1}', "--json")
    assert json.loads(ended.out) == {"compared": 1}


async def test_prune_keeps_what_the_status_names(kube: Kube, tmp_path: Path) -> None:
    removed = {"dataset": "shop/airports", "dryRun": True, "removed": ["g9", "g10"]}
    text = json.dumps(removed, indent=2)
    ended, job = await _compared(kube, tmp_path, "Succeeded", text, "--dry-run", verb="prune")
    assert (ended.code, ended.out) == (0, "shop/airports: would be removed: g9, g10\n"), ended.err
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:2] == ["prune", "shop/airports"]
    assert arguments[arguments.index("--keep") :] == [
        *("--keep", "2", "--json", "--dry-run"),
        *("--protect", "g12", "--protect", "g13"),
    ]
    assert not kube.all("Job"), "it is deleted"


async def test_of_a_job_that_failed_tells_why_and_deletes_it(kube: Kube, tmp_path: Path) -> None:
    ended, _ = await _compared(kube, tmp_path, "Failed", "the store denies\n")
    assert ended.code == 1
    assert "the Job failed: the store denies" in ended.err
    assert not kube.all("Job")


async def test_without_a_candidate_asks_for_two_names(kube: Kube, tmp_path: Path) -> None:
    kube.put(body())
    ended = await run_plugin(tmp_path / "kubeconfig", "diff", "airports", "-n", "shop")
    assert ended.code == 1
    assert "has no candidate" in ended.err
    assert not kube.writes


async def test_is_made_from_servers_that_serve_and_not_from_those_that_cannot_start(kube: Kube, tmp_path: Path) -> None:
    (serves,) = copy.deepcopy(kube.all("StatefulSet"))
    starts = copy.deepcopy(serves)
    starts["metadata"] |= {"name": "airports-r35-s0", "creationTimestamp": "2026-01-02T12:00:00Z"}
    starts["spec"]["template"]["spec"]["initContainers"][0]["image"] = "registry.example/lookupdb:typo"
    for rollout, shard_set in (("r34", serves), ("r35", starts)):
        kube.put(shard_set | {"metadata": _labelled(shard_set["metadata"], rollout)})
    _, job = await _compared(kube, tmp_path, "Succeeded", json.dumps(DOCUMENT, indent=2))
    image = serves["spec"]["template"]["spec"]["initContainers"][0]["image"]
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == image


def _labelled(metadata: dict[str, Any], rollout: str) -> dict[str, Any]:
    return metadata | {"labels": metadata["labels"] | {names.ROLLOUT: rollout}}


@pytest.mark.parametrize(
    ("parts", "chosen"),
    [([], "r34"), ([{"rollout": "r33", "generation": "g11", "workers": 1, "shardRanges": "1"}], "r34")],
    ids=["of one rollout", "of several, shard by shard"],
)
def test_the_newest_that_serves_is_chosen_and_without_a_table_the_newest(parts: list[Any], chosen: str) -> None:
    sets = [{"metadata": _labelled({"labels": {}}, rollout)} for rollout in ("r32", "r33", "r34", "r35")]
    table = STATUS["table"] | {"parts": parts}
    assert choose_shard_set(dataset(table=table), sets)["metadata"]["labels"][names.ROLLOUT] == chosen
    assert choose_shard_set(dataset(table=table), sets[:2])["metadata"]["labels"][names.ROLLOUT] == "r33"
    assert choose_shard_set(dataset(table=None), sets)["metadata"]["labels"][names.ROLLOUT] == "r35"


def _refuse_its_pods(kube: Kube) -> None:
    (job,) = kube.all("Job")
    name = job["metadata"]["name"]
    kube.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": "shop", "name": f"{name}.1"},
            "type": "Warning",
            "reason": "FailedCreate",
            "message": f'Error creating: pods "{name}-x" is forbidden: exceeded quota: small',
            "involvedObject": {"kind": "Job", "name": name},
        }
    )


async def _comparing(kube: Kube, tmp_path: Path, *words: str) -> asyncio.Future[Ended]:
    """Run the program until its Job is created and its pods are refused."""
    running = asyncio.ensure_future(run_plugin(tmp_path / "kubeconfig", "diff", "airports", "-n", "shop", *words))
    await until(lambda: kube.all("Job") or running.done(), "a Job")
    _refuse_its_pods(kube)
    return running


async def _comparing_in_a_process(kube: Kube, tmp_path: Path) -> asyncio.subprocess.Process:
    """Do the same in a process of its own, which gets signals."""
    command = [sys.executable, "-c", "from lookupdb_operator.plugin.cli import main; main()", "diff", "airports"]
    where = ["-n", "shop", "--kubeconfig", str(tmp_path / "kubeconfig")]
    process = await asyncio.create_subprocess_exec(
        *command, *where, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await until(lambda: kube.all("Job") or process.returncode is not None, "a Job")
    _refuse_its_pods(kube)
    return process


async def test_a_pod_that_cannot_be_made_is_reported_and_not_waited_for_without_end(kube: Kube, tmp_path: Path) -> None:
    ended = await (await _comparing(kube, tmp_path, "--start-timeout", "3"))
    assert ended.code == 1, ended.err
    assert ended.err.count("cannot create its pods: exceeded quota: small; raise the namespace's quota") == 2, ended.err
    assert "had not started after 3 s (--start-timeout)" in ended.err.splitlines()[-1]
    assert not kube.all("Job")


async def test_nothing_stays_after_ctrl_c(kube: Kube, tmp_path: Path) -> None:
    process = await _comparing_in_a_process(kube, tmp_path)
    assert process.stderr is not None
    await process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert (process.returncode, "Traceback" in errors.decode()) == (130, False), errors.decode()
    assert not kube.all("Job")


async def test_a_job_that_was_made_though_its_answer_was_lost_is_deleted(kube: Kube, tmp_path: Path) -> None:
    def lose_the_answer(write: Write) -> None:
        if write.verb == "post":
            kube.before_write = lambda write: None
            kube.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "shop", "name": write.name}})
            raise Refusal(504, "the server was unable to return a response in time", "Timeout")

    kube.before_write = lose_the_answer
    ended = await run_plugin(tmp_path / "kubeconfig", "diff", "airports", "-n", "shop")
    assert (ended.code, kube.all("Job")) == (1, [])
    assert "unable to return a response" in ended.err


async def test_a_job_that_somebody_deletes_is_not_waited_for(kube: Kube, tmp_path: Path) -> None:
    running = await _comparing(kube, tmp_path, "--start-timeout", "60")
    kube.remove("Job", "shop", kube.all("Job")[0]["metadata"]["name"])
    ended = await running
    assert ended.code == 1
    assert "is gone: somebody has deleted it" in ended.err
    assert "--start-timeout" not in ended.err


class _Flaky:
    """A request that fails once with a 503 and succeeds later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, request: str) -> None:
        self.count = 0
        self._request = getattr(ClusterSession, request)

        async def ask(session: ClusterSession, *words: Any) -> Any:
            self.count += 1
            if self.count == 1:
                raise Unreachable("Job x", "the server is currently unable to handle the request")
            return await self._request(session, *words)

        monkeypatch.setattr(ClusterSession, request, ask)


@pytest.mark.parametrize("request_", ["get_job", "list_pods_of_job", "read_log", "delete_job"])
async def test_no_request_that_fails_for_a_moment_loses_the_work_of_a_job(
    kube: Kube, tmp_path: Path, request_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cluster_verbs, session):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    flaky = _Flaky(monkeypatch, request_)
    ended, _ = await _compared(kube, tmp_path, "Succeeded", json.dumps(DOCUMENT, indent=2))
    assert (ended.code, ended.out.splitlines()[0], "deleted" in ended.err) == (
        0,
        "before   g12, 3,000 records, s3://b/g12",
        False,
    )
    assert flaky.count > 1
    assert [write.verb for write in kube.writes] == ["post", "delete"]


async def test_a_job_may_have_started_while_the_api_server_does_not_say(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cluster_verbs, session):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    pods = "/api/v1/namespaces/shop/pods"
    kube.refused[pods] = Refusal(503, "the server is currently unable to handle the request")
    ended = await run_plugin(
        tmp_path / "kubeconfig", "diff", "airports", "-n", "shop", "--start-timeout", "1", "--timeout", "2"
    )
    assert ended.code == 1
    assert "it was not done after 2 s (--timeout): it has not been seen yet. The last poll failed:" in ended.err
    assert not kube.all("Job")


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        ("Succeeded", "the Job has succeeded, but its log cannot be read: the log of pod"),
        ("Failed", "the Job failed: it has logged nothing"),
    ],
)
async def test_a_log_that_cannot_be_read_is_not_an_empty_one(
    kube: Kube, tmp_path: Path, phase: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_verbs, "_LOG_SECONDS", 0.1)
    running = asyncio.ensure_future(run_plugin(tmp_path / "kubeconfig", "diff", "airports", "-n", "shop"))
    await until(lambda: running.done() or bool(kube.all("Job")), "a Job")
    put_job_pod(kube, phase)
    ended = await running
    assert (ended.code, told in ended.err) == (1, True), ended.err


async def test_a_job_that_is_refused_is_not_deleted(kube: Kube, tmp_path: Path) -> None:
    def refuse(write: Write) -> None:
        raise Refusal(403, "ann cannot create jobs", "Forbidden")

    kube.before_write = refuse
    ended = await run_plugin(tmp_path / "kubeconfig", "diff", "airports", "-n", "shop")
    assert (ended.code, [write.verb for write in kube.writes]) == (1, ["post"])
    assert "ann cannot create jobs" in ended.err


class TestPatience:
    @pytest.mark.parametrize(
        ("phase", "seconds", "told"),
        [
            ("Starting", 9.0, ""),
            ("Starting", 10.0, "--start-timeout): why"),
            ("Running", 10.0, ""),
            ("Running", 60.0, "--timeout): why"),
        ],
    )
    def test_ends(self, phase: Any, seconds: float, told: str) -> None:
        found = Patience(start=10, end=60).judge(JobProgress(phase, "x", "why"), seconds)
        assert (told in found, bool(found)) == (True, bool(told))

    def test_does_not_end_the_start_of_what_may_have_started(self) -> None:
        found = Patience(start=10, end=60).judge(JobProgress("Starting", "x", "why"), 20, is_known=False)
        assert found == ""
