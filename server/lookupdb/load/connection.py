"""One connection to a router: a request at a time, and its answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import httptools

MAX_BODY_BYTES: Final = 128 << 20
"""Of one answer: a router's largest, and what JSON makes of raw values."""
READ_BYTES: Final = 256_000
"""What uvloop reads at once. Behind a piece of so many bytes more may have come already."""
_SURPLUS: Final = "unasked data"
_GENERATION_FIELD: Final = b"Lookupdb-Generation"
_LOWER_FIELD: Final = _GENERATION_FIELD.lower()


class ConnectionOwner(Protocol):
    """Is told what becomes of a connection's request."""

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes of answers can be kept. They count as kept then, until ``give_back``."""

    def give_back(self, size: int) -> None:
        """So many bytes are kept no longer."""

    def take_answer(self, connection: LoadConnection, status: int, generation: bytes, body: bytes) -> None:
        """The request of ``connection`` is answered; it takes another one if it ``is_open``."""

    def lose(self, connection: LoadConnection, label: str) -> None:
        """``connection`` is closed. Its request, if it has one, is not answered."""


class LoadConnection(asyncio.Protocol):
    """A connection that is kept alive. ``owner`` may set ``intended`` and ``keys``, which belong to its request."""

    __slots__ = (
        "_answer",
        "_body",
        "_generation",
        "_kept",
        "_owner",
        "_parser",
        "_transport",
        "_why",
        "_write",
        "intended",
        "is_busy",
        "is_open",
        "keys",
    )

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: tuple[int, bytes, bytes] | None = None
        """The answer that is whole, until the owner is told: no sooner than all that has come was looked at, as the
        owner may ask at once, and what came before that is no answer to it."""
        self._generation = b""
        self._body: list[bytes] = []
        self._kept = 0
        self._why = ""
        self.is_open = self.is_busy = False
        self.intended = 0.0
        self.keys = 0

    def connection_made(self, transport: Any) -> None:
        """asyncio's."""
        self._transport, self._write = transport, transport.write
        self.is_open = True

    def send(self, request: bytes) -> None:
        """Send a request; there is none unanswered."""
        self.is_busy = True
        self._write(request)

    def abort(self, why: str) -> None:
        """Close it at once. ``why`` is what the owner is told, when it is closed."""
        self.is_open = False
        self._answer = None
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        if not self.is_busy or self._answer is not None:
            self.abort(_SURPLUS)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort("not HTTP")
        if self._answer is None:
            return
        if len(data) < READ_BYTES:
            self._tell()
        else:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._tell)  # the loop looks at sockets between the two

    def on_message_begin(self) -> None:
        """The parser's."""
        if self._answer is not None:
            self.abort(_SURPLUS)

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's."""
        if len(name) == len(_GENERATION_FIELD) and (name == _GENERATION_FIELD or name.lower() == _LOWER_FIELD):
            self._generation = value

    def on_body(self, body: bytes) -> None:
        """The parser's."""
        if self._kept + len(body) > MAX_BODY_BYTES or not self._owner.has_room(len(body)):
            self.abort("an answer larger than can be kept")
            return
        self._kept += len(body)
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The parser's."""
        if self._why or (status := self._parser.get_status_code()) < 200:
            return
        generation, chunks = self._generation, self._body
        self._generation, self._body = b"", []
        self._release()
        self._answer = status, generation, chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if not self._parser.should_keep_alive() and self._transport is not None:
            self.is_open = False
            self._transport.close()

    def _tell(self) -> None:
        if (answer := self._answer) is not None:
            self._answer = None
            self.is_busy = False
            self._owner.take_answer(self, *answer)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's."""
        self.is_open = False
        self._release()
        self._tell()
        self._owner.lose(self, self._why or ("reset" if error else "closed"))

    def _release(self) -> None:
        self._owner.give_back(self._kept)
        self._kept = 0
