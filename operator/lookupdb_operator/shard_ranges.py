"""Shards as ranges of text in a status: ``0-3,8`` is five of them. So a thousand shards need no thousand members."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final

ALL: Final = ""
"""The text for all shards, however many there are."""
MAX_SHARDS: Final = 1024
"""Of a dataset: no shard has a higher number."""


@functools.lru_cache(maxsize=4096)
def parse_shards(text: str) -> frozenset[int]:
    """The shards that ``text`` names: none for an empty one. Raises ValueError when it is not as ``format_shards``
    writes it."""
    shards = frozenset(shard for part in text.split(",") for shard in _parse_range(part)) if text else frozenset()
    if format_shards(shards) != text:
        raise ValueError(f"expected ranges of shards such as 0-3,8, found {text[:40]!r}")
    return shards


def _parse_range(part: str) -> range:
    first, _, last = part.partition("-")
    numbers = (first, last or first)
    if not all(number.isascii() and number.isdigit() and int(number) < MAX_SHARDS for number in numbers):
        raise ValueError(f"expected shards below {MAX_SHARDS} such as 0-3, found {part[:40]!r}")
    return range(int(numbers[0]), int(numbers[1]) + 1)


def format_shards(shards: Iterable[int]) -> str:
    """``shards`` as text, in order of number; empty for none."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in _list_ranges(shards))


def _list_ranges(shards: Iterable[int]) -> Iterator[tuple[int, int]]:
    ordered = sorted(shards)
    begin = 0
    for i, shard in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != shard + 1:
            yield ordered[begin], shard
            begin = i + 1


def select_shards(text: str, count: int) -> tuple[int, ...]:
    """Those of ``count`` shards that ``text`` names, or all (``ALL``), in order."""
    if text == ALL:
        return tuple(range(count))
    return tuple(shard for shard in sorted(parse_shards(text)) if shard < count)


def shorten_shards(shards: Iterable[int], count: int) -> str:
    """``shards`` as text; ``ALL`` when they are all of ``count``."""
    chosen = frozenset(shards)
    return ALL if len(chosen) == count else format_shards(chosen)
