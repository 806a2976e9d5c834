"""Values of JSON as Python's objects, with every integer as it stands. A number that no float holds is an infinity, and
an integer of more than 4,300 digits is refused (sys.set_int_max_str_digits), as by Python's own decoder.

orjson is imported by the first call: its import takes half of what that of the whole client would.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

_SHORTEST_LONG: Final = 19
"""Digits of an integer that may be beyond 64 bits."""
_LONG: Final = b"0" * (_SHORTEST_LONG + 1)
_LONG_NEGATIVE: Final = b"-" + b"0" * _SHORTEST_LONG
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte if byte == 0x2D else 0x20 for byte in range(256))
"""Translates digits to 0, and all else but a minus to a space."""


def decode(text: bytes | bytearray) -> Any:
    """The value of JSON ``text``. Raises ValueError, and RecursionError where a value with a long number is deeper than
    the caller's stack has room for."""
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return decode_slowly(text)
    if len(text) <= _SHORTEST_LONG:
        return value
    # orjson rounds integers beyond 64 bits. What it writes back byte for byte it has not rounded, which is quicker to
    # see than where there is a long number.
    try:
        is_same = orjson.dumps(value) == text
    except TypeError:  # deeper than it writes: it reads four times as deep
        is_same = False
    if not is_same and _has_long_number(text):
        return decode_slowly(text)
    return value


def decode_slowly(text: bytes | bytearray) -> Any:
    """The same by Python's own decoder, which knows long integers, exponents beyond a float's and lone surrogates."""
    return json.loads(text.decode(), parse_constant=_refuse_constant)


def _has_long_number(text: bytes | bytearray) -> bool:
    digits = text.translate(_DIGITS)
    return _LONG in digits or _LONG_NEGATIVE in digits


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
