"""Requests outside of the API, which a router forwards to a console on the same machine."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from support.http import Server, eventually, request, serving

from lookupdb.router.http import exchanges
from lookupdb.router.http.exchanges import ConsoleForwarder

PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\nServer: x\r\nConnection: close\r\n\r\npage\n"
)


class Console:
    """A server that records each request and sends ``answer``, once ``go`` is set."""

    def __init__(self) -> None:
        self.answer = PAGE
        self.requests: list[bytes] = []
        self.ended = 0
        self.go = threading.Event()
        self.go.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self.listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += client.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            while len(body) < size:
                body += client.recv(65536)
            self.requests.append(head + b"\r\n\r\n" + body)
            while not self.go.wait(0.01):
                client.settimeout(0.01)
                with suppress(TimeoutError):
                    if not client.recv(1):
                        self.ended += 1
                        return
            client.settimeout(30)
            client.sendall(self.answer)


@contextmanager
def consoles(**limits: int) -> Iterator[tuple[Server, Console]]:
    console = Console()
    with serving(**limits) as server:
        server.service.console = ConsoleForwarder(f"127.0.0.1:{console.listener.getsockname()[1]}")
        yield server, console
        assert server.lookups.budget.used == 0, "all that was taken is given back"
    console.listener.close()


@pytest.fixture(name="both")
def _both() -> Iterator[tuple[Server, Console]]:
    with consoles() as both:
        yield both


def test_other_paths_are_the_consoles(both: tuple[Server, Console]) -> None:
    server, console = both
    with server.connect() as client:
        for target in ("/", "/datasets/a/b?x=%0d%0a", "/static/console.css"):
            answer = client.get(target, "Sec-Fetch-Site: same-origin", "Cookie: a=b")
            assert (answer.status, answer.body) == (200, b"page\n")
            assert "server" not in answer.fields
            assert "connection" not in answer.fields, "the client's connection stays open"
            first, *fields = console.requests[-1].split(b"\r\n")
            assert first == f"GET {target} HTTP/1.1".encode()
            assert b"host: router" in fields
            assert b"sec-fetch-site: same-origin" in fields
            assert not [field for field in fields if b"ookie" in field], "only what the console needs"
        assert client.get("/v1/lookup/absent").status == 404
    assert len(console.requests) == 3, "and lookups are the router's"


def test_a_form_is_forwarded_with_its_body(both: tuple[Server, Console]) -> None:
    server, console = both
    with server.connect() as client:
        fields = ("Content-Type: application/x-www-form-urlencoded", "Origin: http://router")
        assert client.post(b"key=a%20b", *fields, target="/datasets/a/b/lookup").body == b"page\n"
    head, _, body = console.requests[0].partition(b"\r\n\r\n")
    assert body == b"key=a%20b"
    assert b"origin: http://router" in head.split(b"\r\n")


def test_head_has_no_body(both: tuple[Server, Console]) -> None:
    server, console = both
    console.answer = PAGE.removesuffix(b"page\n")
    with server.connect() as client:
        assert client.get("/", method="HEAD").fields["content-length"] == "5"
        assert client.get("/v1/dataset").status == 200


@pytest.mark.parametrize("target", ["/v1", "/v1/", "/v1/other", "/v1x"])
def test_no_path_of_the_api_is(both: tuple[Server, Console], target: str) -> None:
    server, console = both
    with server.connect() as client:
        assert client.get(target).status == 404
        assert client.get("/", method="DELETE").status == 404
        assert client.get("/healthz").body == b"ok\n"
    assert console.requests == []


def test_without_a_console_they_are_missing() -> None:
    with serving() as server, server.connect() as client:
        assert client.get("/").status == 404


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\naa",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000 + b"\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_an_answer_that_is_none_is_unavailable(both: tuple[Server, Console], answer: bytes) -> None:
    server, console = both
    console.answer = answer
    with server.connect() as client:
        found = client.get("/")
        assert found.status == 503
        assert b"the console" in found.body
        console.answer = PAGE
        assert client.get("/").status == 200, "the connection goes on"


def test_a_console_that_is_gone_is_unavailable() -> None:
    with serving() as server, server.connect() as client:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        server.service.console = ConsoleForwarder(f"127.0.0.1:{port}")
        assert client.get("/").status == 503


def test_a_console_that_is_slow_is_given_up(both: tuple[Server, Console], monkeypatch: pytest.MonkeyPatch) -> None:
    server, console = both
    monkeypatch.setattr(exchanges, "FORWARDED_SECONDS", 0.1)
    console.go.clear()
    with server.connect() as client:
        assert client.get("/").status == 503
    eventually(lambda: console.ended == 1)


def test_who_leaves_is_forgotten(both: tuple[Server, Console]) -> None:
    server, console = both
    console.go.clear()
    with server.connect() as client:
        client.send(request("/"))
        eventually(lambda: len(console.requests) == 1)
        client.raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it breaks
    eventually(lambda: console.ended == 1)
    eventually(lambda: server.lookups.budget.used == 0)


def test_requests_wait_for_a_turn_and_lookups_of_others_do_not(both: tuple[Server, Console]) -> None:
    server, console = both
    console.go.clear()
    clients = [server.connect() for _ in range(exchanges.MAX_FORWARDED + 4)]
    for client in clients:
        client.send(request("/"))
    eventually(lambda: len(console.requests) == exchanges.MAX_FORWARDED)
    with server.connect() as other:
        assert other.get("/v1/lookup/absent").status == 404
    assert len(console.requests) == exchanges.MAX_FORWARDED
    console.go.set()
    for client in clients:
        assert client.response().status == 200
        client.close()


def test_answers_keep_the_order_of_their_requests(both: tuple[Server, Console]) -> None:
    server, _console = both
    with server.connect() as client:
        client.send(request("/v1/dataset") + request("/") + request("/v1/lookup/absent") + request("/"))
        assert [client.response().status for _ in range(4)] == [200, 200, 404, 200]
