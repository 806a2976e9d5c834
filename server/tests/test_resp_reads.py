"""Reads of one value and transactions, asked by redis-py of a router and of a shard server: both answer the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.http import ScriptedLookups
from support.http import generation as scripted_generation
from support.resp import command, serving_resp
from support.shards import serving, write_generation
from support.two_kinds import KINDS, InProcessWorker

from lookupdb.keys import file_name
from lookupdb.resp.commands import MAX_REPEATED_BYTES, READS
from lookupdb.resp.requests import LOOKUPS, MANY_KEYS, list_keys

TEXT = 'Zürich "ZRH"\n\U0001f6eb'
OBJECT = (
    rb'{"iata":"ZRH","name":"Z\u00fcrich \"ZRH\"\n\ud83d\udeeb","feet":1416.50,"big":12345678901234567890123,'
    rb'"open":true,"closed":null,"tags":["a",{"b":"}"}],"at":{"lat":4.7e1},"":"no name",'
    rb'"n\u006f":1,"twice":1,"twice":"2"}'
)
FIELDS = {
    "iata": b"ZRH",
    "name": TEXT.encode(),
    "feet": b"1416.50",
    "big": b"12345678901234567890123",
    "open": b"true",
    "tags": b'["a",{"b":"}"}]',
    "at": b'{"lat":4.7e1}',
    "": b"no name",
    "no": b"1",
    "twice": b"2",
}
RECORDS = {
    "object": OBJECT,
    "empty": b"{}",
    "nulls": b'{"a":null}',
    "list": b'[{"a":1}]',
    "text": b'"{}"',
    "number": b"17",
    "large": b'{"a":"%b","b":2}' % (b"x" * 1_500_000),
    "großes k": b'{"a":1}',
}


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    return write_generation(folder, RECORDS, normalize=("strip",), value_format="json", compression="zstd")


@pytest.fixture(scope="module")
def ports(generation: Path) -> Iterator[dict[str, int]]:
    with serving(generation) as shard, serving_resp(ScriptedLookups(values=dict(RECORDS)), max_keys=600) as router:
        yield {"router": router.port, "shard": shard.ports[0]}


@pytest.fixture(scope="module", params=["router", "shard"])
def port(request: pytest.FixtureRequest, ports: dict[str, int]) -> int:
    """The port of the router, and of the shard server."""
    return ports[request.param]


@pytest.fixture(params=[2, 3])
def client(request: pytest.FixtureRequest, port: int) -> Iterator[Any]:
    with redis.Redis(port=port, protocol=request.param, socket_timeout=60, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def test_every_read_is_a_lookup() -> None:
    assert set(READS) | MANY_KEYS | {b"GET"} == LOOKUPS
    assert list_keys([b"hmget", b"a", b"b"]) == [b"a"]
    assert list_keys([b"touch", b"a", b"b"]) == [b"a", b"b"]
    assert list_keys([b"PING", b"a"]) == []


def test_type_expiry_and_length(client: Any) -> None:
    assert [client.type(key) for key in ("object", "number", "none")] == [b"string", b"string", b"none"]
    for ask in (client.ttl, client.pttl, client.expiretime, client.pexpiretime):
        assert [ask("object"), ask("none")] == [-1, -2]
    assert [client.strlen(key) for key in ("object", "großes k", "none")] == [len(OBJECT), 7, 0]
    assert [client.exists("object", "none", "object"), client.touch("object", "none", "object")] == [2, 2]
    assert client.touch("none") == 0


def test_a_range_of_bytes(client: Any) -> None:
    for start, end, expected in (
        (0, -1, OBJECT),
        (0, 4, OBJECT[:5]),
        (-3, -1, OBJECT[-3:]),
        (-3, -4, b""),
        (5, 2, b""),
        (0, -10_000, OBJECT[:1]),  # as Redis 7
        (-10_000, 3, OBJECT[:4]),
        (10_000, 20_000, b""),
        (2, 1 << 62, OBJECT[2:]),
    ):
        assert client.getrange("object", start, end) == expected
        assert client.execute_command("SUBSTR", "object", start, end) == expected
        assert client.getrange("none", start, end) == b""


def test_a_range_of_a_large_value(client: Any) -> None:
    assert client.getrange("large", -1 << 63, 4) == RECORDS["large"][:5]
    assert client.getrange("large", -5, (1 << 63) - 1) == RECORDS["large"][-5:]
    assert client.getrange("large", 1_000_000, 1_000_004) == b"xxxxx"
    assert client.getrange("large", 0, -1) == RECORDS["large"]


def test_a_bound_that_is_no_integer(client: Any) -> None:
    for bound in ("x", "1.0", "+1", "01", "", " 1", str(1 << 63), "1_0"):
        for bounds in ((bound, "1"), ("1", bound)):
            with pytest.raises(redis.ResponseError, match=r"^value is not an integer or out of range"):
                client.execute_command("GETRANGE", "none", *bounds)


def test_fields_of_an_object(client: Any) -> None:
    assert {name: client.hget("object", name) for name in FIELDS} == FIELDS
    assert client.hmget("object", ["iata", "nothing", "twice", "iata", "closed"]) == [b"ZRH", None, b"2", b"ZRH", None]
    assert client.hgetall("object") == {name.encode(): text for name, text in FIELDS.items()}
    assert client.hkeys("object") == [name.encode() for name in FIELDS]
    assert client.hvals("object") == list(FIELDS.values())
    assert client.hlen("object") == len(FIELDS)
    assert [client.hexists("object", name) for name in ("iata", "", "closed", "no")] == [True, True, False, True]
    assert [client.hstrlen("object", name) for name in ("iata", "name", "closed")] == [3, len(TEXT.encode()), 0]
    assert client.hget("großes k", "a") == b"1"
    large = client.hgetall("large")
    assert (len(large[b"a"]), large[b"b"]) == (1_500_000, b"2")
    assert client.hget("large", "b") == b"2"


def test_no_fields(client: Any) -> None:
    for key in ("empty", "nulls", "none"):
        assert [client.hget(key, "a"), client.hgetall(key), client.hkeys(key), client.hvals(key)] == [None, {}, [], []]
        assert [client.hmget(key, ["a", "b"]), client.hlen(key), client.hexists(key, "a")] == [[None, None], 0, False]


def test_a_value_that_is_no_object_has_the_wrong_type(client: Any) -> None:
    for key in ("list", "text", "number"):
        for words in (
            ("HGET", key, "a"),
            ("HMGET", key, "a", "b"),
            ("HGETALL", key),
            ("HLEN", key),
            ("HEXISTS", key, "a"),
        ):
            with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE Operation against a key .* not a JSON object"):
                client.execute_command(*words)
        assert client.get(key) == RECORDS[key]


def test_a_field_named_a_thousand_times_is_not_replied_as_often(client: Any) -> None:
    assert client.hmget("object", ["iata"] * 500) == [b"ZRH"] * 500
    assert MAX_REPEATED_BYTES < 1_500_000
    with pytest.raises(redis.ResponseError, match="named more than once"):
        client.hmget("large", ["a"] * 500)


def _read_number(pipeline: Any) -> None:
    pipeline.multi()
    pipeline.get("number")


def test_a_transaction_is_the_default_pipeline(client: Any) -> None:
    with client.pipeline() as pipeline:
        pipeline.get("object").mget("number", "none", "text").hget("object", "iata").hgetall("nulls").type("none")
        pipeline.exists("object", "none").getrange("large", 0, 2).ttl("object").ping().echo("hello").get("none")
        pipeline.hmget("object", "open", "none").execute_command("SELECT", "0")
        pipeline.get("large").strlen("large")
        found = pipeline.execute()
    assert found[:4] == [OBJECT, [b"17", None, b'"{}"'], b"ZRH", {}]
    assert found[4:11] == [b"none", 1, b'{"a', -1, True, b"hello", None]
    assert found[11:] == [[b"true", None], True, RECORDS["large"], 1_500_000 + 14]
    assert client.transaction(_read_number, "number") == [b"17"]
    with client.pipeline() as pipeline:
        assert pipeline.execute() == []
    with client.pipeline() as pipeline:
        for _ in range(300):
            pipeline.hget("object", "iata").get("number")
        assert pipeline.execute() == [b"ZRH", b"17"] * 300


def test_an_error_of_a_command_is_an_element_of_execs_reply(client: Any) -> None:
    with client.pipeline() as pipeline:
        pipeline.get("number").hget("list", "a").execute_command("GETRANGE", "number", "a", "b").get("text")
        found = pipeline.execute(raise_on_error=False)
    assert (found[0], found[3]) == (b"17", b'"{}"')
    assert [str(error).split()[0] for error in found[1:3]] == ["WRONGTYPE", "value"]


def test_a_command_that_is_refused_aborts_the_transaction(client: Any) -> None:
    for words in (("SET", "a", "b"), ("FOO",), ("GET",), ("HGET", "a"), ("SCAN", "0"), ("GETRANGE", "a", "1")):
        ask = client.client()
        assert ask.execute_command("MULTI") in (True, b"OK")
        with pytest.raises(redis.ResponseError):
            ask.execute_command(*words)
        assert ask.execute_command("STRLEN", "number") == b"QUEUED"
        with pytest.raises(redis.exceptions.ExecAbortError, match="discarded because of previous errors"):
            ask.execute_command("EXEC")
        assert ask.get("number") == b"17"
        ask.close()


def test_the_commands_of_transactions_are_those_of_redis(client: Any) -> None:
    ask = client.client()

    def refusal(*words: str) -> str:
        with pytest.raises(redis.ResponseError) as found:
            ask.execute_command(*words)
        return str(found.value)

    assert refusal("EXEC") == "EXEC without MULTI"
    assert refusal("DISCARD") == "DISCARD without MULTI"
    assert ask.execute_command("UNWATCH") in (True, b"OK")
    ask.execute_command("MULTI")
    assert refusal("MULTI") == "MULTI calls can not be nested"
    assert refusal("WATCH", "a") == "WATCH inside MULTI is not allowed"
    assert ask.execute_command("STRLEN", "number") == b"QUEUED"
    ask.execute_command("UNWATCH")
    assert ask.execute_command("EXEC") == [2, b"OK"]
    ask.execute_command("MULTI")
    assert ask.execute_command("DISCARD") in (True, b"OK")
    assert refusal("EXEC") == "EXEC without MULTI"
    ask.execute_command("WATCH", "number")
    ask.execute_command("MULTI")
    ask.execute_command("EXISTS", "number")
    assert ask.execute_command("EXEC") == [1]
    ask.execute_command("MULTI")
    assert ask.execute_command("RESET") in ("RESET", b"RESET")
    assert refusal("EXEC") == "EXEC without MULTI"
    ask.close()


def test_a_raw_dataset_has_no_fields(tmp_path: Path) -> None:
    refused = (("HGET", "k", "a"), ("HGETALL", "k"), ("HMGET", "k", "a"))
    lookups = ScriptedLookups(values={"k": b'{"a":1}'}, active=scripted_generation("g1", value_format="raw"))
    with serving_resp(lookups) as server, server.connect() as asking:
        assert all(str(asking.ask(*words)).startswith("WRONGTYPE ") for words in refused)
        assert [asking.ask("HGET", "none", "a"), asking.ask("STRLEN", "k"), asking.ask("TYPE", "k")] == [
            None,
            7,
            b"string",
        ]
    path = write_generation(tmp_path, lookups.values, value_format="raw") / file_name(0, 1)
    with InProcessWorker(path, KINDS[0]) as worker:
        client = worker.connect()
        for words in (*refused, ("HGET", "none", "a"), ("STRLEN", "k"), ("TYPE", "k")):
            worker.send(client, command(*words))
        *errors, nothing, length, kind = worker.replies(client).splitlines()
    assert [error[:11] for error in errors] == [b"-WRONGTYPE "] * 3
    assert (nothing, length, kind) == (b"$-1", b":7", b"+string")
