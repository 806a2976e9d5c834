"""Seeded data: the same kind, rows and seed give the same bytes, on any machine with this Python's `random`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.generators import persondb, recommendations

SEED: Final = 20261121
"""The default seed."""

KINDS: Final[dict[str, Callable[[int, int], Iterator[bytes]]]] = {
    "recommendations": recommendations.generate,
    "persondb": persondb.generate,
}
"""Kind → the function from rows and seed to the file's bytes, a few thousand rows at a time."""


def write(kind: str, rows: int, path: Path, seed: int = SEED) -> int:
    """Write ``rows`` rows of ``kind`` to ``path``, completely or not at all. Return the file's size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("wb") as file:
        for chunk in KINDS[kind](rows, seed):
            file.write(chunk)
    unfinished.rename(path)
    return path.stat().st_size
