"""RESP: commands to shard servers and routers, and replies of shard servers to the router."""

from __future__ import annotations

from typing import Any, Final

import hiredis

from fuzzing.target import Target, in_pieces
from lookupdb.resp.requests import Command, CommandLimits, ProtocolError, RequestParser
from lookupdb.router.batch_keys import GETS, BatchKeys, choose_keys
from lookupdb.router.resp.reader import CommandReader, LookupCommands
from lookupdb.router.server_connection import ElementReader, NotResp
from lookupdb.shard.limits import ServerLimits

_LIMITS: Final = ServerLimits(max_arguments=64, max_request_bytes=1024, max_inline_bytes=256)
_ROUTER_LIMITS: Final = CommandLimits(max_arguments=100_001, max_request_bytes=8192, max_inline_bytes=256)
"""More bytes than any input has. (Clients without a token have narrow limits: the parser enforces them.)"""
_KEYS: Final = 3


def _read(pieces: list[bytes]) -> tuple[list[Command], str]:
    """Return the commands, and the error of what follows them."""
    parser, commands = RequestParser(_LIMITS), []
    try:
        for piece in pieces:
            parser.feed(piece)
            while (command := parser.next()) is not None:
                commands.append(command)
            assert parser.held_bytes < 8192, f"{parser.held_bytes} bytes are held"
    except ProtocolError as error:
        return commands, str(error)
    return commands, ""


def check_requests(data: bytes) -> None:
    """Commands are the same in any pieces."""
    assert _read([data]) == _read(in_pieces(data))


def check_lookups(data: bytes) -> None:
    """A router's reader gives the same lookups and commands in any pieces, with both kinds of kernels."""
    kinds: tuple[type[BatchKeys], ...] = (BatchKeys, choose_keys())
    whole = [_look_up(kind, [data]) for kind in kinds]
    assert whole[0] == whole[1]
    assert whole[0] == _look_up(kinds[1], in_pieces(data))


def _look_up(kind: type[BatchKeys], pieces: list[bytes]) -> tuple[list[list[bytes]], str]:
    """Return the commands, each GET apart, and the error of what follows them."""
    commands: list[list[bytes]] = []
    reader = CommandReader(kind, _ROUTER_LIMITS)
    try:
        for piece in pieces:
            reader.feed(piece)
            reader.begin_turn()
            while (request := reader.next()) is not None or reader.has_more:
                reader.begin_turn()
                commands += _list_commands(request) if request is not None else []
            assert reader.is_empty is not reader.is_partial
            assert reader.held_bytes < 1 << 16, f"{reader.held_bytes} bytes are held"
    except ProtocolError as error:
        return commands, str(error)
    return commands, ""


def _list_commands(request: LookupCommands | Command) -> list[list[bytes]]:
    if not isinstance(request, LookupCommands):
        return [[request[0].upper(), *request[1:]]]
    keys = [key.encode("utf-8", "surrogateescape") for key in request.keys.to_list()]
    return [[b"GET", key] for key in keys] if request.kind == GETS else [[b"MGET", *keys]]


class _Sink:
    """A waiter for three values."""

    def expected_keys(self) -> int:
        return _KEYS

    def accept(self, index: int, size: int) -> bool:
        assert index < _KEYS
        return size < 1 << 20


def check_replies(data: bytes) -> None:
    """A large reply is read like hiredis reads it, complete and in pieces."""
    whole = _read_reply([data])
    assert whole == _read_reply(in_pieces(data))
    if whole is not None:
        reader = hiredis.Reader()
        reader.feed(data)
        found = reader.gets()
        assert _comparable(found if isinstance(found, list) else [found]) == whole


def _comparable(values: list[Any]) -> tuple[Any, ...]:
    """Wrap ``values`` so that errors with the same words are equal."""
    return tuple(repr(value) if isinstance(value, hiredis.ReplyError) else value for value in values)


def _read_reply(pieces: list[bytes]) -> tuple[Any, ...] | None:
    """Return the values; None if they are rejected or incomplete."""
    reader = ElementReader(_Sink())
    try:
        for piece in pieces:
            if reader.is_whole:
                break
            assert reader.feed(piece) <= len(piece)
    except NotResp:
        return None
    if not reader.is_whole:
        return None
    return _comparable(reader.reply if isinstance(reader.reply, list) else [reader.reply])


_SAMPLES: Final = (
    b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n*2\r\n$3\r\nGET\r\n$1\r\nc\r\n",
    b"*4\r\n$4\r\nMGET\r\n$1\r\na\r\n$2\r\nbc\r\n$1\r\nd\r\n",
    b"PING\r\nGET 'a b' \"c\"\r\n",
    b"*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n",
)
_WORDS: Final = (
    *(b"\r\n", b"\n", b"*", b"$", b"$-1\r\n", b"$0\r\n\r\n", b"*65\r\n", b"GET", b"MGET", b"'", b'"', b"\\x00"),
)
TARGETS: Final = (
    Target("resp-requests", check_requests, _SAMPLES, _WORDS),
    Target("resp-lookups", check_lookups, _SAMPLES, _WORDS),
    Target(
        "resp-replies",
        check_replies,
        (b"*3\r\n$1\r\na\r\n$-1\r\n$12\r\nabcdefghijkl\r\n", b"*3\r\n_\r\n$0\r\n\r\n-ERR damaged\r\n"),
        (b"\r\n", b"*3\r\n", b"$-1\r\n", b"_\r\n", b"-ERR x\r\n", b"$5\r\nhello\r\n", b":1\r\n", b"%1\r\n", b"$-2\r\n"),
    ),
)
