"""The answer to a batch as frames: values as the bytes that they are, for who asks for ``MEDIA_TYPE``.

JSON has no bytes, so that raw values stand in it as base64: a third more to send, and to be encoded and decoded. The
body of frames is, with integers of four bytes, little-endian,

    count                   of keys
    count × size            bytes of each key
    count × size            bytes of each value; MISSING or UNAVAILABLE where there is none
    keys                    in UTF-8, one after the other
    values                  one after the other

The keys are those of the request, in the order in which they first stand there. They are repeated so that who asked
sees that the answer is to its question.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast

MEDIA_TYPE: Final = "application/vnd.lookupdb.batch"
MISSING: Final = -1
"""In the place of a value's size: no record has the key."""
UNAVAILABLE: Final = -2
"""In the place of a value's size: nothing can be said of the key now."""
_SIZE_BYTES: Final = 4


class InvalidFrames(ValueError):
    """What is no answer to the batch, and why."""


class FramedValues(NamedTuple):
    """What a body says of its keys, each of which stands in one of the three."""

    found: dict[str, bytes]
    missing: list[str]
    unavailable: list[str]


def encode_start(keys: Iterable[str], sizes: Sequence[int]) -> bytes:
    """The body up to its values, which have ``sizes``. Raises UnicodeEncodeError for a key that is no text."""
    texts = [key.encode() for key in keys]
    count = len(sizes)
    return struct.pack(f"<I{count}I{count}i", count, *map(len, texts), *sizes) + b"".join(texts)


def decode(body: bytes | bytearray, keys: Sequence[str]) -> FramedValues:
    """The values in ``body``, which must be the whole answer to ``keys``. Raises InvalidFrames."""
    start, sizes_at = _encode_question(keys)
    count, texts = len(keys), start[sizes_at:]
    values_at = sizes_at + _SIZE_BYTES * count + len(texts)
    if (
        len(body) < values_at
        or not body.startswith(start[:sizes_at])
        or body[values_at - len(texts) : values_at] != texts
    ):
        raise InvalidFrames("its keys are not those that were asked for")
    sizes = struct.unpack_from(f"<{count}i", body, sizes_at)
    return _cut(body if isinstance(body, bytes) else memoryview(body), values_at, keys, sizes)


def _encode_question(keys: Sequence[str]) -> tuple[bytes, int]:
    """Number, sizes and texts of ``keys``, and where the texts begin."""
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
    if isinstance(body, bytes):  # parts of which are bytes already
        return FramedValues(cast("dict[str, bytes]", found), missing, unavailable)
    return FramedValues({key: bytes(part) for key, part in found.items()}, missing, unavailable)
