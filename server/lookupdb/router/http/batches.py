"""Batches: from the JSON of one to its keys, from keys and values to its answer, JSON or frames.

``PackedBatches`` does it with the native kernels, ``ListedBatches`` is their twin. A body that is not written as
clients write it, right or wrong, is parsed by the same code for both.
"""

from __future__ import annotations

import base64
import re
from types import ModuleType
from typing import Any, Final, Protocol

import orjson

from lookupdb import batch_frames, native
from lookupdb.router.batch_keys import UNAVAILABLE, BatchKeys, ListedKeys, ListedValues, Values
from lookupdb.router.http import problems
from lookupdb.router.http.problems import HttpProblem
from lookupdb.router.lookups import ServedGeneration

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""Text in JSON. Possessive: nothing is kept in order to go back."""


class Batches(Protocol):
    """Parses and answers batches of one kind."""

    def parse(self, body: bytes, max_keys: int) -> tuple[BatchKeys, bool]:
        """The distinct keys, in the order in which they come first, and whether a partial answer will do.

        Raises HttpProblem.
        """

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
        """The answer to a batch of ``keys``, BatchKeys, with their BatchValues. ``head`` goes on with the size of the
        body, and ``fields`` are the last ones of the head.

        In JSON, JSON values go in as the bytes they are, raw ones as base64; ``partial`` adds the member
        ``unavailable``, and without it no value may be unavailable. ``framed``: as ``batch_frames`` instead.
        """

    def encode_in_pieces(
        self, generation: ServedGeneration, keys: Any, values: Any, *, partial: bool, framed: bool
    ) -> list[bytes]:
        """The body of that answer in pieces that follow each other, without a copy of any large value but those that
        become base64.

        Empties ``values``: of a raw value in JSON only the base64 is kept.
        """


def choose_batches() -> Batches:
    """The native kernels' if they are to be used, or their twin."""
    kernels = native.kernels()
    return ListedBatches() if kernels is None else PackedBatches(kernels)


class PackedBatches:
    """Batches by the native kernels. A ``Batches``."""

    def __init__(self, kernels: ModuleType) -> None:
        self._keys = kernels.PackedKeys
        self._parse = kernels.PackedKeys.parse

    def parse(self, body: bytes, max_keys: int) -> tuple[BatchKeys, bool]:
        """The distinct keys, and whether a partial answer will do."""
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
        """The answer to a batch."""
        if framed:
            frames: bytes = values.encode_frames(head, fields, keys)
            return frames
        is_raw = generation.value_format == "raw"
        answer: bytes = values.encode(head, fields, _beginning(generation), keys, is_raw, partial)
        return answer

    def encode_in_pieces(
        self, generation: ServedGeneration, keys: Any, values: Any, *, partial: bool, framed: bool
    ) -> list[bytes]:
        """Its body in pieces."""
        pieces: list[bytes]
        if framed:
            pieces = values.encode_frames_in_pieces(keys)
            return pieces
        is_raw = generation.value_format == "raw"
        pieces = values.encode_in_pieces(_beginning(generation), keys, is_raw, partial)
        return pieces


def _beginning(generation: ServedGeneration) -> bytes:
    return b'%b,"found":{' % orjson.dumps(generation.members)[:-1]


class ListedBatches:
    """Batches by orjson. A ``Batches``."""

    def parse(self, body: bytes, max_keys: int) -> tuple[BatchKeys, bool]:
        """The distinct keys, and whether a partial answer will do."""
        keys, partial = parse_batch(body, max_keys)
        return ListedKeys(keys), partial

    def encode(
        self,
        head: bytes,
        fields: bytes,
        generation: ServedGeneration,
        keys: ListedKeys,
        values: ListedValues,
        *,
        partial: bool,
        framed: bool,
    ) -> bytes:
        """The answer to a batch."""
        if framed:
            body = b"".join(_encode_frames(keys, values.values))
            return b"%b%d\r\n%b\r\n%b" % (head, len(body), fields, body)
        raw = generation.value_format == "raw"
        found: dict[str, object] = {}
        missing: list[str] = []
        unavailable: list[str] = []
        for key, value in zip(keys.texts, values.values, strict=True):
            if value is None:
                missing.append(key)
            elif value is UNAVAILABLE:
                unavailable.append(key)
            else:
                found[key] = base64.b64encode(value).decode() if raw else orjson.Fragment(value)
        document = {**generation.members, "found": found, "missing": missing}
        if partial:
            document["unavailable"] = unavailable
        body = orjson.dumps(document)
        return b"%b%d\r\n%b\r\n%b" % (head, len(body), fields, body)

    def encode_in_pieces(
        self, generation: ServedGeneration, keys: ListedKeys, values: ListedValues, *, partial: bool, framed: bool
    ) -> list[bytes]:
        """Its body in pieces."""
        gathered = values.values
        if framed:
            values.values = []
            return _encode_frames(keys, gathered)
        raw = generation.value_format == "raw"
        pieces = [_beginning(generation)]
        missing: list[str] = []
        unavailable: list[str] = []
        comma = b""
        for place, key in enumerate(keys.texts):
            value, gathered[place] = gathered[place], None
            if value is None:
                missing.append(key)
            elif value is UNAVAILABLE:
                unavailable.append(key)
            else:
                pieces.append(b"%b%b:" % (comma, orjson.dumps(key)))
                pieces += (b'"', base64.b64encode(value), b'"') if raw else (value,)
                comma = b","
        pieces.append(b'},"missing":' + orjson.dumps(missing))
        if partial:
            pieces.append(b',"unavailable":' + orjson.dumps(unavailable))
        pieces.append(b"}")
        return pieces


def _encode_frames(keys: ListedKeys, values: Values) -> list[bytes]:
    """The body as frames, in pieces that follow each other."""
    sizes = [
        batch_frames.MISSING if value is None else batch_frames.UNAVAILABLE if value is UNAVAILABLE else len(value)
        for value in values
    ]
    return [batch_frames.encode_start(keys.texts, sizes), *(value for value in values if isinstance(value, bytes))]


def parse_batch(body: bytes, max_keys: int) -> tuple[list[str], bool]:
    """The distinct keys, in the order in which they come first, and whether a partial answer will do.

    Raises HttpProblem.
    """
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
    """Refuse ``body`` before it is parsed if it has more elements than a batch may have: as objects, small ones are
    some twenty times what they are as text. A comma within a key does not count."""
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
    """What JSON calls ``value``."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
