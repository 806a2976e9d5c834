"""Batches: parses the JSON of a request, and encodes the answer as JSON or frames.

``PackedBatches`` uses the native kernels; ``Batches`` is the Python fallback. ``parse_batch`` handles unusual
bodies, right or wrong, for both.
"""

from __future__ import annotations

import base64
import re
from types import ModuleType
from typing import Any, Final

import orjson

from lookupdb import batch_frames, native
from lookupdb.router.batch_keys import UNAVAILABLE, BatchKeys, BatchValues, Values
from lookupdb.router.http import problems
from lookupdb.router.http.problems import HttpProblem
from lookupdb.router.lookups import ServedGeneration

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""A JSON string. Possessive, so that the matcher keeps nothing for backtracking."""


class Batches:
    """Parses and answers batches with orjson."""

    def parse(self, body: bytes, max_keys: int) -> tuple[BatchKeys, bool]:
        """Return the distinct keys in order of first appearance, and whether a partial answer is allowed. Raises
        HttpProblem."""
        keys, partial = parse_batch(body, max_keys)
        return BatchKeys(keys), partial

    def encode(
        self,
        head: bytes,
        fields: bytes,
        generation: ServedGeneration,
        keys: BatchKeys,
        values: BatchValues,
        *,
        partial: bool,
        framed: bool,
    ) -> bytes:
        """Return the answer to a batch of ``keys`` with its values.

        The size of the body follows ``head``; ``fields`` end the head. In JSON, raw values are base64. ``partial`` adds
        the member ``unavailable``; without it no value may be unavailable. ``framed`` selects ``batch_frames`` instead
        of JSON.
        """
        pieces = _make_pieces(generation, keys, list(values.values), partial=partial, framed=framed)
        body = b"".join(pieces)
        return b"%b%d\r\n%b\r\n%b" % (head, len(body), fields, body)

    def encode_in_pieces(
        self, generation: ServedGeneration, keys: BatchKeys, values: BatchValues, *, partial: bool, framed: bool
    ) -> list[bytes]:
        """Return the body of that answer in consecutive pieces, copying no large values except into base64.

        Empties ``values``, so that raw values in JSON exist only as base64.
        """
        return _make_pieces(generation, keys, values.values, partial=partial, framed=framed)


class PackedBatches(Batches):
    """Batches with the native kernels."""

    def __init__(self, kernels: ModuleType) -> None:
        self._keys = kernels.PackedKeys
        self._parse = kernels.PackedKeys.parse

    def parse(self, body: bytes, max_keys: int) -> tuple[BatchKeys, bool]:
        """Return the distinct keys, and whether a partial answer is allowed."""
        parsed: tuple[BatchKeys, bool] | None = self._parse(body, max_keys)
        if parsed is not None:
            return parsed
        keys, partial = parse_batch(body, max_keys)
        return self._keys(keys), partial

    def encode(
        self,
        head: bytes,
        fields: bytes,
        generation: ServedGeneration,
        keys: Any,
        values: Any,
        *,
        partial: bool,
        framed: bool,
    ) -> bytes:
        """Return the answer to a batch."""
        if framed:
            frames: bytes = values.encode_frames(head, fields, keys)
            return frames
        is_raw = generation.value_format == "raw"
        answer: bytes = values.encode(head, fields, _beginning(generation), keys, is_raw, partial)
        return answer

    def encode_in_pieces(
        self, generation: ServedGeneration, keys: Any, values: Any, *, partial: bool, framed: bool
    ) -> list[bytes]:
        """Return its body in pieces."""
        pieces: list[bytes]
        if framed:
            pieces = values.encode_frames_in_pieces(keys)
            return pieces
        is_raw = generation.value_format == "raw"
        pieces = values.encode_in_pieces(_beginning(generation), keys, is_raw, partial)
        return pieces


def choose_batches() -> Batches:
    """Return batches of the native kernels if enabled, else the Python fallback."""
    kernels = native.kernels()
    return Batches() if kernels is None else PackedBatches(kernels)


def _beginning(generation: ServedGeneration) -> bytes:
    return b'%b,"found":{' % orjson.dumps(generation.members)[:-1]


def _make_pieces(
    generation: ServedGeneration, keys: BatchKeys, values: Values, *, partial: bool, framed: bool
) -> list[bytes]:
    """Return the body in pieces. Empties ``values``."""
    if framed:
        frames = _encode_frames(keys, values)
        values.clear()
        return frames
    pieces = [_beginning(generation)]
    missing: list[str] = []
    unavailable: list[str] = []
    comma = b""
    for place, key in enumerate(keys.texts):
        value, values[place] = values[place], None
        if value is None:
            missing.append(key)
        elif value is UNAVAILABLE:
            unavailable.append(key)
        else:
            pieces.append(b"%b%b:" % (comma, orjson.dumps(key)))
            pieces += (b'"', base64.b64encode(value), b'"') if generation.value_format == "raw" else (value,)
            comma = b","
    pieces.append(b'},"missing":' + orjson.dumps(missing))
    if partial:
        pieces.append(b',"unavailable":' + orjson.dumps(unavailable))
    pieces.append(b"}")
    return pieces


def _encode_frames(keys: BatchKeys, values: Values) -> list[bytes]:
    """Return the body as frames, in consecutive pieces."""
    sizes = [
        batch_frames.MISSING if value is None else batch_frames.UNAVAILABLE if value is UNAVAILABLE else len(value)
        for value in values
    ]
    return [batch_frames.encode_start(keys.texts, sizes), *(value for value in values if isinstance(value, bytes))]


def parse_batch(body: bytes, max_keys: int) -> tuple[list[str], bool]:
    """Return the distinct keys in order of first appearance, and whether a partial answer is allowed. Raises
    HttpProblem."""
    _check_length(body, max_keys)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HttpProblem(problems.INVALID_BODY, f"the body is not JSON: {error}") from None
    unknown = document.keys() - {"keys", "partial"} if isinstance(document, dict) else ()
    if unknown:
        raise HttpProblem(
            problems.INVALID_BODY, f'expected only "keys" and "partial", found {sorted(unknown)[0][:40]!r}'
        )
    if not isinstance(document, dict) or "keys" not in document:
        raise HttpProblem(problems.INVALID_BODY, 'expected an object such as {"keys": ["KJFK", "EGLL"]}')
    partial = document.get("partial", False)
    if not isinstance(partial, bool):
        raise HttpProblem(problems.INVALID_BODY, f'"partial" is true or false, found {_json_type(partial)}')
    return _distinct_keys(document["keys"], max_keys), partial


def _check_length(body: bytes, max_keys: int) -> None:
    """Refuse ``body`` before parsing if it has too many elements: small ones are some twenty times larger as objects.
    Commas within keys do not count."""
    if body.count(b",") > max_keys + 1 and _STRING.sub(b"", body).count(b",") > max_keys + 1:
        raise _too_many_keys("too many", max_keys)


def _too_many_keys(found: object, max_keys: int) -> HttpProblem:
    detail = f"{found} keys, the limit is {max_keys}; send them in several batches"
    return HttpProblem(problems.TOO_MANY_KEYS, detail, members={"limit": max_keys})


def _distinct_keys(keys: Any, max_keys: int) -> list[str]:
    if not isinstance(keys, list):
        raise HttpProblem(problems.INVALID_BODY, f'"keys" is an array of strings, found {_json_type(keys)}')
    if len(keys) > max_keys:
        raise _too_many_keys(len(keys), max_keys)
    for place, key in enumerate(keys):
        if not isinstance(key, str):
            raise HttpProblem(problems.INVALID_BODY, f"keys[{place}] is {_json_type(key)}, expected a string")
    return list(dict.fromkeys(keys))


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
