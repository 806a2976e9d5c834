"""Every command works without native kernels: one dataset from its source to its readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.build_project import Project
from support.clients import KINDS, Kind, blocking
from support.fleets import Shards, fleet, fleet_entry
from support.routers import Router, routing
from support.routing import table_file

import lookupdb
from lookupdb import native
from lookupdb.client import LookupResults

pytestmark = pytest.mark.long

SHARDS = 2
ROWS = 1000


def value(number: int) -> dict[str, str]:
    return {"name": f"name {number}", "team": f"team {number % 7}"}


def build(folder: Path, kernels: str) -> Path:
    """`lookupdb build` in a process of its own; the folder of its generation."""
    project = Project(folder)
    words = ["build", "-f", str(project.manifest), "--store", str(project.store), "--scratch", str(folder / "scratch")]
    subprocess.run(
        [sys.executable, "-m", "lookupdb", *words, "--progress", "none"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, native.VARIABLE: kernels},
    )
    (manifest,) = project.store.rglob("manifest.json")
    return manifest.parent


@pytest.fixture(scope="module", autouse=True)
def without_kernels() -> Iterator[None]:
    """This process and those that it starts use Python."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(native.VARIABLE, "0")
        yield


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory, without_kernels: None) -> Path:
    return build(tmp_path_factory.mktemp("python"), "0")


@pytest.fixture(scope="module")
def shards(generation: Path) -> Iterator[Shards]:
    with fleet(generation) as shards:
        yield shards


@pytest.fixture(scope="module")
def router(generation: Path, shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    table = tmp_path_factory.mktemp("table") / "table.json"
    people = {"namespace": "default", "name": "people", "uid": "local"}
    table.write_bytes(table_file(fleet_entry(generation, shards), dataset=people))
    with routing(table, "--resp-port", "0") as router:
        yield router


def redis_client(port: int) -> redis.Redis:
    return redis.Redis(port=port, socket_timeout=60, retry=Retry(NoBackoff(), 0))


def test_build(generation: Path, tmp_path: Path) -> None:
    """The files are those that the installed kernels write."""
    manifest = json.loads((generation / "manifest.json").read_bytes())
    assert manifest["totals"]["records"] == ROWS
    files = sorted(generation.glob("*.lmdb"))
    assert len(files) == SHARDS
    other = build(tmp_path, "0" if native_is_missing() else "1")
    assert [path.read_bytes() for path in files] == [(other / path.name).read_bytes() for path in files]


def native_is_missing() -> bool:
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv(native.VARIABLE)
        return native.kernels() is None


def test_serve(shards: Shards) -> None:
    keys = ["p1", "nowhere", "p999", "p500"]
    answers: list[list[Any]] = []
    for [server] in shards:
        with redis_client(server.ports[0]) as client:
            assert client.ping() is True
            with client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.get(key)
                found = pipeline.execute()
            assert client.mget(keys) == found
            answers.append(found)
    merged = [next((answer for answer in found if answer is not None), None) for found in zip(*answers, strict=True)]
    assert merged[1] is None
    assert [json.loads(answer) for answer in merged if answer] == [value(number) for number in (1, 999, 500)]


def test_route(router: Router) -> None:
    assert router.reports("kernels") == ["python"]
    status, body = router.get("/v1/lookup/p7")
    assert (status, json.loads(body)) == (200, value(7))
    assert router.get("/v1/lookup/nowhere")[0] == 404
    with redis_client(router.resp) as client:
        found = client.mget("p1", "nowhere", "p2")
        assert [None if answer is None else json.loads(answer) for answer in found] == [value(1), None, value(2)]
        assert client.hget("p3", "team") == b"team 3"


def test_open(generation: Path) -> None:
    with lookupdb.open(generation) as people:
        assert people["p7"] == value(7)
        assert "nowhere" not in people
        assert len(people) == ROWS
        assert dict(people.items()) == {f"p{number}": value(number) for number in range(ROWS)}


@pytest.mark.parametrize("kind", KINDS)
def test_client(router: Router, kind: Kind) -> None:
    with blocking(kind, f"http://127.0.0.1:{router.port}") as client:
        assert client.get("p7") == value(7)
        assert client.get("nowhere") is None
        results: LookupResults = client.get_many(["p1", "nowhere", "p2"])
        assert dict(results.found) == {"p1": value(1), "p2": value(2)}
        assert list(results.missing) == ["nowhere"]
