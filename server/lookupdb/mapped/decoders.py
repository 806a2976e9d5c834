"""Decoders of stored JSON. They are apart from the Python fallback, which loads LMDB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import orjson

from lookupdb import exact_json


class Decoders(NamedTuple):
    """Functions from JSON to values. Both raise ValueError for invalid JSON."""

    quickly: Callable[[bytes], Any]
    """For values without long numbers: it rounds integers beyond 64 bits, and rejects exponents beyond a float's."""
    exactly: Callable[[bytes], Any]
    """For all values."""


JSON: Final = Decoders(orjson.loads, exact_json.decode)
