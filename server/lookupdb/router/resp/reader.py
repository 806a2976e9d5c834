"""What one client sends, cut into lookups and other commands, in whatever pieces it comes. No I/O.

GETs and MGETs are cut by ``LookupCodec``, natively where the kernels are. All else goes to ``RequestParser``, which
takes any legal command and knows every limit; lookups that stand behind such a command in the same read go there, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Protocol

from lookupdb import native
from lookupdb.keys import MAX_KEY_BYTES
from lookupdb.resp.requests import CRLF, Command, CommandLimits, ProtocolError, RequestParser, keys_of_mget
from lookupdb.router.batch_keys import UNAVAILABLE, BatchKeys, ListedKeys, ListedValues
from lookupdb.tokens import MAX_TOKEN_BYTES

# The bounds of the router's RESP that no dataset sets. ``clients.limits`` has those that hold in any protocol.


GROUP_KEYS: Final = 256
"""GETs of one client that are looked up together. Further ones wait until these are answered."""

TURN_COMMANDS: Final = 64
"""Commands of one client that are answered at once. Further ones wait until others had their turn."""

TURN_BYTES: Final = 64 * 1024
"""When so much has come of one client, others have their turn before more is read: the loop itself would read 32 times
256 KiB of one socket before it looks at any other."""

SLICE_BYTES: Final = 16 * 1024
"""The parser, which needs two microseconds a word, is given so much in one turn: 2,300 words."""

REPLY_BYTES: Final = 16 * 1024
"""Replies of one turn are collected up to so many bytes, and sent before more are made."""

MAX_ARGUMENTS: Final = 100_001
"""Words of one command, as a shard server takes them: so that too many keys can be answered with an error. More, or
more bytes than ``maxBodyBytes``: the connection is closed."""

MAX_INLINE_BYTES: Final = 64 * 1024
"""Of an inline command, or of a length line: the same as Redis. More: the connection is closed."""

PART_RATIO: Final = 32
"""So many times may each byte of a lookup that comes in pieces be read again natively, until it is whole."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What one command may have. ``resp.requests.CommandLimits``."""

    max_arguments: int
    max_request_bytes: int
    max_inline_bytes: int


BEFORE_AUTH: Final = ReadLimits(
    max_arguments=16, max_request_bytes=MAX_TOKEN_BYTES + 1024, max_inline_bytes=MAX_TOKEN_BYTES + 1024
)
"""Of a client that has shown no token: HELLO with AUTH and SETNAME has seven words."""


def make_read_limits(max_body_bytes: int) -> ReadLimits:
    """Those of a client that may ask."""
    return ReadLimits(MAX_ARGUMENTS, max_body_bytes, MAX_INLINE_BYTES)


# The bytes of lookups: from what a client sends to keys, from values to replies.
#
# ``PackedCodec`` does it with the native kernels, ``ListedCodec`` is their twin. What is no lookup, or not written as
# clients write it, is read by the same code for both.


OTHER: Final = 0
"""Anything else, or nothing."""
PART: Final = 1
"""The beginning of a lookup, or of any other command, whose end has not arrived."""
GETS: Final = 2
"""One GET or more."""
MGET: Final = 3
"""One MGET."""

MAX_WORDS: Final = 16_384
"""Of an MGET that is read here."""
_GET: Final = re.compile(rb"\*2\r\n\$3\r\n[Gg][Ee][Tt]\r\n\$([1-9][0-9]{0,2})\r\n")
_LINE: Final = re.compile(rb".?(0|[1-9][0-9]{0,5})?(?:(?<=[0-9])(\r\n)|(?<=[0-9])\r\Z|\Z)", re.DOTALL)
"""A line of a number behind its first byte, or its beginning."""
_MAX_LINE_BYTES: Final = 9
"""More than any such line has."""


class LookupCodec(Protocol):
    """Reads and answers lookups of one kind."""

    def cut(self, data: bytes, start: int, most: int) -> tuple[int, int, BatchKeys | None]:
        """What stands at ``start``, where it ends, and its keys: of GETs, at most ``most``, or of an MGET. The end of
        anything else is ``start``."""

    def make_keys(self, keys: list[bytes]) -> BatchKeys:
        """Keys of a command that was read otherwise. What is no UTF-8 is a key that no record has."""

    def count_found(self, values: Any) -> int:
        """How many of ``values``, BatchValues, there are."""

    def encode(self, values: Any, nil: bytes, error: bytes, *, is_list: bool) -> bytes:
        """The replies to lookups: each value as a bulk string, or ``nil`` if it is missing, or ``error`` if it is
        unavailable; ``is_list``: as one list."""

    def encode_in_pieces(self, values: Any, nil: bytes, error: bytes, *, is_list: bool) -> list[bytes]:
        """The same in pieces that follow each other, without a copy of any large value. Empties ``values``."""


def choose_codec() -> LookupCodec:
    """The native kernels' if they are to be used, or their twin."""
    kernels = native.kernels()
    return ListedCodec() if kernels is None else PackedCodec(kernels)


class PackedCodec:
    """Lookups by the native kernels. A ``LookupCodec``."""

    def __init__(self, kernels: ModuleType) -> None:
        self.cut = kernels.PackedKeys.cut
        self.make_keys = kernels.PackedKeys.from_bytes

    def count_found(self, values: Any) -> int:
        """How many there are."""
        count: int = values.found_count
        return count

    def encode(self, values: Any, nil: bytes, error: bytes, *, is_list: bool) -> bytes:
        """The replies."""
        replies: bytes = values.encode_replies(is_list, nil, error)
        return replies

    def encode_in_pieces(self, values: Any, nil: bytes, error: bytes, *, is_list: bool) -> list[bytes]:
        """The replies in pieces."""
        pieces: list[bytes] = values.encode_replies_in_pieces(is_list, nil, error)
        return pieces


class ListedCodec:
    """Lookups by Python. A ``LookupCodec``."""

    def cut(self, data: bytes, start: int, most: int) -> tuple[int, int, BatchKeys | None]:
        """What stands at ``start``, where it ends, and its keys."""
        keys, end = _read_gets(data, start, most)
        if keys:
            return GETS, end, self.make_keys(keys)
        if start == len(data):
            return OTHER, start, None
        whole = keys_of_mget(data) if not start else None
        if whole is not None and len(whole) < MAX_WORDS:
            return MGET, len(data), self.make_keys(whole)
        try:
            keys, end = _read_mget(data, start)
        except _Stop as stop:
            return stop.kind, start, None
        return MGET, end, self.make_keys(keys)

    def make_keys(self, keys: list[bytes]) -> BatchKeys:
        """Keys of a command."""
        return ListedKeys([key.decode("utf-8", "surrogateescape") for key in keys])

    def count_found(self, values: ListedValues) -> int:
        """How many there are."""
        return len(values.values) - values.values.count(None) - values.unavailable_count

    def encode(self, values: ListedValues, nil: bytes, error: bytes, *, is_list: bool) -> bytes:
        """The replies."""
        return b"".join(self.encode_in_pieces(values, nil, error, is_list=is_list))

    def encode_in_pieces(self, values: ListedValues, nil: bytes, error: bytes, *, is_list: bool) -> list[bytes]:
        """The replies in pieces."""
        gathered = values.values
        pieces = [b"*%d\r\n" % len(gathered)] if is_list else []
        for place, value in enumerate(gathered):
            gathered[place] = None
            if value is None:
                pieces.append(nil)
            elif value is UNAVAILABLE:
                pieces.append(error)
            else:
                pieces += (b"$%d\r\n" % len(value), value, CRLF)
        return pieces


class _Stop(Exception):
    """There is no whole MGET."""

    def __init__(self, kind: int) -> None:
        self.kind = kind


def _read_gets(data: bytes, start: int, most: int) -> tuple[list[bytes], int]:
    """The keys of the GETs at ``start``, and where they end."""
    keys: list[bytes] = []
    while len(keys) < most and (head := _GET.match(data, start)) is not None:
        end = head.end() + int(head[1])
        if end - head.end() > MAX_KEY_BYTES or data[end : end + 2] != CRLF:
            break
        keys.append(data[head.end() : end])
        start = end + 2
    return keys, start


def _read_mget(data: bytes, start: int) -> tuple[list[bytes], int]:
    """The keys of the MGET at ``start``, and where it ends. Raises _Stop."""
    count, start = _read_number(data, start, b"*", MAX_WORDS)
    if count < 2:
        raise _Stop(OTHER)  # at once: behind a command without a word no word of it follows
    name, start = _read_word(data, start)
    if name.upper() != b"MGET" and (count, name.upper()) != (2, b"GET"):
        raise _Stop(OTHER)
    keys = []  # of a GET none: it is not whole, or a word of it is none that is read here
    for _ in range(1, count):
        key, start = _read_word(data, start)
        keys.append(key)
    return keys, start


def _read_word(data: bytes, start: int) -> tuple[bytes, int]:
    """The bulk string at ``start``, which may be a key, and where it ends. Raises _Stop."""
    length, start = _read_number(data, start, b"$", MAX_KEY_BYTES)
    end = start + length
    line_end = data[end : end + 2]
    if not length or not CRLF.startswith(line_end):
        raise _Stop(OTHER)
    if line_end != CRLF:
        raise _Stop(PART)
    return data[start:end], end + 2


def _read_number(data: bytes, start: int, prefix: bytes, most: int) -> tuple[int, int]:
    """The line of ``prefix`` and a number up to ``most`` at ``start``, and where it ends. Raises _Stop."""
    line = data[start : start + _MAX_LINE_BYTES]
    found = _LINE.match(line)
    if found is None or line[:1] not in (prefix, b"") or int(found[1] or b"0") > most:
        raise _Stop(OTHER)
    if not found[2]:
        raise _Stop(PART if found.end() == len(line) else OTHER)
    return int(found[1]), start + found.end()


_EMPTY: Final = b""


class LookupCommands:
    """GETs, one or more, or one MGET: ``kind`` of ``codec``. The client sent ``size`` bytes."""

    __slots__ = ("keys", "kind", "size")

    def __init__(self, kind: int, keys: BatchKeys, size: int) -> None:
        self.kind = kind
        self.keys = keys
        self.size = size


class CommandReader:
    """Feed it, and take what ``next`` returns until that is None: in this turn, if it ``has_more``."""

    __slots__ = (
        "_at",
        "_backlog",
        "_codec",
        "_command",
        "_data",
        "_is_parsing",
        "_may_feed",
        "_parser",
        "_problem",
        "_read_again",
        "has_unread",
        "is_empty",
        "is_partial",
        "is_queueing",
        "limits",
    )

    def __init__(self, codec: LookupCodec, limits: CommandLimits) -> None:
        self._codec = codec
        self.limits = limits
        """Of the next command."""
        self.is_queueing = False
        """Whether lookups are returned as commands, which a transaction keeps."""
        self.clear()

    def clear(self) -> None:
        """Forget what has come."""
        self._data = _EMPTY
        self._at = 0
        self._parser: RequestParser | None = None
        self._is_parsing = False
        """The parser has what has come."""
        self._backlog = _EMPTY
        """What the parser is given later."""
        self._may_feed = True
        self._command: Command | None = None
        """The next one: it was read to see that it is no GET."""
        self._problem: ProtocolError | None = None
        """What stands behind the last GETs."""
        self._read_again = 0
        """Bytes of a command that is not whole, each as often as it was read."""
        self.is_empty = True
        """All that has come was returned."""
        self.has_unread = False
        """Something has come since ``next`` returned None for the last time, or was left by it."""
        self.is_partial = False
        """A command has come in part, and nothing whole is left."""

    @property
    def held_bytes(self) -> int:
        """About how many bytes of memory that takes which was not returned."""
        parsed = self._parser.held_bytes if self._parser is not None else 0
        return len(self._data) + len(self._backlog) + parsed

    @property
    def has_more(self) -> bool:
        """Whether ``next`` returned None only because others are to have their turn."""
        return bool(self._backlog)

    def feed(self, data: bytes) -> None:
        """Take what the client sent."""
        self.is_empty = False
        self.has_unread = True
        if self._is_parsing:
            self._backlog += data
        elif not self._data:
            self._data = data
        else:
            self._data = self._data[self._at :] + data
            self._at = 0

    def begin_turn(self) -> None:
        """Others had their turn."""
        self._may_feed = True

    def next(self) -> LookupCommands | Command | None:
        """The next lookups, as many as may be answered together, or the next command; None when none is whole. Raises
        ProtocolError: then nothing more can be read."""
        while True:
            if self._is_parsing:
                return self._next_in_turn()
            data, at = self._data, self._at
            if self.is_queueing and at < len(data):
                self._begin_parsing()
                continue
            kind, end, keys = self._codec.cut(data, at, GROUP_KEYS)
            if keys is not None and (kind == GETS or self._is_within_limits(end - at, len(keys))):
                self._advance(end)
                return LookupCommands(kind, keys, end - at)
            if at == len(data):
                self._finish()
                return None
            if kind == PART and self._may_read_again(len(data) - at):
                self._rest()
                return None
            self._begin_parsing()

    def _next_in_turn(self) -> LookupCommands | Command | None:
        """The next out of the parser, which is given a slice more if it has nothing whole."""
        was_partial = self.is_partial
        parsed = self._next_parsed()
        if parsed is None and self._backlog and self._may_feed:
            self._feed_parser()
            parsed = self._next_parsed()
        if parsed is None and self._backlog:
            self.is_partial = was_partial
        elif parsed is None and self._is_parsing:
            self._rest()
        return parsed

    def _feed_parser(self) -> None:
        self._may_feed = False
        assert self._parser is not None
        self._parser.feed(self._backlog[:SLICE_BYTES])
        self._backlog = self._backlog[SLICE_BYTES:]

    def _advance(self, end: int) -> None:
        """All up to ``end`` is returned."""
        self._read_again = 0
        self.is_partial = False
        if end == len(self._data):
            self._finish()
        else:
            self._at = end

    def _finish(self) -> None:
        """All is returned."""
        self._data, self._at = _EMPTY, 0
        self.is_empty = True
        self.is_partial = self.has_unread = False

    def _rest(self) -> None:
        """What is left is no whole command."""
        self.has_unread = False
        self.is_partial = True

    def _is_within_limits(self, size: int, key_count: int) -> bool:
        """Whether an MGET of so many bytes is for certain; else the parser says, as of one that comes in pieces."""
        return size <= self.limits.max_request_bytes and key_count < self.limits.max_arguments

    def _may_read_again(self, size: int) -> bool:
        """Whether the beginning of a lookup, which has ``size`` bytes, is kept here until more comes. Under narrow
        limits the parser has it, which refuses too many words when they are announced."""
        if self.limits.max_arguments < MAX_WORDS:
            return False
        self._read_again += size
        return size <= self.limits.max_request_bytes and self._read_again <= PART_RATIO * size

    def _begin_parsing(self) -> None:
        """Leave what has come to the parser."""
        if self._parser is None:
            self._parser = RequestParser(self.limits)
        self._backlog = self._data[self._at :]
        self._data, self._at, self._read_again = _EMPTY, 0, 0
        self._is_parsing = True

    def _next_parsed(self) -> LookupCommands | Command | None:
        """The next lookups or command out of the parser; it is done with when it has nothing any more."""
        gets: list[bytes] = []
        while len(gets) < GROUP_KEYS:
            try:
                command = self._parse()
            except ProtocolError as problem:
                if not gets:
                    raise
                self._problem = problem
                break
            if command is None:
                break
            name = command[0].upper()
            if name == b"GET" and len(command) == 2 and not self.is_queueing:
                gets.append(command[1])
            elif gets:
                self._command = command
                break
            else:
                self._settle_parser()
                if name == b"MGET" and len(command) > 1 and not self.is_queueing:
                    return self._make_lookups(MGET, command[1:])
                return command
        self._settle_parser()
        return self._make_lookups(GETS, gets) if gets else None

    def _parse(self) -> Command | None:
        """The next command; None also where a problem stands behind GETs: it is raised the next time."""
        if self._problem is not None:
            raise self._problem
        if self._command is not None:
            command, self._command = self._command, None
            return command
        assert self._parser is not None
        self._parser.limits = self.limits
        return self._parser.next()

    def _make_lookups(self, kind: int, keys: list[bytes]) -> LookupCommands:
        return LookupCommands(kind, self._codec.make_keys(keys), sum(map(len, keys)))

    def _settle_parser(self) -> None:
        """See whether the parser has anything left."""
        assert self._parser is not None
        if self._command is None and self._problem is None and self._parser.is_empty and not self._backlog:
            self._parser = None
            self._is_parsing = False
            self._finish()
        else:
            self.is_partial = False
