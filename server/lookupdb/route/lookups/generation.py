"""A generation as requests know it: how its keys are encoded, and what an answer says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, eq=False)
class ServedGeneration:
    """One generation of the routing table in effect. Compared by identity."""

    name: str
    """``g12``."""
    value_format: Literal["json", "raw"]
    records: int
    built_at: str
    """ISO 8601, UTC."""
    encode: Callable[[str], bytes]
    """From a key as asked to the bytes it is stored under (see ``keys.make_key_encoder``); raises InvalidKey."""
    normalize: tuple[str, ...]
    """The steps by which ``encode`` normalises."""
