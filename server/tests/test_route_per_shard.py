"""A rollout shard by shard, as clients of a whole router see it: real servers of two generations, under load."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.fleets import Shards, fleet, fleet_entry
from support.metrics import without_dataset
from support.routers import Router, routing
from support.routing import mixed, table_file
from support.shards import Running, write_generation
from support.waiting import soon, until

from lookupdb.client import Client
from lookupdb.errors import LookupFailed
from lookupdb.keys import shard_number

pytestmark = pytest.mark.long

SHARDS = 4
KEYS = [f"k{number}" for number in range(80)]
PAUSE_SECONDS = 0.015
"""The time between an answer and the client's next request, which leaves processors to the servers."""
ONLY = {"g12": "only-g12-7", "g13": "only-g13-8"}
"""A key that one generation has and the other has not."""


def value_of(key: str, generation: str) -> dict[str, str] | None:
    """Every value names its key and its generation."""
    return {"from": generation, "key": key} if key in KEYS or key == ONLY[generation] else None


def shard_of(key: str) -> int:
    return shard_number(key.encode(), SHARDS)


@dataclass
class Generations:
    """g12 and g13, all of whose shards are served."""

    entries: dict[str, dict[str, Any]]
    servers: dict[str, Shards]

    def table(self, version: int, target: str, done: int) -> bytes:
        """The table in which the first ``done`` shards are the target's and the others are not."""
        new, old = self.entries[target], self.entries["g12" if target == "g13" else "g13"]
        return table_file(mixed(new, old, range(done, SHARDS)) if done else old, version=version)


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generations]:
    home = tmp_path_factory.mktemp("store")
    with contextlib.ExitStack() as stack:
        entries, servers = {}, {}
        for name in ONLY:
            records = {key: json.dumps(value_of(key, name)).encode() for key in (*KEYS, ONLY[name])}
            made = write_generation(home, records, shards=SHARDS, generation=name, value_format="json")
            servers[name] = stack.enter_context(fleet(made))
            entries[name] = fleet_entry(made, servers[name])
        yield Generations(entries, servers)


def rewrite(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(content)
    unfinished.rename(path)


@dataclass
class Load:
    """Clients that ask single keys and batches on connections that stay open, and judge each answer by itself."""

    port: int
    wrong: list[str] = field(default_factory=list)
    answered: dict[str, int] = field(default_factory=dict)
    """Counts by the generation header."""
    _going: bool = True

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._singles(at)) for at in range(6)]
        self._tasks += [asyncio.create_task(self._batches()) for _ in range(3)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)

    async def _singles(self, at: int) -> None:
        keys = [*KEYS, *ONLY.values()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while self._going:
            at = (at + 7) % len(keys)
            writer.write(f"GET /v1/lookup/{keys[at]} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            status, generation, body = await self._response(reader)
            expected = value_of(keys[at], generation) if generation in ONLY else None
            if (status, body) != (200, expected) and (status, expected) != (404, None):
                self.wrong.append(f"{keys[at]}: {status} {generation} {body}")
            if status == 404 and f"generation {generation} holds no record" not in body["detail"]:
                self.wrong.append(f"{keys[at]}: {status} {generation} {body}")
            await asyncio.sleep(PAUSE_SECONDS)
        writer.close()

    async def _batches(self) -> None:
        keys = [*KEYS, *ONLY.values()]
        content = json.dumps({"keys": keys}).encode()
        head = b"POST /v1/lookup HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while self._going:
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            status, generation, body = await self._response(reader)
            if status != 200 or not self._is_right(keys, generation, body):
                self.wrong.append(f"batch: {status} {generation} {body}")
            await asyncio.sleep(PAUSE_SECONDS)
        writer.close()

    def _is_right(self, keys: list[str], generation: str, body: dict[str, Any]) -> bool:
        """Check that each shard's keys are of one generation, and that the response names all of these."""
        found = body["found"]
        of_shard: dict[int, set[str]] = {}
        for key in KEYS:
            of_shard.setdefault(shard_of(key), set()).add(found[key]["from"])
            if found[key]["key"] != key:
                return False
        if any(len(names) > 1 for names in of_shard.values()):
            return False
        for name, key in ONLY.items():
            has = of_shard[shard_of(key)] == {name}
            if (key in found) != has or (key in body["missing"]) == has:
                return False
        names = sorted({name for names in of_shard.values() for name in names})
        named = body["generations"] if body["generation"] is None else [body["generation"]]
        return named == names == generation.split(", ") and ("generations" in body) == (len(names) > 1)

    async def _response(self, reader: asyncio.StreamReader) -> tuple[int, str, dict[str, Any]]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(fields["Content-Length"]))
        generation = fields.get("Lookupdb-Generation", "none")
        self.answered[generation] = self.answered.get(generation, 0) + 1
        return int(head.split()[1]), generation, json.loads(body)


@contextlib.contextmanager
def routed(path: Path, content: bytes) -> Iterator[Router]:
    path.write_bytes(content)
    with routing(path, "--deadline-ms", "20000", workers=2) as router:
        yield router


async def confirmed(router: Router, version: int) -> None:
    await soon(lambda: router.reports("tableVersion") == [version] * 2, f"both workers confirm version {version}")


async def test_sixteen_steps_there_and_back_lose_no_answer_and_give_no_wrong_one(
    generations: Generations, tmp_path: Path
) -> None:
    """Each step is a table of mixed generations."""
    path = tmp_path / "table.json"
    with routed(path, generations.table(1, "g13", 0)) as router:
        async with Load(router.port) as load:
            version = 1
            for target in ("g13", "g12", "g13", "g12"):
                for done in range(1, SHARDS + 1):
                    version += 1
                    load.answered.clear()
                    rewrite(path, generations.table(version, target, done))
                    await confirmed(router, version)
                    expected = "g12, g13" if done < SHARDS else target
                    await soon(lambda name=expected: load.answered.get(name), f"answers come from {expected}")  # type: ignore[misc]
                    counts = {} if done == SHARDS else {target: done}
                    for told in router.reports("shardGenerations"):
                        assert (told or {}).get(target) == counts.get(target)
                    assert router.reports("generation") == [target] * 2
        assert load.wrong == []
        metrics = router.metrics()
    assert "lookupdb_router_keys_unavailable_total 0.0" in metrics
    assert f"lookupdb_router_table_version {version}.0" in metrics
    assert "lookupdb_router_endpoints_broken_total 0.0" in metrics


def test_while_it_lasts_it_is_told_how_many_shards_are_whose(generations: Generations, tmp_path: Path) -> None:
    with routed(tmp_path / "table.json", generations.table(5, "g13", 1)) as router:
        status, body = router.get("/v1/dataset")
        document = json.loads(body)
        assert status == 200
        assert (document["generation"], document["shards"], document["candidates"]) == ("g13", SHARDS, [])
        assert document["shardGenerations"] == {"g12": 3, "g13": 1}
        assert router.reports("shardGenerations") == [{"g12": 3, "g13": 1}] * 2
        url = f"http://127.0.0.1:{router.port}"
        of_key = {key: "g13" if shard_of(key) == 0 else "g12" for key in KEYS}
        with Client(url) as client:
            assert client.get_many(KEYS).found == {key: value_of(key, name) for key, name in of_key.items()}
            found = {key: client[key]["from"] for key in KEYS[:10]}
            assert found.items() <= of_key.items()
            with pytest.raises(LookupFailed, match=r"412 .* rolled out shard by shard"):
                client.at("g13").get(KEYS[0])
        metrics = router.metrics()
        assert f"lookupdb_router_endpoints_ready {2 * SHARDS}.0" in metrics


async def test_a_step_to_a_server_that_is_down_waits_for_it(generations: Generations, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    entries = generations.entries
    dead = {**entries["g13"], "shards": [*entries["g13"]["shards"]]}
    dead["shards"][1] = {"endpoints": ["127.0.0.1:1"]}
    with routed(path, generations.table(1, "g13", 1)) as router:
        async with Load(router.port) as load:
            rewrite(path, table_file(mixed(dead, entries["g12"], {2, 3}), version=2))
            await soon(lambda: router.reports("tableSeen") == [2, 2], "both workers have seen it")
            says = "version 2 waits for an endpoint to be verified for shard 1"
            await soon(lambda: router.reports("error") == [says, says], "both say what they wait for")
            load.answered.clear()
            await soon(lambda: sum(load.answered.values()) > 100, "requests are answered")
            assert router.reports("shardGenerations") == [{"g12": 3, "g13": 1}] * 2
            rewrite(path, generations.table(3, "g13", 2))
            await confirmed(router, 3)
        assert load.wrong == []
        assert router.reports("shardGenerations") == [{"g12": 2, "g13": 2}] * 2


def test_a_replaced_shard_may_stop_once_the_deadline_has_passed(tmp_path: Path) -> None:
    """The router asks it nothing any more, and keeps no connection to it."""
    with contextlib.ExitStack() as stack:
        made = {
            name: write_generation(tmp_path, {key: name.encode() for key in KEYS}, shards=2, generation=name)
            for name in ONLY
        }
        servers = {name: stack.enter_context(fleet(path)) for name, path in made.items()}
        old, new = (fleet_entry(made[name], servers[name]) for name in ("g12", "g13"))
        path = tmp_path / "table.json"
        path.write_bytes(table_file(old))
        router = stack.enter_context(routing(path, "--deadline-ms", "2000"))
        rewrite(path, table_file(mixed(new, old, {1}), version=2))
        until(lambda: router.reports("tableVersion") == [2], "the step is in effect")
        replaced = servers["g12"][0][0]
        until(lambda: open_connections(replaced) == 0, "the replaced server has no client")
        replaced.kill()
        for key in KEYS:
            expected = b"g13" if shard_number(key.encode(), 2) == 0 else b"g12"
            assert router.get(f"/v1/lookup/{key}") == (200, expected)
        assert open_connections(servers["g12"][1][0]) == 1, "the other one keeps its client"


def open_connections(server: Running) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.admin, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        metrics = without_dataset(connection.getresponse().read().decode())
    [line] = [line for line in metrics.splitlines() if line.startswith("lookupdb_shard_open_connections ")]
    return int(float(line.split()[1]))
