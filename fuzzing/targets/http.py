"""Requests of clients to the router, and of probes to an admin port."""

from __future__ import annotations

import re
from typing import Any, Final

from fuzzing.target import Target, in_pieces
from lookupdb.keys import MAX_KEY_BYTES, InvalidKey, make_key_encoder, shard_number
from lookupdb.process import admin
from lookupdb.router.batch_keys import BatchKeys, choose_keys
from lookupdb.router.http import request as request_target
from lookupdb.router.http.problems import MAX_CHUNK_OVERHEAD_BYTES, MAX_HEAD_BYTES, SLICE_BYTES, HttpProblem
from lookupdb.router.http.request import Request, RequestReader, parse_accept, parse_batch

_MAX_BODY: Final = 2048
_MAX_KEYS: Final = 16
_UPGRADE: Final = re.compile(rb"(?im)^upgrade(?=:)")
_STEPS: Final = ((), ("strip",), ("lowercase",), ("strip", "casefold", "nfc"), ("nfc", "lowercase"))
_SHARDS: Final = 7
_MAX_HELD: Final = 17 * _MAX_BODY + MAX_HEAD_BYTES + MAX_CHUNK_OVERHEAD_BYTES + MAX_HEAD_BYTES + SLICE_BYTES


def _read(pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], int | None]:
    """Return the requests, and the status that rejects the bytes behind them."""
    requests: list[tuple[Any, ...]] = []

    def on_request(request: Request) -> None:
        members = request.method, request.target, dict(request.fields), request.body, request.connection_field
        requests.append(members)

    reader = RequestReader(_MAX_BODY, on_request, lambda: None)
    try:
        for piece in pieces:
            for start in range(0, len(piece), SLICE_BYTES):
                reader.feed(piece[start : start + SLICE_BYTES])
            assert reader.held_bytes <= _MAX_HELD, f"{reader.held_bytes} bytes are held"
    except HttpProblem as problem:
        assert 400 <= problem.kind.status < 600
        return requests, problem.kind.status
    finally:
        reader.close()
    return requests, None


def check_requests(data: bytes) -> None:
    """Requests and errors are the same in any pieces; a wish to upgrade changes neither."""
    whole, pieces = _read([data]), _read(in_pieces(data))
    assert whole == pieces, f"whole: {whole}, in pieces: {pieces}"
    if _UPGRADE.search(data):
        without = _read([_UPGRADE.sub(b"x-other", data)])
        assert _outline(whole) == _outline(without), f"with Upgrade: {whole}, without: {without}"


def _outline(result: tuple[list[tuple[Any, ...]], int | None]) -> tuple[Any, ...]:
    """Return how the bytes were cut. Equivalent bytes of the same length are cut alike."""
    requests, status = result
    cuts = [
        (method, len(target), fields.keys() - {"upgrade"}, len(body), connection_field)
        for method, target, fields, body, connection_field in requests
    ]
    return cuts, status


def check_target(data: bytes) -> None:
    """A key in a path or a query is decoded once, or rejected."""
    origin = request_target.to_origin_form(data)
    for decode in (request_target.decode_key_in_path, request_target.decode_key_in_query):
        if not origin.isascii():
            return
        try:
            key = decode(origin)
        except HttpProblem:
            continue
        assert key.encode().decode() == key
        path = origin.partition(b"?")[0].decode()
        if "%" not in path and decode is request_target.decode_key_in_path:
            assert key == path


def check_batch(data: bytes) -> None:
    """The native kernel and the Python fallback read the same keys of a body, for the same shards, or reject it
    alike."""
    assert _parse(_NATIVE, data) == _parse(_PYTHON, data)


_NATIVE, _PYTHON = choose_keys(), BatchKeys


def _parse(kind: type[BatchKeys], data: bytes) -> tuple[Any, ...]:
    try:
        keys, partial = parse_batch(data, _MAX_KEYS, kind)
    except HttpProblem as problem:
        return problem.kind.status, problem.detail
    groups = [
        [(part.shard, part.packed, part.positions) for part in keys.group(make_key_encoder(steps), steps, _SHARDS)]
        for steps in _STEPS
    ]
    return keys.to_list(), len(keys), partial, groups


def check_accept(data: bytes) -> None:
    """An Accept field accepts each media type or not, and a batch is answered as one that is accepted."""
    accept = parse_accept(data)
    if accept is None:
        return
    for media_type in ("application/json", "application/octet-stream"):
        assert accept.allows(media_type) in (True, False)
    for value_format in ("json", "raw"):
        if accept.prefers_frames(value_format):
            assert accept.allows_batch()
        elif accept.allows_batch():
            assert accept.allows("application/json")


def check_key(data: bytes) -> None:
    """A key becomes bytes that a shard file can hold, in one of its shards."""
    try:
        text = data.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
    for steps in _STEPS:
        try:
            key = make_key_encoder(steps)(text)
        except InvalidKey:
            continue
        assert 0 < len(key) <= MAX_KEY_BYTES
        assert key.decode()
        assert 0 <= shard_number(key, _SHARDS) < _SHARDS


def check_probe(data: bytes) -> None:
    """The head of a request to an admin port is read, or rejected."""
    try:
        request = admin._HeadParser().parse(data)
    except admin._BadRequest:
        return
    admin._render_answer(admin._status_answer(404), request)


_HEADS: Final = (
    b"Host: a\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
    b"Upgrade: websocket\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n",
    b"Expect: 100-continue\r\n",
    b"Accept: application/json;q=0.5, */*\r\n",
    b"Authorization: Bearer abc\r\n",
    b"Lookupdb-Generation: g1\r\n",
)
TARGETS: Final = (
    Target(
        "requests",
        check_requests,
        (
            b"GET /v1/lookup/a%20b HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/dataset HTTP/1.1\r\nHost: x\r\n\r\n",
            b'POST /v1/lookup HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{"keys":["a"]}',
            b"POST /v1/lookup HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\nX: y\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\n{}",
            b"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nGET * HTTP/2.0\r\n\r\n",
            b"GET http://x/v1/lookup?key=a+b HTTP/1.0\r\n\r\n",
        ),
        (
            *_HEADS,
            b"\r\n\r\n",
            b" HTTP/1.1\r\n",
            b" HTTP/1.0\r\n",
            b" HTTP/2.0\r\n",
            b"GET ",
            b"POST ",
            b"CONNECT ",
            b"0\r\n\r\n",
            b"\n",
            b"\r",
        ),
    ),
    Target(
        "request-targets",
        check_target,
        (b"a%20b", b"key=a+b", b"http://host/v1/lookup/%C3%A4", b"a/b?c#d"),
        (b"%", b"%2F", b"%00", b"%ff", b"key=", b"&", b"?", b"#", b"http://"),
    ),
    Target(
        "batches",
        check_batch,
        (
            b'{"keys":["a","b","a"]}',
            b'{"partial" : true, "keys" : ["\\u00e4", "\\ud83d\\ude00", "\xc3\xa4"]}',
            b'{"keys":[]}',
        ),
        (b'"keys"', b'"partial"', b"[", b"]", b"{", b"}", b"\\u0000", b"\\ud800", b',"a"', b"\xff", b"\\"),
    ),
    Target(
        "accept-fields",
        check_accept,
        (b"application/json;q=0.5, */*", b"application/octet-stream"),
        (b";q=", b",", b"nan"),
    ),
    Target(
        "keys", check_key, (b"  Stra\xc3\x9fe\xcc\x88 ", b"K\xe2\x84\xaa"), ("\u0130".encode(), "\u1e9e".encode(), b" ")
    ),
    Target(
        "probes",
        check_probe,
        (b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n", b"HEAD /metrics HTTP/1.0\r\n\r\n"),
        (*_HEADS, b"GET ", b" HTTP/1.1\r\n"),
    ),
)
