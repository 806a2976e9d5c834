"""The fields of values: the native kernel and Python find the same in any bytes, and in JSON what json does."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest

from lookupdb import native
from lookupdb.resp.commands import FieldReader
from lookupdb.resp.requests import bulk

pytestmark = pytest.mark.skipif(native.kernels() is None, reason="there are no native kernels")
PYTHON = FieldReader()
PIECES = [
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\u00e9", b"\\ud83d", b"\\udeeb", b"\\u12", b"\\n", b"\\/"),
    *(b" ", b"\n", b"null", b"true", b"1", b"-2.5e3", b'"a"', b'"b"', b'"a":', b'"b":', b'{"a":1}', b"\xff", b"\x00"),
    *("é".encode(), b'\\"', b'"\\u0061":', b'"":', b'[1,"]"]', b',"a":2'),
]
NAMES = [b"a", b"b", b"", b"\xff", "é".encode(), b"a", b"nowhere", b'"\\u12"']


def check(value: bytes) -> bool:
    """Return whether ``value`` is an object, according to both."""
    kernel: Any = native.kernels()
    selected = PYTHON.select_fields(value, NAMES)
    assert kernel.select_fields(value, NAMES) == selected, value
    for names, values in ((True, True), (True, False), (False, True), (False, False)):
        assert kernel.encode_fields(value, names, values) == PYTHON.encode_fields(value, names, values), value
    assert kernel.select_fields(value, []) == PYTHON.select_fields(value, [])
    return selected is not None


def test_random_pieces() -> None:
    chance = random.Random(30)
    objects = 0
    for _ in range(7_000):
        inner = b"".join(chance.choices(PIECES, k=chance.randrange(9)))
        objects += check(chance.choice((b"%b", b"{%b}", b'{"a":%b}', b'{"b":1,"a":"%b"}')) % inner)
    assert objects > 700


def test_random_objects() -> None:
    """And a byte of each changed, left out, or put in."""
    chance = random.Random(31)
    texts = ["", "a", "b", "é\U0001f6eb", 'q"\\/\n\x01', "{", "null", "x" * 40]

    def make(depth: int) -> Any:
        kind = chance.randrange(8 if depth < 3 else 5)
        if kind < 5:
            return (chance.choice(texts), chance.randrange(10**25), chance.random() * 1e9, None, chance.random() < 0.5)[
                kind
            ]
        if kind == 5:
            return [make(depth + 1) for _ in range(chance.randrange(4))]
        return {chance.choice(texts): make(depth + 1) for _ in range(chance.randrange(6))}

    for _ in range(700):
        members = {chance.choice(texts): make(0) for _ in range(chance.randrange(7))}
        text = json.dumps(members, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 1))).encode()
        assert check(text)
        fields = {
            name.encode(): value.encode() if isinstance(value, str) else json.dumps(value).encode()
            for name, value in members.items()
            if value is not None
        }
        found = dict(zip(fields, PYTHON.select_fields(text, list(fields)) or [], strict=True))
        for name, value in fields.items():
            assert found[name] == value or orjson.loads(found[name] or b"") == orjson.loads(value)
        pairs = b"".join(bulk(name) + bulk(found[name] or b"") for name in fields)
        assert PYTHON.encode_fields(text, True, True) == (len(fields), pairs)
        at = chance.randrange(len(text))
        for changed in (chance.randbytes(1), b"", chance.choice(PIECES) + text[at : at + 1]):
            check(text[:at] + changed + text[at + 1 :])
