"""Values that are nested so deeply that their parser could not write them again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.clients import Kind, blocking
from support.faulty_router import answer, scripted

from lookupdb.client import AsyncClient
from lookupdb.client.core import copy_value
from lookupdb.client.wire import decode_json

pytest_plugins = ["support.client_fixtures"]

DEEP = "[" * 900 + "1" + "]" * 900
DEEP_LONG = "[" * 900 + "1" * 30 + "]" * 900


@pytest.mark.parametrize("text", [DEEP, DEEP.replace("1", '{"a": 1.5}')])
def test_a_deep_value_is_a_value(kind: Kind, text: str) -> None:
    with scripted(answer(text.encode())) as router, blocking(kind, router.url) as client:
        value = client.get("a")
    for _ in range(900):
        [value] = value
    assert value == json.loads(text.strip("[]"))


def test_its_long_numbers_keep_their_digits() -> None:
    value = decode_json(DEEP_LONG.encode())
    for _ in range(900):
        [value] = value
    assert value == int("1" * 30)


async def test_two_callers_of_a_deep_value_share_nothing_of_it() -> None:
    body = b'{"generation":"g1","found":{"a":%b},"missing":[],"unavailable":[]}' % DEEP.encode()
    with scripted(answer(DEEP.encode()), answer(body, value_format="json")) as router:
        async with AsyncClient(router.url) as client:
            one, other = await asyncio.gather(client.get("a"), client.get("a"))
    for _ in range(900):
        assert one is not other
        [one], [other] = one, other


def test_a_copy_is_equal_and_shares_nothing_that_can_change() -> None:
    value: dict[str, Any] = {"a": [1, {"b": []}, "c"], "d": {}, "e": None}
    copied = copy_value(value)
    assert copied == value
    assert copied["a"] is not value["a"]
    assert copied["a"][1]["b"] is not value["a"][1]["b"]
    assert copied["d"] is not value["d"]
    assert copy_value(b"raw") == b"raw"
