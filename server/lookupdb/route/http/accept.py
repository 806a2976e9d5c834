"""The Accept header field: which media types a client accepts (RFC 9110, 12.5.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.route.http.answers import JSON, OCTETS

ANYTHING: Final = b"*/*"

_MAX_CACHED_BYTES: Final = 256


class AcceptField:
    """The media types that a client accepts, among the two that values have, and of a batch's answer."""

    __slots__ = ("_accepted", "_names_frames")

    def __init__(self, field: bytes) -> None:
        ranges = [_parse_range(part) for part in field.decode("latin-1").lower().split(",") if part.strip()]
        self._accepted = frozenset(media_type for media_type in (JSON, OCTETS) if _find_quality(media_type, ranges) > 0)
        self._names_frames = dict(ranges).get(FRAMES, 0) > 0

    def allows(self, media_type: str) -> bool:
        """Whether the client accepts ``media_type``, which is JSON or OCTETS."""
        return media_type in self._accepted

    def allows_batch(self) -> bool:
        """Whether the client accepts one of the two media types of a batch's answer."""
        return self._names_frames or JSON in self._accepted

    def prefers_frames(self, value_format: str) -> bool:
        """Whether a batch of such values is to be answered as frames: for who names these, if the values are raw, or if
        JSON is ruled out."""
        return self._names_frames and (value_format == "raw" or JSON not in self._accepted)


def parse_accept(field: bytes | None) -> AcceptField | None:
    """The parsed field; None if the client accepts anything."""
    if field is None or field == ANYTHING or not field.strip():
        return None
    return _parse_cached(field) if len(field) <= _MAX_CACHED_BYTES else AcceptField(field)


@lru_cache(maxsize=256)
def _parse_cached(field: bytes) -> AcceptField:
    return AcceptField(field)


def _parse_range(part: str) -> tuple[str, float]:
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


def _find_quality(media_type: str, ranges: list[tuple[str, float]]) -> float:
    """The quality that the most specific range gives ``media_type``; 0 when none fits it."""
    qualities = dict(ranges)
    for media_range in (media_type, media_type.split("/")[0] + "/*", "*/*"):
        if media_range in qualities:
            return qualities[media_range]
    return 0.0
