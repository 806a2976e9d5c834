"""The examples of docs/how-to/redis.md, run as they stand there against a router and a real shard."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs_tools import reference
from support.fleets import fleet, fleet_entry
from support.http import ScriptedLookups
from support.resp import RespServer, serving_resp
from support.shards import write_generation

from lookupdb.router.resp.exchanges import COMMANDS

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "redis.md").read_text()
RECIPES = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
AIRPORTS = {code: b'{"iata": "%b"}' % code[1:].encode() for code in ("kjfk", "egll", "lszh")}


@pytest.fixture(scope="module")
def router() -> Iterator[RespServer]:
    values = AIRPORTS | {key.upper(): value for key, value in AIRPORTS.items()}  # it normalizes nothing
    with serving_resp(ScriptedLookups(values=values)) as router:
        yield router


def run(recipe: str, router: RespServer) -> dict[str, Any]:
    names: dict[str, Any] = {}
    code = RECIPES[recipe].replace("6379", str(router.port))
    exec(compile(code, recipe, "exec"), names)
    return names


def test_redis_py(router: RespServer) -> None:
    names = run("redis", router)
    names["airports"].close()
    assert names["kjfk"] == {"iata": "jfk"}
    assert names["values"] == [AIRPORTS["kjfk"], AIRPORTS["egll"], None]
    assert names["found"] == [b"jfk", b"gll", b"szh"]


def test_a_shard(router: RespServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = write_generation(tmp_path, AIRPORTS, shards=2, normalize=("strip", "lowercase"), value_format="json")
    with fleet(generation) as shards:
        entry = fleet_entry(generation, shards)["shards"]
        state = tmp_path / ".lookupdb/run/default.airports/up.json"
        state.parent.mkdir(parents=True)
        servers = [{"shard": number, "endpoints": one["endpoints"]} for number, one in enumerate(entry)]
        state.write_text(json.dumps({"shards": servers}))
        monkeypatch.chdir(tmp_path)
        assert run("shards", router)["value"] == AIRPORTS["kjfk"]


async def test_asyncio(router: RespServer) -> None:
    names = await asyncio.to_thread(run, "asyncio", router)
    assert names["found"] == [AIRPORTS["kjfk"], AIRPORTS["egll"]]


def test_all_commands_are_described() -> None:
    table = reference.pages()["reference/resp.md"]
    assert [name.decode() for name in COMMANDS if f"| `{name.decode()}" not in table] == []
