"""Recognises requests that repeat an earlier one, without the parser.

``RepeatedLookup`` and ``RepeatedBatch`` skip the parser for repeats. A client sends the same head with each request:
only the key changes in a lookup; the body and its length change in a batch. A parser reads from the left. So accepted
bytes after one target mean the same after any target of plain characters. The same holds for the bytes after a
length.
"""

from __future__ import annotations

import re
from typing import Final

from lookupdb.keys import MAX_KEY_BYTES
from lookupdb.router.http import request as target
from lookupdb.router.http.exchanges import (
    BatchExchange,
    ClientConnection,
    ConditionalLookupExchange,
    Exchange,
    LookupExchange,
    NamedDatasetConnection,
)
from lookupdb.router.http.problems import CLOSE, MAX_REPEATED_HEAD_BYTES, SLICE_BYTES, HttpProblem
from lookupdb.router.http.request import (
    ACCEPT,
    AUTHORIZATION,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    DEADLINE,
    FETCH_SITE,
    GENERATION,
    HOST,
    IF_NONE_MATCH,
    ORIGIN,
    Request,
    parse_batch,
)

_GET: Final = b"GET "
_BEGINNING: Final = _GET + target.LOOKUP_KEY
_BEGINNING_END: Final = _BEGINNING[:-1] + bytes((_BEGINNING[-1] + 1,))
"""The smallest bytes greater than all with this prefix: two comparisons cost half of ``startswith``."""
_REPEATED_KEY_AT: Final = len(_BEGINNING)
_END: Final = b"\r\n\r\n"
_FIELDS: Final = frozenset(
    (HOST, ACCEPT, AUTHORIZATION, CONNECTION, GENERATION, DEADLINE, IF_NONE_MATCH, ORIGIN, FETCH_SITE)
)
"""Fields that announce no body, upgrade or expectation. An Authorization stays accepted until
``HttpConnection.forget_access``."""
_PLAIN: Final = bytes(byte if 0x21 <= byte < 0x7F and byte not in b"%?#" else 0xFF ^ byte for byte in range(256))
"""Maps each character that needs no escape in a path to itself, and all others to something else."""

_POST: Final = b"POST "
_BATCH_FIELDS: Final = _FIELDS | {CONTENT_TYPE, CONTENT_LENGTH}
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)[ \t]*\r\n", re.IGNORECASE)
_MAX_DIGITS: Final = len(str(SLICE_BYTES))
"""Digits of a length: at most a slice is matched."""

EAGER_ATTEMPTS: Final = 16
ATTEMPT_EVERY: Final = 256
"""After ``EAGER_ATTEMPTS`` requests in a row without a repeat, only one in this many is remembered."""


class RepeatedLookup:
    """Lookups that share the bytes after the key, and their meaning."""

    __slots__ = ("_accept", "_condition", "_connection_field", "_deadline_ms", "_generation", "_key", "_tail")

    def __init__(self, tail: bytes, lookup: LookupExchange) -> None:
        self._tail = tail
        self._key = slice(_REPEATED_KEY_AT, -len(tail))
        self._connection_field = lookup.connection_field
        self._generation = lookup.generation
        self._accept = lookup.accept
        self._deadline_ms: int | None = None
        self._condition: bytes | None = None
        if isinstance(lookup, ConditionalLookupExchange):
            self._deadline_ms, self._condition = lookup.deadline_ms, lookup.condition

    def match(self, data: bytes, connection: ClientConnection) -> LookupExchange | None:
        """Return the lookup that ``data`` requests, or None."""
        if data < _BEGINNING or data >= _BEGINNING_END or not data.endswith(self._tail):
            return None
        key = data[self._key]
        if not 0 < len(key) <= MAX_KEY_BYTES or key.translate(_PLAIN) != key:
            return None
        if self._deadline_ms is not None or self._condition is not None:
            return ConditionalLookupExchange(
                connection,
                self._connection_field,
                key.decode(),
                self._generation,
                self._accept,
                deadline_ms=self._deadline_ms,
                condition=self._condition,
            )
        return LookupExchange(connection, self._connection_field, key.decode(), self._generation, self._accept)


class RepeatedBatch:
    """Batches that share the head except for the length's digits. Keeps nothing of the body."""

    __slots__ = (
        "_accept",
        "_beginning",
        "_connection_field",
        "_deadline_ms",
        "_digits_at",
        "_digits_end",
        "_generation",
        "_tail",
    )

    def __init__(self, beginning: bytes, tail: bytes, batch: BatchExchange) -> None:
        self._beginning = beginning
        self._tail = tail
        self._digits_at = len(beginning)
        self._digits_end = self._digits_at + _MAX_DIGITS + len(tail)
        """The latest end of the bytes after the digits."""
        self._connection_field = batch.connection_field
        self._generation = batch.generation
        self._accept = batch.accept
        self._deadline_ms = batch.deadline_ms

    def match(self, data: bytes, connection: ClientConnection) -> BatchExchange | None:
        """Return the batch that ``data`` requests, or None."""
        if not data.startswith(self._beginning):
            return None
        tail_at = data.find(self._tail, self._digits_at, self._digits_end)
        if tail_at < 0:
            return None
        body = data[tail_at + len(self._tail) :]
        limits = connection.limits
        # The parser handles any other way to write the length.
        if data[self._digits_at : tail_at] != b"%d" % len(body) or len(body) > limits.max_body_bytes:
            return None
        try:
            keys, partial = parse_batch(body, limits.max_keys, connection.service.keys_type)
        except HttpProblem:
            return None
        return BatchExchange(
            connection,
            self._connection_field,
            keys,
            self._generation,
            self._accept,
            partial=partial,
            body_bytes=len(body),
            deadline_ms=self._deadline_ms,
        )


RepeatedRequest = RepeatedLookup | RepeatedBatch
"""``match`` returns the exchange of bytes that begin a request, or None if they are no valid repeat."""


def recognise_repeats(data: bytes, request: Request, exchange: Exchange, unmatched: int) -> RepeatedRequest | None:
    """Return a recogniser of ``request``, the last of ``unmatched`` without repeat. It must be a lookup or batch that
    keeps the connection open, and ``data`` must hold nothing else. That costs a tenth of a batch."""
    is_worth_it = unmatched <= EAGER_ATTEMPTS or unmatched % ATTEMPT_EVERY == 0
    if request.connection_field is CLOSE or not is_worth_it or type(exchange.connection) is NamedDatasetConnection:
        return None
    if isinstance(exchange, LookupExchange):
        if len(data) > MAX_REPEATED_HEAD_BYTES or request.method != b"GET":
            return None
        head = _GET + request.target
        tail = data[len(head) :]
        whole = data.startswith(_BEGINNING) and data.startswith(head) and tail.find(_END) == len(tail) - len(_END)
        return RepeatedLookup(tail, exchange) if whole and _FIELDS.issuperset(request.fields) else None
    if isinstance(exchange, BatchExchange):
        head_end = data.find(_END, 0, MAX_REPEATED_HEAD_BYTES)
        if head_end < 0 or not data.startswith(_POST) or not _BATCH_FIELDS.issuperset(request.fields):
            return None
        body_at = head_end + len(_END)
        length = _LENGTH.search(data, 0, body_at)
        if length is not None and body_at + int(length[1]) == len(data):
            return RepeatedBatch(data[: length.start(1)], data[length.end(1) : body_at], exchange)
    return None
