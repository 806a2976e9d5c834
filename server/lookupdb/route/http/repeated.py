"""Recognises a repeated request, for another key or for other keys, by its bytes and without the parser.

A client sends the same head with each request. Of a lookup, only the key in the target changes; of a batch, the body
and the digits of its length. A parser reads from the left and does not look back: what follows the target was accepted
once, so it is accepted after any other target that is made of the same kind of characters, and means the same. The same
holds of what follows the digits, with a body of that length behind it.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from lookupdb.keys import MAX_KEY_BYTES
from lookupdb.route.http import target
from lookupdb.route.http.answers import CLOSE
from lookupdb.route.http.exchanges import (
    BatchExchange,
    ClientConnection,
    ConditionalLookupExchange,
    Exchange,
    LookupExchange,
)
from lookupdb.route.http.limits import MAX_REPEATED_HEAD_BYTES, SLICE_BYTES
from lookupdb.route.http.problems import HttpProblem
from lookupdb.route.http.request import (
    ACCEPT,
    AUTHORIZATION,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    DEADLINE,
    GENERATION,
    HOST,
    IF_NONE_MATCH,
    Request,
)

_GET: Final = b"GET "
_BEGINNING: Final = _GET + target.LOOKUP_KEY
_BEGINNING_END: Final = _BEGINNING[:-1] + bytes((_BEGINNING[-1] + 1,))
"""The smallest bytes greater than all that begin so: to compare with both costs half of ``startswith``."""
_KEY_AT: Final = len(_BEGINNING)
_END: Final = b"\r\n\r\n"
_FIELDS: Final = frozenset((HOST, ACCEPT, AUTHORIZATION, CONNECTION, GENERATION, DEADLINE, IF_NONE_MATCH))
"""None of them announces a body, an upgrade or an expectation. What was accepted of Authorization is accepted until the
connection is told to forget it (``HttpConnection.forget_access``)."""
_PLAIN: Final = bytes(byte if 0x21 <= byte < 0x7F and byte not in b"%?#" else 0xFF ^ byte for byte in range(256))
"""Translates to itself what stands for itself in a path, and everything else to something else."""

_POST: Final = b"POST "
_BATCH_FIELDS: Final = _FIELDS | {CONTENT_TYPE, CONTENT_LENGTH}
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)[ \t]*\r\n", re.IGNORECASE)
_MAX_DIGITS: Final = len(str(SLICE_BYTES))
"""Of a length: no more than a slice comes here."""

EAGER_ATTEMPTS: Final = 16
ATTEMPT_EVERY: Final = 256
"""Of so many requests in a row that were no repeats one is remembered, once there were ``EAGER_ATTEMPTS``."""


class RepeatedRequest(Protocol):
    """The part that the requests of one connection share, and what it means."""

    def match(self, data: bytes, connection: ClientConnection) -> Exchange | None:
        """What ``data``, which begins a request, asks for; None if it is another request, or is to be refused."""


class RepeatedLookup:
    """Lookups share the bytes behind the key. A ``RepeatedRequest``."""

    __slots__ = ("_accept", "_condition", "_connection_field", "_deadline_ms", "_generation", "_key", "_tail")

    def __init__(self, tail: bytes, lookup: LookupExchange) -> None:
        self._tail = tail
        self._key = slice(_KEY_AT, -len(tail))
        """Where the key is in a repeat."""
        self._connection_field = lookup.connection_field
        self._generation = lookup.generation
        self._accept = lookup.accept
        self._deadline_ms: int | None = None
        self._condition: bytes | None = None
        if isinstance(lookup, ConditionalLookupExchange):
            self._deadline_ms, self._condition = lookup.deadline_ms, lookup.condition

    def match(self, data: bytes, connection: ClientConnection) -> LookupExchange | None:
        """The lookup that ``data`` asks for."""
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
    """Batches share the bytes before the digits of the length, and those from there to the body. A ``RepeatedRequest``.

    Nothing of the body is kept.
    """

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
        """Where the bytes behind them end at the latest."""
        self._connection_field = batch.connection_field
        self._generation = batch.generation
        self._accept = batch.accept
        self._deadline_ms = batch.deadline_ms

    def match(self, data: bytes, connection: ClientConnection) -> BatchExchange | None:
        """The batch that ``data`` asks for."""
        if not data.startswith(self._beginning):
            return None
        tail_at = data.find(self._tail, self._digits_at, self._digits_end)
        if tail_at < 0:
            return None
        body = data[tail_at + len(self._tail) :]
        limits = connection.limits
        # A length that is written in any other way is for the parser.
        if data[self._digits_at : tail_at] != b"%d" % len(body) or len(body) > limits.max_body_bytes:
            return None
        try:
            keys, partial = connection.service.batches.parse(body, limits.max_keys)
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


def is_worth_remembering(unmatched: int) -> bool:
    """Whether to be ready for repeats of the last of ``unmatched`` requests in a row that were none: that costs a tenth
    of what a batch does."""
    return unmatched <= EAGER_ATTEMPTS or unmatched % ATTEMPT_EVERY == 0


def recognise_repeats(data: bytes, request: Request, exchange: Exchange) -> RepeatedRequest | None:
    """A recogniser of ``request``, if ``data`` holds nothing else, and it is a lookup or a batch that keeps the
    connection open."""
    if request.connection_field is CLOSE:
        return None
    if isinstance(exchange, LookupExchange):
        return _recognise_lookup(data, request, exchange)
    return _recognise_batch(data, request, exchange) if isinstance(exchange, BatchExchange) else None


def _recognise_lookup(data: bytes, request: Request, lookup: LookupExchange) -> RepeatedLookup | None:
    if len(data) > MAX_REPEATED_HEAD_BYTES or request.method != b"GET":
        return None
    head = _GET + request.target
    tail = data[len(head) :]
    whole = data.startswith(_BEGINNING) and data.startswith(head) and tail.find(_END) == len(tail) - len(_END)
    return RepeatedLookup(tail, lookup) if whole and _FIELDS.issuperset(request.fields) else None


def _recognise_batch(data: bytes, request: Request, batch: BatchExchange) -> RepeatedBatch | None:
    head_end = data.find(_END, 0, MAX_REPEATED_HEAD_BYTES)
    if head_end < 0 or not data.startswith(_POST) or not _BATCH_FIELDS.issuperset(request.fields):
        return None
    body_at = head_end + len(_END)
    length = _LENGTH.search(data, 0, body_at)
    if length is None or body_at + int(length[1]) != len(data):
        return None
    return RepeatedBatch(data[: length.start(1)], data[length.end(1) : body_at], batch)
