"""Requests that two readers could cut differently are refused with 400, and their connection is closed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from support.http import Client, ScriptedLookups, Server, serving

GET = b"GET /v1/lookup/a HTTP/1.1\r\nHost: router\r\n"
POST = b"POST /v1/lookup HTTP/1.1\r\nHost: router\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /v1/lookup/smuggled HTTP/1.1\r\nHost: router\r\n\r\n"
HUGE = b"9" * 40


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(ScriptedLookups(values={"a": b"1", "smuggled": b"2"})) as server:
        yield server


TRICKS = {
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 53\r\n\r\n",
    "the same length twice": POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": POST + b"Content-Length: 0, 0\r\n\r\n",
    "length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "a length in the trailers": CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +5\r\n\r\nhello",
    "a hexadecimal length": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "a length with a space": POST + b"Content-Length: 5 5\r\n\r\nhello",
    "an empty length": POST + b"Content-Length:\r\n\r\n",
    "a length beyond 64 bits": POST + b"Content-Length: " + HUGE + b"\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
    "an unknown coding before chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked before another": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding that only looks like it": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding with a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /v1/lookup HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "white space before a colon": POST + b"Content-Length : 0\r\n\r\n",
    "a tab before a colon": GET + b"X\t: y\r\n\r\n",
    "a folded line": GET + b"X: y\r\n Content-Length: 5\r\n\r\n",
    "a line folded with a tab": GET + b"X: y\r\n\tz\r\n\r\n",
    "a space before the first field": b"GET /v1/lookup/a HTTP/1.1\r\n Host: router\r\n\r\n",
    "a bare LF after the request line": b"GET /v1/lookup/a HTTP/1.1\nHost: router\r\n\r\n",
    "a bare LF after a field": GET + b"X: y\nContent-Length: 5\r\n\r\n",
    "a bare LF at the end": GET + b"\n",
    "a bare CR in a field": GET + b"X: y\rContent-Length: 5\r\n\r\n",
    "a bare CR at the end": GET + b"\rX",
    "NUL in a value": GET + b"X: a\0b\r\n\r\n",
    "NUL in a name": GET + b"X\0: a\r\n\r\n",
    "NUL in the target": b"GET /v1/lookup/a\0 HTTP/1.1\r\nHost: router\r\n\r\n",
    "a control character in a value": GET + b"X: a\x01\r\n\r\n",
    "an empty name": GET + b": y\r\n\r\n",
    "a line without a colon": GET + b"nonsense\r\n\r\n",
    "a name with a space": GET + b"X Y: z\r\n\r\n",
    "a chunk size beyond 64 bits": CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n",
    "a negative chunk size": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "a chunk size with 0x": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk size with a space": CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
    "no chunk size": CHUNKED + b"\r\n",
    "a bare LF after a chunk size": CHUNKED + b"5\nhello\r\n0\r\n\r\n",
    "a bare LF after a chunk": CHUNKED + b"5\r\nhello\n0\r\n\r\n",
    "a bare LF after the last chunk": CHUNKED + b"0\n\r\n",
    "a chunk longer than it says": CHUNKED + b"5\r\nhello!!0\r\n\r\n",
    "LF in a chunk extension": CHUNKED + b'5;a="\n"\r\nhello\r\n0\r\n\r\n',
    "NUL in a chunk extension": CHUNKED + b"5;\0\r\nhello\r\n0\r\n\r\n",
    "no Host": b"GET /v1/lookup/a HTTP/1.1\r\n\r\n",
    "no Host, with an absolute target": b"GET http://router/v1/lookup/a HTTP/1.1\r\n\r\n",
    "two Hosts": GET + b"Host: router\r\n\r\n",
    "two Hosts, differently": GET + b"host: other\r\n\r\n",
    "a Host that is none": b"GET /v1/lookup/a HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a Host with a path": b"GET /v1/lookup/a HTTP/1.1\r\nHost: router/v1\r\n\r\n",
    "two generations": GET + b"Lookupdb-Generation: g1\r\nLookupdb-Generation: g2\r\n\r\n",
    "two media types": POST
    + b"Content-Type: application/json\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n",
    "CONNECT": b"CONNECT router:80 HTTP/1.1\r\nHost: router:80\r\n\r\n",
    "CONNECT to a path": b"CONNECT /v1/lookup/a HTTP/1.1\r\nHost: router\r\n\r\n",
    "an unknown method": b"BREW /v1/lookup/a HTTP/1.1\r\nHost: router\r\n\r\n",
    "a method in lower case": b"get /v1/lookup/a HTTP/1.1\r\nHost: router\r\n\r\n",
    "a target that is no path": b"GET v1/lookup/a HTTP/1.1\r\nHost: router\r\n\r\n",
    "a space in the target": b"GET /v1/lookup/a b HTTP/1.1\r\nHost: router\r\n\r\n",
    "a tab in the target": b"GET /v1/lookup/a\tb HTTP/1.1\r\nHost: router\r\n\r\n",
    "bytes that are no ASCII in the target": "GET /v1/lookup/ä HTTP/1.1\r\nHost: router\r\n\r\n".encode(),
    "a space after the version": b"GET /v1/lookup/a HTTP/1.1 \r\nHost: router\r\n\r\n",
    "another version of HTTP/1": b"GET /v1/lookup/a HTTP/1.2\r\nHost: router\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100f4010000f003035ae3"),
    "noise": bytes(range(255, 127, -1)),
}


def assert_refused(client: Client, status: int, kind: str) -> None:
    response = client.response()
    assert (response.status, response.fields["connection"]) == (status, "close")
    assert json.loads(response.body)["type"].endswith("/" + kind)
    assert client.ended(), "nothing that follows is answered"


@pytest.mark.parametrize("split", [False, True], ids=["at once", "byte by byte"])
def test_it_is_refused_and_what_follows_is_never_read(server: Server, split: bool) -> None:
    for name, trick in TRICKS.items():
        server.lookups.asked.clear()
        with server.connect() as client:
            message = trick + SMUGGLED
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.send(*([bytes([byte]) for byte in message] if split else [message]))
            assert_refused(client, 400, "malformed-request")
        assert "smuggled" not in server.lookups.asked, name


def test_requests_before_it_are_answered_first(server: Server) -> None:
    server.call(lambda: server.lookups.delays.update(a=0.05))
    with server.connect() as client:
        client.send(GET + b"\r\n" + TRICKS["two lengths"] + SMUGGLED)
        assert client.response().body == b"1"
        assert_refused(client, 400, "malformed-request")
    server.lookups.delays.clear()


@pytest.mark.parametrize(
    "start",
    [b"GET /v1/lookup/a HTTP/2.0", b"GET /v1/lookup/a HTTP/0.9", b"GET /v1/lookup/a"],
    ids=["2.0", "0.9", "0.9 as it was"],
)
def test_other_versions_are_505(server: Server, start: bytes) -> None:
    with server.connect() as client:
        client.send(start + b"\r\nHost: router\r\nConnection: keep-alive\r\n\r\n")
        assert_refused(client, 505, "version-not-supported")


def test_refusals_are_counted(server: Server) -> None:
    before = server.count("requests_refused")
    with server.connect() as client:
        client.send(TRICKS["two lengths"])
        assert_refused(client, 400, "malformed-request")
    assert server.count("requests_refused") == before + 1


@pytest.mark.parametrize("host", [b"", b"router", b"router:8080", b"[::1]:8080", b"127.0.0.1"])
def test_hosts_are_taken_as_they_come(server: Server, host: bytes) -> None:
    with server.connect() as client:
        client.send(b"GET /v1/lookup/a HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert client.response().status == 200
