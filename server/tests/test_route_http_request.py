"""Requests in a stream: keep-alive, pipelining, chunks, split and joined packets, half-closing."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from support.http import Client, ScriptedLookups, Server, eventually, request, serving

from lookupdb.router.http.problems import MAX_PIPELINE

BATCH = b'{"keys": ["a"]}'
FOUND_A = b'{"generation":"g1","found":{"a":1},"missing":[]}'


@pytest.fixture(scope="module")
def server(transport: str) -> Iterator[Server]:
    numbers = {str(number): b"%d" % number for number in range(1000)}
    with serving(ScriptedLookups(values={"a": b"1", "slow": b'"slow"', **numbers}, delays={"slow": 0.05})) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.connect() as client:
        yield client


def post(*fields: str) -> bytes:
    return request("/v1/lookup", *fields, method="POST")


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


class TestKeepAlive:
    def test_http_1_1_stays(self, client: Client) -> None:
        for _ in range(3):
            assert client.get("/v1/lookup/a").body == b"1"

    def test_http_1_1_leaves_when_asked_to(self, client: Client) -> None:
        assert client.get("/v1/lookup/a", "Connection: close").fields["connection"] == "close"
        assert client.ended()

    def test_http_1_0_leaves(self, client: Client) -> None:
        response = client.send(b"GET /v1/lookup/a HTTP/1.0\r\n\r\n").response()
        assert (response.body, response.fields["connection"]) == (b"1", "close")
        assert client.ended()

    def test_http_1_0_stays_when_asked_to(self, client: Client) -> None:
        for _ in range(3):
            client.send(b"GET /v1/lookup/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            response = client.response()
            assert (response.body, response.fields["connection"]) == (b"1", "keep-alive")

    def test_what_follows_a_request_that_closes_is_dropped(self, client: Client) -> None:
        client.send(request("/v1/lookup/a", "Connection: close") + request("/v1/lookup/7") + b"\0garbage")
        assert client.response().body == b"1"
        assert client.ended()

    def test_empty_lines_between_requests_are_nothing(self, client: Client) -> None:
        client.send(b"\r\n\r\n", request("/v1/lookup/a"), b"\r\n", request("/v1/lookup/7"), b"\r\n")
        assert [client.response().body, client.response().body] == [b"1", b"7"]
        assert client.silent()


class TestPipelining:
    def test_answers_come_in_the_order_of_requests(self, client: Client) -> None:
        client.send(request("/v1/lookup/slow") + request("/v1/lookup/a") + request("/v1/dataset") + request("/nothing"))
        assert client.response().body == b'"slow"'
        assert client.response().body == b"1"
        assert client.response().body.startswith(b'{"namespace"')
        assert client.response().status == 404

    def test_a_slow_lookup_in_the_middle_holds_back_only_what_follows(self, server: Server, client: Client) -> None:
        server.call(lambda: server.lookups.held.add("a"))
        client.send(request("/v1/lookup/7") + request("/v1/lookup/a") + request("/v1/lookup/8"))
        assert client.response().body == b"7"
        assert client.silent()
        server.call(server.lookups.release)
        assert [client.response().body, client.response().body] == [b"1", b"8"]

    def test_a_thousand_at_once_are_answered_in_order(self, client: Client) -> None:
        client.send(b"".join(request(f"/v1/lookup/{number}") for number in range(1000)))
        assert [client.response().body for _ in range(1000)] == [b"%d" % number for number in range(1000)]

    def test_only_so_many_are_looked_up_at_once(self, server: Server, client: Client) -> None:
        eventually(lambda: server.count("connections") == 1)  # earlier clients are gone, and what they had asked
        held = {str(number) for number in range(200)}
        server.call(lambda: (server.lookups.held.update(held), server.lookups.asked.clear()))
        client.send(b"".join(request(f"/v1/lookup/{number}") for number in range(200)))
        eventually(lambda: len(server.lookups.asked) == MAX_PIPELINE)
        assert client.silent()
        assert len(server.lookups.asked) == MAX_PIPELINE
        server.call(server.lookups.release)
        assert [client.response().body for _ in range(200)] == [b"%d" % number for number in range(200)]

    def test_a_client_that_goes_away_with_answers_due_is_forgotten(self, server: Server) -> None:
        eventually(lambda: server.count("connections") == 0)  # earlier clients are gone
        server.call(lambda: server.lookups.held.add("a"))
        client = server.connect()
        client.send(request("/v1/lookup/a") * 100)
        eventually(lambda: server.count("connections") == 1)
        client.close()
        server.call(server.lookups.release)
        eventually(lambda: server.count("connections") == 0)

    @pytest.mark.parametrize("requests", [1, 10, 1000])
    def test_so_is_one_that_resets_its_connection(self, server: Server, requests: int) -> None:
        client = server.connect()
        client.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.send(request("/v1/lookup/a") + request("/v1/lookup/slow") * requests)
        assert client.response().body == b"1"
        client.close()
        with server.connect() as other:
            assert other.get("/v1/lookup/a").body == b"1"


class TestBodies:
    def test_a_length(self, client: Client) -> None:
        assert client.post(BATCH).body == FOUND_A

    def test_chunks(self, client: Client) -> None:
        client.send(post("Transfer-Encoding: chunked"), chunked(BATCH[:3], BATCH[3:4], BATCH[4:]))
        assert client.response().body == FOUND_A

    @pytest.mark.parametrize("coding", ["Chunked", "chunked ", "CHUNKED"])
    def test_the_coding_has_no_case(self, client: Client, coding: str) -> None:
        assert client.send(post(f"transfer-encoding:{coding}"), chunked(BATCH)).response().status == 200

    def test_chunk_extensions_mean_nothing(self, client: Client) -> None:
        client.send(post("Transfer-Encoding: chunked"), b'%x;a=b;c="d"\r\n%b\r\n0;e\r\n\r\n' % (len(BATCH), BATCH))
        assert client.response().body == FOUND_A

    def test_trailers_are_no_header_fields(self, client: Client) -> None:
        trailers = b"0\r\nLookupdb-Generation: g9\r\nAccept: image/png\r\nHost: other\r\n\r\n"
        client.send(post("Transfer-Encoding: chunked"), chunked(BATCH, end=trailers))
        assert client.response().body == FOUND_A
        client.send(post("Transfer-Encoding: chunked"), chunked(end=trailers))
        assert client.response().status == 400, "an empty body is no batch"
        assert client.get("/v1/lookup/a").status == 200

    def test_the_body_of_a_get_is_read_and_ignored(self, client: Client) -> None:
        client.send(request("/v1/lookup/a", "Content-Length: 25") + b"GET /smuggled HTTP/1.1\r\n\r\n"[:25])
        assert client.response().body == b"1"
        assert client.get("/v1/lookup/7").body == b"7"

    @pytest.mark.parametrize("target", ["/nothing", "/v1/dataset"])
    def test_the_body_of_a_refused_request_is_read_too(self, client: Client, target: str) -> None:
        assert client.post(BATCH, target=target).status in (404, 405)
        assert client.get("/v1/lookup/a").body == b"1"

    def test_a_client_that_waits_is_told_to_continue(self, client: Client) -> None:
        client.send(post(f"Content-Length: {len(BATCH)}", "Expect: 100-continue"))
        assert client.response().status == 100
        assert client.send(BATCH).response().body == FOUND_A

    def test_to_continue_is_told_in_its_turn(self, client: Client) -> None:
        client.send(request("/v1/lookup/slow") + post("Transfer-Encoding: chunked", "Expect: 100-Continue"))
        assert client.response().body == b'"slow"'
        assert client.response().status == 100
        assert client.send(chunked(BATCH)).response().body == FOUND_A

    def test_nobody_is_told_to_continue_without_a_body(self, client: Client) -> None:
        assert client.get("/v1/lookup/a", "Expect: 100-continue").status == 200

    def test_http_1_0_knows_no_continue(self, client: Client) -> None:
        head = b"POST /v1/lookup HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BATCH)
        assert client.send(head, BATCH).response().body == FOUND_A

    def test_other_expectations_are_417(self, client: Client) -> None:
        assert client.send(post("Content-Length: 5", "Expect: a miracle")).response().status == 417
        assert client.ended()


class TestUpgrades:
    """An upgrade is declined by answering in HTTP/1.1: Java's client asks for h2c with every first request."""

    H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")

    def test_get(self, client: Client) -> None:
        client.send(request("/v1/lookup/a", *self.H2C) * 3 + request("/v1/lookup/7"))
        assert [client.response().body for _ in range(4)] == [b"1", b"1", b"1", b"7"]

    @pytest.mark.parametrize("split", [False, True])
    def test_post_with_a_body(self, client: Client, split: bool) -> None:
        message = post(*self.H2C, f"Content-Length: {len(BATCH)}") + BATCH + request("/v1/lookup/7")
        client.send(*([bytes([byte]) for byte in message] if split else [message]))
        assert client.response().body == FOUND_A
        assert client.response().body == b"7"

    def test_post_in_chunks_after_a_continue(self, client: Client) -> None:
        client.send(post(*self.H2C, "Transfer-Encoding: chunked", "Expect: 100-continue"))
        assert client.response().status == 100
        assert client.send(chunked(BATCH), request("/v1/lookup/7")).response().body == FOUND_A
        assert client.response().body == b"7"

    def test_a_body_is_never_taken_for_a_request(self, client: Client) -> None:
        smuggled = request("/v1/lookup/7")
        client.send(request("/v1/lookup/a", *self.H2C, f"Content-Length: {len(smuggled)}") + smuggled)
        assert client.response().body == b"1"
        assert client.silent()

    def test_what_is_not_http_behind_one_is_the_clients_fault(self, client: Client) -> None:
        client.send(request("/v1/lookup/a", *self.H2C) + b"GARBAGE\r\n\r\n")
        assert [client.response().status for _ in range(2)] == [200, 400]
        assert client.ended()

    @pytest.mark.parametrize("split", [False, True])
    @pytest.mark.parametrize("body", [(), (f"Content-Length: {len(BATCH)}",)])
    @pytest.mark.parametrize(
        ("refused", "status"),
        [
            (b"GET /v1/lookup/a HTTP/1.1\r\n\r\n", 400),
            (b"CONNECT /v1/lookup/a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            (b"GET /v1/lookup/a HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        ],
    )
    def test_what_is_refused_behind_one_is_told_so(
        self, client: Client, refused: bytes, status: int, body: tuple[str, ...], split: bool
    ) -> None:
        message = post(*self.H2C, *body) + (BATCH if body else b"") + refused
        client.send(*([bytes([byte]) for byte in message] if split else [message]))
        assert [client.response().status for _ in range(2)] == [200 if body else 400, status]
        assert client.ended()

    @pytest.mark.parametrize("field", ["Upgrade: h2c", "Connection: Upgrade"])
    def test_half_a_wish_is_none(self, client: Client, field: str) -> None:
        message = post(field, f"Content-Length: {len(BATCH)}") + BATCH + request("/v1/lookup/7")
        assert client.send(message).response().body == FOUND_A
        assert client.response().body == b"7"

    def test_and_close(self, client: Client) -> None:
        client.send(post("Connection: Upgrade, close", "Upgrade: x", f"Content-Length: {len(BATCH)}") + BATCH + b"rest")
        assert client.response().fields["connection"] == "close"
        assert client.ended()


class TestHalfClosed:
    def test_the_answer_still_comes(self, client: Client) -> None:
        client.send(request("/v1/lookup/slow")).half_close()
        assert client.response().body == b'"slow"'
        assert client.ended()

    def test_all_answers_still_come(self, client: Client) -> None:
        client.send(request("/v1/lookup/slow") + b"".join(request(f"/v1/lookup/{n}") for n in range(100))).half_close()
        assert client.response().body == b'"slow"'
        assert [client.response().body for _ in range(100)] == [b"%d" % n for n in range(100)]
        assert client.ended()

    @pytest.mark.parametrize(
        "part", [b"G", b"GET /v1/lo", request("/v1/lookup/a")[:-2], post("Content-Length: 9") + b"{"]
    )
    def test_half_a_request_is_400(self, client: Client, part: bytes) -> None:
        assert client.send(part).half_close().response().status == 400
        assert client.ended()

    def test_without_any_request_the_connection_just_ends(self, client: Client) -> None:
        client.half_close()
        assert client.ended()


STREAM = (
    request("/v1/lookup/a", "Accept: */*")
    + post(f"Content-Length: {len(BATCH)}")
    + BATCH
    + b"\r\n"
    + request("/v1/lookup?key=7", method="HEAD")
    + post("Transfer-Encoding: chunked")
    + chunked(BATCH[:5], BATCH[5:], end=b"0\r\nX: y\r\n\r\n")
    + request("/nothing", "Connection: close")
)


def assert_stream_is_answered(client: Client) -> None:
    assert client.response().body == b"1"
    assert client.response().body == FOUND_A
    assert client.response(bodyless=True).fields["content-length"] == "1"
    assert client.response().body == FOUND_A
    assert client.response().status == 404
    assert client.ended()


class TestPackets:
    def test_joined(self, client: Client) -> None:
        assert_stream_is_answered(client.send(STREAM))

    def test_byte_by_byte(self, client: Client) -> None:
        assert_stream_is_answered(client.send(*(bytes([byte]) for byte in STREAM)))

    def test_cut_in_two_anywhere(self, server: Server, transport: str) -> None:
        """By TLS at some places, because each needs a handshake."""

        def check(place: int) -> None:
            with server.connect() as client:
                client.send(STREAM[:place])
                assert_stream_is_answered(client.send(STREAM[place:]))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(check, range(1, len(STREAM), 1 if transport == "plain" else 25)))

    def test_cut_in_many_at_random(self, server: Server) -> None:
        chance = random.Random(7)
        for _ in range(30):
            cuts = [0, *sorted(chance.sample(range(1, len(STREAM)), 12)), len(STREAM)]
            pieces = [STREAM[start:end] for start, end in itertools.pairwise(cuts)]
            with server.connect() as client:
                assert_stream_is_answered(client.send(*pieces))


def mutated(chance: random.Random) -> bytes:
    stream = bytearray(STREAM)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(stream))
        match chance.randrange(4):
            case 0:
                stream[place] = chance.randrange(256)
            case 1:
                del stream[place : place + chance.randint(1, 20)]
            case 2:
                stream[place:place] = chance.choice(
                    [b"\r\n", b"\n", b"\0", b" ", b":", b"\r\n\r\n", b"Content-Length: 3\r\n"]
                )
            case 3:
                start = chance.randrange(len(stream))
                stream[place:place] = stream[start : start + chance.randint(1, 60)]
    return bytes(stream)


def test_damaged_streams_never_hang_never_crash_and_are_never_answered_twice(transport: str) -> None:
    """Each is answered like any: whole answers, in a row, no more than the requests there can be, then the end."""
    chance = random.Random(20261121)
    streams = [mutated(chance) for _ in range(600 if transport == "plain" else 60)]
    splits = [chance.randrange(1, len(stream)) for stream in streams]
    lookups = ScriptedLookups(values={"a": b"1", "7": b"7"})

    def check(server: Server, case: int) -> None:
        stream, split = streams[case], splits[case]
        beginnings = sum(stream.count(method) for method in (b"GET", b"POST", b"HEAD"))
        with server.connect() as client:
            client.raw.settimeout(60)
            client.send(stream[:split])
            if case % 2:
                client.send(stream[split:])
            client.half_close()
            answers = bytearray()
            while piece := client.raw.recv(65536):
                answers += piece
        assert 1 <= answers.count(b"HTTP/1.1 ") <= beginnings + 1, stream
        assert b" 500 " not in answers, stream

    earlier_threads = set(threading.enumerate())
    with serving(lookups) as server:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(check, server), range(len(streams))))
        eventually(lambda: server.count("connections") == 0)
        assert len(set(threading.enumerate()) - earlier_threads) < 20
