"""lookupdb.client against a router that is slow, breaks connections, or is not a router. A key without an answer is
unavailable, never missing. An incomplete answer is an error."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.callers import Gate, calling
from support.clients import ASKS, Ask, Kind, blocking
from support.faulty_router import CLOSE, RESET, Asked, answer, batch, found_all, frames, problem, scripted
from support.ports import free_port
from support.waiting import until

from lookupdb.client import Client, InvalidAnswer, RequestRefused, Unavailable, sync_transport
from lookupdb.records import FRAMES, MISSING, UNAVAILABLE

REASONS = ["NoTable", "Unreachable", "Deadline", "QueueFull", "Overloaded", "BadAnswer", "AccessUnknown", "Damaged"]
CLOSING = {"Connection": "close"}


pytest_plugins = ["support.client_fixtures"]


EACH_ASK = pytest.mark.parametrize("ask", ASKS, ids=["get", "get_many"])


@pytest.mark.parametrize("ending", [CLOSE, RESET], ids=["closed", "reset"])
@EACH_ASK
def test_a_connection_that_was_closed_while_idle_is_replaced(kind: Kind, ask: Ask, ending: bytes) -> None:
    """This costs no retry. The previous answer does not announce the end, as when a router is killed."""
    with (
        scripted(lambda _, asked: found_all(_, asked) + ending) as router,
        blocking(kind, router.url, retries=0) as client,
    ):
        assert client.get("first") == "first"
        ask(client)
        assert [asked.connection for asked in router.asked] == [1, 2]


def test_a_connection_that_a_router_closes_says_so(kind: Kind) -> None:
    with scripted(answer("a", Connection="close")) as router, blocking(kind, router.url, retries=0) as client:
        assert client.get("a") == "a"
        assert client.get("a") == "a"
        assert [asked.connection for asked in router.asked] == [1, 2]


def test_connections_are_kept(kind: Kind) -> None:
    with scripted() as router, blocking(kind, router.url) as client:
        for _ in range(5):
            client.get("a")
            client.get_many(["a", "b"])
        assert router.connections == 1


WHOLE = answer("a")
BROKEN = {
    "nothing": b"",
    "half a status": WHOLE[:9],
    "half a head": WHOLE[:40],
    "no body": WHOLE[:-3],
    "half a body": WHOLE[:-1],
    "half a chunk": WHOLE.replace(b"Content-Length: 3", b"Transfer-Encoding: chunked")[:-3] + b'3\r\n"a',
    "no last chunk": WHOLE.replace(b"Content-Length: 3", b"Transfer-Encoding: chunked")[:-3] + b'3\r\n"a"\r\n',
}


@pytest.mark.parametrize("part", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("ending", [CLOSE, RESET], ids=["closed", "reset"])
def test_a_connection_that_breaks_is_replaced_once_and_no_part_is_an_answer(
    kind: Kind, part: bytes, ending: bytes
) -> None:
    with scripted(part + ending) as router, blocking(kind, router.url) as client:
        assert client.get("a") == "a"
        assert [asked.connection for asked in router.asked] == [1, 2]
    with scripted(otherwise=part + ending) as router, blocking(kind, router.url) as client:
        with pytest.raises(Unavailable) as told:
            client.get("a")
        assert (told.value.keys, told.value.reason) == (("a",), "ConnectionLost")
        assert len(router.asked) == 2, "it never loops"
    with scripted(otherwise=part + ending) as router, blocking(kind, router.url, retries=3) as client:
        with pytest.raises(Unavailable):
            client.get_many(["a", "b"])
        assert len(router.asked) == 4


def test_an_answer_that_is_lost_after_its_effect_is_asked_for_again(kind: Kind) -> None:
    """Lookups change nothing: the second answer is as good as the first."""
    lost: list[bytes] = []

    def lose(_: socket.socket, asked: Asked) -> bytes:
        lost.append(found_all(_, asked))
        return CLOSE

    with scripted(lose) as router, blocking(kind, router.url) as client:
        assert client.get_many(["a", "b"]).found == {"a": "a", "b": "b"}
        assert (len(lost), len(router.asked)) == (1, 2)
        assert router.asked[0].body == router.asked[1].body


GARBAGE = {
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "http 0.9": b'"a"\r\n\r\n',
    "http 2": b"HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no length": WHOLE.replace(b"Content-Length: 3\r\n", b""),
    "two lengths": WHOLE.replace(b"Content-Length: 3", b"Content-Length: 3\r\nContent-Length: 3"),
    "other length": WHOLE.replace(b"Content-Length: 3", b"Content-Length: 2"),
    "negative length": WHOLE.replace(b"Content-Length: 3", b"Content-Length: -3"),
    "length and chunks": WHOLE.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"),
    "two generations": WHOLE.replace(b"Lookupdb-Generation: g1", b"Lookupdb-Generation: g1\r\nlookupdb-generation: g2"),
    "no generation": answer("a", generation=None),
    "odd generation": answer("a", generation="latest"),
    "compressed": answer("a", Content_Encoding="gzip"),
    "folded": WHOLE.replace(b"Date: ", b"Date:\r\n "),
    "a bare line feed": WHOLE.replace(b"Date: ", b"Date: x\nContent-Length: 3\nX: "),
    "too large": WHOLE.replace(b"Content-Length: 3", b"Content-Length: 999999999999"),
    "endless head": WHOLE.replace(b"Date: ", b"X: " + b"x" * 40_000 + b"\r\nDate: "),
    "no json": answer(b"{"),
    "two jsons": answer(b'"a" "b"'),
    "not a number": answer(b"NaN"),
    "a page": answer(b"<html>", kind="text/html"),
    "no body": answer(b""),
    "a redirect": answer("a", status="302 Found", Location="http://127.0.0.1:1/"),
    "not found by a proxy": answer(b"404", status="404 Not Found", generation=None, kind="text/plain"),
    "not found by a file server": answer(b"404", status="404 Not Found", kind="text/plain"),
    "missing without a generation": problem("404 Not Found", "missing"),
    "no content": b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
    "upgraded": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
}


@pytest.mark.parametrize("told", GARBAGE.values(), ids=GARBAGE)
def test_what_no_router_answers_is_an_error_and_the_connection_is_left(kind: Kind, told: bytes) -> None:
    with scripted(told) as router, blocking(kind, router.url) as client:
        with pytest.raises((InvalidAnswer, RequestRefused)):
            client.get("a")
        assert client.get("a") == "a"
        assert len(router.asked) == 2, "it was not asked again"


BAD_BATCHES = {
    "a key is left out": batch({"a": 1}),
    "a key more": batch({"a": 1, "b": 2, "c": 3}),
    "another key": batch({"a": 1, "c": 2}),
    "found and missing": batch({"a": 1, "b": 2}, ["b"]),
    "missing twice": batch({}, ["a", "a"]),
    "missing what is not text": batch({"a": 1}, [["b"]]),  # type: ignore[list-item]
    "no object": answer([1, 2], value_format="json"),
    "nothing found": answer({"generation": "g1", "missing": []}, value_format="json"),
    "no value format": answer({"generation": "g1", "found": {"a": "YQ==", "b": "Yg=="}, "missing": []}),
    "unknown value format": answer({"generation": "g1", "found": {"a": 1, "b": 2}, "missing": []}, value_format="xml"),
    "no base64": answer({"generation": "g1", "found": {"a": "YQ==", "b": "Y"}, "missing": []}, value_format="raw"),
    "no text for bytes": answer({"generation": "g1", "found": {"a": 1, "b": 2}, "missing": []}, value_format="raw"),
    "two generations": batch({"a": 1, "b": 2}).replace(b'"generation":"g1"', b'"generation":"g2"'),
    "unavailable, of which nobody asked to be told": batch({"a": 1}, [], ["b"]),
    "a page": answer(b"<html>", kind="text/html", value_format="json"),
    "frames of another batch": frames({"a": b"1", "c": b"2"}),
    "frames in another order": frames({"b": b"1", "a": b"2"}),
    "frames that go on": frames({"a": b"1", "b": b"2"}, more=b"3"),
    "frames without a value format": frames({"a": b"1", "b": b"2"}, value_format=None),
    "frames of JSON that is none": frames({"a": b"1", "b": b"{"}, value_format="json"),
    "frames with a key unavailable, of which nobody asked to be told": frames({"a": b"1", "b": UNAVAILABLE}),
}


@pytest.mark.parametrize("told", BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_a_batch_speaks_of_each_key_once_or_is_an_error(kind: Kind, told: bytes) -> None:
    with scripted(told) as router, blocking(kind, router.url) as client, pytest.raises(InvalidAnswer):
        client.get_many(["a", "b"])


def test_frames_are_asked_for_and_have_values_of_both_formats(kind: Kind) -> None:
    """Accept also names JSON, for a router that does not know frames."""
    told = (
        frames({"a": b"1", "b": MISSING, "c": UNAVAILABLE}),
        frames({"a": b'{"x":1}', "b": b"[]"}, value_format="json"),
    )
    with scripted(*told) as router, blocking(kind, router.url) as client:
        results = client.get_many(["a", "b", "c"], partial=True)
        assert (results.found, results.missing, results.unavailable) == ({"a": b"1"}, ["b"], ["c"])
        assert client.get_many(["a", "b"]).found == {"a": {"x": 1}, "b": []}
        assert {asked.fields["accept"] for asked in router.asked} == {f"application/json, {FRAMES}"}


@pytest.mark.parametrize("reason", REASONS)
@EACH_ASK
def test_what_the_router_cannot_tell_is_unavailable(kind: Kind, ask: Ask, reason: str) -> None:
    told = problem("503 Service Unavailable", "unavailable", "it is down", reason=reason, shard=3, Retry=1)
    with scripted(otherwise=told) as router, blocking(kind, router.url) as client:
        with pytest.raises(Unavailable, match=rf"unavailable now: 'a'.*\({reason}\): it is down") as unavailable:
            ask(client)
        error = unavailable.value
        assert (error.reason, error.detail, error.shard, error.keys[0]) == (reason, "it is down", 3, "a")
        assert len(router.asked) == 1, "the router has tried already"
        assert router.connections == 1


@pytest.mark.parametrize("status", ["500 Internal Server Error", "502 Bad Gateway", "504 Gateway Timeout"])
@EACH_ASK
def test_a_proxy_that_reaches_no_router_makes_keys_unavailable(kind: Kind, ask: Ask, status: str) -> None:
    told = answer(b"<html>", status=status, generation=None, kind="text/html")
    with scripted(told) as router, blocking(kind, router.url) as client, pytest.raises(Unavailable) as unavailable:
        ask(client)
    assert unavailable.value.reason == f"Status{status[:3]}"


@pytest.mark.parametrize(
    "told",
    [
        problem("503 Service Unavailable", "too-many-connections") + CLOSE,
        problem("408 Request Timeout", "request-timeout") + CLOSE,
    ],
    ids=["too many connections", "timeout"],
)
@EACH_ASK
def test_what_is_of_the_connection_is_asked_again_on_another(kind: Kind, ask: Ask, told: bytes) -> None:
    with scripted(told) as router, blocking(kind, router.url) as client:
        ask(client)
        assert [asked.connection for asked in router.asked] == [1, 2]
    with scripted(otherwise=told) as router, blocking(kind, router.url) as client:
        with pytest.raises(Unavailable) as unavailable:
            ask(client)
        assert unavailable.value.reason == "TooManyConnections"
        assert len(router.asked) == 2


@pytest.mark.parametrize(
    ("status", "name"),
    [
        ("400 Bad Request", "invalid-target"),
        ("403 Forbidden", "forbidden"),
        ("404 Not Found", "no-such-resource"),
        ("406 Not Acceptable", "not-acceptable"),
        ("413 Content Too Large", "answer-too-large"),
    ],
)
def test_a_refusal_is_reported_and_not_repeated(kind: Kind, status: str, name: str) -> None:
    with scripted(otherwise=problem(status, name)) as router, blocking(kind, router.url) as client:
        with pytest.raises(RequestRefused, match=f"answered {status[:3]} {name}: because") as refused:
            client.get("a")
        assert (refused.value.status, refused.value.problem) == (int(status[:3]), name)
        assert len(router.asked) == 1


def test_no_router_at_all_is_unavailable(kind: Kind) -> None:
    with blocking(kind, f"http://127.0.0.1:{free_port()}") as client:
        for ask in ASKS:
            with pytest.raises(Unavailable, match="refuses connections: nothing listens there, or not yet") as told:
                ask(client)
            assert told.value.reason == "RouterUnreachable"
    with blocking(kind, "http://no-such-host.invalid") as client, pytest.raises(Unavailable, match="does not resolve"):
        client.get("a")


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """A host that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@EACH_ASK
def test_a_call_ends_with_its_timeout(kind: Kind, ask: Ask) -> None:
    with silent() as url, blocking(kind, url, timeout=0.3, retries=5) as client:
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"longer than its timeout of 0.3 s") as told:
            ask(client)
        assert 0.29 <= time.monotonic() - began < 5
        assert told.value.reason == "Deadline"


@pytest.mark.parametrize(
    ("timeout", "connect_timeout", "reason", "detail"),
    [
        (0.3, 30, "Deadline", "longer than its timeout of 0.3 s"),
        (30, 0.3, "RouterUnreachable", "did not let us connect in time"),
    ],
)
def test_a_caller_that_cannot_connect_in_time_learns_whose_time_is_over(
    kind: Kind, timeout: float, connect_timeout: float, reason: str, detail: str
) -> None:
    """The timeout of the call or that of connecting: the host accepts connections and never answers the TLS hello."""
    with silent() as url:
        options = {"timeout": timeout, "connect_timeout": connect_timeout, "retries": 0}
        with blocking(kind, url.replace("http:", "https:"), **options) as client:
            began = time.monotonic()
            with pytest.raises(Unavailable, match=detail) as told:
                client.get("a")
            assert 0.29 <= time.monotonic() - began < 5
            assert told.value.reason == reason


class Large:
    """A large result that a caller keeps."""


def assert_forgotten(client: Client) -> None:
    """The traceback of a kept error would hold the caller's frame, and all that it refers to."""

    def ask() -> weakref.ref[Large]:
        large = Large()
        with contextlib.suppress(Unavailable, KeyboardInterrupt):
            client.get("a")
        return weakref.ref(large)

    gc.disable()
    try:
        assert ask()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("retries", [0, 2])
def test_who_cannot_connect_leaves_nothing_behind_for_the_garbage_collector(retries: int) -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retries=retries, timeout=5) as client:
        assert_forgotten(client)


@pytest.mark.parametrize("second", ["answers", "is silent", "is interrupted"])
def test_nor_does_who_connects_to_the_second_address(monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    found = socket.getaddrinfo("127.0.0.1", free_port(), type=socket.SOCK_STREAM)
    with scripted() as router, silent() as nobody:
        to = urlsplit(nobody if second == "is silent" else router.url).port
        found += socket.getaddrinfo("127.0.0.1", to, type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        if second == "is interrupted":
            monkeypatch.setattr(sync_transport, "_open", interrupted_at(2, sync_transport._open))
        with Client("http://router:80", retries=0, timeout=0.5) as client:
            assert_forgotten(client)


def test_nor_does_who_is_answered_by_the_second_try() -> None:
    with scripted(CLOSE) as router, Client(router.url) as client:
        assert_forgotten(client)
        assert len(router.asked) == 2


def interrupted_at(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, with Ctrl-C instead of its call of that number."""
    calls = iter(range(1, number + 1))

    def call(*arguments: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments)

    return call


def test_an_answer_that_trickles_ends_with_the_timeout_too(kind: Kind) -> None:
    def trickle(connection: socket.socket, _: Asked) -> bytes:
        with contextlib.suppress(OSError):
            for byte in WHOLE * 3:
                connection.sendall(bytes((byte,)))
                time.sleep(0.02)
        return CLOSE

    with scripted(otherwise=trickle) as router, blocking(kind, router.url, timeout=0.4) as client:
        began = time.monotonic()
        with pytest.raises(Unavailable) as told:
            client.get("a")
        assert time.monotonic() - began < 3
        assert told.value.reason == "Deadline"


def test_a_router_that_hangs_is_left_for_another_connection(kind: Kind) -> None:
    released = threading.Event()

    def hang(_: socket.socket, asked: Asked) -> bytes:
        released.wait(30)
        return CLOSE

    with scripted(hang) as router, blocking(kind, router.url, timeout=20, read_timeout=0.2) as client:
        began = time.monotonic()
        assert client.get("a") == "a"
        assert time.monotonic() - began < 10
        assert [asked.connection for asked in router.asked] == [1, 2]
        released.set()


def test_looks_at_an_answer_end_with_it(kind: Kind) -> None:
    """A timer left behind would end a later request at an earlier one's deadline."""

    def trickle(connection: socket.socket, asked: Asked) -> bytes:
        told = found_all(connection, asked)
        for _ in range(2):
            time.sleep(0.2)
            connection.sendall(told[:5])
            told = told[5:]
        return told

    with scripted(otherwise=trickle) as router, blocking(kind, router.url, timeout=2.0, read_timeout=0.8) as client:
        for number in range(8):
            assert client.get(f"key-{number}") == f"key-{number}"


def test_an_answer_in_pieces_and_in_chunks_is_whole(kind: Kind) -> None:
    text = b'{"name":"Kennedy"}'
    chunks = b"".join(
        b"%x;x=y\r\n%b\r\n" % (len(text[at : at + 5]), text[at : at + 5]) for at in range(0, len(text), 5)
    )
    whole = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(text).replace(
        b"Content-Length: %d" % len(text), b"Transfer-Encoding: chunked"
    ).replace(text, chunks + b"0\r\nX-Trailer: y\r\n\r\n")

    def in_pieces(connection: socket.socket, _: Asked) -> bytes:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in whole:
            connection.sendall(bytes((byte,)))
        return b""

    with scripted(otherwise=in_pieces) as router, blocking(kind, router.url) as client:
        assert [client.get("a"), client.get("a")] == [{"name": "Kennedy"}] * 2
        assert router.connections == 1


def test_a_large_answer_comes_whole(kind: Kind) -> None:
    large = {"a": "x" * 5_000_000, "b": ["y" * 100] * 10_000}
    with scripted(batch(dict(large))) as router, blocking(kind, router.url) as client:
        assert client.get_many(["a", "b"]).found == large


def test_no_connection_is_free_until_the_timeout(kind: Kind) -> None:
    gate = Gate()
    with scripted(gate) as router, calling(kind, router.url, max_connections=1, timeout=20) as client:
        holder = client.start("get_many", ["a"])
        until(lambda: router.asked, "it holds the connection")
        core = client.client._link.core
        core.settings = core.settings._replace(timeout=0.2)
        with pytest.raises(Unavailable, match="all 1 connections were in use until the timeout") as told:
            client.get_many(["b"])
        assert told.value.reason == "NoConnectionFree"
        core.settings = core.settings._replace(timeout=20)
        gate.opened.set()
        assert holder.result(60).found == {"a": "a"}
        assert client.get("c") == "c"
        assert router.connections == 1


def test_a_client_closes_its_connections(kind: Kind) -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(WHOLE)
                if not connection.recv(1):
                    ended.set()

        thread = threading.Thread(target=serve)
        thread.start()
        with blocking(kind, f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            client.get("a")
        thread.join(30)
        assert ended.is_set()
