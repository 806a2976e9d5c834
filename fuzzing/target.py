"""A fuzzing target: a check that must hold for any bytes, and samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_INPUT_BYTES: Final = 4096
JSON_WORDS: Final = (
    *b'null true [] {} "" -1 1e400 "../x" "g0" "g1" "2026-01-01T00:00:00Z" \xff , :'.split(),
    b"9" * 30,
)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of bytes from outside."""

    name: str
    check: Callable[[bytes], None]
    """Feed an input to the reader. Raises anything if a promise is broken."""
    samples: tuple[bytes, ...]
    """Valid inputs to begin with."""
    words: tuple[bytes, ...] = ()
    """Parts of inputs, which random changes insert."""


def in_pieces(data: bytes) -> list[bytes]:
    """Cut ``data`` into pieces, like a network; the same for the same data."""
    size = 1 + sum(data[:16]) % 23
    return [data[start : start + size] for start in range(0, len(data), size)]
