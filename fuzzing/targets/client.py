"""Answers of routers, and of proxies before them, to the Python client."""

from __future__ import annotations

from typing import Any, Final

from fuzzing.target import Target, in_pieces
from lookupdb.client.wire import (
    MAX_HEAD_BYTES,
    MISSING,
    Response,
    ResponseReader,
    is_of_the_connection,
    read_batch_answer,
    read_dataset,
    read_key_answer,
)
from lookupdb.errors import InvalidAnswer, LookupFailed
from lookupdb.records import FRAMES, InvalidFrames, decode_frames, encode_start
from lookupdb.records import MISSING as MISSING_SIZE
from lookupdb.records import UNAVAILABLE as UNAVAILABLE_SIZE

_MAX_BODY: Final = 2048
_MAX_HELD: Final = MAX_HEAD_BYTES + 4096
_KEYS: Final = ("a", "b")


def _read(pieces: list[bytes]) -> tuple[list[Response], bool]:
    """Return the answers before the first fault, and whether there was one."""
    reader = ResponseReader(_MAX_BODY)
    found: list[Response] = []
    for piece in pieces:
        try:
            response = reader.feed(piece)
        except InvalidAnswer as error:
            assert error.message.startswith("the answer ")
            return found, True
        assert len(reader._held) + len(reader._body) <= _MAX_HELD + _MAX_BODY
        if response is not None:
            assert len(response.body) <= _MAX_BODY
            found.append(response)
    return found, False


def check_response(data: bytes) -> None:
    """Cutting one answer into pieces changes nothing. Bytes behind it are never another answer."""
    whole, is_refused = _read([data])
    bytewise, is_refused_bytewise = _read([data[place : place + 1] for place in range(len(data))])
    pieces, _ = _read(in_pieces(data))
    if whole:
        assert bytewise == whole == pieces[:1]
        assert not is_refused
    elif not is_refused:  # not complete yet
        assert not bytewise
        assert not is_refused_bytewise
    for response in whole:
        check_meaning(response)


def check_meaning(response: Response) -> None:
    """An answer about keys is complete, or an error; no error makes a key missing."""
    is_of_the_connection(response)
    for expected in (None, "g1"):
        try:
            answer = read_key_answer(response, "a", expected)
            assert response.status == 200 or (response.status == 404 and answer.value is MISSING)
            assert expected is None or answer.generation == expected
        except LookupFailed as error:
            assert error.message
        try:
            batch = read_batch_answer(response, _KEYS, expected, partial=True)
        except LookupFailed as error:
            assert error.message
        else:
            told: list[Any] = [*batch.found, *batch.missing, *batch.unavailable]
            assert sorted(told) == [*_KEYS]
            assert response.status == 200
    try:
        read_dataset(response)
    except LookupFailed as error:
        assert error.message


def check_frames(data: bytes) -> None:
    """Frames name each key once, and are rejected in part. Mutable bytes are read alike."""
    try:
        told = decode_frames(data, _KEYS)
    except InvalidFrames as error:
        assert str(error)
        return
    assert sorted([*told.found, *told.missing, *told.unavailable]) == [*_KEYS]
    assert data.endswith(b"".join(told.found.values()))
    sizes = [*map(len, told.found.values())]
    assert len(data) == len(encode_start(_KEYS, [0, 0])) + sum(sizes)
    assert decode_frames(bytearray(data), _KEYS) == told
    try:
        decode_frames(data[:-1], _KEYS)
    except InvalidFrames:
        return
    raise AssertionError("half an answer was taken for one")


def _answer(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json", fields: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %b\r\nLookupdb-Generation: g1\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n"
    return head % (status, kind, fields, len(body)) + body


_MISSING_PROBLEM: Final = b'{"type":"https://lookupdb.dev/problems/missing","title":"t","status":404,"detail":"d"}'
_BATCH: Final = b'{"generation":"g1","found":{"a":[1,2.5,null]},"missing":["b"],"unavailable":[]}'
_RAW: Final = b'{"generation":"g1","found":{"a":"YQ==","b":"Yg=="},"missing":[]}'
_FRAMES: Final = encode_start(_KEYS, [2, MISSING_SIZE]) + b"\0\xff"
_DATASET: Final = (
    b'{"namespace":"n","name":"d","generation":"g1","records":1,"shards":1,"builtAt":"x",'
    b'"ageSeconds":1,"candidates":[]}'
)
TARGETS: Final = (
    Target(
        "client-answers",
        check_response,
        (
            _answer(b'{"a":1}'),
            _answer(_BATCH, fields=b"Lookupdb-Value-Format: json\r\n"),
            _answer(_RAW, fields=b"Lookupdb-Value-Format: raw\r\n"),
            _answer(_FRAMES, kind=FRAMES.encode(), fields=b"Lookupdb-Value-Format: raw\r\n"),
            _answer(_MISSING_PROBLEM, b"404 Not Found", b"application/problem+json"),
            _answer(_MISSING_PROBLEM.replace(b"missing", b"unavailable"), b"503 x", b"application/problem+json"),
            _answer(_DATASET),
            b"HTTP/1.1 103 x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;x\r\n{}\r\n0\r\nA: b\r\n\r\n",
        ),
        (
            b"Content-Length: 5\r\n",
            b"Content-Length: 99999\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Encoding: gzip\r\n",
            b"Lookupdb-Generation: g2\r\n",
            b"Lookupdb-Generation: g1, g2\r\n",
            b"Connection: close\r\n",
            b"\r\n\r\n",
            b"0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b'"found":{}',
            b'"missing":["a","b"]',
            b'"unavailable":["a"]',
            b"null",
            b"1e999",
            b"NaN",
            b"9" * 30,
            b'"\\ud800"',
            b"[" * 40,
            b"\n",
            b"\r",
        ),
    ),
    Target(
        "client-frames",
        check_frames,
        (
            _FRAMES,
            encode_start(_KEYS, [0, 3]) + b"abc",
            encode_start(_KEYS, [MISSING_SIZE, UNAVAILABLE_SIZE]),
            encode_start(["a", "c"], [1, 1]) + b"xy",
        ),
        (b"\xff\xff\xff\xff", b"\xfe\xff\xff\xff", b"\0\0\0\0", b"\1\0\0\0", b"\0\0\0\x80", b"\xff\xff\xff\x7f"),
    ),
)
