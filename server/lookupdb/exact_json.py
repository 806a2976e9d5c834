"""JSON values as Python objects, with exact integers. A number beyond floats becomes an infinity, and an integer of
more than 4,300 digits is rejected (sys.set_int_max_str_digits), as by Python's own decoder.

orjson is imported by the first call: it takes half of the import time of the whole client.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

_SHORTEST_LONG: Final = 19
"""Digits of an integer that may be beyond 64 bits."""
_LONG: Final = b"0" * (_SHORTEST_LONG + 1)
_LONG_NEGATIVE: Final = b"-" + b"0" * _SHORTEST_LONG
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte if byte == 0x2D else 0x20 for byte in range(256))
"""Translates digits to 0, and all other bytes except the minus to a space."""


def decode(text: bytes | bytearray) -> Any:
    """Return the value of JSON ``text``. Raises ValueError, and RecursionError if a value with a long number is too
    deep for the caller's stack."""
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return decode_slowly(text)
    if len(text) <= _SHORTEST_LONG:
        return value
    # orjson rounds integers beyond 64 bits. If it writes back the same bytes, it has not rounded: a quicker check than
    # a search for long numbers.
    try:
        is_same = orjson.dumps(value) == text
    except TypeError:  # deeper than it writes: it reads four times as deep
        is_same = False
    if not is_same and _has_long_number(text):
        return decode_slowly(text)
    return value


def decode_slowly(text: bytes | bytearray) -> Any:
    """Return the same from Python's decoder, which supports long integers, exponents beyond floats and lone
    surrogates."""
    return json.loads(text.decode(), parse_constant=_refuse_constant)


def _has_long_number(text: bytes | bytearray) -> bool:
    digits = text.translate(_DIGITS)
    return _LONG in digits or _LONG_NEGATIVE in digits


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
