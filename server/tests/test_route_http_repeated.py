"""Requests that repeat with another key, or other keys: recognised by their bytes, and answered as if each were the
first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.http import Client, ScriptedLookups, Server, generation, request, serving

from lookupdb.client.settings import parse_url
from lookupdb.client.wire import RequestRenderer, render_deadline
from lookupdb.records import FRAMES
from lookupdb.router.http.connection import ATTEMPT_EVERY, EAGER_ATTEMPTS, RepeatedBatch, RepeatedLookup
from lookupdb.router.http.exchanges import BatchExchange, ClientConnection, LookupExchange
from lookupdb.router.http.problems import MAX_HEAD_BYTES, MAX_REPEATED_HEAD_BYTES, SLICE_BYTES

PLAIN = request("/v1/lookup/k1")
HOST = b"Host: lookups.example\r\n"
HEADS = {
    "plain": PLAIN,
    "as browsers ask": request("/v1/lookup/k1", "Accept: application/json", "Connection: keep-alive", "User-Agent: x"),
    "of a candidate": request("/v1/lookup/k1", "Lookupdb-Generation: g2"),
    "of one who waits for less": request("/v1/lookup/k1", "Lookupdb-Deadline-Ms: 400"),
    "of one who has another value": request("/v1/lookup/k1", 'If-None-Match: "g0-0"'),
    "of one who has any": request("/v1/lookup/k1", "If-None-Match: *", "Lookupdb-Deadline-Ms: 400"),
    "not acceptable": request("/v1/lookup/k1", "Accept: text/html"),
    "HTTP/1.0 that stays": b"GET /v1/lookup/k1 HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n",
}
TARGETS = {
    "another key": b"k2",
    "a missing key": b"k404",
    "no key": b"",
    "a slash": b"a/b",
    "an escape": b"%6b1",
    "a broken escape": b"%6",
    "a query": b"k1?x=1",
    "a query with a key": b"k1?key=k2",
    "a fragment": b"k1#x",
    "a space": b"k 1",
    "the end of a request line": b"k1 HTTP/1.1\r\nX: ",
    "a whole head": b"k1 HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/lookup/k2",
    "a bare line feed": b"k1\nX: ",
    "a NUL": b"k\x00",
    "not ASCII": "ž".encode(),
    "too long a key": b"k" * 512,
    "too long a target": b"k" * 9000,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    values = {"k1": b"1", "k2": b"2", "a/b": b"3"}
    with serving(ScriptedLookups(values=values, candidates=(generation("g2"),))) as server:
        yield server


def ending(client: Client, data: bytes) -> bytes:
    """All that comes back when ``data`` is the last thing sent, without the dates."""
    client.send(data).half_close()
    answers = b""
    while piece := client.raw.recv(65536):
        answers += piece
    assert answers
    return b"\r\n".join(line for line in answers.split(b"\r\n") if not line.startswith(b"Date: "))


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_the_answer_is_that_of_a_connection_that_asks_for_the_first_time(server: Server, head: bytes) -> None:
    for name, target in TARGETS.items():
        data = head.replace(b"k1", target, 1)
        with server.connect() as new, server.connect() as old:
            for _ in range(2):
                old.send(head).response()
            assert ending(old, data) == ending(new, data), name


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_it_is_recognised_the_second_time(server: Server, head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    recognised: list[bytes] = []

    class Noted(RepeatedLookup):
        def match(self, data: bytes, connection: ClientConnection) -> LookupExchange | None:
            found = super().match(data, connection)
            recognised.extend([data] if found else [])
            return found

    monkeypatch.setattr("lookupdb.router.http.connection.RepeatedLookup", Noted)
    with server.connect() as client:
        for _ in range(3):
            client.send(head).response()
    assert recognised == [head, head]


def test_repeats_have_the_deadline_of_the_first(server: Server) -> None:
    lookups = server.lookups
    before = len(lookups.deadlines)
    with server.connect() as client:
        for _ in range(3):
            client.send(request("/v1/lookup/k1", "Lookupdb-Deadline-Ms: 400")).response()
        client.send(PLAIN).response()
    assert lookups.deadlines[before:] == [400, 400, 400, None]


@pytest.mark.parametrize(
    "read",
    [
        request("/v1/lookup/k1", method="HEAD"),
        request("/v1/lookup/k1", "Content-Length: 4") + b"\r\n\r\n",
        request("/v1/lookup/k1", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        request("/v1/lookup/k1", "Connection: upgrade", "Upgrade: h2c"),
        request("/v1/lookup/k1", "Expect: 100-continue"),
        PLAIN + request("/v1/lookup/k1"),
        b"\r\n" + PLAIN,
        request("/v1/lookup?key=k1"),
    ],
)
def test_what_is_more_than_one_get_is_always_read_in_full(
    server: Server, read: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RepeatedLookup, "__init__", None)  # none is made
    bodyless = read.startswith(b"HEAD")
    with server.connect() as client:
        for _ in range(2):
            assert client.send(read).response(bodyless=bodyless).status == 200


def test_pieces_of_a_request_do_not_pass_for_one(server: Server) -> None:
    with server.connect() as client:
        client.send(PLAIN).response()
        client.send(b"POST /v1/lookup HTTP/1.1\r\n", HOST, b"Content-Length: %d\r\n\r\n" % len(PLAIN)).silent()
        assert client.send(PLAIN).response().status == 400


def test_a_whole_request_behind_the_first_bytes_of_another_is_no_repeat(server: Server) -> None:
    with server.connect() as client:
        assert client.send(PLAIN).response().status == 200
        assert client.send(PLAIN + b"GET").response().status == 200
        assert client.send(PLAIN).response().status == 400


@pytest.mark.parametrize("read", [PLAIN, request("/v1/lookup", "Content-Length: 2", method="POST") + b"{}"])
def test_empty_lines_between_repeats_count_for_nothing(server: Server, read: bytes) -> None:
    with server.connect() as client:
        first = client.send(read).response().status
        for _ in range(2 * MAX_HEAD_BYTES // 4000):
            assert client.send(b"\r\n" * 2000).silent()
            assert client.send(read).response().status == first


def test_who_never_repeats_a_request_is_looked_at_rarely(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is recognised again, once it does."""
    made: list[bytes] = []
    """Return the remembered bytes of requests. A busy server remembers after its client has gone on."""
    begin = RepeatedLookup.__init__

    def count(self: RepeatedLookup, tail: bytes, lookup: Any) -> None:
        made.append(tail)
        begin(self, tail, lookup)

    monkeypatch.setattr(RepeatedLookup, "__init__", count)
    with server.connect() as client:
        for number in range(1, 2 * ATTEMPT_EVERY + 2):
            assert client.send(request("/v1/lookup/k1", f"Lookupdb-Deadline-Ms: {number}")).response().status == 200
        numbers = [int(tail.partition(b"Deadline-Ms: ")[2].strip()) for tail in made]
        assert numbers == [*range(1, EAGER_ATTEMPTS + 1), ATTEMPT_EVERY, 2 * ATTEMPT_EVERY]
        for _ in range(ATTEMPT_EVERY + 2):
            assert client.send(PLAIN).response().status == 200
        assert len(made) == EAGER_ATTEMPTS + 3, "then it is recognised"


def batch(body: bytes, *fields: str, length: str | None = None) -> bytes:
    stated = f"Content-Length: {len(body)}" if length is None else length
    return request("/v1/lookup", stated, *fields, method="POST") + body


BODY = b'{"keys":["k1"]}'
BATCHES = {
    "plain": batch(BODY),
    "as programs ask": batch(BODY, "Content-Type: application/json", "Accept: */*", "User-Agent: x"),
    "the length last": request("/v1/lookup", "X: y", f"content-length:{len(BODY)}", method="POST") + BODY,
    "spaces around the length": batch(BODY, length=f"CONTENT-LENGTH: \t {len(BODY)} \t "),
    "of a candidate": batch(BODY, "Lookupdb-Generation: g2"),
    "of one who waits for less": batch(BODY, "Lookupdb-Deadline-Ms: 400"),
    "of one who takes JSON": batch(BODY, "Accept: application/json"),
    "of one who takes frames": batch(BODY, f"Accept: {FRAMES}"),
    "HTTP/1.0 that stays": batch(BODY, "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "of this project's client": RequestRenderer(parse_url("http://router")).batch(
        ["k1"], render_deadline(1.0), partial=True
    ),
}
OTHERS = {
    "other keys": b'{"keys":["k2","k404"]}',
    "keys with spaces": b'{"keys": ["k2", "a/b", "k2"], "partial": false}',
    "no keys": b'{"keys":[]}',
    "no body": b"",
    "half of JSON": b'{"keys":["k1"',
    "not UTF-8": b'{"keys":["\xff"]}',
    "another member": b'{"keys":["k1"],"more":1}',
    "too many keys": b'{"keys":[%b]}' % b",".join([b'""'] * 1001),
    "as large as is recognised": b'{"keys":["k2"]}'.ljust(SLICE_BYTES - 400),
    "larger than that": b'{"keys":["k2"]}'.ljust(SLICE_BYTES + 1),
}
LENGTHS = {
    "too small": b"14",
    "too large": b"16",
    "with a zero": b"015",
    "with a sign": b"+15",
    "less than nothing": b"-15",
    "with a space": b"1 5",
    "with an underscore": b"1_5",
    "two": b"15, 15",
    "hexadecimal": b"0xf",
    "empty": b"",
    "larger than any body": b"99999999999999999999999999",
    "more digits than are looked for": b"000000000000015",
    "and a second field": b"15\r\nContent-Length: 15",
    "and chunks": b"15\r\nTransfer-Encoding: chunked",
    "and an expectation": b"15\r\nExpect: 100-continue",
}


@pytest.mark.parametrize("first", BATCHES.values(), ids=BATCHES.keys())
def test_a_batch_is_answered_as_by_a_connection_that_is_asked_for_the_first_time(server: Server, first: bytes) -> None:
    head, _, old_body = first.rpartition(b"\r\n\r\n")
    for name, body in OTHERS.items():
        data = head.replace(b"%d" % len(old_body), b"%d" % len(body)) + b"\r\n\r\n" + body
        with server.connect() as new, server.connect() as old:
            for _ in range(2):
                old.send(first).response()
            assert ending(old, data) == ending(new, data), name
    assert server.call(lambda: server.lookups.budget.used) == 0


@pytest.mark.parametrize("behind", [b"", b"GET"], ids=["alone", "with more"])
def test_a_length_that_is_written_in_another_way_is_for_the_parser(server: Server, behind: bytes) -> None:
    for name, length in LENGTHS.items():
        data = BATCHES["plain"].replace(b"15", length, 1) + behind
        with server.connect() as new, server.connect() as old:
            for _ in range(2):
                old.send(BATCHES["plain"]).response()
            assert ending(old, data) == ending(new, data), name


@pytest.mark.parametrize("first", BATCHES.values(), ids=BATCHES.keys())
def test_a_batch_is_recognised_the_second_time(server: Server, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    recognised: list[bytes] = []

    class Noted(RepeatedBatch):
        def match(self, data: bytes, connection: ClientConnection) -> BatchExchange | None:
            found = super().match(data, connection)
            recognised.extend([data] if found else [])
            return found

    monkeypatch.setattr("lookupdb.router.http.connection.RepeatedBatch", Noted)
    with server.connect() as client:
        for _ in range(3):
            client.send(first).response()
    assert recognised == [first, first]


@pytest.mark.parametrize(
    "read",
    [
        batch(BODY, "Content-Encoding: identity"),
        batch(BODY, "Connection: upgrade", "Upgrade: h2c"),
        batch(BODY, length="Transfer-Encoding: chunked").replace(BODY, b"f\r\n%b\r\n0\r\n\r\n" % BODY),
        batch(BODY, "X: " + "y" * MAX_REPEATED_HEAD_BYTES),
        batch(BODY, length="Content-Length: 015"),
        batch(BODY.ljust(SLICE_BYTES)),
        batch(BODY) + batch(BODY),
        PLAIN + batch(BODY),
        b"\r\n" + batch(BODY),
    ],
)
def test_what_is_not_one_plain_batch_is_always_read_in_full(
    server: Server, read: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RepeatedBatch, "__init__", None)  # none is made
    with server.connect() as client:
        for _ in range(2):
            assert client.send(read).response().status == 200


def test_a_batch_that_came_in_two_reads_is_not_remembered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RepeatedBatch, "__init__", None)
    with server.connect() as client:
        client.send(batch(BODY)[:-1]).silent()
        assert client.send(BODY[-1:]).response().status == 200


def test_repeated_batches_have_the_fields_of_the_first(server: Server) -> None:
    lookups = server.lookups
    before = len(lookups.deadlines)
    asked = batch(BODY, "Lookupdb-Deadline-Ms: 400", "Lookupdb-Generation: g2")
    with server.connect() as client:
        generations = [client.send(asked).response().fields["lookupdb-generation"] for _ in range(3)]
        client.send(batch(BODY)).response()
    assert lookups.deadlines[before:] == [400, 400, 400, None]
    assert generations == ["g2"] * 3


def test_a_repeated_batch_waits_for_the_one_before_and_is_counted_as_any() -> None:
    lookups = ScriptedLookups(values={"k1": b"1", "held": b"2"})
    used = []
    with serving(lookups) as server, server.connect() as repeating, server.connect() as new:
        repeating.send(batch(BODY)).response()
        for client, *fields in (repeating,), (new, "X: y"):
            lookups.held.add("held")
            client.send(batch(b'{"keys":["held"]}')).silent()
            client.send(batch(BODY, *fields)).silent()
            assert lookups.batches[-1] == ["held"], "a batch is looked up alone"
            used.append(server.call(lambda: lookups.budget.used))
            server.call(lookups.release)
            found = [json.loads(client.response().body)["found"] for _ in range(2)]
            assert found == [{"held": 2}, {"k1": 1}]
        assert server.call(lambda: lookups.budget.used) == 0
    assert used[0] == used[1] > 0


def test_a_repeated_batch_ends_its_connection_while_the_server_drains() -> None:
    with serving(ScriptedLookups(values={"k1": b"1"})) as server, server.connect() as client:
        client.send(batch(BODY)).response()
        server.call(lambda: setattr(server.service, "draining", True))
        assert client.send(batch(BODY)).response().fields["connection"] == "close"
        assert client.ended()
