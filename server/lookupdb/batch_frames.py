"""The answer to a batch as frames: values as plain bytes, for clients that accept ``MEDIA_TYPE``.

JSON has no bytes, so raw values in it are base64: a third more to send, and to be encoded and decoded. The frames are,
with integers of four bytes, little-endian,

    count                   of keys
    count × size            bytes of each key
    count × size            bytes of each value; MISSING or UNAVAILABLE if there is none
    keys                    in UTF-8, one after the other
    values                  one after the other

The keys are those of the request, in the order of their first occurrence. They are repeated so that a client can check
that the answer belongs to its request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast

MEDIA_TYPE: Final = "application/vnd.lookupdb.batch"
MISSING: Final = -1
"""Replaces a value's size: no record has the key."""
UNAVAILABLE: Final = -2
"""Replaces a value's size: the key's shard cannot be reached now."""
_SIZE_BYTES: Final = 4


class InvalidFrames(ValueError):
    """The body is not an answer to the batch, and why."""


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


def decode(body: bytes | bytearray, keys: Sequence[str]) -> FramedValues:
    """Return the values in ``body``, which must be the whole answer to ``keys``. Raises InvalidFrames."""
    start, sizes_at = _encode_question(keys)
    count, texts = len(keys), start[sizes_at:]
    values_at = sizes_at + _SIZE_BYTES * count + len(texts)
    if (
        len(body) < values_at
        or not body.startswith(start[:sizes_at])
        or body[values_at - len(texts) : values_at] != texts
    ):
        raise InvalidFrames("its keys are not the requested ones")
    sizes = struct.unpack_from(f"<{count}i", body, sizes_at)
    return _cut(body if isinstance(body, bytes) else memoryview(body), values_at, keys, sizes)


def _encode_question(keys: Sequence[str]) -> tuple[bytes, int]:
    """Return number, sizes and texts of ``keys``, and the offset of the texts."""
    count, texts = len(keys), "".join(keys)
    sizes = map(len, keys) if texts.isascii() else (len(key.encode()) for key in keys)
    return struct.pack(f"<I{count}I", count, *sizes) + texts.encode(), _SIZE_BYTES * (1 + count)


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
