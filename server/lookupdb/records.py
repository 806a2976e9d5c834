"""The forms of records that builders, routers and clients share: key columns, JSON values, and frames of a batch.

Builders and readers share ``join_columns``, so that all find the same record. Readers and gates parse values with
``decode_json``. Clients import this module, so it imports only the standard library, and orjson at the first value:
orjson takes half of the import time of the whole client.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

Key = str | tuple[str | int, ...]
"""A key as readers give it: text, or a tuple if keys have several columns."""
K = TypeVar("K", bound=Key)


class UnusableColumn(ValueError):
    """No record can have the key: a column is empty, or holds the separator or its beginning."""


def join_columns(columns: Sequence[str], parts: Iterable[str], separator: str) -> str:
    """Join the columns of a key. In the text, each separator must be the first after the one before, so that two keys
    never become one: with ``::``, ``a:`` and ``b`` would be ``a`` and ``:b``. So only the last column may hold it."""
    parts = list(parts)
    for column, part in zip(columns[:-1], parts, strict=False):
        if (part + separator).index(separator) < len(part):
            how = "holds" if separator in part else "ends with the beginning of"
            raise UnusableColumn(f"the key column {column} {how} the separator {separator!r}")
    for column, part in zip(columns, parts, strict=True):
        if not part:
            raise UnusableColumn(f"the key column {column} is empty")
    return separator.join(parts)


def join_key(columns: Sequence[str], key: tuple[object, ...], separator: str) -> str:
    """Return the text of ``key``, which has text or an integer for each of ``columns``. Raises UnusableColumn,
    TypeError."""
    if len(key) != len(columns):
        raise TypeError(f"a key has {len(columns)} columns, {', '.join(columns)}; found {len(key)}: {key!r:.60}")
    return join_columns(columns, map(column_text, key), separator)


def column_text(part: object) -> str:
    """Return the text of a key column: text unchanged, an integer in decimal, as builders do."""
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, int) and not isinstance(part, bool):
        return int.__repr__(part)
    raise TypeError(f"a key column must be a str or an int, found {type(part).__name__}: {part!r:.60}")


# JSON values as Python objects, with exact integers. A number beyond floats becomes an infinity, and an integer of more
# than 4,300 digits is rejected (sys.set_int_max_str_digits), as by Python's own decoder.


_SHORTEST_LONG: Final = 19
"""Digits of an integer that may be beyond 64 bits."""
_LONG: Final = b"0" * (_SHORTEST_LONG + 1)
_LONG_NEGATIVE: Final = b"-" + b"0" * _SHORTEST_LONG
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte if byte == 0x2D else 0x20 for byte in range(256))
"""Translates digits to 0, and all other bytes except the minus to a space."""


def decode_json(text: bytes | bytearray) -> Any:
    """Return the value of JSON ``text``. Raises ValueError, and RecursionError if it is nested too deeply for Python's
    decoder."""
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _decode_slowly(text)
    if len(text) <= _SHORTEST_LONG:
        return value
    # orjson rounds integers beyond 64 bits. If it writes back the same bytes, it has not rounded: a quicker check than
    # a search for long numbers.
    try:
        is_same = orjson.dumps(value) == text
    except TypeError:  # orjson writes only a quarter of the depth that it reads
        is_same = False
    if not is_same:
        digits = text.translate(_DIGITS)
        if _LONG in digits or _LONG_NEGATIVE in digits:
            return _decode_slowly(text)
    return value


def _decode_slowly(text: bytes | bytearray) -> Any:
    """Return the value as Python's decoder reads it, which supports long integers, exponents beyond floats and lone
    surrogates."""
    return json.loads(text.decode(), parse_constant=refuse_constant)


def refuse_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python's decoder reads."""
    raise ValueError(f"{text} is not JSON")


# The answer to a batch as frames: values as plain bytes, for clients that accept ``FRAMES``.
#
# JSON has no bytes: in it, raw values are base64, a third longer, which takes time to encode and decode. The frames
# are, with integers of four bytes, little-endian,
#
#     count                   of keys
#     count × size            bytes of each key
#     count × size            bytes of each value; MISSING or UNAVAILABLE if there is none
#     keys                    in UTF-8, one after the other
#     values                  one after the other
#
# The keys are those of the request, in the order of their first occurrence. They are there so that a client can
# check that the answer belongs to its request.


FRAMES: Final = "application/vnd.lookupdb.batch"
MISSING: Final = -1
"""Replaces a value's size: no record has the key."""
UNAVAILABLE: Final = -2
"""Replaces a value's size: the key's shard cannot be reached now."""
_SIZE_BYTES: Final = 4


class InvalidFrames(ValueError):
    """The body is not an answer to the batch; the message says why."""


class FramedValues(NamedTuple):
    """The keys of a body, each in one of the three groups."""

    found: dict[str, bytes]
    missing: list[str]
    unavailable: list[str]


def encode_start(keys: Iterable[str], sizes: Sequence[int]) -> bytes:
    """Return the body up to its values, which have ``sizes``. Raises UnicodeEncodeError for a key that is not text."""
    texts = [key.encode() for key in keys]
    count = len(sizes)
    return struct.pack(f"<I{count}I{count}i", count, *map(len, texts), *sizes) + b"".join(texts)


def decode_frames(body: bytes | bytearray, keys: Sequence[str]) -> FramedValues:
    """Return the values in ``body``, which must be the whole answer to ``keys``. Raises InvalidFrames."""
    count, texts = len(keys), "".join(keys).encode()
    lengths = map(len, keys) if texts.isascii() else (len(key.encode()) for key in keys)
    start = struct.pack(f"<I{count}I", count, *lengths)
    sizes_at = len(start)
    values_at = sizes_at + _SIZE_BYTES * count + len(texts)
    if len(body) < values_at or not body.startswith(start) or body[values_at - len(texts) : values_at] != texts:
        raise InvalidFrames("its keys are not the requested ones")
    sizes = struct.unpack_from(f"<{count}i", body, sizes_at)
    return _cut(body if isinstance(body, bytes) else memoryview(body), values_at, keys, sizes)


def _cut(body: bytes | memoryview, at: int, keys: Sequence[str], sizes: Sequence[int]) -> FramedValues:
    found: dict[str, bytes | memoryview] = {}
    missing: list[str] = []
    unavailable: list[str] = []
    for key, size in zip(keys, sizes, strict=True):
        if size >= 0:
            end = at + size
            found[key] = body[at:end]
            at = end
        elif size == MISSING:
            missing.append(key)
        elif size == UNAVAILABLE:
            unavailable.append(key)
        else:
            raise InvalidFrames(f"a value has the size {size}")
    if at != len(body):
        raise InvalidFrames(f"its values end at byte {at} of {len(body)}")
    if isinstance(body, bytes):  # slices of bytes are bytes already
        return FramedValues(cast("dict[str, bytes]", found), missing, unavailable)
    return FramedValues({key: bytes(part) for key, part in found.items()}, missing, unavailable)
