"""`lookupdb get`: many keys are asked in batches that the router takes, whatever its limits are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from support.routers import Router, routing
from support.routing import entry, table_file
from support.shards import serving, write_generation

from lookupdb.local import client

KEYS = [str(number) for number in range(500)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a shard server that serves all keys but one."""
    home = tmp_path_factory.mktemp("get")
    generation = write_generation(home, {key: b"v" * 2000 for key in KEYS if key != "7"})
    with serving(generation) as shard:
        address = f"127.0.0.1:{shard.ports[0]}"
        (home / "table.json").write_bytes(table_file(entry([[address]], "g1", valueFormat="raw", normalize=[])))
        yield home / "table.json"


@pytest.fixture
def router(table: Path, request: pytest.FixtureRequest) -> Iterator[Router]:
    with routing(table, *request.param) as running:
        yield running


@pytest.mark.parametrize(
    "router", [["--max-keys", "100"], ["--max-keys", "1"], ["--max-body-bytes", "1024"], []], indirect=True, ids=str
)
def test_more_keys_than_a_router_takes_at_once(router: Router) -> None:
    command = [sys.executable, "-m", "lookupdb", "get", f"http://127.0.0.1:{router.port}", "-"]
    done = subprocess.run(command, input="\n".join(KEYS).encode(), capture_output=True, check=False)
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert [line["key"] for line in lines] == KEYS, done.stderr
    assert [line["key"] for line in lines if line["value"] is None] == ["7"]
    assert done.returncode == 1


@pytest.mark.parametrize("router", [["--max-keys", "100"]], indirect=True, ids=str)
def test_the_limit_is_learnt_once(router: Router) -> None:
    batches = client.find_in_batches(f"http://127.0.0.1:{router.port}", KEYS)
    assert [len(batch) for batch, _ in batches] == [62] * 8 + [4]
