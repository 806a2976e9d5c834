"""JSON of answers to Python's objects, with every number as it stands, and back: keys of requests, values of the cache.

orjson is imported by the first request: its import takes half of what that of the whole client would.
"""

from __future__ import annotations

import binascii
import json
from typing import Any, Final, NoReturn

from lookupdb.errors import InvalidAnswer

_LONG: Final = b"0" * 20
_LONG_NEGATIVE: Final = b"-" + b"0" * 19
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte if byte == 0x2D else 0x20 for byte in range(256))
"""Translates digits to 0, and all else but a minus to a space."""
_IMMUTABLE: Final = (str, int, float, bool, bytes, type(None))


def decode_json(text: bytes | bytearray) -> Any:
    """The value of JSON ``text``; integers are exact, however long. Raises InvalidAnswer."""
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _decode_slowly(text)
    # orjson rounds integers beyond 64 bits. What it writes back byte for byte it has not rounded, which is quicker to
    # see than where there is a long number.
    try:
        is_same = orjson.dumps(value) == text
    except TypeError:  # deeper than it writes: it reads four times as deep
        is_same = False
    if not is_same and _has_long_number(text):
        return _decode_slowly(text)
    return value


def _has_long_number(text: bytes | bytearray) -> bool:
    digits = text.translate(_DIGITS)
    return _LONG in digits or _LONG_NEGATIVE in digits


def _decode_slowly(text: bytes | bytearray) -> Any:
    """By Python's own decoder, which knows long integers and lone surrogates."""
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"the answer is not the JSON that it should be: {error}") from error


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def encode_json(value: Any) -> bytes | None:
    """JSON from which ``decode_json`` makes ``value``; None if there is none."""
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:  # a long integer, a lone surrogate, or too deep
        return None


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
