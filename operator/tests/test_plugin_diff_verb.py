"""kubectl lookupdb diff, against the API server in memory: a Job is made, waited for, read and deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from aiohttp import web
from manifest_samples import everything, rendered
from operator_support.kube import Kube, serving
from operator_support.plugin_program import Ended, run_plugin
from operator_support.running import until
from plugin_samples import body, generation
from test_plugin_difference_job import CANDIDATE, DOCUMENT

from lookupdb_operator import names


@pytest_asyncio.fixture(name="kube")
async def _kube(tmp_path: Path) -> AsyncIterator[Kube]:
    async with serving(tmp_path) as kube:
        kube.put(body(generations=[generation("g12"), generation("g13")], candidate=CANDIDATE))
        shard_set = next(manifest for manifest in rendered(everything())["shards"] if manifest["kind"] == "StatefulSet")
        labels = {names.DATASET: "airports", names.DATASET_UID: "uid-of-airports"}
        kube.put({**shard_set, "metadata": {"namespace": "shop", "name": "airports-r34-s0", "labels": labels}})
        yield kube


async def _compared(kube: Kube, tmp_path: Path, phase: str, log: str, *words: str) -> tuple[Ended, Any]:
    """What comes of the program when the Job's pod ends as ``phase``; and the Job."""
    kube.proxied = lambda request: web.Response(text=log if request.path.endswith("/log") else "")
    running = asyncio.ensure_future(run_plugin(tmp_path / "kubeconfig", "diff", "airports", *words, "-n", "shop"))
    await until(lambda: running.done() or bool(kube.all("Job")), "a Job")
    (job,) = kube.all("Job")
    labels = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    kube.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "shop", "name": f"{job['metadata']['name']}-x", "labels": labels},
            "spec": {"containers": []},
            "status": {"phase": phase},
        }
    )
    return await running, job


async def test_compares_what_serves_with_its_candidate(kube: Kube, tmp_path: Path) -> None:
    ended, job = await _compared(kube, tmp_path, "Succeeded", json.dumps(DOCUMENT, indent=2))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("g12, 3,000 records\ng13, 3,001 records\n")
    assert job["metadata"]["name"].startswith("airports-diff-")
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert (arguments[:3], arguments[-1]) == (["diff", "g12", "g13"], "--sampled")
    assert not kube.all("Job"), "it is deleted"


async def test_compares_all_keys_and_prints_json(kube: Kube, tmp_path: Path) -> None:
    text = json.dumps(DOCUMENT, indent=2)
    ended, job = await _compared(kube, tmp_path, "Succeeded", text, "g13", "g12", "--exact", "-o", "json")
    assert json.loads(ended.out) == DOCUMENT
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:3] == ["diff", "g13", "g12"]
    assert "--sampled" not in arguments


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
