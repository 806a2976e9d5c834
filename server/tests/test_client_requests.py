"""Headers that lookupdb.client sends: tokens, traces and deadlines."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
from support.clients import ASKS, Kind, blocking
from support.faulty_router import CLOSE, Asked, found_all, problem, scripted

from lookupdb.client import RequestRefused, Unavailable

pytest_plugins = ["support.client_fixtures"]


def test_the_request_says_what_it_must(kind: Kind, tmp_path: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with scripted() as router:
        with blocking(kind, router.url, token="the-token-of-the-web-client", traceparent=lambda: trace) as client:
            client.at("g1").get("a b/ä")
            client.get_many(["a"])
        get, post = router.asked
        assert (get.method, get.target) == ("GET", "/v1/lookup?key=a%20b%2F%C3%A4")
        assert int(get.fields.pop("lookupdb-deadline-ms")) <= 4096  # of 5 s
        assert get.fields == {
            "host": router.url.removeprefix("http://"),
            "authorization": "Bearer the-token-of-the-web-client",
            "lookupdb-generation": "g1",
            "traceparent": trace,
        }
        assert (post.method, post.target, post.body) == ("POST", "/v1/lookup", b'{"keys":["a"]}')
        assert post.fields["content-type"] == "application/json"
        with blocking(kind, f"{router.url}/people/") as client:
            client.get("key-1")
        assert router.asked[-1].target == "/people/v1/lookup/key-1"


@pytest.mark.parametrize(("timeout", "told"), [(0.5, 416), (0.05, 40), (1, 832), (5, 4096), (86_400, 589_824)])
def test_the_router_gets_less_time_than_the_caller_has_and_the_same_each_time(
    kind: Kind, timeout: float, told: int
) -> None:
    with scripted() as router, blocking(kind, router.url, timeout=timeout) as client:
        for ask in ASKS * 2:
            with contextlib.suppress(Unavailable):  # of 50 ms, on a busy machine
                ask(client)
        deadlines = [int(asked.fields["lookupdb-deadline-ms"]) for asked in router.asked]
    assert max(deadlines) == told


def test_the_router_gets_the_read_timeout_if_that_is_less(kind: Kind) -> None:
    with scripted() as router, blocking(kind, router.url, timeout=60, read_timeout=1) as client:
        for ask in ASKS:
            ask(client)
        assert [asked.fields["lookupdb-deadline-ms"] for asked in router.asked] == ["832", "832"]


@pytest.mark.parametrize("trace", ["a\r\nX: y", "ä", "", "x" * 600, None])
def test_what_is_no_trace_is_left_out(kind: Kind, trace: str | None) -> None:
    def fail() -> str | None:
        raise LookupError("no span")

    for traceparent in (lambda: trace, fail):
        with scripted() as router, blocking(kind, router.url, traceparent=traceparent) as client:
            assert client.get("a") == "a"
            assert "traceparent" not in router.asked[0].fields


def test_a_token_file_is_read_again_when_it_changes(kind: Kind, tmp_path: Path) -> None:
    """At once if the router rejects the previous token; otherwise within a second."""
    file = tmp_path / "token"
    file.write_text("token-1\n")

    def judge(_: socket.socket, asked: Asked) -> bytes:
        if asked.fields.get("authorization") != f"Bearer {accepted}":
            return problem("401 Unauthorized", "unauthenticated", "no") + (CLOSE if asked.body else b"")
        return found_all(_, asked)

    with scripted(otherwise=judge) as router, blocking(kind, router.url, token_file=file) as client:
        accepted = "token-1"
        assert client.get("a") == "a"
        accepted = "token-2"
        (tmp_path / "new").write_text(accepted)
        (tmp_path / "new").replace(file)
        assert client.get_many(["a", "b"]).found == {"a": "a", "b": "b"}
        accepted = "token-3"
        with pytest.raises(RequestRefused, match="401 unauthenticated: no") as refused:
            client.get("a")
        assert refused.value.status == 401
        assert "token-" not in str(refused.value)
