"""The reader returns the same lookups and commands, whichever pieces the bytes come in."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.resp import command

from lookupdb.resp.requests import CommandLimits, ProtocolError, RequestParser
from lookupdb.router.batch_keys import GETS, MGET, BatchKeys, choose_keys
from lookupdb.router.resp.reader import (
    GROUP_KEYS,
    SLICE_BYTES,
    CommandReader,
    LookupCommands,
)

LIMITS = CommandLimits(max_arguments=100_001, max_request_bytes=2048, max_inline_bytes=256)
NARROW = CommandLimits(max_arguments=64, max_request_bytes=2048, max_inline_bytes=256)
"""The limits of a client that has sent no token."""


def make_reader(limits: CommandLimits = LIMITS) -> CommandReader:
    return CommandReader(choose_keys(), limits)


def next_of(reader: CommandReader) -> Any:
    """Return the next request, after any number of turns."""
    while True:
        reader.begin_turn()
        request = reader.next()
        if request is not None or not reader.has_more:
            return request


def take(reader: CommandReader) -> list[Any]:
    """All that ``reader`` has whole: commands as lists of words, each GET apart; a problem's sentence as the last."""
    taken: list[Any] = []
    try:
        while (request := next_of(reader)) is not None:
            if not isinstance(request, LookupCommands):
                taken.append([request[0].upper(), *request[1:]])
            else:
                keys = [key.encode("utf-8", "surrogateescape") for key in request.keys.to_list()]
                assert len(keys) <= GROUP_KEYS or request.kind == MGET
                taken += [[b"GET", key] for key in keys] if request.kind == GETS else [[b"MGET", *keys]]
    except ProtocolError as problem:
        taken.append(str(problem))
    else:
        assert not reader.has_unread
        assert reader.is_partial is not reader.is_empty
    return taken


def read(data: bytes, pieces: int | None = None, limits: CommandLimits = LIMITS) -> list[Any]:
    taken: list[Any] = []
    reader = make_reader(limits)
    step = pieces or len(data) or 1
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
        taken += take(reader)
        if taken and isinstance(taken[-1], str):
            break
    return taken


STREAMS = {
    "gets": command("GET", "a") + command("GET", "bc") * 3,
    "gets in small letters": command("get", "a") + command("Get", "b"),
    "mget": command("MGET", "a", b"\xff\xfe", "é", b"\r\n", "a"),
    "an mget behind gets": command("GET", "a") + command("MGET", "a", "b") + command("GET", "c"),
    "a greeting, then lookups": command("HELLO", "3") + command("CLIENT", "SETNAME", "x") + command("GET", "a") * 5,
    "lookups and others": command("GET", "a") + command("PING") + command("GET", "b") + command("EXISTS", "a", "b"),
    "inline": b"PING\r\nGET a\r\n\r\nGET 'a b'\r\n" + command("GET", "c"),
    "nothing": b"\r\n*0\r\n*-1\r\n" + command("GET", "c"),
    "an inline command that looks like a word of nothing": b"*0\r\n*-0\r\n*0\r\n$4\r\nP\n" + command("GET", "c"),
    "odd keys": command("GET", "") + command("GET", "x" * 600) + command("MGET", "", "y" * 512, "z"),
    "lookups that are none": command("GET") + command("GET", "a", "b") + command("MGET") + command("MGETX", "a"),
    "no RESP behind gets": command("GET", "a") * 3 + b"*1\r\nPING\r\n",
    "no RESP behind an inline get": b"GET a\r\nGET b\r\n*1\r\n+x\r\n",
    "too many words": command("MGET", *["k"] * 70),
    "too many bytes": command("MGET", *["k" * 500] * 5),
}


def test_commands_are_the_same_in_any_pieces() -> None:
    for data in STREAMS.values():
        for limits in (LIMITS, NARROW):
            whole = read(data, limits=limits)
            assert whole
            for size in (1, 2, 3, 7, 19, 20, 21, 64):
                assert read(data, size, limits) == whole, size
            for end in range(len(data)):
                reader = make_reader(limits)
                reader.feed(data[:end])
                first = take(reader)
                if first and isinstance(first[-1], str):
                    assert first == whole[: len(first)]
                    continue
                reader.feed(data[end:])
                assert first + take(reader) == whole, end


def test_what_is_read_is_what_was_sent() -> None:
    assert read(STREAMS["mget"]) == [[b"MGET", b"a", b"\xff\xfe", "é".encode(), b"\r\n", b"a"]]
    assert read(STREAMS["inline"]) == [[b"PING"], [b"GET", b"a"], [b"GET", b"a b"], [b"GET", b"c"]]
    assert read(STREAMS["no RESP behind gets"])[:3] == [[b"GET", b"a"]] * 3
    assert read(STREAMS["no RESP behind gets"])[3:] == ["expected '$', got 'P'"]
    assert read(STREAMS["no RESP behind an inline get"]) == [[b"GET", b"a"], [b"GET", b"b"], "expected '$', got '+'"]
    assert read(STREAMS["too many bytes"]) == ["invalid bulk length"]
    assert read(STREAMS["too many words"], limits=NARROW) == ["invalid multibulk length"]
    assert read(b"PING\r\n*65\r\n", limits=NARROW) == [[b"PING"], "invalid multibulk length"]
    assert read(b"PING\r\n*65\r\n", 6, limits=NARROW) == [[b"PING"], "invalid multibulk length"]


def test_random_streams_in_random_pieces() -> None:
    chance = random.Random(12)
    for _ in range(300):
        data = b"".join(chance.choice(list(STREAMS.values())) for _ in range(chance.randrange(1, 6)))
        taken: list[Any] = []
        reader, at = make_reader(), 0
        while at < len(data) and not (taken and isinstance(taken[-1], str)):
            end = at + chance.choice((1, 5, 40, 400, 4000))
            reader.feed(data[at:end])
            taken += take(reader)
            at = end
        assert taken == read(data)


def test_gets_are_cut_into_groups() -> None:
    reader = make_reader()
    reader.feed(command("GET", "a") * (2 * GROUP_KEYS + 1))
    sizes = []
    while (request := reader.next()) is not None:
        assert isinstance(request, LookupCommands)
        sizes.append(len(request.keys))
    assert sizes == [GROUP_KEYS, GROUP_KEYS, 1]
    assert reader.is_empty


WORDS = command("EXISTS", *["a"] * 20_000)
SHORT = command("EXISTS", *["a"] * 100)


@pytest.mark.parametrize("data", [WORDS, SHORT * 200, b"PING\r\n" + command("GET", "a") * 5000], ids=len)
def test_the_parser_is_given_a_slice_a_turn(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends many words does not keep others waiting while they are read."""
    fed: list[int] = []
    feed = RequestParser.feed

    def watch(parser: RequestParser, data: bytes) -> None:
        fed.append(len(data))
        feed(parser, data)

    monkeypatch.setattr(RequestParser, "feed", watch)
    reader = make_reader(CommandLimits(100_001, 1 << 20, 1 << 16))
    reader.feed(data)
    turns = 0
    while reader.has_unread:
        reader.begin_turn()
        while reader.next() is not None:
            pass
        turns += 1
        assert len(fed) <= turns
        assert reader.held_bytes < 8 * len(data)
    assert max(fed) == SLICE_BYTES
    assert sum(fed) == len(data)
    assert reader.is_empty


def test_bytes_of_a_lookup_that_trickles_are_not_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is looked at 32 times at most, whatever the pieces."""
    looked_at = 0
    cut = choose_keys().cut

    def count(data: bytes, at: int, most: int) -> Any:
        nonlocal looked_at
        looked_at += len(data) - at
        return cut(data, at, most)

    keys_type = SimpleNamespace(cut=count, from_bytes=choose_keys().from_bytes)
    keys = [b"key %d" % number for number in range(20_000)]
    data = command(b"MGET", *keys)
    reader = CommandReader(cast("type[BatchKeys]", keys_type), CommandLimits(100_001, 1 << 20, 1 << 16))
    taken = []
    for at in range(0, len(data), 11):
        reader.feed(data[at : at + 11])
        taken += take(reader)
    assert taken == [[b"MGET", *keys]]
    assert looked_at < 40 * len(data)
    assert reader.is_empty
    assert reader.held_bytes == 0


def test_what_is_held_is_counted_and_forgotten() -> None:
    reader = make_reader(CommandLimits(100_001, 1 << 20, 1 << 16))
    part = command(b"MGET", *[b"k" * 100] * 1000)[:-5]
    reader.feed(part)
    assert reader.next() is None
    assert len(part) <= reader.held_bytes <= 2 * len(part)
    reader.clear()
    assert reader.held_bytes == 0
    reader.feed(command("GET", "a"))
    assert take(reader) == [[b"GET", b"a"]]
