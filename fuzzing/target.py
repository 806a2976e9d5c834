"""What is fuzzed: a check that must hold for any bytes, and where to begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_INPUT_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of bytes from outside."""

    name: str
    check: Callable[[bytes], None]
    """Feeds an input to it. Raises, with whatever, if it does not keep a promise."""
    samples: tuple[bytes, ...]
    """Inputs to begin with, which it takes."""
    words: tuple[bytes, ...] = ()
    """What stands in its inputs: random changes put them in."""


def in_pieces(data: bytes) -> list[bytes]:
    """``data`` in pieces, as it might come from a network; the same for the same data."""
    size = 1 + sum(data[:16]) % 23
    return [data[start : start + size] for start in range(0, len(data), size)]
