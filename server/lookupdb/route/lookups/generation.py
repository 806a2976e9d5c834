"""A generation as requests know it: how its keys are encoded, and what an answer says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, eq=False)
class ServedGeneration:
    """What an answer comes from: a generation, or several of a mixed routing table. Compared by identity."""

    names: tuple[str, ...]
    """``g12``; of several, in the order of their numbers."""
    value_format: Literal["json", "raw"]
    encode: Callable[[str], bytes]
    """From a key as asked to the bytes it is stored under (see ``keys.make_key_encoder``); raises InvalidKey."""
    normalize: tuple[str, ...]
    """The steps by which ``encode`` normalises."""
    etag: str = field(default="", kw_only=True)
    """The entity tag of values out of it, with its quotes; empty for several."""
    name: str = field(init=False)
    """``g12``, or ``g12, g13``: as the header has it."""
    members: dict[str, object] = field(init=False)
    """As the answer to a batch has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", ", ".join(self.names))
        members: dict[str, object] = {"generation": self.name}
        if len(self.names) > 1:
            members = {"generation": None, "generations": self.names}
        object.__setattr__(self, "members", members)
