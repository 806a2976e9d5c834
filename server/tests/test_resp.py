"""The wire: a lone GET is recognised, and nothing but RESP is taken."""

from __future__ import annotations

import sys

import pytest

from lookupdb.resp.requests import (
    CRLF,
    GET_ENDS,
    GET_HEADS,
    GET_KEYS,
    Command,
    ProtocolError,
    RequestParser,
    bulk,
    error,
    mapping,
)
from lookupdb.shard.limits import ServerLimits


def request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def parse(data: bytes, limits: ServerLimits | None = None, pieces: int | None = None) -> list[Command]:
    requests = RequestParser(limits or ServerLimits())
    commands = []
    step = pieces or len(data) or 1
    for start in range(0, len(data), step):
        requests.feed(data[start : start + step])
        while (command := requests.next()) is not None:
            commands.append(command)
    return commands


ODD_KEYS = [b"a", b"k" * 511, b"a\r\nb", b"\r\n", b"*2\r\n$3\r\nGET\r\n$1\r\na", b"\x00\xff", b"$1", b"\n"]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, None])
def test_commands_arrive_in_any_pieces(pieces: int | None) -> None:
    commands = [[b"GET", key] for key in ODD_KEYS] + [[b"MGET", *ODD_KEYS], [b"PING"], [b"GET", b""]]
    data = b"".join(request(*command) for command in commands)
    assert parse(data, pieces=pieces) == commands


@pytest.mark.parametrize("key", [*ODD_KEYS, *(b"k" * length for length in (9, 10, 11, 98, 99, 100, 101, 510))])
def test_one_get_is_recognised_by_its_size_and_beginning(key: bytes) -> None:
    data = request(b"GET", key)
    assert GET_HEADS[len(data)] <= data < GET_ENDS[len(data)]
    assert data[GET_KEYS[len(data)]] == key


def test_nothing_else_is_taken_for_one_get() -> None:
    for data in (request(b"GET", b"k"), request(b"GET", b"k" * 9), request(b"GET", b"k" * 99)):
        for wrong in (data[:-1], data + b"x", data + b"\r\n", data.replace(b"k", b"", 1), data.replace(b"G", b"S")):
            is_recognised = GET_HEADS[len(wrong)] <= wrong < GET_ENDS[len(wrong)] and wrong.endswith(CRLF)
            assert not is_recognised


def test_bytes_between_the_beginning_and_its_end_are_those_that_begin_so() -> None:
    for size, head in enumerate(GET_HEADS):
        for data in (head, head + b"\0", head + b"\xff" * 9) if head else ():
            assert head <= data < GET_ENDS[size]
        for unlike in (head[:-1], head[:-1] + b"\x09\xff", head[:-1] + b"\x0b", b"", b"\xff"):
            assert not head <= unlike < GET_ENDS[size]


def test_inline_commands_are_read_as_redis_reads_them() -> None:
    assert parse(b"PING\r\nget  a\n\r\n\n ECHO 'b c' \"d e\"\r\n") == [
        [b"PING"],
        [b"get", b"a"],
        [b"ECHO", b"b c", b"d e"],
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (rb'MGET a\b "u1"', [b"MGET", rb"a\b", b"u1"]),
        (rb'GET "\x75\x31"', [b"GET", b"u1"]),
        (rb'GET "a\nb"', [b"GET", b"a\nb"]),
        (rb'GET "\xZZ\"\\\q\r\t\b\a"', [b"GET", b'xZZ"\\q\r\t\b\a']),
        (rb"GET 'x\'y' 'a\b' ''", [b"GET", b"x'y", rb"a\b", b""]),
        (b'GET u"1" \xc3\xa9', [b"GET", b"u1", "é".encode()]),
    ],
)
def test_quotes_are_those_of_redis(line: bytes, words: list[bytes]) -> None:
    assert parse(line + b"\r\n") == [words]


def test_empty_and_null_arrays_ask_nothing() -> None:
    assert parse(b"*0\r\n*-1\r\n" + request(b"PING")) == [[b"PING"]]


@pytest.mark.parametrize("empty", [b"\n", b"\r\n", b" \t\r\r\n", b"*0\r\n", b"*-1\n", b"*00\r\n \n*-12\r\n"])
def test_commands_without_a_word_are_passed_over_together(empty: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends nothing else keeps nobody waiting, even before it has sent a token."""
    read: list[object] = []
    monkeypatch.setattr(RequestParser, "_read_line", lambda *_: read.append(_))
    requests = RequestParser(ServerLimits())
    requests.feed(empty * ((256 << 10) // len(empty)))
    assert requests.next() is None
    assert requests.is_empty
    assert not read
    monkeypatch.undo()
    for pieces in (1, 2, 3, 1000, None):
        assert parse(empty * 50 + request(b"PING") + empty * 50 + request(b"A"), pieces=pieces) == [[b"PING"], [b"A"]]


def test_what_is_not_resp_or_too_much_is_refused() -> None:
    for data, message in (
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1_0\r\n", "invalid multibulk length"),
        (b"*1000000000\r\n", "invalid multibulk length"),
        (b"*1\r\n:5\r\n", "expected '\\$', got ':'"),
        (b"*1\r\n*1\r\n$1\r\na\r\n", "expected '\\$', got '\\*'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$ 1\r\na\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999999\r\n", "invalid bulk length"),
        (b"'unbalanced\r\n", "unbalanced quotes"),
        (b"GET 'a\\'\r\n", "unbalanced quotes"),
        (b'GET "u1"x\r\n', "unbalanced quotes"),
        (b"x" * 70_000, "too big inline request"),
        (b"*" + b"1" * 70_000, "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * 70_000, "too big bulk count string"),
    ):
        with pytest.raises(ProtocolError, match=message):
            parse(data)


def test_the_bytes_of_one_command_are_bounded() -> None:
    limits = ServerLimits(max_request_bytes=1000)
    with pytest.raises(ProtocolError, match="invalid bulk length"):
        parse(request(b"MGET", *[b"k" * 300] * 4), limits)
    assert len(parse(request(b"GET", b"k" * 300) * 10, limits)) == 10


def test_replies() -> None:
    assert bulk("é") == b"$2\r\n\xc3\xa9\r\n"
    assert error("ERR two\r\nlines") == b"-ERR two  lines\r\n"
    assert mapping([(b"a", b"1")], 2) == b"*2\r\na1"
    assert mapping([(b"a", b"1")], 3) == b"%1\r\na1"


def test_an_inline_command_with_quotes_is_short_enough_to_keep_nobody_waiting() -> None:
    requests = RequestParser(ServerLimits())
    requests.feed(b'GET "' + b"a" * 4000 + b'"\r\n')
    assert requests.next() == [b"GET", b"a" * 4000]
    requests.feed(b'GET "' + b"a" * 4096 + b'"\r\n')
    with pytest.raises(ProtocolError, match="quotes"):
        requests.next()


def test_nothing_is_kept_of_a_large_request_that_was_given_out() -> None:
    requests = RequestParser(ServerLimits())
    requests.feed(request(b"ECHO", b"x" * (1 << 20)))
    assert requests.next() is not None
    assert requests.next() is None
    assert requests.is_empty
    assert requests.held_bytes < 2 << 20
    assert sys.getsizeof(requests._buffer) < 1024
