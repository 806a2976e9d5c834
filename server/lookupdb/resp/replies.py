"""RESP replies, and what of them is told apart by its beginning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CRLF: Final = b"\r\n"
OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"
NIL: Final = {2: b"$-1\r\n", 3: b"_\r\n"}
"""By protocol version."""
NO_ARRAY: Final = {2: b"*-1\r\n", 3: b"_\r\n"}
"""By protocol version: what EXEC replies if it executes nothing."""


def bulk(value: bytes | str) -> bytes:
    """A bulk string."""
    data = value.encode() if isinstance(value, str) else value
    return b"$%d\r\n%b\r\n" % (len(data), data)


def integer(number: int) -> bytes:
    """An integer."""
    return b":%d\r\n" % number


def array(items: Iterable[bytes]) -> bytes:
    """An array of replies."""
    replies = list(items)
    return b"*%d\r\n%b" % (len(replies), b"".join(replies))


def mapping(items: Iterable[tuple[bytes, bytes]], protocol: int) -> bytes:
    """A map of replies: in version 2 an array of names and values in turn."""
    pairs = [name + value for name, value in items]
    return (b"%%%d\r\n" if protocol == 3 else b"*%d\r\n") % (
        len(pairs) if protocol == 3 else 2 * len(pairs)
    ) + b"".join(pairs)


def error(message: str) -> bytes:
    """An error; its first word is the code, such as ERR."""
    return b"-%b\r\n" % message.translate(_ONE_LINE).encode(errors="replace")


_ONE_LINE: Final = {ord("\r"): " ", ord("\n"): " "}


def prefix_end(prefix: bytes) -> bytes:
    """The smallest bytes greater than all that begin with ``prefix``: ``prefix <= data < end`` tells whether ``data``
    begins with it, at half the cost of ``startswith``. ``prefix`` must not end in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
