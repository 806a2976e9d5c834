"""The keys of a client's batch, and the values found for them: from the request's bytes to the answer's.

The native kernels (``PackedKeys`` and related types) keep keys and values as the bytes that arrive and leave. The
classes here are the Python fallback, with the same methods. ``choose_keys`` selects one of them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import compress
from typing import Any, Final, TypeAlias

import orjson

from lookupdb import native, records
from lookupdb.keys import InvalidKey, shard_number
from lookupdb.resp.requests import CRLF, bulk

UNAVAILABLE: Final = object()
"""Stands for the value of a key whose shard could not answer: the key may or may not exist."""

Values: TypeAlias = list[Any]
"""One entry per key: its value, None if no record has the key, or UNAVAILABLE."""


ReplyValues: TypeAlias = list[Any]
"""The values of a shard's reply, each bytes or None; or a native ``ShardReply``."""

# What ``BatchKeys.cut`` finds.
OTHER: Final = 0
"""Anything else, or nothing."""
PART: Final = 1
"""The beginning of an incomplete command."""
GETS: Final = 2
MGET: Final = 3
MAX_WORDS: Final = 16_384
"""Most words of an MGET that the native ``cut`` reads."""


class ShardKeys:
    """Keys of one shard, with their positions in the batch."""

    __slots__ = ("keys", "positions", "shard")

    def __init__(self, shard: int, keys: list[bytes], positions: list[int]) -> None:
        self.shard = shard
        self.keys = keys
        self.positions = positions

    @property
    def packed(self) -> bytes:
        """The keys as consecutive RESP bulk strings."""
        return b"".join(map(bulk, self.keys))

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, count: int) -> ShardKeys:
        """Return at most ``count`` keys from ``start`` on."""
        end = start + count
        return ShardKeys(self.shard, self.keys[start:end], self.positions[start:end])

    def select(self, mask: list[bool]) -> ShardKeys:
        """Return the keys whose entry in ``mask`` is true."""
        return ShardKeys(self.shard, list(compress(self.keys, mask)), list(compress(self.positions, mask)))


class BatchValues:
    """The values found for the keys of a batch. A key without a recorded value is missing."""

    __slots__ = ("unavailable_count", "values")

    def __init__(self, key_count: int) -> None:
        self.values: list[Any] = [None] * key_count
        self.unavailable_count = 0

    def __len__(self) -> int:
        return len(self.values)

    def place(self, keys: ShardKeys, values: ReplyValues, offset: int) -> int:
        """Store the values of ``keys``, the part of ``values`` from ``offset`` on. Return their size together."""
        own_values = values[offset : offset + len(keys.positions)]
        for position, value in zip(keys.positions, own_values, strict=True):
            self.values[position] = value
        return sum(len(value) for value in own_values if value is not None)

    def mark_unavailable(self, keys: ShardKeys) -> None:
        """Record that ``keys`` are unavailable."""
        self.unavailable_count += len(keys.positions)
        for position in keys.positions:
            self.values[position] = UNAVAILABLE

    def to_list(self, unavailable: object = UNAVAILABLE) -> Values:
        """Return the values in the order of the keys. ``unavailable`` replaces UNAVAILABLE only in the kernels; here
        it is ignored."""
        return self.values

    # Answers of HTTP. In JSON, the body begins with ``start``, and raw values are base64. ``partial`` adds the member
    # ``unavailable``; otherwise all values must be available. The other format is frames (``records``).

    def encode(self, head: bytes, fields: bytes, start: bytes, keys: BatchKeys, raw: bool, partial: bool, /) -> bytes:
        """Return the answer in JSON: ``head``, the size of the body, ``fields``, the body."""
        return _join_answer(head, fields, _encode_json(list(self.values), start, keys, raw, partial))

    def encode_in_pieces(self, start: bytes, keys: BatchKeys, raw: bool, partial: bool, /) -> list[bytes]:
        """Return only the body of the answer in JSON, in consecutive pieces. Copies no large value, except into base64,
        and empties the values, so that raw values exist only as base64."""
        return _encode_json(self.values, start, keys, raw, partial)

    def encode_frames(self, head: bytes, fields: bytes, keys: BatchKeys, /) -> bytes:
        """Return the answer as frames."""
        return _join_answer(head, fields, _encode_frames(self.values, keys))

    def encode_frames_in_pieces(self, keys: BatchKeys, /) -> list[bytes]:
        """Return only the body of the answer as frames, in consecutive pieces. Empties the values."""
        values, self.values = self.values, []
        return _encode_frames(values, keys)

    # Answers of RESP: a bulk string for each value, ``nil`` if missing, ``error`` if unavailable; or one list of them.

    @property
    def found_count(self) -> int:
        """The number of keys that exist."""
        return len(self.values) - self.values.count(None) - self.unavailable_count

    def encode_replies(self, is_list: bool, nil: bytes, error: bytes, /) -> bytes:
        """Return the replies."""
        return b"".join(self.encode_replies_in_pieces(is_list, nil, error))

    def encode_replies_in_pieces(self, is_list: bool, nil: bytes, error: bytes, /) -> list[bytes]:
        """Return the replies in consecutive pieces, without copies of large values. Empties the values."""
        pieces = [b"*%d\r\n" % len(self.values)] if is_list else []
        for place, value in enumerate(self.values):
            self.values[place] = None
            if value is None:
                pieces.append(nil)
            elif value is UNAVAILABLE:
                pieces.append(error)
            else:
                pieces += (b"$%d\r\n" % len(value), value, CRLF)
        return pieces


def _join_answer(head: bytes, fields: bytes, pieces: list[bytes]) -> bytes:
    body = b"".join(pieces)
    return b"%b%d\r\n%b\r\n%b" % (head, len(body), fields, body)


def _encode_json(values: Values, start: bytes, keys: BatchKeys, raw: bool, partial: bool) -> list[bytes]:
    pieces = [start]
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
            pieces += (b'"', base64.b64encode(value), b'"') if raw else (value,)
            comma = b","
    pieces.append(b'},"missing":' + orjson.dumps(missing))
    if partial:
        pieces.append(b',"unavailable":' + orjson.dumps(unavailable))
    pieces.append(b"}")
    return pieces


def _encode_frames(values: Values, keys: BatchKeys) -> list[bytes]:
    sizes = [
        records.MISSING if value is None else records.UNAVAILABLE if value is UNAVAILABLE else len(value)
        for value in values
    ]
    return [records.encode_start(keys.texts, sizes), *(value for value in values if isinstance(value, bytes))]


class BatchKeys:
    """The distinct keys of a client's batch as text."""

    __slots__ = ("texts",)

    def __init__(self, texts: list[str], /) -> None:
        self.texts = texts

    @staticmethod
    def parse(body: bytes, max_keys: int) -> tuple[BatchKeys, bool] | None:
        """Return the keys of a batch's JSON, in order of first appearance, and whether a partial answer is allowed. The
        kernels return None for unusual bodies, valid or not, and Python always does."""
        return None

    @staticmethod
    def cut(data: bytes, at: int, most: int) -> tuple[int, int, BatchKeys | None]:
        """Return what begins at ``at`` in RESP: its kind, its end, and its keys. It is an MGET, or at most ``most``
        GETs. For anything else, the end is ``at``. Python leaves everything to the parser."""
        return OTHER, at, None

    @staticmethod
    def from_bytes(keys: list[bytes]) -> BatchKeys:
        """Return the keys of a RESP command. No record has a key that is not UTF-8."""
        return BatchKeys([key.decode("utf-8", "surrogateescape") for key in keys])

    def __len__(self) -> int:
        return len(self.texts)

    def to_list(self) -> list[str]:
        """Return the keys in order."""
        return self.texts

    def group(self, encode: Callable[[str], bytes], normalize: tuple[str, ...], shards: int) -> list[ShardKeys]:
        """Group by shard the keys that a record can have, in the order in which shards first appear. ``encode`` is
        ``keys.make_key_encoder(normalize)``."""
        groups: dict[int, ShardKeys] = {}
        for position, text in enumerate(self.texts):
            try:
                key = encode(text)
            except InvalidKey:
                continue
            number = shard_number(key, shards)
            group = groups.setdefault(number, ShardKeys(number, [], []))
            group.keys.append(key)
            group.positions.append(position)
        return list(groups.values())

    def make_values(self) -> BatchValues:
        """Make a place for the value of each key."""
        return BatchValues(len(self.texts))


def choose_keys() -> type[BatchKeys]:
    """Return the keys of the native kernels if enabled, else those of the Python fallback."""
    kernels = native.kernels()
    return BatchKeys if kernels is None else kernels.PackedKeys


NO_KEYS: Final = ShardKeys(0, [], [])
NO_VALUES: Final = BatchValues(0)
