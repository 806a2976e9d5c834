"""Requests to this machine bypass the environment's proxies; requests to others do not."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from support.web import QuietHandler, web_server

from lookupdb.builder import listing
from lookupdb.network import is_loopback, proxy_handlers, proxy_options

CONTENT = b"email,title\nada@example.com,Countess\n"


class Plain(QuietHandler):
    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)


class Chunked(QuietHandler):
    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(CONTENT), CONTENT))


class Proxy(QuietHandler):
    asked: list[str] = []

    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        self.asked.append(self.path)
        self.send_error(502)

    do_CONNECT = do_GET  # noqa: N815 - as http.server calls it


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> object:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    Proxy.asked.clear()
    return monkeypatch


@pytest.mark.parametrize("handler", [Plain, Chunked])
@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_a_source_on_this_machine_is_read_directly(
    proxied: pytest.MonkeyPatch, handler: type[QuietHandler], variable: str, tmp_path: Path
) -> None:
    with web_server(Proxy) as proxy, web_server(handler) as server:
        proxied.setenv(variable, proxy)
        (file,) = listing.find_files(f"{server}/people.csv", base=tmp_path, volume=None)
        assert not isinstance(file.place, Path)
        assert b"".join(bytes(chunk) for chunk in file.place.open(file.description)) == CONTENT
    assert Proxy.asked == []


def test_another_host_is_asked_as_the_environment_says(proxied: pytest.MonkeyPatch) -> None:
    proxied.setenv("http_proxy", "http://192.0.2.1:3128")
    proxied.setenv("no_proxy", "intern.example")
    assert proxy_options("http://192.0.2.7/x") == {}
    assert proxy_handlers("http://192.0.2.7/x") == []
    to_this = {"proxy_url": "http://192.0.2.1:3128", "proxy_excludes": "127.0.0.1,intern.example"}
    assert proxy_options("http://127.0.0.1:80/x") == to_this, "a redirect to another host finds the proxy"
    assert [type(handler) for handler in proxy_handlers("http://127.0.0.1/")] == [urllib.request.ProxyHandler]


def test_without_a_proxy_nothing_is_said_of_one(proxied: pytest.MonkeyPatch) -> None:
    assert proxy_options("http://127.0.0.1/x") == {}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1/x", True),
        ("http://127.9.9.9:80", True),
        ("http://[::1]:80", True),
        ("http://localhost/x", True),
        ("http://a.localhost", True),
        ("http://localhost.example", False),
        ("http://128.0.0.1", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_which_urls_are_of_this_machine(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected
