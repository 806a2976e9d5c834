"""Recognises a repeated request, for another key, by its bytes and without the parser.

A client sends the same head with each request, and only the key in its target changes. A parser reads from the left and
does not look back: what follows the target was accepted once, so it is accepted after any other target that is made
of the same kind of characters, and means the same.
"""

from __future__ import annotations

from typing import Final

from lookupdb.keys import MAX_KEY_BYTES
from lookupdb.route.http import target
from lookupdb.route.http.answers import CLOSE
from lookupdb.route.http.exchanges import ClientConnection, Exchange, LookupExchange, ShorterLookupExchange
from lookupdb.route.http.limits import MAX_REPEATED_HEAD_BYTES
from lookupdb.route.http.request import ACCEPT, AUTHORIZATION, CONNECTION, DEADLINE, GENERATION, HOST, Request

_GET: Final = b"GET "
_BEGINNING: Final = _GET + target.LOOKUP_KEY
_BEGINNING_END: Final = _BEGINNING[:-1] + bytes((_BEGINNING[-1] + 1,))
"""The smallest bytes greater than all that begin so: to compare with both costs half of ``startswith``."""
_KEY_AT: Final = len(_BEGINNING)
_END: Final = b"\r\n\r\n"
_FIELDS: Final = frozenset((HOST, ACCEPT, AUTHORIZATION, CONNECTION, GENERATION, DEADLINE))
"""None of them announces a body, an upgrade or an expectation. What was accepted of Authorization is accepted until the
connection is told to forget it (``HttpConnection.forget_access``)."""
_PLAIN: Final = bytes(byte if 0x21 <= byte < 0x7F and byte not in b"%?#" else 0xFF ^ byte for byte in range(256))
"""Translates to itself what stands for itself in a path, and everything else to something else."""


class RepeatedRequest:
    """The part that the requests of one connection share: the bytes behind the key, and what they mean."""

    __slots__ = ("_accept", "_connection_field", "_deadline_ms", "_generation", "_key", "_tail")

    def __init__(self, tail: bytes, lookup: LookupExchange) -> None:
        self._tail = tail
        self._key = slice(_KEY_AT, -len(tail))
        """Where the key is in a repeat."""
        self._connection_field = lookup.connection_field
        self._generation = lookup.generation
        self._accept = lookup.accept
        self._deadline_ms = lookup.deadline_ms if isinstance(lookup, ShorterLookupExchange) else None

    def match(self, data: bytes, connection: ClientConnection) -> LookupExchange | None:
        """The lookup that ``data``, which begins a request, asks for; None if it is another request."""
        if data < _BEGINNING or data >= _BEGINNING_END or not data.endswith(self._tail):
            return None
        key = data[self._key]
        if not 0 < len(key) <= MAX_KEY_BYTES or key.translate(_PLAIN) != key:
            return None
        if self._deadline_ms is not None:
            return ShorterLookupExchange(
                connection,
                self._connection_field,
                key.decode(),
                self._generation,
                self._accept,
                deadline_ms=self._deadline_ms,
            )
        return LookupExchange(connection, self._connection_field, key.decode(), self._generation, self._accept)


def recognise_repeats(data: bytes, request: Request, exchange: Exchange) -> RepeatedRequest | None:
    """A recogniser of ``request``, if ``data`` holds nothing else and it is a lookup that keeps the connection open."""
    if len(data) > MAX_REPEATED_HEAD_BYTES:
        return None
    if request.method != b"GET" or request.connection_field is CLOSE or not isinstance(exchange, LookupExchange):
        return None
    head = _GET + request.target
    tail = data[len(head) :]
    whole = data.startswith(_BEGINNING) and data.startswith(head) and tail.find(_END) == len(tail) - len(_END)
    return RepeatedRequest(tail, exchange) if whole and _FIELDS.issuperset(request.fields) else None
