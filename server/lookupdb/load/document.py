"""What a result says of itself, and whether this version reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lookupdb.errors import LookupdbError

FORMAT_VERSION: Final = 1
KIND: Final = "LoadResult"


def check_version(document: Mapping[str, Any]) -> None:
    """Raises LookupdbError unless this version reads ``document``."""
    found = document.get("formatVersion"), document.get("kind")
    if found != (FORMAT_VERSION, KIND):
        raise LookupdbError(
            f"this is no result that this version reads: expected version {FORMAT_VERSION} of {KIND}, found {found}",
            hint="use the lookupdb of the version that has made it",
        )
