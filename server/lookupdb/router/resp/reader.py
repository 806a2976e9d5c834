"""Cuts a client's RESP bytes into lookups and other commands. Does no I/O.

``BatchKeys.cut`` cuts GETs and MGETs in their usual spelling. ``RequestParser`` reads everything else, and lookups
after that in the same read. It accepts any valid command and checks every limit. ``CommandReader`` combines the two.
"""

from __future__ import annotations

from typing import Final

from lookupdb.credentials import MAX_TOKEN_BYTES
from lookupdb.resp.requests import Command, CommandLimits, ProtocolError, RequestParser
from lookupdb.router.batch_keys import GETS, MAX_WORDS, MGET, PART, BatchKeys

# Limits of RESP that no dataset sets. ``clients`` has those of all protocols.

GROUP_KEYS: Final = 256
"""GETs of one client that are looked up together. Further ones wait for their answers."""

TURN_COMMANDS: Final = 64
"""Commands of one client per turn. Then other clients get a turn."""

TURN_BYTES: Final = 64 * 1024
"""Bytes of one client per turn. The event loop itself would read 32 times 256 KiB from one socket before any other."""

SLICE_BYTES: Final = 16 * 1024
"""Bytes that the parser gets per turn: 2,300 words of two microseconds each."""

REPLY_BYTES: Final = 16 * 1024
"""Size of the collected replies of one turn at which they are sent."""

MAX_ARGUMENTS: Final = 100_001
"""Limit of words in one command, as in a shard server. Too many keys get only an error; beyond this limit, or beyond
``maxBodyBytes``, the connection is closed."""

MAX_INLINE_BYTES: Final = 64 * 1024
"""Limit of an inline command or a length line, as in Redis. Beyond it, the connection is closed."""

PART_RATIO: Final = 32
"""The number of times that the native reader may read each byte of an incomplete lookup."""


BEFORE_AUTH: Final = CommandLimits(
    max_arguments=16, max_request_bytes=MAX_TOKEN_BYTES + 1024, max_inline_bytes=MAX_TOKEN_BYTES + 1024
)
"""Limits before a client has sent a token: HELLO with AUTH and SETNAME has seven words."""


_EMPTY: Final = b""


class LookupCommands:
    """One or more GETs, or one MGET, according to ``kind``. ``size``: their bytes, or those of their keys alone."""

    __slots__ = ("keys", "kind", "size")

    def __init__(self, kind: int, keys: BatchKeys, size: int) -> None:
        self.kind = kind
        self.keys = keys
        self.size = size


class CommandReader:
    """Returns lookups and commands: call ``feed``, then ``next`` until it returns None, and again in the next turn if
    ``has_more``."""

    __slots__ = (
        "_at",
        "_backlog",
        "_command",
        "_data",
        "_is_parsing",
        "_keys_type",
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

    def __init__(self, keys_type: type[BatchKeys], limits: CommandLimits) -> None:
        self._keys_type = keys_type
        self.limits = limits
        self.is_queueing = False
        """True if lookups are returned as commands, for a transaction."""
        self.clear()

    def clear(self) -> None:
        """Drop all input."""
        self._data = _EMPTY
        self._at = 0
        self._parser: RequestParser | None = None
        self._is_parsing = False
        """True if the parser reads the input."""
        self._backlog = _EMPTY
        self._may_feed = True
        self._command: Command | None = None
        """The next command, which was read after GETs."""
        self._problem: ProtocolError | None = None
        self._read_again = 0
        """Bytes of an incomplete command, counted as often as they were read."""
        self.is_empty = True
        """True if all input was returned."""
        self.has_unread = False
        """True if ``next`` has not seen all input, or has left some."""
        self.is_partial = False
        """True if only an incomplete command is left."""

    @property
    def held_bytes(self) -> int:
        """Estimated memory of input that was not returned."""
        parsed = self._parser.held_bytes if self._parser is not None else 0
        return len(self._data) + len(self._backlog) + parsed

    @property
    def has_more(self) -> bool:
        """Return whether ``next`` returned None only to give other clients a turn."""
        return bool(self._backlog)

    def feed(self, data: bytes) -> None:
        """Add bytes from the client."""
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
        """Begin a turn, after other clients had theirs."""
        self._may_feed = True

    def next(self) -> LookupCommands | Command | None:
        """Return the next lookups that may be answered together, or the next command, or None if none is complete.
        Raises ProtocolError, after which nothing can be read."""
        while True:
            if self._is_parsing:
                return self._next_in_turn()
            data, at = self._data, self._at
            if self.is_queueing and at < len(data):
                self._begin_parsing()
                continue
            kind, end, keys = self._keys_type.cut(data, at, GROUP_KEYS)
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
        """Return the parser's next lookups or command. It gets another slice if it has nothing complete."""
        was_partial = self.is_partial
        parsed = self._next_parsed()
        if parsed is None and self._backlog and self._may_feed:
            self._may_feed = False
            assert self._parser is not None
            self._parser.feed(self._backlog[:SLICE_BYTES])
            self._backlog = self._backlog[SLICE_BYTES:]
            parsed = self._next_parsed()
        if parsed is None and self._backlog:
            self.is_partial = was_partial
        elif parsed is None and self._is_parsing:
            self._rest()
        return parsed

    def _advance(self, end: int) -> None:
        """Mark everything up to ``end`` as returned."""
        self._read_again = 0
        self.is_partial = False
        if end == len(self._data):
            self._finish()
        else:
            self._at = end

    def _finish(self) -> None:
        """Mark everything as returned."""
        self._data, self._at = _EMPTY, 0
        self.is_empty = True
        self.is_partial = self.has_unread = False

    def _rest(self) -> None:
        """Mark the rest as an incomplete command."""
        self.has_unread = False
        self.is_partial = True

    def _is_within_limits(self, size: int, key_count: int) -> bool:
        """Return whether an MGET of this size is certainly allowed; otherwise the parser decides, as for one that
        arrives in pieces."""
        return size <= self.limits.max_request_bytes and key_count < self.limits.max_arguments

    def _may_read_again(self, size: int) -> bool:
        """Return whether to keep the beginning of a lookup, ``size`` bytes, here until more arrives. If fewer arguments
        are allowed than usual, the parser gets it, and refuses too many as soon as it has read their number.
        """
        if self.limits.max_arguments < MAX_WORDS:
            return False
        self._read_again += size
        return size <= self.limits.max_request_bytes and self._read_again <= PART_RATIO * size

    def _begin_parsing(self) -> None:
        if self._parser is None:
            self._parser = RequestParser(self.limits)
        self._backlog = self._data[self._at :]
        self._data, self._at, self._read_again = _EMPTY, 0, 0
        self._is_parsing = True

    def _next_parsed(self) -> LookupCommands | Command | None:
        """Return the next lookups or command from the parser, and drop the parser when it is empty."""
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
        """Return the next command, or None. An error behind GETs is raised only at the next call."""
        if self._problem is not None:
            raise self._problem
        if self._command is not None:
            command, self._command = self._command, None
            return command
        assert self._parser is not None
        self._parser.limits = self.limits
        return self._parser.next()

    def _make_lookups(self, kind: int, keys: list[bytes]) -> LookupCommands:
        return LookupCommands(kind, self._keys_type.from_bytes(keys), sum(map(len, keys)))

    def _settle_parser(self) -> None:
        assert self._parser is not None
        if self._command is None and self._problem is None and self._parser.is_empty and not self._backlog:
            self._parser = None
            self._is_parsing = False
            self._finish()
        else:
            self.is_partial = False
