"""What one client sends, cut into lookups and other commands, in whatever pieces it comes. No I/O.

GETs and MGETs are cut by ``LookupCodec``, natively where the kernels are. All else goes to ``RequestParser``, which
takes any legal command and knows every limit; lookups that stand behind such a command in the same read go there, too.
"""

from __future__ import annotations

from typing import Final

from lookupdb.resp.requests import Command, CommandLimits, ProtocolError, RequestParser
from lookupdb.route.lookups.batch_keys import BatchKeys
from lookupdb.route.resp.codec import GETS, MAX_WORDS, MGET, PART, LookupCodec
from lookupdb.route.resp.limits import GROUP_KEYS, PART_RATIO, SLICE_BYTES

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
