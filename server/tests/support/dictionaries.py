"""Two generations with their own dictionaries: stored bytes do not show whether values are equal.

publish(dataset, "g1", BEFORE, scratch, dictionary=OLD_DICTIONARY)
publish(dataset, "g2", AFTER, scratch, dictionary=NEW_DICTIONARY)
"""

from __future__ import annotations

import random
from typing import Final

_chance = random.Random(7)
OLD_DICTIONARY: Final = _chance.randbytes(600)
NEW_DICTIONARY: Final = _chance.randbytes(600)
"""A dictionary of the same length with nothing in common: references to it have another meaning here."""

EQUAL_BYTES: Final = "equal bytes"
"""The key of values that differ, although their stored bytes are equal."""
EQUAL_VALUE: Final = "equal value"
"""The key of values that are equal, although their stored bytes differ."""

_PLAIN: Final = {f"plain-{number}": b"%d" % number for number in range(20)}
_COMPRESSED: Final = {f"compressed-{number}": b"%d " % number * 100 for number in range(20)}
_BOTH: Final = {
    **_PLAIN,
    **_COMPRESSED,
    EQUAL_VALUE: OLD_DICTIONARY[100:300] + b"x" * 400 + NEW_DICTIONARY[100:300],
}
BEFORE: Final = {**_BOTH, EQUAL_BYTES: OLD_DICTIONARY[200:500], "other": b"before " * 100}
AFTER: Final = {**_BOTH, EQUAL_BYTES: NEW_DICTIONARY[200:500], "other": b"behind " * 100}

CHANGED: Final = [EQUAL_BYTES, "other"]
SAME: Final = len(_BOTH)
