"""kubectl lookupdb get, against the API server in memory, and a router behind its proxy."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from operator_support.kube import Kube
from operator_support.loopback import listening
from plugin_samples import VALUES, answer_lookup
from test_plugin_cli import Run, _kube, _plugin, _pod

from lookupdb_operator.plugin import cluster_session as session

__all__ = ["_kube", "_plugin"]


async def test_one_key_is_its_value_as_it_was_built(kube: Kube, plugin: Run) -> None:
    kube.proxied = answer_lookup
    for key, value in VALUES.items():
        ended = await plugin("get", "airports", key)
        assert (ended.code, ended.out) == (0, value.decode() + "\n")


@pytest.mark.parametrize(
    ("key", "code", "told"), [("nowhere", 3, "is not in airports: no record has it"), ("away", 4, "shard 1 is away")]
)
async def test_a_key_that_is_missing_is_another_end_than_one_that_is_unavailable(
    kube: Kube, plugin: Run, key: str, code: int, told: str
) -> None:
    kube.proxied = answer_lookup
    ended = await plugin("get", "airports", key)
    assert (ended.code, ended.out) == (code, "")
    assert told in ended.err


async def test_several_keys_are_a_line_each_with_their_generation(kube: Kube, plugin: Run) -> None:
    kube.proxied = answer_lookup
    ended = await plugin("get", "airports", "KJFK", "nowhere", "--generation", "g13")
    assert ended.code == 3
    assert ended.out.splitlines() == [
        '{"key":"KJFK","generation":"g13","value":{"name":"John F Kennedy","m":1e400}}',
        '{"key":"nowhere","generation":"g13","missing":true}',
    ]
    assert (await plugin("get", "airports", "KJFK", "away", "nowhere")).code == 4, "nothing can be said of one"


@pytest.mark.parametrize(("key", "code"), [("KJFK", 0), ("nowhere", 3), ("away", 4)])
async def test_for_machines_one_key_is_a_line_too(kube: Kube, plugin: Run, key: str, code: int) -> None:
    kube.proxied = answer_lookup
    one, several = await plugin("get", "airports", key, "--json"), await plugin("get", "airports", key, key)
    assert (one.code, several.code, one.err) == (code, code, "")
    assert [one.out, one.out] == several.out.splitlines(keepends=True)


async def test_a_generation_that_is_not_served_is_refused_with_the_option_to_leave_out(kube: Kube, plugin: Run) -> None:
    detail = "the generation 'g7' is neither the active one nor a candidate; leave Lookupdb-Generation out to ask it"
    problem = {"type": "https://lookupdb.dev/problems/unknown-generation", "detail": detail}
    kube.proxied = lambda _: web.json_response(problem, status=412, content_type="application/problem+json")
    ended = await plugin("get", "airports", "KJFK", "--generation", "g7")
    assert (ended.code, ended.out) == (1, "")
    assert "'g7' is neither the active one nor a candidate\n" in ended.err
    assert "without --generation" in ended.err
    assert "Lookupdb-Generation" not in ended.err


async def test_keys_from_standard_input(kube: Kube, plugin: Run) -> None:
    kube.proxied = answer_lookup
    ended = await plugin("get", "airports", "-", stdin="KJFK\na/b c+\n")
    assert [json.loads(line)["key"] for line in ended.out.splitlines()] == list(VALUES)


async def test_only_the_end_of_a_line_ends_a_key(kube: Kube, plugin: Run) -> None:
    kube.proxied = answer_lookup
    ended = await plugin("get", "airports", "-", stdin="a\x0cb\x1cc\x85d\u2028e\nKJFK")
    assert [json.loads(line)["key"] for line in ended.out.split("\n")[:-1]] == ["a\x0cb\x1cc\x85d\u2028e", "KJFK"]


async def test_a_service_that_is_not_there_says_nothing_of_a_key(kube: Kube, plugin: Run) -> None:
    def no_service(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": 'services "x" not found', "code": 404}, status=404)

    kube.proxied = no_service
    ended = await plugin("get", "airports", "KJFK")
    assert (ended.code, ended.out) == (1, "")
    assert 'services "x" not found' in ended.err


async def test_raw_values_are_base64_where_there_are_several(kube: Kube, plugin: Run) -> None:
    def raw(request: web.Request) -> web.Response:
        return web.Response(
            body=b"\xff\x00", content_type="application/octet-stream", headers={"Lookupdb-Generation": "g12"}
        )

    kube.proxied = raw
    ended = await plugin("get", "airports", "a", "b")
    assert json.loads(ended.out.splitlines()[0])["value"] == base64.b64encode(b"\xff\x00").decode()


async def test_a_raw_value_is_printed_byte_for_byte(kube: Kube, plugin: Run) -> None:
    def raw(request: web.Request) -> web.Response:
        return web.Response(
            body=b"as it is", content_type="application/octet-stream", headers={"Lookupdb-Generation": "g12"}
        )

    kube.proxied = raw
    assert (await plugin("get", "airports", "a")).out == "as it is"


async def test_who_may_not_look_up_is_asked_for_a_token(kube: Kube, plugin: Run) -> None:
    problem = {"type": "https://lookupdb.dev/problems/unauthenticated", "detail": "expected a token"}
    kube.proxied = lambda _: web.json_response(problem, status=401, content_type="application/problem+json")
    ended = await plugin("get", "airports", "KJFK")
    assert (ended.code, ended.out) == (1, "")
    assert "refused: expected a token" in ended.err
    assert "--token-file" in ended.err


async def test_a_token_is_shown_to_a_router_itself(
    kube: Kube, plugin: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server's proxy does not pass the Authorization header on."""
    shown, forwarded = [], []

    async def answer(request: web.Request) -> web.StreamResponse:
        shown.append((request.headers.get("Authorization"), request.headers.get("Lookupdb-Generation")))
        return answer_lookup(request)

    @asynccontextmanager
    async def forward(words: list[str]) -> AsyncIterator[str]:
        forwarded.append(words[-3:])
        async with listening(answer, "/v1/lookup") as port:
            yield f"127.0.0.1:{port}"

    monkeypatch.setattr(session, "_forward", forward)
    (tmp_path / "token").write_text("the-token-of-a-client")
    words = "get", "airports", "KJFK", "nowhere", "--generation", "g13", "--token-file", str(tmp_path / "token")
    assert "none is ready" in (await plugin(*words)).err
    kube.put(_pod("airports-router-1", "router"))
    ended = await plugin(*words)
    assert ended.code == 3, ended.err
    assert shown == [("Bearer the-token-of-a-client", "g13")] * 2
    assert forwarded == [["port-forward", "pod/airports-router-1", ":8080"]]
