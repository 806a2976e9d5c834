"""What an endpoint must prove before it is used: that it serves the very shard the routing table says.

The address of a pod that is gone may be another pod's by now; a wrong answer is worse than no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lookupdb.route.servers.passwords import PasswordRef
from lookupdb.shard_name import FORMAT_VERSION

QUESTION: Final = b"*2\r\n$4\r\nINFO\r\n$8\r\nlookupdb\r\n"
"""``INFO lookupdb``, whose answer is lines of ``name:value``."""


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """What one endpoint is expected to serve."""

    dataset: str
    """``namespace/name``."""
    uid: str
    generation: str
    shard: int
    shards: int
    normalize: tuple[str, ...]
    value_format: str
    password: PasswordRef | None = None
    """Which password it asks for; None: the one that all ask for, or none."""

    def members(self) -> dict[str, str]:
        """As ``INFO lookupdb`` names them."""
        return {
            "format_version": str(FORMAT_VERSION),
            "dataset": self.dataset,
            "dataset_uid": self.uid,
            "generation": self.generation,
            "shard": str(self.shard),
            "shards": str(self.shards),
            "normalize": ",".join(self.normalize),
            "value_format": self.value_format,
        }

    def mismatch(self, answer: object) -> str | None:
        """What in the ``answer`` to QUESTION is not as expected, for a message; None when all is."""
        if not isinstance(answer, bytes):
            return f"does not tell what it serves: {str(answer)[:200]}"
        found = dict(_parse_lines(answer))
        wrong = [
            f"{name} {expected!r}, found {found.get(name, 'none')[:200]!r}"
            for name, expected in self.members().items()
            if found.get(name) != expected
        ]
        return f"serves something else: expected {'; '.join(wrong)}" if wrong else None


def _parse_lines(answer: bytes) -> Iterator[tuple[str, str]]:
    for line in answer.decode(errors="replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()
