"""The answer to a batch that lookups of several callers left in, of which each caller takes its own part."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from typing import Final

from lookupdb.client.answers import KeyAnswer, KeysAnswer
from lookupdb.client.attempts import DEADLINE
from lookupdb.client.json_values import copy_value
from lookupdb.client.refusals import make_unavailable
from lookupdb.client.results import MISSING
from lookupdb.errors import LookupFailed, RequestRefused, Unavailable

_TOO_LARGE: Final = 413
Piece = KeysAnswer | KeyAnswer | LookupFailed
"""What one request of a batch came to."""


class SharedAnswer:
    """One caller's failure is its own: errors are raised anew for each, and no two get the same mutable value."""

    __slots__ = ("_pieces", "_repeated")

    def __init__(self, keys: Sequence[str], pieces: Sequence[tuple[Sequence[str], Piece]]) -> None:
        """``keys`` are those of the callers, one each; ``pieces`` hold every one of them."""
        self._pieces = {key: piece for part, piece in pieces for key in part}
        self._repeated = set() if len(self._pieces) == len(keys) else _find_repeated(keys)

    def is_late(self, key: str) -> bool:
        """Whether nothing is known of ``key`` because the time was over of the caller who asked. A router whose own is
        over names the shard, and is not asked again."""
        piece = self._pieces[key]
        return isinstance(piece, Unavailable) and piece.reason == DEADLINE and piece.shard is None

    def take(self, key: str) -> KeyAnswer:
        """The caller's own part. Raises LookupFailed."""
        piece = self._pieces[key]
        if isinstance(piece, LookupFailed):
            raise _renew(piece, key) from piece
        if isinstance(piece, KeyAnswer):
            answer = piece
        elif key in piece.found:
            answer = KeyAnswer(piece.found[key], piece.generation)
        elif key in piece.missing:
            return KeyAnswer(MISSING, piece.generation)
        else:
            raise make_unavailable((key,), "Unavailable", "its shard cannot be reached now, or its value not be read")
        return KeyAnswer(copy_value(answer.value), answer.generation) if key in self._repeated else answer


def _find_repeated(keys: Sequence[str]) -> set[str]:
    seen: set[str] = set()
    return {key for key in keys if key in seen or seen.add(key)}  # type: ignore[func-returns-value]


def _renew(error: LookupFailed, key: str) -> LookupFailed:
    if isinstance(error, Unavailable):
        return make_unavailable((key,), error.reason, error.detail, error.shard)
    return copy.copy(error)


def plan_requests(keys: Sequence[str]) -> Generator[Sequence[str], Piece, SharedAnswer]:
    """Yield keys to be asked for at once, and be sent what came of it; return the answer to all.

    A batch that is refused as too large is asked for in halves: a key that is at fault is at last asked for alone.
    """
    pieces: list[tuple[Sequence[str], Piece]] = []
    distinct = list(dict.fromkeys(keys))
    remaining: list[Sequence[str]] = [distinct]
    while remaining:
        part = remaining.pop()
        piece = yield part
        if isinstance(piece, RequestRefused) and piece.status == _TOO_LARGE and len(part) > 1:
            middle = len(part) // 2
            remaining += (part[middle:], part[:middle])
        else:
            pieces.append((part, piece))
    return SharedAnswer(keys, pieces)
