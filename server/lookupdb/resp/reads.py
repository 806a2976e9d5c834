"""Commands that read the value of one key, besides GET. Routers and shard servers find the value, each in its own way,
and reply by ``READS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from lookupdb.resp.commands import ANY, RespSession
from lookupdb.resp.replies import array, bulk, error, integer
from lookupdb.resp.requests import Command

Read = Callable[[RespSession, Command, "bytes | None", bool], bytes]
"""The reply to a command whose key has this value, None if no record has the key. Last, whether the dataset's values
are JSON."""

MAX_REPEATED_BYTES: Final = 1 << 20
"""The most that HMGET replies if it names fields more than once, unless the value is larger."""


def _type(_: RespSession, __: Command, value: bytes | None, ___: bool) -> bytes:
    return b"+none\r\n" if value is None else b"+string\r\n"


def _expiry(_: RespSession, __: Command, value: bytes | None, ___: bool) -> bytes:
    return integer(-2 if value is None else -1)


def _strlen(_: RespSession, __: Command, value: bytes | None, ___: bool) -> bytes:
    return integer(len(value or b""))


_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def _getrange(session: RespSession, command: Command, value: bytes | None, _: bool) -> bytes:
    bounds = [int(word) for word in command[2:] if _INTEGER.fullmatch(word)]
    if len(bounds) < len(command) - 2 or any(not -(1 << 63) <= bound < 1 << 63 for bound in bounds):
        return _refuse(session, "ERR value is not an integer or out of range")
    text = value or b""
    start, end = (max(bound + len(text), 0) if bound < 0 else bound for bound in bounds)
    # Redis compares bounds that both count from the end before it counts them from the start.
    return bulk(b"" if bounds[1] < bounds[0] < 0 else text[start : end + 1])


def _hget(session: RespSession, command: Command, value: bytes | None, is_json: bool) -> bytes:
    """HGET, HEXISTS, HSTRLEN, HMGET."""
    name, fields = command[0].upper(), list(dict.fromkeys(command[2:]))
    texts = [None] * len(fields) if value is None else session.fields.select_fields(value, fields) if is_json else None
    if texts is None:
        return _refuse(session, _WRONG_TYPE)
    if name == b"HEXISTS":
        return integer(int(texts[0] is not None))
    if name == b"HSTRLEN":
        return integer(len(texts[0] or b""))
    if name == b"HGET":
        return session.nil if texts[0] is None else bulk(texts[0])
    found = dict(zip(fields, texts, strict=True))
    most = max(MAX_REPEATED_BYTES, len(value or b""))
    if sum(len(found[field] or b"") for field in command[2:]) > most:
        return _refuse(session, f"ERR fields named more than once are more than {most} bytes together: name each once")
    replies = {field: session.nil if text is None else bulk(text) for field, text in found.items()}
    return array(replies[field] for field in command[2:])


def _hgetall(session: RespSession, command: Command, value: bytes | None, is_json: bool) -> bytes:
    """HGETALL, HKEYS, HVALS, HLEN."""
    name = command[0].upper()
    shows = name in (b"HGETALL", b"HKEYS"), name in (b"HGETALL", b"HVALS")
    fields = (0, b"") if value is None else session.fields.encode_fields(value, *shows) if is_json else None
    if fields is None:
        return _refuse(session, _WRONG_TYPE)
    count, replies = fields
    if name == b"HLEN":
        return integer(count)
    if name == b"HGETALL":
        return b"%b%d\r\n%b" % ((b"%", count, replies) if session.protocol == 3 else (b"*", 2 * count, replies))
    return b"*%d\r\n%b" % (count, replies)


_WRONG_TYPE: Final = (
    "WRONGTYPE Operation against a key holding the wrong kind of value: it is not a JSON object, so it has no fields. "
    "Use GET"
)


def _refuse(session: RespSession, message: str) -> bytes:
    session.count_error()
    return error(message)


READS: Final[Mapping[bytes, tuple[int, int, Read]]] = {
    b"TYPE": (1, 1, _type),
    **dict.fromkeys((b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME"), (1, 1, _expiry)),
    b"STRLEN": (1, 1, _strlen),
    **dict.fromkeys((b"GETRANGE", b"SUBSTR"), (3, 3, _getrange)),
    **dict.fromkeys((b"HGET", b"HEXISTS", b"HSTRLEN"), (2, 2, _hget)),
    b"HMGET": (2, ANY, _hget),
    **dict.fromkeys((b"HGETALL", b"HKEYS", b"HVALS", b"HLEN"), (1, 1, _hgetall)),
}
"""By name: least arguments, most arguments, what replies. The first argument is the key."""
