"""lookupdb.client against a real router with real shards: what is found, what is missing, and of which generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import pytest
from support.clients import BlockingClient, Kind, blocking
from support.fleets import fleet, fleet_entry
from support.http import raw_lookups, serving
from support.routers import Router, routing
from support.routing import table_file
from support.shards import write_generation

import lookupdb
from lookupdb.client import AsyncClient, Client, InvalidAnswer, RequestRefused, UnknownGeneration
from lookupdb.errors import REDIS_HINT, UsageError

pytest_plugins = ["support.client_fixtures"]

ODD = [
    "a/b",
    "c++",
    "100%",
    "%2F",
    "what?",
    "..",
    ".",
    "a&b c++",
    "ключ",
    "𝄞",
    "a b",
    "#",
    "key=1",
    "\x01",
    '"\\',
    "~-_.",
]
JSON = {
    **{f"key-{number}": b'{"number":%d,"tags":["a",null,1.5]}' % number for number in range(2500)},
    **dict.fromkeys(ODD, b'"odd"'),
    "null": b"null",
    "long": b"[123456789012345678901234567890,-9223372036854775809,0.1]",
    "uuid": b'"00000000000000000000000000000000000000000000"',
}
RAW = {"text": b"plain", "bytes": bytes(range(256)), "empty": b"", "json": b'{"a":1}'}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    home = tmp_path_factory.mktemp("json")
    made = write_generation(home, JSON, shards=2, generation="g3", value_format="json", compression="zstd")
    with fleet(made) as shards:
        (home / "table.json").write_bytes(table_file(fleet_entry(made, shards)))
        with routing(home / "table.json", "--max-keys", "300", "--resp-port", "0") as router:
            yield router


@pytest.fixture(scope="module")
def url(ports: Router) -> str:
    return f"http://127.0.0.1:{ports.port}"


@pytest.fixture(scope="module")
def raw_url() -> Iterator[str]:
    with serving(raw_lookups(RAW)) as router:
        yield f"http://127.0.0.1:{router.port}"


@pytest.fixture
def client(kind: Kind, url: str) -> Iterator[BlockingClient]:
    with blocking(kind, url, timeout=30) as client:
        yield client


def test_one_key_is_found_or_missing(client: BlockingClient) -> None:
    assert client.get("key-7") == {"number": 7, "tags": ["a", None, 1.5]}
    assert client.get("nowhere") is None
    assert client.get("nowhere", "default") == "default"
    assert client["key-8"]["number"] == 8
    with pytest.raises(KeyError, match="nowhere"):
        client["nowhere"]
    assert (client.has("key-7"), client.has("nowhere")) == (True, False)


def test_a_value_that_is_null_is_not_missing(client: BlockingClient) -> None:
    assert client.get("null", "default") is None
    assert client["null"] is None
    assert client.has("null")
    assert client.lookup("null") == (None, True, "g3")
    assert client.lookup("nowhere") == (None, False, "g3")
    assert client.get_many(["null", "nowhere"]).found == {"null": None}


@pytest.mark.parametrize("key", ODD)
def test_a_key_may_be_any_text(client: BlockingClient, key: str) -> None:
    assert client[key] == "odd"
    assert client.get_many([key, "key-1"]).found[key] == "odd"


@pytest.mark.parametrize("key", ["", " ", "x" * 512, "x" * 9000, "ключ" * 2000])
def test_a_key_that_no_record_can_have_is_missing(client: BlockingClient, key: str) -> None:
    results = client.get_many([key, "key-1"])
    assert (results.missing, set(results.found)) == ([key], {"key-1"})
    assert not client.has(key)


class Airport(str, Enum):  # noqa: UP042 - an older program's
    """Whose members say ``Airport.KEY`` where they are written into text."""

    KEY = "key-1"


class Folded(str):
    """Takes itself for equal to others."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.lower() == self.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


def test_a_kind_of_text_is_the_text_that_it_is(client: BlockingClient) -> None:
    assert client.get(Airport.KEY) == client.get("key-1") is not None
    assert client.lookup(Airport.KEY).is_found
    assert list(client.get_many([Airport.KEY, "key-2"]).found) == ["key-1", "key-2"]
    results = client.get_many([Folded("key-1"), Folded("KEY-1")])
    assert (list(results.found), results.missing) == (["key-1"], ["KEY-1"])


@pytest.mark.parametrize(
    ("key", "error"), [(1, TypeError), (None, TypeError), (b"a", TypeError), ("\ud800", ValueError)]
)
def test_what_is_no_text_is_no_key(client: BlockingClient, key: str, error: type[Exception]) -> None:
    for call in (client.get, client.has, client.lookup, client.__getitem__):
        with pytest.raises(error, match="a key must be"):
            call(key)
    with pytest.raises(error, match="a key must be"):
        client.get_many(["key-1", key])


def test_one_text_is_not_many_keys(client: BlockingClient) -> None:
    with pytest.raises(TypeError, match=r"get_many\(\) takes several keys.*get\(\) takes one"):
        client.get_many("key-1")


def test_numbers_keep_all_their_digits(client: BlockingClient) -> None:
    exact = [123456789012345678901234567890, -9223372036854775809, 0.1]
    assert client.get("long") == exact
    assert client.get_many(["long", "uuid"]).found == {"long": exact, "uuid": "0" * 44}


def test_many_keys_stand_once_as_they_were_asked(client: BlockingClient) -> None:
    results = client.get_many(key for key in ["key-1", "nowhere", "key-1", "key-2", "nowhere"])
    assert list(results.found) == ["key-1", "key-2"]
    assert (results.missing, results.unavailable, results.generation, results.generations) == (
        ["nowhere"],
        [],
        "g3",
        ("g3",),
    )


def test_no_keys_are_an_empty_result(client: BlockingClient) -> None:
    assert client.get_many([])[:3] == ({}, [], [])


def test_more_keys_than_the_router_takes_are_split(client: BlockingClient) -> None:
    keys = [f"key-{number}" for number in range(3000)]
    results = client.get_many(keys)
    assert {key: value["number"] for key, value in results.found.items()} == {key: int(key[4:]) for key in keys[:2500]}
    assert ([*results.found], results.missing) == (keys[:2500], keys[2500:])
    assert results.generation == "g3"
    assert client.client._link.core.max_keys == 300, "it is remembered"


def test_the_dataset_is_described(client: BlockingClient) -> None:
    described = client.dataset()
    assert (described.namespace, described.name, described.generation) == ("default", "sample", "g3")
    assert (described.records, described.shards, described.candidates) == (len(JSON), 2, ())
    assert described.age_seconds > 0
    assert described.shard_generations == {}


def test_a_generation_by_name(client: BlockingClient) -> None:
    at = client.at("g3")
    assert at["key-1"] == client["key-1"]
    assert at.get_many(["key-1", "nowhere"]).generation == "g3"
    assert at.dataset().generation == "g3"
    for call in (client.at("g2").get, client.at("g2").has, lambda key: client.at("g2").get_many([key])):
        with pytest.raises(
            UnknownGeneration, match="'g2' is neither the active one nor a candidate; active is g3"
        ) as told:
            call("key-1")
        assert (told.value.generation, told.value.active) == ("g2", ("g3",))


@pytest.mark.parametrize("name", ["", "3", "g0", "g3\r\nX: y", "G3"])
def test_what_is_no_name_of_a_generation_is_reported(client: BlockingClient, name: str) -> None:
    with pytest.raises(UsageError, match="a generation's name is like g12"):
        client.at(name)


def test_raw_values_are_bytes(raw_url: str, kind: Kind) -> None:
    with blocking(kind, raw_url) as client:
        assert {key: client[key] for key in RAW} == RAW
        results = client.get_many([*RAW, "nowhere"])
        assert (results.found, results.missing) == (RAW, ["nowhere"])
        assert {type(value) for value in results.found.values()} == {bytes}


def test_in_asks_for_a_key_where_that_can_be_waited_for(url: str) -> None:
    with Client(url) as client:
        assert "key-1" in client
        assert "nowhere" not in client
        assert "key-1" in client.at("g3")
        with pytest.raises(TypeError, match="a key must be a str"):
            1 in client  # noqa: B015
    with pytest.raises(TypeError, match=r"await client.has"):
        "key-1" in AsyncClient(url)  # noqa: B015


def test_clients_are_not_iterable(url: str) -> None:
    for client in (Client(url), AsyncClient(url)):
        with pytest.raises(TypeError, match="not iterable"):
            iter(client)  # type: ignore[call-overload]


def test_a_closed_client_says_so(url: str, kind: Kind) -> None:
    with blocking(kind, url) as client:
        client.get("key-1")
    with pytest.raises(RuntimeError, match="closed"):
        Client.get(client.client, "key-1") if kind == "sync" else _run_closed(client)


def _run_closed(client: BlockingClient) -> None:
    import asyncio

    asyncio.run(client.client.get("key-1"))


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("router:8080", {}, "a scheme, a host"),
        ("ftp://router", {}, "a scheme, a host"),
        ("http://", {}, "a scheme, a host"),
        ("http://user:secret@router", {}, "no user and no password"),
        ("http://router:0", {}, "a scheme, a host"),
        ("http://router:99999", {}, "a scheme, a host"),
        ("http://router/v1/lookup", {}, "ends before /v1"),
        ("http://router/v1/datasets", {}, "ends before /v1"),
        ("http://router/v1/datasets/people/lookup", {}, "ends before /v1"),
        ("http://router?x", {}, "a scheme, a host"),
        ("http://ro\r\nuter", {}, "a scheme, a host"),
        ("http://router..example", {}, "a scheme, a host"),
        (f"http://{'a' * 64}.example", {}, "a scheme, a host"),
        ("http://router", {"timeout": 0}, "timeout must be a number of seconds"),
        ("http://router", {"read_timeout": -1}, "read_timeout must be a number of seconds"),
        ("http://router", {"max_connections": 0}, "max_connections must be at least 1"),
        ("http://router", {"retries": -1}, "retries must be at least 0"),
        ("http://router", {"max_keys": 1.5}, "max_keys must be a whole number"),
        ("http://router", {"token": "a", "token_file": "b"}, "both token and token_file"),
        ("http://router", {"token": "a b"}, "holds no token"),
        ("http://router", {"token": "secret\r\nX: y"}, "holds no token"),
        ("http://router", {"ca_file": "ca.crt"}, "certificates are for https"),
        ("https://router", {"cert_file": "a.crt"}, "belong together"),
    ],
)
def test_arguments_that_cannot_be_used_are_reported(url: str, options: dict[str, object], message: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(UsageError, match=message) as told:
            make(url, **options)  # type: ignore[arg-type]
        assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": "5"}, "timeout must be a number of seconds, found str"),
        ({"timeout": None}, "timeout must be a number of seconds, found NoneType"),
        ({"timeout": True}, "timeout must be a number of seconds, found bool"),
        ({"read_timeout": "5"}, "read_timeout must be a number of seconds or None, found str"),
        ({"retries": None}, "retries must be a whole number, found NoneType"),
        ({"max_keys": "10"}, "max_keys must be a whole number, found str"),
        ({"cache_bytes": "64MiB"}, "cache_bytes must be a whole number, found str"),
        ({"token": b"secret"}, "token must be text or None, found bytes"),
        ({"token_file": 7}, "token_file must be a path or None, found int"),
        ({"traceparent": "00-secret"}, "traceparent must be a function, found str"),
        ({"tiemout": 5}, "a client has no argument tiemout; it has timeout, connect_timeout, "),
    ],
)
def test_arguments_of_another_type_are_reported_by_their_names(options: dict[str, object], message: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(TypeError, match=message) as told:
            make("http://router", **options)  # type: ignore[arg-type]
        assert "secret" not in str(told.value)
        with pytest.raises(TypeError, match="URL must be text, found int"):
            make(8080)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [1, None, b"g1"])
def test_a_name_of_a_generation_is_text(name: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(TypeError, match="a generation's name is text like 'g12', found "):
            make("http://router").at(name)


def test_what_is_printed_of_a_client_has_its_url_and_no_token() -> None:
    client = Client("http://127.0.0.1:8080/people", token="secret")
    assert repr(client) == "<lookupdb Client of http://127.0.0.1:8080/people>"
    assert repr(client.at("g2")) == "<lookupdb Lookups of http://127.0.0.1:8080/people at g2>"
    asynchronous = AsyncClient("https://[::1]:8443", token="secret")
    assert repr(asynchronous) == "<lookupdb AsyncClient of https://[::1]:8443>"
    assert repr(asynchronous.at("g2")) == "<lookupdb AsyncLookups of https://[::1]:8443 at g2>"


def test_results_are_no_dictionary_and_say_so(client: BlockingClient) -> None:
    results = client.get_many(["key-1", "nowhere"])
    with pytest.raises(TypeError, match=r"write results\.found\['key-1'\]"):
        results["key-1"]
    found, missing, *_ = results
    assert results[0] is found is results.found
    assert results[1:2] == (missing,)


@pytest.mark.parametrize("place", ["admin port", "Redis port", "no TLS"])
@pytest.mark.parametrize("ask", [lambda client: client.get("key-1"), lambda client: client.get_many(["key-1", "b"])])
def test_another_port_than_that_of_lookups_is_no_outage(
    ports: Router, kind: Kind, place: str, ask: Callable[[BlockingClient], object]
) -> None:
    urls = {
        "admin port": f"http://127.0.0.1:{ports.admin}",
        "Redis port": f"http://127.0.0.1:{ports.resp}",
        "no TLS": f"https://127.0.0.1:{ports.port}",
    }
    with blocking(kind, urls[place]) as client, pytest.raises(InvalidAnswer) as told:
        ask(client)
    assert told.value.hint
    assert (told.value.hint == REDIS_HINT) == (place == "Redis port")


def test_a_router_may_be_below_a_path(raw_url: str, kind: Kind) -> None:
    """A router without a path in its URL rejects a path prefix, and does not report the key as missing."""
    with blocking(kind, f"{raw_url}/people") as client, pytest.raises(RequestRefused, match="no-such-resource"):
        client.get("text")


def test_what_is_public_has_a_docstring_and_is_listed() -> None:
    from lookupdb import client as package

    for name in package.__all__:
        assert getattr(package, name).__doc__
    assert {*package.__all__} <= {*dir(package)}
    assert "open" in dir(lookupdb)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


def test_a_token_file_that_is_not_there_is_reported_when_it_is_needed(tmp_path: Path) -> None:
    told = pytest.raises(UsageError, match=f"the token file {tmp_path}/token cannot be read")
    with Client("http://127.0.0.1:1", token_file=tmp_path / "token") as client, told:
        client.get("a")


def test_a_dataset_of_one_column_has_no_key_columns(kind: Kind, ports: Router, url: str) -> None:
    assert "keys" not in ports.get("/v1/dataset")[1].decode()
    with blocking(kind, url) as client:
        for ask in (client.get, lambda key: client.get_many([key])):
            with pytest.raises(UsageError, match="names no key columns for g3 of default/sample"):
                ask(("a", "b"))
