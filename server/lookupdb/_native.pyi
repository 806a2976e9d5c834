"""What ``server/native`` exports. Python code reaches it by ``lookupdb.native`` alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import final

INTERFACE: int
SOURCES: str

class Damaged(ValueError):
    """A page or a stored value is damaged."""

@final
class ShardFile:
    """A shard file as the kernels' reader sees it, for tests and tools. It is mapped as long as it lives."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for a file that is damaged or of an unknown format."""

    @property
    def dictionary(self) -> bytes: ...
    @property
    def records(self) -> int: ...
    def find(self, key: bytes) -> bytes | None:
        """The value stored under ``key``, or None. Raises Damaged."""

    def find_many(self, keys: list[bytes]) -> list[bytes | Damaged | None]:
        """What ``find`` returns or raises for each of ``keys``, which are looked up together."""

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key with its stored value, in key order. The iterator raises Damaged."""

    def expand(self, stored: bytes) -> bytes:
        """The RESP bulk string for ``stored``, a value of this file. Raises Damaged."""
