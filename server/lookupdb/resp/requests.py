"""RESP requests: cuts a client's bytes into commands. Also encodes simple replies.

``GET_HEADS`` and the lists beside it recognise a lone GET with a few operations at C speed. ``RequestParser`` reads
everything else: any valid request in any pieces, also inline, and checks every limit. hiredis' parser is as fast, but
allocates what a header announces (``*1000000000\r\n``) before it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lookupdb.keys import MAX_KEY_BYTES

CRLF: Final = b"\r\n"
OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"
NIL: Final = {2: b"$-1\r\n", 3: b"_\r\n"}
NO_ARRAY: Final = {2: b"*-1\r\n", 3: b"_\r\n"}
"""The reply of an EXEC that executes nothing, by protocol version."""


def bulk(value: bytes | str) -> bytes:
    """Encode a bulk string."""
    data = value.encode() if isinstance(value, str) else value
    return b"$%d\r\n%b\r\n" % (len(data), data)


def integer(number: int) -> bytes:
    """Encode an integer."""
    return b":%d\r\n" % number


def array(items: Iterable[bytes]) -> bytes:
    """Encode an array of replies."""
    replies = list(items)
    return b"*%d\r\n%b" % (len(replies), b"".join(replies))


def mapping(items: Iterable[tuple[bytes, bytes]], protocol: int) -> bytes:
    """Encode a map of replies. In version 2, it is an array of alternating names and values."""
    pairs = [name + value for name, value in items]
    head = b"%%%d\r\n" % len(pairs) if protocol == 3 else b"*%d\r\n" % (2 * len(pairs))
    return head + b"".join(pairs)


def error(message: str) -> bytes:
    """Encode an error. Its first word is the code, such as ERR."""
    return b"-%b\r\n" % message.translate(_ONE_LINE).encode(errors="replace")


_ONE_LINE: Final = {ord("\r"): " ", ord("\n"): " "}


Command = list[bytes]
"""The name of a command, as sent, and its arguments."""

MAX_QUOTED_BYTES: Final = 4 << 10
"""Limit of an inline command with quotes, which people type: parsing costs 0.2 microseconds per byte."""
_PART_RATIO: Final = 32
"""Limit on how often each byte of an incomplete lookup is read again by code that needs a complete one. An MGET of 448
KiB in pieces of 16 KiB needs half of that. The native kernel is fifty times as fast per byte as this parser.
"""
_ARGUMENT_BYTES: Final = 48
"""Memory of an argument in Python, besides its bytes."""

_EMPTY_COMMANDS: Final = re.compile(rb"(?:[ \t\r\x0b\x0c]{0,64}\n|\*(?:0{1,20}|-[0-9]{1,19})\r?\n)*+")
"""Empty commands, skipped together: one by one, 256 KiB of them would block all clients for a quarter of a second."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of one command, in bytes except for its words."""

    max_arguments: int
    """Limit of words, including the name."""
    max_request_bytes: int
    """Limit of all words together, even of an incomplete command."""
    max_inline_bytes: int
    """Limit of an inline command or a length line."""


class ProtocolError(Exception):
    """Invalid RESP, or too much of it: the error is sent, and the connection closed."""


MANY_KEYS: Final = frozenset((b"MGET", b"EXISTS", b"TOUCH"))
LOOKUPS: Final = MANY_KEYS | frozenset(
    b"""
    GET TYPE TTL PTTL EXPIRETIME PEXPIRETIME STRLEN GETRANGE SUBSTR
    HGET HMGET HGETALL HKEYS HVALS HLEN HEXISTS HSTRLEN
    """.split()
)
"""All commands that look up keys. Except in MANY_KEYS, the first argument is the key."""
_LOOKUPS: Final = re.compile(rb"(?<![^\s\"'])(?:EXEC|%b)\b" % b"|".join(sorted(LOOKUPS)), re.IGNORECASE)
"""Matches such a name as a word of a request, inline or not."""
_GET: Final = b"*2\r\n$3\r\nGET\r\n$"
"""The beginning of a GET up to the length of its key."""


def list_keys(command: Command) -> Command:
    """Return the keys that ``command`` looks up."""
    name = command[0].upper()
    if name not in LOOKUPS:
        return []
    return command[1:] if name in MANY_KEYS else command[1:2]


def may_look_up(data: bytes) -> bool:
    """Return whether a request in ``data``, which begins with one, may need a key's pages."""
    return _LOOKUPS.search(data) is not None


def _get_bounds() -> tuple[list[bytes], list[bytes], list[slice]]:
    heads, ends, keys = [b""] * 600, [b""] * 600, [slice(0)] * 600  # nothing is less than b""
    for length in range(1, MAX_KEY_BYTES + 1):
        head = b"%b%d\r\n" % (_GET, length)
        end = len(head) + length
        size = end + len(CRLF)
        heads[size], ends[size], keys[size] = head, head[:-1] + b"\x0b", slice(len(head), end)
    return heads, ends, keys


GET_HEADS, GET_ENDS, GET_KEYS = _get_bounds()
"""For each size of a lone GET: its beginning, the smallest bytes greater than any with this beginning, and the place
of its key. The size determines the length of the key. ``head <= data < end`` costs half of ``startswith``."""


class RequestParser:
    """Reads the requests of one connection from bytes in any pieces."""

    def __init__(self, limits: CommandLimits) -> None:
        self.limits = limits
        self._buffer = bytearray()
        self._position = 0
        self._command: Command = []
        self._missing_arguments = 0
        self._argument_bytes = 0
        self._part_bytes = self._returned_bytes = 0
        """Bytes of the incomplete command that ``take_part`` returned: the last time, and in all calls."""
        self._argument_count = 0

    @property
    def is_empty(self) -> bool:
        """True if all input belongs to returned commands."""
        return not self._missing_arguments and self._position == len(self._buffer)

    @property
    def held_bytes(self) -> int:
        """Estimated memory of the last command, or of the incomplete next one."""
        return len(self._buffer) + self._argument_bytes + _ARGUMENT_BYTES * self._argument_count

    def take_part(self, size: int) -> bytes:
        """Return and remove the input of the next command. Return nothing if some of it was read already, or if it was
        returned too often to read it again for only ``size`` more bytes.
        """
        part_bytes = len(self._buffer) - self._position
        if part_bytes <= self._part_bytes:
            self._returned_bytes = 0  # another command has begun
        self._part_bytes = part_bytes
        self._returned_bytes += part_bytes
        if self._missing_arguments or self._returned_bytes > _PART_RATIO * (part_bytes + size):
            return b""
        part = bytes(self._buffer[self._position :])
        self._buffer.clear()
        self._position = 0
        return part

    def feed(self, data: bytes) -> None:
        """Add input."""
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next(self) -> Command | None:
        """Return the next complete command, or None. After a ProtocolError nothing can be read."""
        while True:
            if not self._missing_arguments and not self._read_header():
                return None
            while self._missing_arguments:
                if not self._read_argument():
                    return None
            if self._command:
                command, self._command = self._command, []
                return command

    def _read_line(self, element: str) -> bytes | None:
        """Return the next line without its end, or None if it is incomplete."""
        end = self._buffer.find(b"\n", self._position)
        # Complete lines are checked, too: a refusal must not depend on the pieces of input.
        if (len(self._buffer) if end < 0 else end) - self._position > self.limits.max_inline_bytes:
            raise ProtocolError(f"too big {element}")
        if end < 0:
            return None
        line = bytes(self._buffer[self._position : end])
        self._position = end + 1
        return line.removesuffix(b"\r")

    def _read_header(self) -> bool:
        """Read the first line of a command. Return False if it is incomplete."""
        if (empty := _EMPTY_COMMANDS.match(self._buffer, self._position)) is not None:
            self._position = empty.end()
            del empty  # a match locks the buffer
        if self._position == len(self._buffer):
            self._buffer.clear()  # frees a large request's memory while the client is silent
            self._position = 0
            return False
        inline = self._buffer[self._position] != ord("*")
        line = self._read_line("inline request" if inline else "mbulk count string")
        if line is None:
            return False
        self._argument_bytes = self._argument_count = 0
        if inline:
            self._command = _split_inline(line)
            return True
        count = _parse_number(line[1:])
        if count is None or count > self.limits.max_arguments:
            raise ProtocolError("invalid multibulk length")
        self._missing_arguments = max(0, count)
        return True

    def _read_argument(self) -> bool:
        """Read one argument of the command. Return False if it is incomplete."""
        start = self._position
        line = self._read_line("bulk count string")
        if line is None:
            return False
        if line[:1] != b"$":
            raise ProtocolError(f"expected '$', got '{chr(line[0]) if line else ' '}'")
        length = _parse_number(line[1:])
        if length is None or length < 0 or self._argument_bytes + length > self.limits.max_request_bytes:
            raise ProtocolError("invalid bulk length")
        end = self._position + length
        if len(self._buffer) < end + 2:
            self._position = start
            return False
        self._command.append(bytes(self._buffer[self._position : end]))
        self._position = end + 2
        self._missing_arguments -= 1
        self._argument_bytes += length
        self._argument_count += 1
        return True


def _parse_number(digits: bytes) -> int | None:
    """Return a decimal number in RESP's notation, or None. Python's ``int`` also accepts ``1_0`` and spaces."""
    return int(digits) if len(digits) <= 20 and digits.removeprefix(b"-").isdigit() else None


_WORD: Final = re.compile(rb"""\s*+([^\s"']*+)(?:"((?:\\.|[^"\\])*+)"|'((?:\\'|[^'])*+)')?+(?=\s|\Z)""", re.DOTALL)
"""Matches a word of an inline command. Quotes may begin within it, and end it."""
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def _unescape(escape: re.Match[bytes]) -> bytes:
    return bytes.fromhex(escape[1].decode()) if escape[1] else _ESCAPED.get(escape[2], escape[2])


def _split_inline(line: bytes) -> Command:
    """Return the words of an inline command, with quotes as Redis reads them (sdssplitargs)."""
    if b'"' not in line and b"'" not in line:
        return line.split()
    if len(line) > MAX_QUOTED_BYTES:
        raise ProtocolError("too big inline request with quotes")
    line, position, words = line.rstrip(), 0, []
    while position < len(line):
        if (word := _WORD.match(line, position)) is None:
            raise ProtocolError("unbalanced quotes in request")
        plain, double, single = word.groups(b"")
        words.append(plain + _ESCAPE.sub(_unescape, double) + single.replace(rb"\'", b"'"))
        position = word.end()
    return words
