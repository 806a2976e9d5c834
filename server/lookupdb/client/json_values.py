"""JSON of answers to Python's objects, with every integer as it stands, and back: keys of requests, values of the
cache. orjson is imported by the first request, as of ``exact_json``.
"""

from __future__ import annotations

import binascii
import math
from typing import Any, Final

from lookupdb import exact_json
from lookupdb.errors import InvalidAnswer

_IMMUTABLE: Final = (str, int, float, bool, bytes, type(None))


def decode_json(text: bytes | bytearray) -> Any:
    """The value of JSON ``text``, as of ``exact_json``. Raises InvalidAnswer."""
    try:
        return exact_json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"the answer is not the JSON that it should be: {error}") from error


def encode_json(value: Any) -> bytes | None:
    """JSON from which ``decode_json`` makes ``value``; None if there is none."""
    import orjson

    try:
        text = orjson.dumps(value)
    except TypeError:  # a long integer, a lone surrogate, or too deep
        return None
    return None if b"null" in text and _has_infinity(value) else text  # which orjson writes as null


def encode_texts(value: Any) -> bytes:
    """The same of what has neither numbers nor what is not Unicode, such as keys that were checked."""
    import orjson

    return orjson.dumps(value)


def _has_infinity(value: Any) -> bool:
    """Whether a value of JSON has a number that no float holds."""
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, float) and math.isinf(item):
            return True
        if isinstance(item, dict | list):
            remaining += item.values() if isinstance(item, dict) else item
    return False


def decode_base64(text: object) -> bytes:
    """The bytes of a raw value of a batch. Raises InvalidAnswer."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise InvalidAnswer(f"a raw value of the answer is not base64: {error}") from error


def copy_value(value: Any) -> Any:
    """A value of JSON that is equal, and shares nothing that can be changed; however deep it is."""
    if isinstance(value, _IMMUTABLE):
        return value
    copied: list[Any] = [value]
    remaining: list[Any] = [copied]
    while remaining:
        place = remaining.pop()
        for name, child in [*place.items()] if isinstance(place, dict) else enumerate(place):
            if not isinstance(child, _IMMUTABLE):
                place[name] = child.copy()
                remaining.append(place[name])
    return copied[0]
