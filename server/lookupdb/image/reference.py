"""What a shard's image is called: the one place, for those who push it and those who have it mounted."""

from __future__ import annotations

from typing import Final

_UID_DIGITS: Final = 8


def shard_tag(name: str, uid: str, generation: str, shard: int) -> str:
    """The tag of a shard's image: ``people-3f2b9c1e-g12-shard-00003``, in whatever repository it is. It is that of one
    content for good, because a generation is."""
    return f"{name}-{uid[:_UID_DIGITS]}-{generation}-shard-{shard:05d}"
