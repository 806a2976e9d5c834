"""The Accept header field: whether a client takes a media type (RFC 9110, 12.5.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from lookupdb.route.http.answers import JSON, OCTETS

ANYTHING: Final = b"*/*"

_MOST_CACHED_BYTES: Final = 256


class Accept:
    """Which of the two media types that values have a client takes."""

    __slots__ = ("_taken",)

    def __init__(self, field: bytes) -> None:
        ranges = [_range(part) for part in field.decode("latin-1").lower().split(",") if part.strip()]
        self._taken = frozenset(media_type for media_type in (JSON, OCTETS) if _quality(media_type, ranges) > 0)

    def allows(self, media_type: str) -> bool:
        """Whether the client takes ``media_type``, one of JSON and OCTETS."""
        return media_type in self._taken


def accept(field: bytes | None) -> Accept | None:
    """What the client takes; None is anything."""
    if field is None or field == ANYTHING or not field.strip():
        return None
    return _cached(field) if len(field) <= _MOST_CACHED_BYTES else Accept(field)


@lru_cache(maxsize=256)
def _cached(field: bytes) -> Accept:
    return Accept(field)


def _range(part: str) -> tuple[str, float]:
    """A media range and its quality; one that cannot be read counts as 1, so that nobody is refused for it."""
    media_range, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media_range, float(value)
            except ValueError:
                return media_range, 1.0
    return media_range, 1.0


def _quality(media_type: str, ranges: list[tuple[str, float]]) -> float:
    """The quality that the most specific range gives ``media_type``; 0 when none fits it."""
    qualities = dict(ranges)
    for media_range in (media_type, media_type.split("/")[0] + "/*", "*/*"):
        if media_range in qualities:
            return qualities[media_range]
    return 0.0
