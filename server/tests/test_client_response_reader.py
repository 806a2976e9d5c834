"""The client's reader of answers: the same in any pieces, and nothing that could be read two ways."""

from __future__ import annotations

import itertools

import pytest

from lookupdb.client.wire import MAX_HEAD_BYTES, Response, ResponseReader
from lookupdb.errors import InvalidAnswer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
LENGTH = HEAD % 5 + b"12345"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(data: bytes, size: int = 1 << 20) -> list[Response]:
    reader = ResponseReader(1000)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return [found for piece in pieces if (found := reader.feed(piece)) is not None]


WHOLE = {
    "length": LENGTH,
    "empty": HEAD % 0,
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH,
    "chunks": CHUNKED + b"3\r\n123\r\n2;x=y\r\n45\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"5\r\n12345\r\n0\r\nA: b\r\nC: d\r\n\r\n",
    "large chunk": CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
    "spaces": b"HTTP/1.1 200 OK\r\nContent-Length: \t 5 \t\r\n\r\n12345",
    "repeatable fields": b"HTTP/1.1 200 OK\r\nVary: A\r\nvary: B\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
def test_an_answer_is_the_same_in_any_pieces(data: bytes) -> None:
    whole = read(data)
    assert len(whole) == 1
    assert all(read(data, size) == whole for size in (1, 2, 3, 7, len(data) - 1))
    reader = ResponseReader(1000)
    for piece in itertools.batched(data, 5) if hasattr(itertools, "batched") else ():
        reader.feed(bytes(piece))
    assert not reader.has_begun


def test_what_it_reads() -> None:
    (response,) = read(b"HTTP/1.1 404 Not Found\r\nX-Y:  z \r\nContent-Length: 2\r\nConnection: Close\r\n\r\n{}")
    assert response == (404, {b"x-y": b"z", b"content-length": b"2", b"connection": b"Close"}, b"{}", False)
    assert read(WHOLE["chunks"])[0].body == b"12345"
    assert read(WHOLE["repeatable fields"])[0].fields[b"vary"] == b"A, B"


@pytest.mark.parametrize(
    ("head", "keeps_open"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_whether_the_connection_stays(head: bytes, keeps_open: bool) -> None:
    assert read(head + b"Content-Length: 0\r\n\r\n")[0].keeps_open is keeps_open


def test_heads_that_differ_in_their_length_alone_are_read_alike() -> None:
    reader = ResponseReader(1000)
    for size in (5, 0, 7, 7, 1000):
        response = reader.feed(HEAD % size + b"x" * size)
        assert response is not None
        assert (response.status, len(response.body)) == (200, size)
        assert response.fields[b"content-type"] == b"application/json"
    reader.feed(HEAD.replace(b"200 OK", b"404 Not Found") % 0)
    with pytest.raises(InvalidAnswer):
        reader.feed(HEAD.replace(b"%d", b"-1"))
    reader = ResponseReader(1000)
    reader.feed(HEAD % 0)
    with pytest.raises(InvalidAnswer, match="more than 1000 bytes"):
        reader.feed(HEAD % 1001)
    reader = ResponseReader(1000)
    reader.feed(HEAD % 0)
    with pytest.raises(InvalidAnswer, match="twice"):
        reader.feed(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n"
        )


BROKEN = {
    "surplus": LENGTH + b"x",
    "surplus behind chunks": WHOLE["chunks"] + b"x",
    "status": b"HTTP/1.1 99 OK\r\nContent-Length: 0\r\n\r\n",
    "status 600": b"HTTP/1.1 600 OK\r\nContent-Length: 0\r\n\r\n",
    "leading blank line": b"\r\n" + LENGTH,
    "version": LENGTH.replace(b"1.1", b"1.2"),
    "no colon": b"HTTP/1.1 200 OK\r\nX\r\nContent-Length: 0\r\n\r\n",
    "space before colon": b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
    "folded": b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 0\r\n\r\n",
    "empty name": b"HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 0\r\n\r\n",
    "bare line feed": b"HTTP/1.1 200 OK\r\nX: y\nContent-Length: 0\r\n\r\n",
    "bare carriage return": b"HTTP/1.1 200 OK\r\nX: y\rz\r\nContent-Length: 0\r\n\r\n",
    "zero byte": b"HTTP/1.1 200 OK\r\nX: y\0\r\nContent-Length: 0\r\n\r\n",
    "length plus": b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n12345",
    "length list": b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n12345",
    "length twice": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n12345",
    "length huge": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\n\r\n",
    "gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n",
    "transfer gzip": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "transfer in 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size": CHUNKED + b"x\r\n",
    "chunk minus": CHUNKED + b"-1\r\n",
    "chunk too long": CHUNKED + b"2\r\n123\r\n0\r\n\r\n",
    "chunk huge": CHUNKED + b"fffffffff\r\n",
    "chunks too large": CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n",
    "chunk line": CHUNKED + b"1;" + b"x" * 2000,
    "trailers": CHUNKED + b"0\r\n" + b"A: b\r\n" * 10_000,
    "long head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES,
    "endless interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 9,
    "switching": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_could_be_read_two_ways_is_refused_in_any_pieces(data: bytes) -> None:
    for size in (1 << 20, 1000, 7):
        with pytest.raises(InvalidAnswer, match=r"^the answer "):
            read(data, size)


def test_one_that_is_not_whole_is_no_answer() -> None:
    for data in WHOLE.values():
        for end in range(1, len(data)):
            reader = ResponseReader(1000)
            assert reader.feed(data[:end]) is None
            assert reader.has_begun
